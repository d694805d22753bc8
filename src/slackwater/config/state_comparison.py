"""Differences between a state and a config, each with a verdict about the next start.

compatible   the next start continues with the unchanged state
migrated     the next start rewrites the state in a separate epoch (`evolution.state_migration`)
rebuild      the state cannot be used: the pipeline must start from scratch (`run --rebuild`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.config.error_text import format_config_duration
from slackwater.errors import StateError, Topic

COMPATIBLE, MIGRATED, REBUILD = "compatible", "migrated", "rebuild"


@dataclass(frozen=True)
class KeyChange:
    """Difference between a state and a config.

    Args:
        key: The config key that differs.
        before: The value in the state; None if it has none.
        after: The value in the config; None if it has none.
        verdict: COMPATIBLE, MIGRATED or REBUILD.
        how: What the next start does with the state, or why the state cannot be used.
        level: The log level of the message about the change.
        location: Where the new value is defined, such as "config" or "the table", for messages.
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
        """The name of the key, for messages. For a duration, it is the key that takes a unit, such as `gap`."""
        return self.key.removesuffix("_ms")

    @property
    def line(self) -> str:
        """A line that describes the change, without the verdict."""
        return f"{self.name}: state has {format_key_value(self.key, self.before)}, {self.location} has {format_key_value(self.key, self.after)}: {self.how}"


@dataclass(frozen=True)
class StateComparison:
    """All differences between a state and a config.

    Args:
        pipeline: The name of the pipeline.
        epoch: The epoch of the state.
        kind: The kind of step to which the state belongs, such as "window" or "join".
        changes: The differences.
        waits: Why the next start must be postponed; None if it can proceed.
        unknown: Comparisons that were not possible, one line each.
    """

    pipeline: str
    epoch: int
    kind: str
    changes: tuple[KeyChange, ...]
    waits: str | None = None
    unknown: tuple[str, ...] = ()

    def with_verdict(self, verdict: str) -> list[KeyChange]:
        """Return the changes that have this verdict."""
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
        """A line that describes what the next start does with the state."""
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
        """Raise StateError if a change has the verdict REBUILD."""
        reasons = self.with_verdict(REBUILD)
        if reasons:
            raise StateError(
                f"{self.pipeline}: the state in epoch {self.epoch} was written for another {self.kind} "
                f"({'; '.join(c.line for c in reasons)}); change the config back, or start over with: slackwater run FILE --rebuild",
                Topic.STATE_OF_OTHER_CONFIG,
            )


def format_key_value(key: str, value: Any) -> str:
    """Format the value of a key as in a config. A key that ends with `_ms` is a duration."""
    if value is None:
        return "none"
    if key.endswith("_ms") and isinstance(value, int) and not isinstance(value, bool):
        return format_config_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
