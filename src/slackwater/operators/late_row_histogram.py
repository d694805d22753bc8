"""How much more lateness would have kept the late rows of a shard, see `core.lateness`.

Of tumbling and hopping windows and of joins it is exact. A row of a session is never late at or after the horizon; one
before it may join an open session, or not, so what is counted is no less than what it needs.
"""

from __future__ import annotations

from functools import singledispatch

import polars as pl

from slackwater.core import lateness_histogram
from slackwater.core.dispatch import unregistered
from slackwater.joins.logic import JoinLogic
from slackwater.windows.intervals import SessionLogic
from slackwater.windows.logic import WindowLogic
from slackwater.windows.panes import PaneLogic, last_window


def late_by(logic: WindowLogic | JoinLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    """Late rows by step: of windows `__start` (time of the row, or start of its pane, then with `__n`), of a join `__ts`."""
    return _late_by(logic, late, watermark) if late.height else {}


@singledispatch
def _late_by(logic: WindowLogic | JoinLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    unregistered(logic, "slackwater.operators.late_row_histogram.late_by")


@_late_by.register
def _(logic: JoinLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    return lateness_histogram.lateness_histogram(watermark - logic.allowed_us - late["__ts"].to_numpy())


@_late_by.register
def _(logic: SessionLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    horizon, start = logic.horizon(watermark), late["__start"].to_numpy()
    if _was_forgotten(logic, watermark) or logic.rows_from_us > int(start.min()):
        return {lateness_histogram.NEVER: late.height}
    return lateness_histogram.lateness_histogram(horizon - start)


@_late_by.register
def _(logic: PaneLogic, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    """A pane's rows are late once its last window is gone."""
    start, rows = late["__start"].to_numpy(), late["__n"].to_numpy()
    if _was_forgotten(logic, watermark):
        return {lateness_histogram.NEVER: int(rows.sum())}
    return lateness_histogram.lateness_histogram(
        logic.horizon(watermark) - last_window(logic, start) - logic.duration_us + 1, rows
    )


def _was_forgotten(logic: WindowLogic, watermark: int) -> bool:
    """Whether a former config has forgotten what this one would still know."""
    return logic.horizon(watermark) > watermark - logic.retain_us
