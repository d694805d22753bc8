"""Tumbling and hopping windows over panes.

A pane is the longest time range that no window boundary divides. Its length is gcd(duration, hop), and it starts on the
grid of `offset`. Each row is merged into exactly one pane, no matter how many windows overlap. Windows are merged from
panes when they close.

    duration 60, hop 20        pane 20
    windows   [0 ............ 60)
                   [20 ........... 80)
                        [40 .......... 100)
    panes     |0   |20   |40   |60   |80
                         ^ a row at 40 is stored once and read by three windows

A pane is due when the last window that contains it leaves the state: at the end of this window plus the allowed
lateness.

If windows can be revised, a changed pane is DIRTY until it is emitted. With `reopen`, only panes of closed windows
become DIRTY; with `updates`, every changed pane does. The windows of DIRTY panes are merged from all their panes and
emitted.

If windows overlap, a pane may have a note for each of its windows. A note records how many times the window was
emitted.

    window 60, hop 20          a late row in pane 40 corrects the two closed windows
    [0 ─────────── 60)         emitted for the 2nd time         pane 40 notes: 0 and 20 were emitted again
         [20 ─────────── 80)   emitted for the 2nd time
              [40 ─────────── 100)  closes later: emitted for the 1st time

The pane of a tumbling window is the window itself: `__rev` is the revision, and there are no notes. A pane of hopping
windows has a list of notes in `__out`, one for each window that was emitted after the pane had changed:
`nth << 40 | (revision + 1) << 1 | holds`. `nth` is the position of the window among the windows of the pane. `holds` is
1 if the pane has not changed since the emission. The revision of a window is the largest in the notes of its panes.

Closing a window does not write to the state. With `reopen`, the emission at the close is therefore implied, not noted.
A pane that a late row created after the close was not part of this emission. Its revision is -1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.hashing import mix_bits
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import distinct_values, is_in_sorted, order_by_unit, repeat_positions
from slackwater.windows.compiled_window import CompiledWindow, IngestResult, ResultCounts
from slackwater.windows.state_layout import CLEAN, DIRTY, FAR, NEVER, DueRowFilter, ExpiryBounds, Int64s, SegmentStats

_NTH, _REVISION = 1 << 40, 1 << 1
NOT_EMITTED = -1  # the revision of a window that was not emitted at its close, because all its rows came later

NOTE_COLUMNS = {"__row": pl.Int64(), "__start": pl.Int64(), "__rev": pl.Int64(), "__holds": pl.Boolean()}


@dataclass(frozen=True)
class CompiledPaneWindow(CompiledWindow):
    """A compiled tumbling or hopping window. With `one_by_one`, Spark does not pre-aggregate its rows."""

    one_by_one: bool = False

    @cached_property
    def preaggregates_in_sql(self) -> bool:
        """Return whether Spark pre-aggregates rows. If not, the shards lift them.

        Spark can pre-aggregate rows only if every aggregation has a SQL form.
        """
        return not self.one_by_one and all(a.lift_sql("__ts") is not None for a in self.aggs)

    @cached_property
    def duration_us(self) -> int:
        return (self.window.duration_ms or 0) * 1000

    @cached_property
    def hop_us(self) -> int:
        return (self.window.hop_ms or self.window.duration_ms or 0) * 1000

    @cached_property
    def offset_us(self) -> int:
        return self.window.offset_ms * 1000

    @cached_property
    def output(self) -> list[Field]:
        return [*self.bounds, *self.keys, *self.values]

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        start, last = state["__start"].to_numpy(), int(state["__due"].to_numpy().max())
        first, close = int(first_window_of_pane(self, start.min()) + self.duration_us), last - self.retain_us
        if bool((state["__kind"].to_numpy() == DIRTY).any()):
            return SegmentStats(first_due=NEVER, last_due=FAR, close=close, dead=FAR)
        return SegmentStats(first_due=first, last_due=close, close=close, dead=last)

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        """Select the panes of windows that close in (since, watermark], and changed panes that were not emitted yet."""
        pending_upto = FAR if self.revises else NEVER
        move, retain_us, waiting = (since, watermark), self.retain_us, (FAR - 1, watermark)
        if self.updates:
            return DueRowFilter((waiting,), (), (), pending_upto, start_before=FAR)
        if self.hop_us == self.duration_us:
            return DueRowFilter(
                (move, waiting), ((since + retain_us, watermark + retain_us),), (), pending_upto, start_before=FAR
            )
        now = last_closed_window(self, watermark)
        is_any_closing = now > last_closed_window(self, since)
        closing = ((since + retain_us, FAR),) if is_any_closing else ()
        return DueRowFilter((move, waiting), closing, (), pending_upto, start_before=now + self.duration_us)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        """Return the limit of `__due` up to which the last window of a pane has left the state."""
        return ExpiryBounds(whole_upto=watermark, floor_upto=NEVER)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Drop the panes that no window needs any longer."""
        return state.filter((pl.col("__due") > watermark) | (pl.col("__kind") == DIRTY))


