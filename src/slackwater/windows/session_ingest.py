"""Merging of an epoch's rows into the sessions of a shard. This module prepares arrays for the compiled loops.

state rows ─┐                         ┌─ fragments: keys gathered, accumulators merged ─┐
            ├─ one order ─ the loops ─┤                                                 ├─▶ the units' new rows
new rows ───┘  (key, time)            ├─ floors ────────────────────────────────────────┘
                                      └─ late rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import distinct_values, find_run_starts, is_in_sorted, order_by_key
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.compiled_session_window import (
    Bools,
    CompiledSessionWindow,
    IntervalBatch,
    build_floor_rows,
    clear_outdated_marks,
    first_per_key,
    is_expired,
    mark_emitted,
)
from slackwater.windows.compiled_window import IngestResult, ResultCounts
from slackwater.windows.session_loops import session_rules
from slackwater.windows.session_loops.rows_behind_watermark import assign_rows_behind_watermark
from slackwater.windows.state_layout import EMITTED, EMITTED_FRAGMENT, FRAGMENT, ROW, WHOLE, Int64s


def ingest_session_rows(
    logic: CompiledSessionWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int, room: int | None = None
) -> IngestResult:
    """Merge lifted rows into the touched units. `session_loops.session_rules` defines which rows are late.

    Args:
        logic: The window.
        rows: `__kh`, `__ts`, keys and accumulators, and `__end` if each row has its own gap.
        state: All state rows of the touched units.
        watermark: The watermark (µs) of the previous epoch.
        room: How many more keys may open a session in this shard (`drop_new_groups`); None for no limit.
    """
    times = logic.times(watermark)
    session_input = SessionInput.from_frames(logic, rows, mark_emitted(logic, state, watermark), times.horizon)
    judged = session_rules.build_runs(session_input.intervals, times, np.zeros(session_input.keys, dtype=bool))
    if room is not None and np.count_nonzero(judged.new) > room:
        shut = _keys_over_limit(logic, session_input, judged, room)
        judged = session_rules.build_runs(session_input.intervals, times, shut)
    if judged.needs_placement:
        judged = assign_rows_behind_watermark(session_input.intervals, times, judged)
    positions, key, run, fragment = judged.positions, judged.key, judged.run, judged.fragment
    touched, has_open, held = session_rules.summarize_keys(session_input.intervals, positions, key)
    touched = session_input.with_shared_units(touched)
    if not touched.all():
        selected = touched[key]
        positions, key, run, fragment = positions[selected], key[selected], run[selected], fragment[selected]
        has_open &= touched
    emitted = session_input.still_emitted(logic, positions, key, fragment)
    fragments = session_rules.build_fragments(session_input.intervals, times, positions, run, fragment, emitted)
    parts = [*logic.revisions, *logic.accumulators]
    accumulators = pl.concat(
        [session_input.state.select(parts), logic.add_revision_columns(session_input.rows).select(parts)], rechunk=True
    )
    first = positions[fragments.first]
    keys, hashes = session_input.key_columns_at(first), session_input.hashes[first]
    fragment_rows = _rows(logic, fragments, accumulators[session_input.order[positions]], keys, hashes)
    late = session_input.late_rows(logic, np.flatnonzero(judged.verdict == session_rules.LATE))
    refused = int(np.count_nonzero(judged.verdict == session_rules.REFUSED))
    floor_rows = _floors(logic, session_input, np.where(touched, judged.floor, session_rules.NONE))
    return IngestResult(
        state=_by_hash(fragment_rows, floor_rows),
        counts=ResultCounts(
            used=rows.height - late.height - refused,
            late=late.height,
            late_idle=int(late["__idle"].sum()) if "__idle" in late.columns else 0,
            late_windows=late.height,
            refused=refused,
            groups=int(np.count_nonzero(has_open & judged.new)),
            windows=len(fragments.first) - int(held[has_open].sum()),
        ),
        late=late,
        new_groups={},
    )


@dataclass(frozen=True)
class SessionInput:
    """The state rows of the touched units and the new rows, in the form that the compiled loops expect."""

    state: pl.DataFrame
    rows: pl.DataFrame
    order: Int64s  # position of each sorted row in the concatenation of `state` and `rows`
    hashes: Int64s  # key hash of each sorted row
    names: pl.DataFrame  # the key columns of `state` and `rows`, unsorted
    intervals: session_rules.SortedIntervals

    @classmethod
    def from_frames(
        cls, logic: CompiledSessionWindow, rows: pl.DataFrame, state: pl.DataFrame, horizon: int
    ) -> SessionInput:
        """Sort state rows and new rows together by (key, start, last)."""

        def column(of_state: str, of_rows: str) -> Int64s:
            return np.concatenate([state[of_state].to_numpy(), rows[of_rows].to_numpy()])

        start, last = column("__start", "__ts"), column("__last", "__ts")
        end = column("__end", "__end") if logic.dynamic else last + logic.gap_us
        seen = np.full(len(start), session_rules.NEW, dtype=np.int8)
        gone = is_expired(state["__kind"].to_numpy(), state["__due"].to_numpy(), horizon)
        seen[: state.height] = np.where(gone, session_rules.GONE, session_rules.HELD)
        names = pl.concat([state.select(logic.key_names), rows.select(logic.key_names)], rechunk=True)
        order, hashes, first = order_by_key(column("__kh", "__kh"), names, start, last)
        intervals = session_rules.SortedIntervals(first, seen[order], start[order], last[order], end[order])
        return cls(state, rows, order, hashes, names, intervals)

    @property
    def keys(self) -> int:
        """Return the number of distinct keys."""
        return len(self.intervals.heads) - 1

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """Return the stored kind of each sorted row, or ROW for a new row."""
        kind = np.full(len(self.order), ROW, dtype=np.int8)
        kind[: self.state.height] = self.state["__kind"].to_numpy()
        return kind[self.order]

    def key_columns_at(self, positions: Int64s) -> list[pl.Series]:
        """Return the key columns of the sorted rows at these positions."""
        index = pl.Series(self.order[positions])
        return [column.gather(index) for column in self.names]

    def with_shared_units(self, touched: Bools) -> Bools:
        """Add the keys whose hash collides with that of a touched key, since a unit is always replaced as a whole."""
        unit = self.hashes[self.intervals.heads[:-1]]
        if touched.all() or len(find_run_starts(unit)) == len(unit):
            return touched
        return is_in_sorted(unit, distinct_values(unit[touched]))

    def still_emitted(self, logic: CompiledSessionWindow, positions: Int64s, key: Int64s, fragment: Bools) -> Bools:
        """Return a mask of the intervals at `positions` that the target contains unchanged.

        `key` and `fragment` describe these intervals, as in `IntervalVerdicts`.
        """
        if not logic.revises or not self.state["__kind"].is_in([EMITTED, EMITTED_FRAGMENT]).any():
            return np.zeros(len(positions), dtype=bool)
        intervals = self.intervals
        unit = IntervalBatch(
            self.state,
            key,
            self.kind[positions],
            intervals.start[positions],
            intervals.last[positions],
            intervals.start[positions],
            intervals.end[positions],
        )
        return clear_outdated_marks(logic, unit, np.cumsum(fragment) - 1).emitted

    def late_rows(self, logic: CompiledSessionWindow, positions: Int64s) -> pl.DataFrame:
        """Return the late rows at these positions in the form of state rows."""
        rows = self.rows[self.order[positions] - self.state.height]
        extra = [c for c in ("__idle", "__row") if c in rows.columns]
        hidden = {
            "__h": pl.col("__kh"),
            "__kind": pl.lit(ROW, pl.Int8),
            "__start": pl.col("__ts"),
            "__last": pl.col("__ts"),
            "__due": pl.lit(NO_WATERMARK, pl.Int64),
        }
        return logic.add_revision_columns(rows).with_columns(**hidden).select(*logic.state_schema, *extra)


def build_session_state(
    logic: CompiledSessionWindow, unit: IntervalBatch, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """Build the new state rows of the keys in `unit`, which is not empty and has only open and retained intervals.

    `floors` has the floor (µs) of each key, or NO_WATERMARK.
    """
    heads = first_per_key(unit.key)
    floor_rows = build_floor_rows(logic, unit.frame[heads], floors[unit.key[heads]])
    count, times = len(unit.key), logic.times(watermark)
    keys = np.append(heads, count)
    # the compiled loops need writable arrays
    start, last, end = (np.array(column) for column in (unit.start, unit.last, unit.end))
    intervals = session_rules.SortedIntervals(keys, np.full(count, session_rules.HELD, dtype=np.int8), start, last, end)
    judged = session_rules.build_runs(intervals, times, np.zeros(len(keys) - 1, dtype=bool))
    fragments = session_rules.build_fragments(
        intervals, times, judged.positions, judged.run, judged.fragment, unit.emitted
    )
    parts = unit.frame.select(*logic.revisions, *logic.accumulators)
    first = unit.frame.select("__kh", *logic.key_names)[fragments.first]
    rows = _rows(logic, fragments, parts, [first[k] for k in logic.key_names], first["__kh"].to_numpy())
    return pl.concat([rows, floor_rows])


def _keys_over_limit(
    logic: CompiledSessionWindow, session_input: SessionInput, judged: session_rules.IntervalVerdicts, room: int
) -> Bools:
    """Return a mask of the new keys beyond `room`. Keys are admitted in order of (first event time, key)."""
    positions = judged.positions[find_run_starts(judged.key)]
    key = judged.key[find_run_starts(judged.key)]
    positions, key = positions[judged.new[key]], key[judged.new[key]]
    times = [pl.Series("__start", session_input.intervals.start[positions]), pl.Series("__key", key)]
    order = pl.DataFrame([*session_input.key_columns_at(positions), *times]).sort(
        ["__start", *logic.key_names], nulls_last=False
    )
    shut = np.zeros(session_input.keys, dtype=bool)
    shut[order["__key"].to_numpy()[room:]] = True
    return shut


def _rows(
    logic: CompiledSessionWindow,
    fragments: session_rules.SessionFragments,
    parts: pl.DataFrame,
    keys: Sequence[pl.Series],
    hashes: Int64s,
) -> pl.DataFrame:
    """Build the state rows of fragments.

    `parts` has the accumulators of all intervals, in order. `keys` and `hashes` have one element per fragment.
    """
    merged = logic.merge_runs(parts, fragments.first, keys)
    kind = np.where(
        fragments.emitted,
        np.where(fragments.whole, EMITTED, EMITTED_FRAGMENT),
        np.where(fragments.whole, WHOLE, FRAGMENT),
    )
    hidden = {
        "__h": pl.Series(hashes),
        "__kh": pl.Series(hashes),
        "__kind": pl.Series(kind, dtype=pl.Int8),
        "__start": pl.Series(fragments.start),
        "__last": pl.Series(fragments.last),
        "__due": pl.Series(fragments.due),
        **({"__end": pl.Series(fragments.end)} if logic.dynamic else {}),
    }
    return merged.with_columns(**hidden).select(logic.state_schema.keys())


def _floors(logic: CompiledSessionWindow, session_input: SessionInput, floors: Int64s) -> pl.DataFrame:
    """Build a FLOOR row for each key with a floor. `floors` has one element per key."""
    keys = np.flatnonzero(floors != session_rules.NONE)
    heads = session_input.intervals.heads[keys]
    rows = pl.DataFrame([pl.Series("__kh", session_input.hashes[heads]), *session_input.key_columns_at(heads)])
    return build_floor_rows(logic, rows, floors[keys])


def _by_hash(fragments: pl.DataFrame, floors: pl.DataFrame) -> pl.DataFrame:
    """Merge two frames of state rows, both sorted by `__h`, into one sorted frame, as segments require."""
    if floors.is_empty():
        return fragments
    rows = pl.concat([fragments, floors])
    return rows[np.argsort(rows["__h"].to_numpy(), kind="stable")]
