"""How much more lateness would have kept the late rows of a shard, see `core.lateness`.

Of tumbling and hopping windows and of joins it is exact. A row of a session is never late at or after the horizon; one
before it may join an open session, or not, so what is counted is no less than what it needs.
"""

from __future__ import annotations

import polars as pl

from slackwater.core import lateness
from slackwater.joins.logic import JoinLogic
from slackwater.windows.intervals import SessionLogic
from slackwater.windows.logic import Logic
from slackwater.windows.panes import PaneLogic, last_window


def late_by(logic: Logic | JoinLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    """Late rows by step: of windows `__start` (time of the row, or start of its pane, then with `__n`), of a join `__ts`."""
    if late.is_empty():
        return {}
    if isinstance(logic, JoinLogic):
        return lateness.counted(watermark - logic.allowed_us - late["__ts"].to_numpy())
    horizon, start = logic.horizon(watermark), late["__start"].to_numpy()
    if horizon > watermark - logic.retain_us or (
        isinstance(logic, SessionLogic) and logic.rows_from_us > int(start.min())
    ):
        return {
            lateness.NEVER: int(late["__n"].sum()) if "__n" in late.columns else late.height
        }  # a former config forgot it
    if not isinstance(logic, PaneLogic):
        return lateness.counted(horizon - start)
    # a pane's rows are late once its last window is gone
    return lateness.counted(horizon - last_window(logic, start) - logic.duration_us + 1, late["__n"].to_numpy())