def pane_us(logic: CompiledPaneWindow) -> int:
    """Return the length of a pane in µs."""
    return math.gcd(logic.duration_us, logic.hop_us)


def pane_start(logic: CompiledPaneWindow, ts: Int64s) -> Int64s:
    """Return the start of the pane that contains each time. Times before 1970 are negative."""
    pane, offset = pane_us(logic), logic.offset_us
    return (ts - offset) // pane * pane + offset


def first_window_of_pane(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the start of the earliest window that contains each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - logic.duration_us - offset) // hop * hop + offset + hop


def last_window_of_pane(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the start of the latest window that contains each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - offset) // hop * hop + offset


def last_closed_window(logic: CompiledPaneWindow, watermark: int) -> int:
    """Return the start of the last window that is closed at this watermark.

    Given the horizon of a watermark, return the start of the last window that has left the state.
    """
    hop, offset = logic.hop_us, logic.offset_us
    return (watermark - logic.duration_us - offset) // hop * hop + offset


def lift_rows(logic: CompiledPaneWindow, rows: pl.DataFrame) -> pl.DataFrame:
    """Aggregate rows (`__kh`, `__ts`, keys, inputs) into accumulators per key and pane.

    Adds `__n`, the number of rows, and `__first`, their first event time. Spark pre-aggregation computes the same.
    """
    lifted, ts = logic.lift_rows(rows), rows["__ts"].to_numpy()
    start = pane_start(logic, ts)
    tag = ["__src"] if "__src" in rows.columns else []
    groups = lifted.select(pl.Series("__start", start), *tag, *logic.key_names)
    unit = mix_bits(lifted["__kh"].to_numpy(), start)
    for name in tag:
        unit = mix_bits(unit, lifted[name].cast(pl.Int64).to_numpy())
    order, heads = order_by_unit(unit, groups)
    carried = groups.with_columns(lifted["__kh"])[order[heads]]
    first = np.minimum.reduceat(ts[order], heads) if len(heads) else ts
    counts = pl.Series("__n", np.diff(heads, append=len(order)), dtype=pl.Int64), pl.Series("__first", first)
    return logic.merge_runs(lifted.select(*logic.accumulators)[order], heads, [*carried, *counts])


