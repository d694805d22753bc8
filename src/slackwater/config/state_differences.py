"""Differences between a state and a config, their verdicts, and what they mean for the next start.

compatible   the state is not changed: the next start continues with the new config
migrated     the next start rewrites the state, in a separate epoch (`evolution.state_migration`)
rebuild      the state lacks what the new config needs: only a start from scratch (`run --rebuild`) works
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.config.message_format import format_config_duration
from slackwater.errors import StateError, Topic

COMPATIBLE, MIGRATED, REBUILD = "compatible", "migrated", "rebuild"


@dataclass(frozen=True)
class KeyChange:
    """One difference. `before` and `after`: the value in the state and in the config; None if there is no value.

    `how`: what a start does with the state, or why it cannot use it. `level`: the log level of a start's message.
    `location`: where the new value is, for messages.
    """

    key: str
    before: Any
    after: Any
    verdict: str
    how: str
    level: str = "info"
    location: str = "config"

    @property
    def name(self) -> str:
        """Return the user-facing name of what changed; for a duration, the key that takes a unit, such as `gap`."""
        return self.key.removesuffix("_ms")

    @property
    def line(self) -> str:
        """Return the change in one line, without its verdict."""
        return f"{self.name}: state has {format_key_value(self.key, self.before)}, {self.location} has {format_key_value(self.key, self.after)}: {self.how}"


@dataclass(frozen=True)
class StateComparison:
    """All differences between a state and a config. `kind`: what the state is for, such as a "window" or a "join".

    `waits`: why the start must be postponed. `unknown`: what could not be compared, one line each.
    """

    pipeline: str
    epoch: int
    kind: str
    changes: tuple[KeyChange, ...]
    waits: str | None = None
    unknown: tuple[str, ...] = ()

    def with_verdict(self, verdict: str) -> list[KeyChange]:
        """Return the changes with this verdict."""
        return [c for c in self.changes if c.verdict == verdict]

    @property
    def migrates(self) -> bool:
        """Return whether the next start rewrites the state."""
        return bool(self.with_verdict(MIGRATED))

    @property
    def startable(self) -> bool:
        return not self.with_verdict(REBUILD) and self.waits is None

    @property
    def sum(self) -> str:
        """Describe in one line what happens to the state."""
        state, count = f"state in epoch {self.epoch}", len(self.changes)
        if reasons := self.with_verdict(REBUILD):
            return f"{state} needs a rebuild because of {', '.join(c.name for c in reasons)}: slackwater run FILE --rebuild"
        if self.waits is not None:
            return f"{state}: {self.waits}"
        if not count:
            return f"{state}: nothing changed"
        migrated = len(self.with_verdict(MIGRATED))
        how = f"{migrated} of them migrated in a separate epoch" if migrated else "all compatible"
        if count == 1:
            how = "migrated in a separate epoch" if migrated else "compatible"
        return f"{state}: {count} change{'s' if count > 1 else ''}, {how}: the next start applies {'them' if count > 1 else 'it'}"

    def check(self) -> None:
        """Raise StateError if the state cannot be used with this config."""
        reasons = self.with_verdict(REBUILD)
        if reasons:
            raise StateError(
                f"{self.pipeline}: the state in epoch {self.epoch} was written for another {self.kind} "
                f"({'; '.join(c.line for c in reasons)}); change the config back, or start over with: slackwater run FILE --rebuild",
                Topic.STATE_OF_OTHER_CONFIG,
            )


def format_key_value(key: str, value: Any) -> str:
    """Format a value as users write it."""
    if value is None:
        return "none"
    if key.endswith("_ms") and isinstance(value, int) and not isinstance(value, bool):
        return format_config_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
