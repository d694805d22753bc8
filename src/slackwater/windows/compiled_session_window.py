"""The compiled session window, the intervals of the keys that an epoch touches, and how they form sessions.

A session window consists of the intervals of a key that the gap joins. It is cut at the cap:

    gap 3, cap 10         0    5    10   15   20
    rows of one key       ●●●●●●●●●●●●●●    ●●
    run (joined by gap)   [────────────]    [] a second run: more than the gap apart
    sessions              [────────][──]    []
                          start     start + cap: the cut

The session of a row is certain only once the watermark has passed the row. Until then, an earlier row may move the
start of a run, and with it every cut. Therefore, a unit (the state rows of one key) contains

* WHOLE rows: one complete session each, which closes at `last + gap` without being written again.
* FRAGMENT rows: parts of a run that may still be cut. Rows at or above `min(first open start, watermark) + cap` stay
  separate fragments. All rows below this limit are certain to be in the same session, and are merged.
* EMITTED and EMITTED_FRAGMENT rows: WHOLE and FRAGMENT rows that the target contains unchanged. They exist only if
  windows can be revised.
* At most one FLOOR row: the latest end of the key's sessions that have left the state. Rows at or below it are late.

Once the watermark has passed the close of a WHOLE row, the row counts as emitted. Once the row has expired, it serves
as the key's floor. Neither transition writes to the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.hashing import session_ids
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import order_by_key, sorted_by_key
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.compiled_window import CompiledWindow
from slackwater.windows.state_layout import (
    EMITTED,
    EMITTED_FRAGMENT,
    FAR,
    FLOOR,
    FRAGMENT,
    NEVER,
    OPEN,
    ROW,
    TOMBSTONE,
    WHOLE,
    DueRowFilter,
    ExpiryBounds,
    Int64s,
    SegmentStats,
)

if TYPE_CHECKING:
    from slackwater.windows.session_loops.session_rules import SessionTimes

Bools = NDArray[np.bool_]

SESSION_ID = "session_id"


@dataclass(frozen=True)
class CompiledSessionWindow(CompiledWindow):
    """A compiled session window.

    Rows before `rows_from_us` are always late. `revised` is true if an earlier config could emit a session more than
    once. State rows then keep their revision columns. Both are `earlier_settings` (see `windows.window_state_conversion`).
    """

    rows_from_us: int = NEVER
    revised: bool = False

    @cached_property
    def gap_us(self) -> int:
        """Return the fixed gap in µs; 0 if each row has its own gap."""
        return 0 if isinstance(self.window.gap_ms, str) else (self.window.gap_ms or 0) * 1000

    @cached_property
    def dynamic(self) -> bool:
        """Return whether each row has its own gap.

        If so, a row covers the range [ts, ts + gap], which ends at `__end`. Rows whose ranges touch form a session.
        """
        return isinstance(self.window.gap_ms, str)

    @cached_property
    def reach_us(self) -> int:
        """Return the largest gap (µs) that a row can have. The cap limits the gaps of rows."""
        return self.cap_us if self.dynamic else self.gap_us

    @cached_property
    def cap_us(self) -> int:
        """Return the cap (µs). Every session is shorter than the cap."""
        return (self.window.max_session_duration_ms or 0) * 1000

    @cached_property
    def revises(self) -> bool:
        return self.updates or self.retain_us > 0 or self.revised

    @property
    def earlier_settings(self) -> Mapping[str, Any]:
        return {**super().earlier_settings, "rows_from_us": self.rows_from_us, "revised": self.revised}

    def continue_from(self, former: Self, watermark: int) -> Self:
        since = max(former.rows_from_us, former.horizon(watermark) - former.reach_us)
        return replace(super().continue_from(former, watermark), rows_from_us=since, revised=former.revises)

    @property
    def ends(self) -> dict[str, pl.DataType]:
        return {"__end": pl.Int64()} if self.dynamic else {}

    @cached_property
    def output(self) -> list[Field]:
        return [*self.keys, *self.bounds, Field(SESSION_ID, "bigint"), *self.values]

    @property
    def retraction(self) -> tuple[str, ...]:
        return (*self.identity, SESSION_ID)

    def _with_identity(self, rows: pl.DataFrame) -> pl.DataFrame:
        return super()._with_identity(rows).with_columns(session_ids(rows, self.keys, "__start").alias(SESSION_ID))

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        kind, due, last = (state[c].to_numpy() for c in ("__kind", "__due", "__last"))
        fragments, open_ = (kind == FRAGMENT) | (kind == EMITTED_FRAGMENT), np.isin(kind, OPEN)
        end = state["__end"].to_numpy() if self.dynamic else last + self.gap_us
        forgotten = end[kind != TOMBSTONE] + self.reach_us + 1
        waiting = self.updates and bool((kind == FRAGMENT).any())
        return SegmentStats(
            first_due=NEVER if waiting else int(due[open_].min(initial=FAR)),
            last_due=FAR if fragments.any() else int(due[open_].max(initial=NO_WATERMARK)),
            close=int((end[open_] + 1).max(initial=NO_WATERMARK)),
            dead=FAR if fragments.any() else int(forgotten.max(initial=NO_WATERMARK)) + self.retain_us,
        )

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        """Select the sessions that close or expire in this range of watermarks, and the fragments that may be cut."""
        closing, going = (since, watermark), (self.horizon(since), self.horizon(watermark))
        whole = ((since, FAR), going) if early else (closing, going)
        upto = FAR if self.updates else watermark
        return DueRowFilter((*whole, (FAR - 1, upto)), whole, (going,), pending_upto=upto, start_before=FAR)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        """Return the limits of `__due` up to which sessions have expired and floors no longer make rows late."""
        horizon = self.horizon(watermark)
        return ExpiryBounds(whole_upto=horizon - self.reach_us, floor_upto=horizon)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Drop expired sessions, and floors that no longer make rows late."""
        if state.is_empty():
            return state
        from slackwater.windows.session_loops import session_rules  # imports Numba

        times = self.times(watermark)
        kind, due, start, last = (state[c].to_numpy() for c in ("__kind", "__due", "__start", "__last"))
        end = state["__end"].to_numpy() if self.dynamic else last + self.gap_us
        order, _, heads = order_by_key(state["__kh"].to_numpy(), state.select(self.key_names), start, last)
        seen = np.where(is_expired(kind, due, times.horizon), session_rules.GONE, session_rules.HELD).astype(np.int8)
        needed = session_rules.find_needed_intervals(
            session_rules.SortedIntervals(heads, seen[order], start[order], last[order], end[order]), times
        )
        return state[order if needed.all() else order[needed]]

    def times(self, watermark: int) -> SessionTimes:
        """Return the times that decide which rows of an epoch are late. `watermark`: that of the previous epoch."""
        from slackwater.windows.session_loops.session_rules import SessionTimes  # imports Numba

        return SessionTimes(watermark, self.horizon(watermark), self.rows_from_us, self.reach_us, self.cap_us)


