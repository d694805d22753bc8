"""The dedup step: one row per key out of all rows that are close together in event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from slackwater.config.keyed_step import LATE_ROWS, KeyedStep
from slackwater.config.step_base import StepSummary
from slackwater.config.value_parsers import Duration, ValueParser, choice_parser, duration_parser
from slackwater.core.humanize import format_ms, plural


class Dedup(KeyedStep):
    """Emits one row of each key and drops its duplicates, which are counted.

    `keep="first"` emits a row when it is read, and drops other rows of its key that are less than `within` away.
    `keep="last"` emits the last row by event time, once `within` has passed without another row of its key.
    """

    kind: str = "dedup"
    keep: str = "first"
    within_ms: int

    if TYPE_CHECKING:  # accepted types of arguments; the attributes hold the parsed values

        def __init__(
            self,
            *,
            keys: Sequence[str],
            keep: str = "first",
            within_ms: Duration | None = None,
            within: str | None = None,
            event_time_column: str = "_event_ts",
            event_time_unit: str | None = None,
            event_time_zone: str | None = None,
            time_mode: str = "event",
            lateness_ms: Duration = 0,
            lateness: str | None = None,
            source_idleness_ms: Duration = 60_000,
            source_idleness: str | None = None,
            idle_close_ms: Duration | None = None,
            idle_close: str | None = None,
            max_future_ms: Duration = 3_600_000,
            max_future: str | None = None,
            max_jump_ms: Duration | None = None,
            max_jump: str | None = None,
            late_data: str = "drop",
            crash_recovery: str | None = None,
        ) -> None: ...

    CONFIG_PATH: ClassVar[str] = "transform.dedup"
    PARSERS: ClassVar[Mapping[str, ValueParser]] = {
        **KeyedStep.PARSERS,
        "keep": choice_parser("first", "last"),
        "within_ms": duration_parser(1),
        "late_data": LATE_ROWS,
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("keys", "within_ms")
    STATE_KEYS: ClassVar[tuple[str, ...]] = ("keys", "keep")
    TEXTS: ClassVar[Mapping[str, str]] = {
        **KeyedStep.TEXTS,
        "keep": "Which row of a key is emitted: the first, when it is read, or the last, once `within` has passed after it.",
        "within_ms": "How close in event time rows of one key must be to count as duplicates.",
    }
    DOC_LINK: ClassVar[str] = "docs/configuration.md#dedup"

    @property
    def watermark_delay_ms(self) -> int:
        """How far (ms) behind its watermark the step may still emit: the last row waits for `within`."""
        return self.within_ms if self.keep == "last" else 0

    @classmethod
    def missing_hint(cls, key: str) -> str:
        return 'give a duration, as in "10m"' if key == "within_ms" else super().missing_hint(key)

    def summary(self) -> StepSummary:
        title = f"deduplicate by {plural(len(self.keys), 'key')}, keep the {self.keep} row within {format_ms(self.within_ms)}"
        if self.keep == "first":
            behavior = f"the first row of a key, when it is read; its duplicates within {format_ms(self.within_ms)} are dropped"
            return StepSummary(title, behavior, f"a key and a time per emitted row, for {format_ms(self.within_ms)}")
        behavior = f"the last row of a key, once {format_ms(self.within_ms)} have passed without another row of it"
        return StepSummary(title, behavior, f"the last row per key, until {format_ms(self.within_ms)} after it")
