"""The stateless stage: it emits the output of its SQL for each row. In a config it has no table, only `sql`."""

from __future__ import annotations

from typing import ClassVar

from slackwater.config.key import Milliseconds, declare_attribute
from slackwater.config.step_base import StepBase, StepSummary

_FOREVER_MS = 20_000 * 366 * 86_400_000  # longer than the distance between any two times of rows


class StatelessStep(StepBase):
    """A step that emits what the SQL selects for each row, in the epoch that reads the row.

    Nothing waits for the watermark, so no event time is rejected as too far in the future. The event time is
    `_event_ts` if the source provides it, otherwise the time of the epoch. It is used only to advance the watermark.
    """

    kind: str = declare_attribute(default="rows")
    max_future_ms: Milliseconds[int] = declare_attribute(default=_FOREVER_MS)

    CONFIG_PATH: ClassVar[str] = "transform.sql"

    def summary(self) -> StepSummary:
        return StepSummary("SQL", "what the SQL selects, in the epoch that reads it", "none but offsets")


ROWS = StatelessStep()
