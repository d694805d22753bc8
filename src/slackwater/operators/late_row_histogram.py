"""Compute with how much more lateness the late rows of a shard would have been used; see `core.lateness_histogram`.

The result is exact for windows made of panes and for joins. For sessions, less may suffice: a row at or after the
horizon is never late, but an earlier row that joins an open session is not late either.
"""

from __future__ import annotations

from functools import singledispatch

import polars as pl

from slackwater.core import lateness_histogram
from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.windows.compiled_window import CompiledWindow
from slackwater.windows.pane_windows import CompiledPaneWindow, last_window
from slackwater.windows.session_intervals import CompiledSessionWindow


def count_late_rows_by_lateness(
    logic: CompiledWindow | CompiledJoin, late: pl.DataFrame, watermark: int
) -> dict[str, int]:
    """Count late rows by the additional lateness with which they would have been used.

    `late` has the event time in `__ts` for joins, and in `__start` for sessions. For panes, `__start` is the start of
    the pane, and `__n` the number of its rows.
    """
    return _count_by_lateness(logic, late, watermark) if late.height else {}


@singledispatch
def _count_by_lateness(logic: CompiledWindow | CompiledJoin, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    raise_unregistered(logic, "slackwater.operators.late_row_histogram.count_late_rows_by_lateness")


@_count_by_lateness.register
def _(logic: CompiledJoin, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    return lateness_histogram.build_lateness_histogram(watermark - logic.allowed_us - late["__ts"].to_numpy())


@_count_by_lateness.register
def _(logic: CompiledSessionWindow, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    horizon, start = logic.horizon(watermark), late["__start"].to_numpy()
    if _was_forgotten(logic, watermark) or logic.rows_from_us > int(start.min()):
        return {lateness_histogram.NEVER: late.height}
    return lateness_histogram.build_lateness_histogram(horizon - start)


@_count_by_lateness.register
def _(logic: CompiledPaneWindow, late: pl.DataFrame, watermark: int) -> dict[str, int]:
    """Count the late rows of panes. A row is late once the last window of its pane has left the state."""
    start, rows = late["__start"].to_numpy(), late["__n"].to_numpy()
    if _was_forgotten(logic, watermark):
        return {lateness_histogram.NEVER: int(rows.sum())}
    return lateness_histogram.build_lateness_histogram(
        logic.horizon(watermark) - last_window(logic, start) - logic.duration_us + 1, rows
    )


def _was_forgotten(logic: CompiledWindow, watermark: int) -> bool:
    """Return whether windows that this config would still retain have left the state under an earlier config."""
    return logic.horizon(watermark) > watermark - logic.retain_us
