"""A stage without state: what its SQL makes of each row goes on. It has no table of its own in a config, only `sql`."""

from __future__ import annotations

from typing import ClassVar

from slackwater.config.step_spec import StepSpec, StepSummary

_FOREVER_MS = 20_000 * 366 * 86_400_000  # longer than from any time to any other that a row may have


class StatelessStep(StepSpec):
    """Rows as the SQL lets them out, one by one. Nothing waits for a time, so no time of a row is too far ahead.

    Event time is `_event_ts` where the source brings it, else the epoch's clock; it moves the watermark and nothing else.
    """

    kind: str = "rows"
    max_future_ms: int = _FOREVER_MS

    CONFIG_PATH: ClassVar[str] = "transform.sql"

    def summary(self) -> StepSummary:
        return StepSummary("SQL", "what the SQL selects, in the epoch that reads it", "none but offsets")


ROWS = StatelessStep()
