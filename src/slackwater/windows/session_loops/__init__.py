"""Compiled loops of session windows. The import takes a third of a second, so this package is imported on first use."""

from __future__ import annotations

import numpy as np

from slackwater.core.numba_loops import distinct_hashes, sort_intervals
from slackwater.windows.session_loops.rows_behind_watermark import assign_rows_behind_watermark
from slackwater.windows.session_loops.session_rules import (
    SessionTimes,
    SortedIntervals,
    build_fragments,
    build_runs,
    cut_sessions,
    find_needed_intervals,
    number_runs,
    summarize_keys,
)


def compile_loops() -> None:
    """Compile all loops, or load them from the cache, so that the first epoch does not have to."""
    none, kinds, bools = np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.bool_)
    intervals, times = SortedIntervals(np.zeros(1, np.int64), kinds, none, none, none), SessionTimes(0, 0, 0, 0, 0)
    sort_intervals(none, none, none)
    distinct_hashes(none)
    assign_rows_behind_watermark(intervals, times, build_runs(intervals, times, bools))
    find_needed_intervals(intervals, times)
    summarize_keys(intervals, none, none)
    number_runs(none, none, none)
    cut_sessions(none, none, none, none, 0)
    build_fragments(intervals, times, none, bools, bools, bools)
