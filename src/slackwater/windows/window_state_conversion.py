"""Conversion of state rows after a config change: added and removed aggregations, a new gap, a higher cap.

A larger gap immediately joins sessions that now touch. A smaller gap does not split existing sessions. Closed windows
do not change.

    [first ── last]end, where end = last + gap

    gap 5       watermark │
    [0 ── 8]13     [15 ── │20]25      [32]37     one key: two open sessions, and one that closed and left the state

    gap 12
                   [15 ── ┼──── 32]44            20 + 12 >= 32: one session, before a new row arrives
    gap 2
                   [15 ── 20]22       [32]34     15 to 20 stays one session, although its rows may be 5 apart

Rows up to 13 are late before and after the change, because the floor of a session that left the state does not move.
Rows up to `watermark - gap`, with the former gap, also stay late, even if the floor that made them late has expired
(`CompiledSessionWindow.rows_from_us`). Windows that left the state are not restored (`gone_us`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import numpy as np
import polars as pl

from slackwater.errors import raise_unregistered
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import pane_windows
from slackwater.windows.compiled_session_window import (
    Bools,
    CompiledSessionWindow,
    IntervalBatch,
    build_floor_rows,
    build_layout,
    clear_marks_of_changed,
    first_per_key,
    is_expired,
    mark_emitted,
    number_sessions,
    select_rows,
)
from slackwater.windows.compiled_window import CompiledWindow
from slackwater.windows.pane_windows import CompiledPaneWindow
from slackwater.windows.state_layout import EMITTED, WHOLE, Int64s


def convert_window_state(
    former: CompiledWindow, logic: CompiledWindow, rows: pl.DataFrame, watermark: int
) -> pl.DataFrame:
    """Convert all state rows of one or more shards to a new window.

    Args:
        former: The window that wrote the rows.
        logic: The new window, from `CompiledWindow.continue_from`. Its keys and kind equal those of `former`.
        rows: The state rows, sorted by `__h`, with the accumulators that both windows share. All other aggregations
            start as if they had seen no rows.
        watermark: The committed watermark (µs).
    """
    rows = logic.add_revision_columns(complete_accumulators(logic, rows))
    rows = _convert_rows(logic, former, former.drop_expired(former.add_revision_columns(rows), watermark), watermark)
    return logic.drop_expired(rows.select(logic.state_schema.keys()), watermark).sort("__h", maintain_order=True)


@singledispatch
def _convert_rows(logic: CompiledWindow, former: CompiledWindow, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Convert unexpired state rows from the window `former` to the window `logic`."""
    raise_unregistered(logic, "slackwater.windows.window_state_conversion.convert_window_state")


@_convert_rows.register
def _(logic: CompiledPaneWindow, former: CompiledPaneWindow, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    return pane_windows.convert_emission_state(logic, rows, former.updates)


@_convert_rows.register
def _(logic: CompiledSessionWindow, former: CompiledSessionWindow, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    if rows.is_empty() or (former.gap_us, former.cap_us) == (logic.gap_us, logic.cap_us):
        return rows
    return _regroup_sessions(former, logic, rows, watermark)


def complete_accumulators(logic: CompiledWindow, rows: pl.DataFrame) -> pl.DataFrame:
    """Add missing accumulators to state rows, and convert accumulators that an earlier version stored in another form.

    Added accumulators start as if they had seen no rows.
    """
    lacking = [a for a in logic.aggs if not set(a.accumulators) <= set(rows.columns)]
    former = [a for a in lacking if (f := a.legacy_form()) is not None and set(f.accumulators) <= set(rows.columns)]
    rows = rows.with_columns(c for a in former for c in a.from_legacy(rows))
    added = [a for a in lacking if a not in former]
    if not added:
        return rows
    nothing = pl.concat([a.neutral() for a in added], how="horizontal")
    return rows.with_columns(nothing[c].new_from_index(0, rows.height) for c in nothing.columns)


def _regroup_sessions(
    former: CompiledSessionWindow, logic: CompiledSessionWindow, rows: pl.DataFrame, watermark: int
) -> pl.DataFrame:
    """Regroup open and retained sessions by the new gap and cap. Expired sessions become floors."""
    whole = IntervalBatch.from_frame(former, mark_emitted(former, rows, watermark))
    horizon = former.horizon(watermark)
    floors = whole.floors(former.reach_us, horizon)
    unit = select_rows(whole, ~is_expired(whole.kind, whole.due, horizon))
    parts = [logic.empty_state()]
    if len(unit.key):
        parts.append(_regroup_intervals(former, logic, unit, floors, watermark))
    has_no_session = np.ones(whole.keys, dtype=bool)
    has_no_session[unit.key] = False
    alone = np.flatnonzero(has_no_session & (floors != NO_WATERMARK))
    if len(alone):
        parts.append(build_floor_rows(logic, whole.frame[first_per_key(whole.key)[alone]], floors[alone]))
    return pl.concat(parts)


def _regroup_intervals(
    former: CompiledSessionWindow, logic: CompiledSessionWindow, unit: IntervalBatch, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """Regroup intervals by the new gap and cap, and return their state rows."""
    from slackwater.windows import session_ingest  # imported on use, because it imports Numba

    was = build_layout(former, unit)
    before, end = was.session, was.end[was.session]
    if logic.gap_us < former.gap_us:
        # the smaller gap could separate the fragments of a session, so merge them first
        whole = number_sessions(unit, logic.cap_us)[1]
        unit = _merge_sessions(logic, _unmark_changed(unit, before, whole), whole)
        before, end = np.arange(len(unit.key)), end[first_per_key(whole)]
    if not logic.dynamic:
        unit = replace(unit, end=unit.last + logic.gap_us)
    now = build_layout(logic, unit)
    unit = _unmark_changed(unit, before, now.session, (end != now.end[now.session]) & (end >= watermark))
    return session_ingest.build_session_state(logic, unit, floors, watermark)


def _unmark_changed(unit: IntervalBatch, before: Int64s, after: Int64s, ends: Bools | None = None) -> IntervalBatch:
    """Clear the emitted mark of intervals whose session has a different end or different intervals than before.

    Args:
        unit: The intervals.
        before: The session number of each interval before the change.
        after: The session number of each interval after the change.
        ends: A mask of the intervals of open sessions whose end has changed.
    """
    heads = first_per_key(after)
    first, last = before[heads], np.maximum.reduceat(before, heads)
    whole = np.bincount(before)[first] == np.diff(heads, append=len(after))
    changed = ((first != last) | ~whole)[after]
    changed |= False if ends is None else ends
    return clear_marks_of_changed(unit, changed)


def _merge_sessions(logic: CompiledSessionWindow, unit: IntervalBatch, session: Int64s) -> IntervalBatch:
    """Merge the intervals of each session into one."""
    heads = first_per_key(session)
    carried = unit.frame.select("__h", "__kh", *logic.key_names)[heads].get_columns()
    frame = logic.merge_runs(unit.frame.select(*logic.revisions, *logic.accumulators), heads, carried)
    emitted = np.logical_and.reduceat(unit.emitted, heads)
    last, end = np.maximum.reduceat(unit.last, heads), np.maximum.reduceat(unit.end, heads)
    kind = np.where(emitted, EMITTED, WHOLE).astype(np.int8)
    return IntervalBatch(frame, unit.key[heads], kind, unit.start[heads], last, unit.due[heads], end)
