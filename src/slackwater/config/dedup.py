"""The spec of the dedup step, which emits only one of several rows that share a key and are close in event time."""

from __future__ import annotations

from typing import ClassVar

from slackwater.config.config_key import Milliseconds, WithUnit, declare_attribute, declare_key, declare_with_unit
from slackwater.config.step_base import LATE_ROWS, LATE_ROWS_TEXT, KeyedStep, StepSummary
from slackwater.config.value_parsers import choice_parser, duration_parser
from slackwater.core.humanize import format_ms, plural


class Dedup(KeyedStep):
    """Removes duplicates: of the rows with the same key and nearby event times, it emits only one.

    The other rows are dropped and counted. `keep="first"` emits a row when it is read, and drops rows of the same key
    whose event times are less than `within` before or after it. `keep="last"` emits the last row by event time, once
    the watermark has passed that row by `within` and no further row of its key has followed in that time.
    """

    keep: str = declare_key(
        choice_parser("first", "last"),
        "Which row of a key is emitted: the first, when it is read, or the last, after `within` has passed.",
        default="first",
    )
    within_ms: Milliseconds[int] = declare_key(
        duration_parser(1),
        "Rows of the same key are duplicates if their event times differ by less than this.",
        default=None,
        required='give a duration, as in "10m"',
    )
    within: WithUnit = declare_with_unit(default=None)
    late_data: str = declare_key(LATE_ROWS, LATE_ROWS_TEXT, default="drop")
    kind: str = declare_attribute(default="dedup")

    CONFIG_PATH: ClassVar[str] = "transform.dedup"
    STATE_KEYS: ClassVar[tuple[str, ...]] = ("keys", "keep")
    DOC_LINK: ClassVar[str] = "docs/configuration.md#dedup"

    @property
    def watermark_delay_ms(self) -> int:
        """The maximum time (ms) by which the event time of a result may be behind the watermark."""
        return self.within_ms if self.keep == "last" else 0

    def summary(self) -> StepSummary:
        title = f"deduplicate by {plural(len(self.keys), 'key')}, keep the {self.keep} row within {format_ms(self.within_ms)}"
        if self.keep == "first":
            behavior = (
                f"the first row of a key, when it is read, but not its duplicates within {format_ms(self.within_ms)}"
            )
            return StepSummary(title, behavior, f"a key and a time per emitted row, for {format_ms(self.within_ms)}")
        behavior = f"the last row of a key, once {format_ms(self.within_ms)} have passed without another row of it"
        return StepSummary(title, behavior, f"the last row per key, until {format_ms(self.within_ms)} after it")