@dataclass(frozen=True)
class IntervalBatch:
    """The stored and new intervals of the touched keys, as arrays sorted by (key, start)."""

    frame: pl.DataFrame
    key: Int64s  # keys are numbered from 0
    kind: NDArray[np.int8]
    start: Int64s
    last: Int64s
    due: Int64s
    end: Int64s  # last + gap, or the stored `__end` if each row has its own gap

    @classmethod
    def from_frame(cls, logic: CompiledSessionWindow, frame: pl.DataFrame) -> IntervalBatch:
        """Sort a frame of state rows and new rows, and convert its columns to arrays."""
        frame, key = sorted_by_key(frame, logic.key_names)
        kind, start, last, due = (frame[c].to_numpy() for c in ("__kind", "__start", "__last", "__due"))
        end = frame["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
        return cls(frame, key, kind, start, last, due, end)

    @property
    def keys(self) -> int:
        """Return the number of distinct keys."""
        return int(self.key[-1]) + 1 if len(self.key) else 0

    @property
    def emitted(self) -> Bools:
        """Return a mask of the intervals that the target contains unchanged."""
        return (self.kind == EMITTED) | (self.kind == EMITTED_FRAGMENT)

    def floors(self, reach: int, horizon: int) -> Int64s:
        """Return the floor (µs) of each key, or NO_WATERMARK if the floor no longer makes rows late.

        `reach`: the largest gap that a row can have.
        """
        gone = is_expired(self.kind, self.due, horizon)
        is_open = ~gone & (self.kind != ROW)
        floor = reduce_per_key(np.maximum, np.where(gone, self.end, NO_WATERMARK), self.key)
        first = reduce_per_key(np.minimum, np.where(is_open, self.start, FAR), self.key)
        return np.where((horizon <= floor + reach) | (first <= floor + reach), floor, NO_WATERMARK)


def is_expired(kind: NDArray[np.int8], due: Int64s, horizon: int) -> Bools:
    """Return a mask of the floors, and of the whole sessions that close at or before the horizon."""
    gone: Bools = (kind == FLOOR) | (((kind == WHOLE) | (kind == EMITTED)) & (due <= horizon))
    return gone


def mark_emitted(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Mark as emitted all whole sessions that the watermark has closed. Emission itself does not write to the state."""
    if not logic.revises:
        return state
    emitted = (pl.col("__kind") == WHOLE) & (pl.col("__due") <= watermark)
    return state.with_columns(
        pl.when(emitted).then(pl.col("__rev") + 1).otherwise(pl.col("__rev")).alias("__rev"),
        pl.when(emitted).then(pl.concat_list("__start")).otherwise(pl.col("__out")).alias("__out"),
        pl.when(emitted).then(pl.lit(EMITTED, pl.Int8)).otherwise(pl.col("__kind")).alias("__kind"),
    )


def first_per_key(key: Int64s) -> Int64s:
    """Return the position of the first interval of each key. `key`: the key number of each interval, in order."""
    return np.flatnonzero(np.diff(key, prepend=-1))


def reduce_per_key(ufunc: np.ufunc, values: Int64s | Bools, key: Int64s) -> Int64s:
    """Reduce `values` to one value per key. `key`: the key number of each interval, from 0 and in order."""
    result: Int64s = ufunc.reduceat(values, first_per_key(key)) if len(key) else values  # type: ignore[assignment]
    return result


def select_rows(unit: IntervalBatch, mask: Bools) -> IntervalBatch:
    """Select the intervals where `mask` is true. Keys keep their numbers."""
    if mask.all():
        return unit
    index = np.flatnonzero(mask)
    columns = ("frame", "key", "kind", "start", "last", "due", "end")
    return IntervalBatch(**{name: getattr(unit, name)[index] for name in columns})


def build_floor_rows(logic: CompiledSessionWindow, keys: pl.DataFrame, floors: Int64s) -> pl.DataFrame:
    """Build a FLOOR row for each key that has a floor.

    `keys` has one row per key, with at least `__kh` and the key columns. `floors` has the floor of each key (µs), or
    NO_WATERMARK.
    """
    has_floor = floors != NO_WATERMARK
    if not has_floor.any():
        return logic.empty_state()
    if not has_floor.all():
        keys, floors = keys[np.flatnonzero(has_floor)], floors[has_floor]
    last = floors - logic.gap_us
    times = {"__start": last, "__last": last, "__due": floors + logic.reach_us + 1, "__end": floors}
    rows = keys.select("__kh", pl.col("__kh").alias("__h"), *logic.key_names).with_columns(
        pl.lit(FLOOR, pl.Int8).alias("__kind"),
        *(pl.Series(name, column) for name, column in times.items()),
        *(pl.lit(None, dtype).alias(name) for name, dtype in logic.accumulators.items()),
    )
    return logic.add_revision_columns(rows).select(logic.state_schema.keys())


def count_open_sessions(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
    """Count the keys with open or retained sessions in the state of a shard, and the intervals of these sessions."""
    whole = pl.col("__kind").is_in([WHOLE, EMITTED]) & (pl.col("__due") > logic.horizon(watermark))
    still = state.filter(whole | pl.col("__kind").is_in([FRAGMENT, EMITTED_FRAGMENT]))
    return still.select("__kh", *logic.key_names).unique().height, still.height


# -- layout of sessions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionLayout:
    """The sessions that a set of intervals would form if no more rows arrived. All times are in µs.

    `session` has one element per interval. The other arrays have one element per session.
    """

    session: Int64s  # the session number of each interval
    heads: Int64s  # the position of the first interval
    start: Int64s
    reach: Int64s  # the latest time that the rows cover, including their gaps
    is_cut: Bools  # whether the next session of the run begins at or before `reach`
    end: Int64s  # the end of the window: `reach`, or for a cut session at most the cap and the start of the next one


def build_layout(logic: CompiledSessionWindow, unit: IntervalBatch) -> SessionLayout:
    """Build the layout of a non-empty batch of intervals, from their keys and times."""
    cap = logic.cap_us
    run, session = number_sessions(unit, cap)
    heads = first_per_key(session)
    start, reach = unit.start[heads], np.maximum.reduceat(unit.end, heads)
    is_cut = np.append((run[heads][1:] == run[heads][:-1]) & (start[1:] <= reach[:-1]), False)
    following = np.append(start[1:], FAR)  # because of a late row, the next session may begin before start + cap
    end = np.where(is_cut, np.minimum(np.minimum(reach, start + cap), following), reach)
    return SessionLayout(session, heads, start, reach, is_cut, end)


def number_sessions(unit: IntervalBatch, cap: int) -> tuple[Int64s, Int64s]:
    """Return the run number and the session number of each interval, as if no more rows arrived."""
    run = find_runs(unit.key, unit.start, unit.end)
    return run, np.cumsum(find_session_heads(unit.start, unit.last, unit.end, run, cap)) - 1


def find_runs(key: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Return the run number of each interval."""
    from slackwater.windows.session_loops.session_rules import number_runs  # the loops need writable arrays

    return number_runs(np.array(key), np.array(start), np.array(end))


def find_session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """Return a mask of the intervals at which sessions begin (see `session_rules.cut_sessions`)."""
    from slackwater.windows.session_loops.session_rules import cut_sessions  # the loops need writable arrays

    return cut_sessions(np.array(run), np.array(start), np.array(last), np.array(end), cap)


def clear_outdated_marks(logic: CompiledSessionWindow, unit: IntervalBatch, fragment: Int64s) -> IntervalBatch:
    """Clear the emitted mark of the stored intervals whose session differs from the one in the target.

    A session is unchanged if it consists of the same intervals as before, ends at the same time, and becomes final at
    the same time. A new row may also move the cuts of sessions that it does not belong to. `fragment` has the number of
    the fragment that each stored or new interval becomes part of.

        gap 20, cap 22     125       140       150
        emitted                      [──────────]170       one session, emitted: start 140, end 170
        a row               ●
        now                 [─────────)147      [)170      140 moved to the new session; 150 is now a separate
                                                           session, which is emitted although it has no new row
    """
    if not unit.emitted.any():
        return unit
    stored = np.flatnonzero(unit.kind != ROW)
    heads = first_per_key(fragment)
    fragments = replace(
        unit,
        key=unit.key[heads],
        start=unit.start[heads],
        last=np.maximum.reduceat(unit.last, heads),
        end=np.maximum.reduceat(unit.end, heads),
    )
    key, start, last, end = unit.key[stored], unit.start[stored], unit.last[stored], unit.end[stored]
    before = build_layout(logic, replace(unit, key=key, start=start, last=last, end=end))
    after = build_layout(logic, fragments)
    now = after.session[fragment[stored]]  # the new session of each stored interval
    first, final = now[before.heads], np.maximum.reduceat(now, before.heads)
    same = (first == final) & (np.bincount(now, minlength=len(after.start))[first] == np.bincount(before.session))
    same &= before.end == after.end[first]
    if logic.allowed_us:  # a cut session becomes final at its end
        same &= before.is_cut == after.is_cut[first]
    moved = np.zeros(len(unit.key), dtype=bool)
    moved[stored] = ~same[before.session]
    return clear_marks_of_changed(unit, moved)


def clear_marks_of_changed(unit: IntervalBatch, changed: Bools) -> IntervalBatch:
    """Clear the emitted mark of the changed intervals."""
    if not changed.any():
        return unit
    kind = np.where(changed & (unit.kind == EMITTED), WHOLE, unit.kind)
    return replace(unit, kind=np.where(changed & (kind == EMITTED_FRAGMENT), FRAGMENT, kind).astype(np.int8))
