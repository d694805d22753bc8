"""A difference between a state and a config, with its verdict, and what all of them together mean for the next start.

compatible   the state stays as it is: the next start goes on by the new config
migrated     the next start writes the state anew, in an epoch of its own (`evolution.migrate`)
rebuild      what is needed was not kept: only a start from scratch (`run --rebuild`) has it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.config.message_format import show_duration
from slackwater.errors import StateError

COMPATIBLE, MIGRATED, REBUILD = "compatible", "migrated", "rebuild"


@dataclass(frozen=True)
class KeyChange:
    """One difference. `before`, `after`: of the state and of the config; None for nothing. `how`: what a start does, or why not.

    `level`: how a start tells it. `place`: where it is `after`, for people.
    """

    what: str
    before: Any
    after: Any
    verdict: str
    how: str
    level: str = "info"
    place: str = "config"

    @property
    def name(self) -> str:
        """What it is about, for people: a key of a duration by the name that takes a text with its unit, as `gap`."""
        return self.what.removesuffix("_ms")

    @property
    def line(self) -> str:
        """The change in one line, without its verdict."""
        return f"{self.name}: state has {format_key_value(self.what, self.before)}, {self.place} has {format_key_value(self.what, self.after)}: {self.how}"


@dataclass(frozen=True)
class ConfigComparison:
    """All differences between a state and a config; `kind`: "window", "join", "stage", …. `waits`: why the start must be put off.

    `unknown`: what could not be compared, a line each.
    """

    pipeline: str
    epoch: int
    kind: str
    changes: tuple[KeyChange, ...]
    waits: str | None = None
    unknown: tuple[str, ...] = ()

    def of(self, verdict: str) -> list[KeyChange]:
        return [c for c in self.changes if c.verdict == verdict]

    @property
    def migrates(self) -> bool:
        """Whether the next start writes the state anew."""
        return bool(self.of(MIGRATED))

    @property
    def startable(self) -> bool:
        return not self.of(REBUILD) and self.waits is None

    @property
    def sum(self) -> str:
        """What becomes of it, in one line."""
        state, count = f"state in epoch {self.epoch}", len(self.changes)
        if reasons := self.of(REBUILD):
            return f"{state} needs a rebuild because of {', '.join(c.name for c in reasons)}: slackwater run FILE --rebuild"
        if self.waits is not None:
            return f"{state}: {self.waits}"
        if not count:
            return f"{state}: nothing changed"
        migrated = len(self.of(MIGRATED))
        how = f"{migrated} of them migrated in an epoch of its own" if migrated else "all compatible"
        if count == 1:
            how = "migrated in an epoch of its own" if migrated else "compatible"
        return f"{state}: {count} change{'s' if count > 1 else ''}, {how}: the next start carries {'them' if count > 1 else 'it'} out"

    def check(self) -> None:
        """Raise StateError if the state cannot go on by this config."""
        reasons = self.of(REBUILD)
        if reasons:
            raise StateError(
                f"{self.pipeline}: the state in epoch {self.epoch} was written for another {self.kind} "
                f"({'; '.join(c.line for c in reasons)}); change the config back, or start over with: slackwater run FILE --rebuild"
            )


def format_key_value(key: str, value: Any) -> str:
    """A value as people write it."""
    if value is None:
        return "none"
    if key.endswith("_ms") and isinstance(value, int) and not isinstance(value, bool):
        return show_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