def find_missed_windows(logic: CompiledPaneWindow, ts: Int64s, watermark: int) -> tuple[Int64s, Int64s]:
    """Return, for each time, the start of its first window, and how many of its windows have left the state."""
    first = first_window_of_pane(logic, ts)
    gone = np.minimum(last_window_of_pane(logic, ts), last_closed_window(logic, logic.horizon(watermark)))
    return first, np.clip((gone - first) // logic.hop_us + 1, 0, None)


def ingest_panes(logic: CompiledPaneWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> IngestResult:
    """Merge lifted panes into the touched units.

    A row is late for each of its windows that has left the state. It is dropped only if it is late for all of them.

    Args:
        logic: The window.
        rows: `__kh`, `__h`, `__start`, `__n` (the number of raw rows), keys and accumulators.
        state: All state rows of the touched units.
        watermark: The watermark (µs) of the previous epoch.
    """
    horizon = logic.horizon(watermark)
    pane, n = rows["__start"].to_numpy(), rows["__n"].to_numpy()
    first, last = first_window_of_pane(logic, pane), last_window_of_pane(logic, pane)
    missed = np.clip((np.minimum(last, last_closed_window(logic, horizon)) - first) // logic.hop_us + 1, 0, None)
    is_late = last + logic.duration_us <= horizon
    late = rows.filter(pl.Series(is_late)) if is_late.any() else rows.clear()
    fresh = rows.filter(pl.Series(~is_late)) if is_late.any() else rows
    idle = int(late["__n"].filter(late["__idle"]).sum()) if "__idle" in late.columns else 0
    total = int(n.sum())
    merged = _merge(logic, fresh, state, watermark)
    existing_units = distinct_values(state["__h"].to_numpy())
    is_new = ~is_in_sorted(merged["__h"].to_numpy(), existing_units)
    starts, counts = np.unique(merged["__start"].to_numpy()[is_new], return_counts=True)
    return IngestResult(
        state=merged,
        counts=ResultCounts(
            used=int(fresh["__n"].sum()),
            late=total - int(fresh["__n"].sum()),
            late_idle=idle,
            late_windows=int((missed * n).sum()),
        ),
        late=late,
        new_groups=dict(zip(starts.tolist(), counts.tolist(), strict=True)),
    )


def _merge(logic: CompiledPaneWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Merge rows and state rows with equal key and pane into one state row. It is DIRTY if any of its parts is."""
    pane = rows["__start"].to_numpy()
    earliest = np.maximum(
        first_window_of_pane(logic, pane), last_closed_window(logic, logic.horizon(watermark)) + logic.hop_us
    )
    is_late = earliest + logic.duration_us <= watermark
    lifted = (
        logic.add_revision_columns(rows)
        .with_columns(
            pl.Series("__due", pane_due_times(logic, pane)),
            pl.col("__start").alias("__last"),
            pl.Series("__kind", np.where(is_late | logic.updates, DIRTY, CLEAN), dtype=pl.Int8),
        )
        .select(logic.state_schema.keys())
    )
    if logic.revises and not is_overlapping(logic) and not logic.updates:
        # a window whose first row arrived after its close was not emitted at its close
        lifted = lifted.with_columns(pl.Series("__rev", np.where(is_late, NOT_EMITTED, 0), dtype=pl.Int64))
    both = pl.concat([state.select(lifted.columns), lifted])
    if both.is_empty():
        return both
    noting = logic.revises and is_overlapping(logic)
    if noting:
        both = both.with_columns(pl.Series("__new", np.arange(both.height) >= state.height))
    order, heads = order_by_unit(both["__h"].to_numpy(), both.select("__start", *logic.key_names))
    carried = both.select("__h", "__kh", "__start", "__last", "__due", *logic.key_names)[order[heads]]
    kind = np.maximum.reduceat(both["__kind"].to_numpy()[order], heads)
    parts = both.select(*logic.revisions, *logic.accumulators)[order]
    merged = logic.merge_runs(parts, heads, [*carried, pl.Series("__kind", kind)]).select(logic.state_schema.keys())
    if not noting:
        return merged
    fresh = both["__new"].to_numpy()[order]
    merged = mark_panes_changed(merged, np.logical_or.reduceat(fresh, heads))
    if logic.updates:
        return merged
    first, begun = first_window_of_pane(logic, merged["__start"].to_numpy()), np.logical_and.reduceat(fresh, heads)
    return record_missed_emissions(merged, begun, first, last_closed_window(logic, watermark), logic.hop_us)


def is_overlapping(logic: CompiledPaneWindow) -> bool:
    """Return whether a pane can belong to several windows."""
    return logic.hop_us != logic.duration_us


def pane_due_times(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the watermark at which the last window of each pane leaves the state."""
    return last_window_of_pane(logic, pane) + logic.duration_us + logic.retain_us


def convert_emission_state(logic: CompiledPaneWindow, state: pl.DataFrame, updates: bool) -> pl.DataFrame:
    """Convert state rows to a new emission mode. `updates`: whether the previous mode was emit = "updates"."""
    state = state.with_columns(pl.Series("__due", pane_due_times(logic, state["__start"].to_numpy())))
    if logic.updates and not updates:  # the previous mode has not emitted open windows
        return state.with_columns(pl.lit(DIRTY, pl.Int8).alias("__kind"))
    if not logic.updates:
        return state.with_columns(pl.lit(CLEAN, pl.Int8).alias("__kind"))
    return state


def count_groups_by_window(logic: CompiledPaneWindow, panes: dict[int, int], watermark: int) -> dict[int, int]:
    """Return, by window start, the total number of groups in the panes of each open or retained window.

    `panes`: the number of groups by start of the pane. The total is exact for tumbling windows. It is an upper limit
    for hopping windows, because a group may have several panes in a window.
    """
    totals: dict[int, int] = {}
    closed = last_closed_window(logic, logic.horizon(watermark))
    for pane, groups in panes.items():
        starts = np.array([pane])
        low = max(int(first_window_of_pane(logic, starts)[0]), closed + logic.hop_us)
        for window in range(low, int(last_window_of_pane(logic, starts)[0]) + 1, logic.hop_us):
            totals[window] = totals.get(window, 0) + groups
    return totals


# -- notes of emissions ------------------------------------------------------------------------------------------------


def read_revisions(panes: pl.DataFrame, first: Int64s, hop: int) -> pl.DataFrame:
    """Read the notes of panes: `__row` (position of the pane), `__start` (of the window), `__rev` and `__holds`.

    `first`: the start of the earliest window of each pane. `hop`: the time (µs) between the starts of two windows.
    """
    row = np.repeat(np.arange(panes.height), panes["__out"].list.len().to_numpy())
    note = panes["__out"].explode().drop_nulls().to_numpy()
    columns = (row, first[row] + note // _NTH * hop, note % _NTH // _REVISION - 1, note % _REVISION == 1)
    return pl.DataFrame(dict(zip(NOTE_COLUMNS, columns, strict=True)), schema=NOTE_COLUMNS)


def write_revisions(panes: pl.DataFrame, notes: pl.DataFrame, first: Int64s, hop: int) -> pl.DataFrame:
    """Replace the notes of panes. `notes`, `first` and `hop`: as in `read_revisions`.

    If a pane has several notes for one window, the note with the largest revision is kept.
    """
    row, start, rev = (notes[c].to_numpy() for c in ("__row", "__start", "__rev"))
    nth = (start - first[row]) // hop
    note = nth * _NTH + (rev + 1) * _REVISION + notes["__holds"].to_numpy()
    order = np.lexsort((note, row))
    row, nth, note = row[order], nth[order], note[order]
    newest = np.append((row[1:] != row[:-1]) | (nth[1:] != nth[:-1]), True)[: len(row)]
    lists = pl.DataFrame({"__row": row[newest], "__out": note[newest]}).with_columns(pl.col("__row").set_sorted())
    lists = lists.group_by("__row", maintain_order=True).agg("__out")
    if lists.height < panes.height:
        bare = np.setdiff1d(np.arange(panes.height), lists["__row"].to_numpy(), assume_unique=True)
        nothing = pl.DataFrame({"__row": bare}).with_columns(pl.lit([], pl.List(pl.Int64)).alias("__out"))
        lists = pl.concat([lists, nothing]).sort("__row")
    return panes.with_columns(lists["__out"])


def mark_panes_changed(panes: pl.DataFrame, touched: NDArray[np.bool_]) -> pl.DataFrame:
    """Clear `holds` in all notes of the `touched` panes, whose results in the target are outdated by new rows."""
    undone = pl.col("__out") - pl.col("__out") % _REVISION
    return panes.with_columns(pl.when(pl.Series(touched)).then(undone).otherwise(pl.col("__out")).alias("__out"))


def record_missed_emissions(
    panes: pl.DataFrame, new: NDArray[np.bool_], first: Int64s, closed: int, hop: int
) -> pl.DataFrame:
    """Note in each `new` pane that it was not part of the emissions of windows that closed before it existed.

    `first` and `hop`: as in `read_revisions`. `closed`: the start of the window that closed last.
    """
    positions = np.flatnonzero(new & (first <= closed))
    if not len(positions):
        return panes
    times = (np.minimum(closed, panes["__start"].to_numpy()[positions]) - first[positions]) // hop + 1
    index, nth = repeat_positions(times)
    row = positions[index]
    rows = {"__row": row, "__start": first[row] + nth * hop, "__rev": NOT_EMITTED, "__holds": False}
    notes = pl.concat([read_revisions(panes, first, hop), pl.DataFrame(rows, schema=NOTE_COLUMNS)])
    return write_revisions(panes, notes, first, hop)
