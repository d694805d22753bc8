"""Tumbling and hopping windows over panes.

A pane is the longest stretch of time that no window boundary cuts: gcd(duration, hop), on the grid of `offset`. Each
row is merged into exactly one pane, no matter how many windows overlap. Windows are merged from panes when they close.

    duration 60, hop 20        pane 20
    windows   [0 ............ 60)
                   [20 ........... 80)
                        [40 .......... 100)
    panes     |0   |20   |40   |60   |80
                         ^ a row here is stored once and read by three windows

A pane is due when the last window that contains it leaves the state: at the end of that window, plus the allowed
lateness.

If windows can be revised, a changed pane is DIRTY until it is emitted. With `reopen`, only panes of closed windows
become DIRTY; with `updates`, every changed pane does. The windows of DIRTY panes are merged from all their panes and
emitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from slackwater.core.hashing import mix_bits
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import distinct_values, is_in_sorted, order_by_unit
from slackwater.windows.compiled_window import CompiledWindow, IngestResult, ResultCounts
from slackwater.windows.state_rows import CLEAN, DIRTY, FAR, NEVER, DueRowFilter, ExpiryBounds, Int64s, SegmentStats
from slackwater.windows.window_revisions import NOT_EMITTED, mark_panes_changed, record_missed_emissions


@dataclass(frozen=True)
class CompiledPaneWindow(CompiledWindow):
    """A compiled tumbling or hopping window.

    With `one_by_one`, Spark does not pre-aggregate rows before the shuffle.
    """

    one_by_one: bool = False

    @property
    def lifts_in_sql(self) -> bool:
        """Return whether Spark pre-aggregates rows; otherwise the shards lift them.

        Pre-aggregation requires that every aggregation has a SQL form.
        """
        return not self.one_by_one and all(a.lift_sql("__ts") is not None for a in self.aggs)

    @property
    def duration_us(self) -> int:
        return (self.window.duration_ms or 0) * 1000

    @property
    def hop_us(self) -> int:
        return (self.window.hop_ms or self.window.duration_ms or 0) * 1000

    @property
    def offset_us(self) -> int:
        return self.window.offset_ms * 1000

    @cached_property
    def output(self) -> list[Field]:
        return [*self.bounds, *self.keys, *self.values]

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        start, last = state["__start"].to_numpy(), int(state["__due"].to_numpy().max())
        first, close = int(first_window(self, start.min()) + self.duration_us), last - self.retain_us
        if bool((state["__kind"].to_numpy() == DIRTY).any()):
            return SegmentStats(first_due=NEVER, last_due=FAR, close=close, dead=FAR)
        return SegmentStats(first_due=first, last_due=close, close=close, dead=last)

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        """Select panes of windows that close in (since, watermark], and changed panes that have not been emitted."""
        pending_upto = FAR if self.revises else NEVER
        move, retain_us, waiting = (since, watermark), self.retain_us, (FAR - 1, watermark)
        if self.updates:
            return DueRowFilter((waiting,), (), (), pending_upto, start_before=FAR)
        if self.hop_us == self.duration_us:
            return DueRowFilter(
                (move, waiting), ((since + retain_us, watermark + retain_us),), (), pending_upto, start_before=FAR
            )
        now = last_closed(self, watermark)
        closing = (
            ((since + retain_us, FAR),) if now > last_closed(self, since) else ()
        )  # else no window ends in that range
        return DueRowFilter((move, waiting), closing, (), pending_upto, start_before=now + self.duration_us)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        """Return the `__due` up to which the last window of a pane has left the state."""
        return ExpiryBounds(whole_upto=watermark, floor_upto=NEVER)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Keep the panes that a window still needs."""
        return state.filter((pl.col("__due") > watermark) | (pl.col("__kind") == DIRTY))


def pane_us(logic: CompiledPaneWindow) -> int:
    """Return the length of a pane in µs."""
    return math.gcd(logic.duration_us, logic.hop_us)


def pane_start(logic: CompiledPaneWindow, ts: Int64s) -> Int64s:
    """Return the start of the pane that contains each time. Floor division also handles times before 1970."""
    pane, offset = pane_us(logic), logic.offset_us
    return (ts - offset) // pane * pane + offset


def first_window(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the start of the earliest window that contains each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - logic.duration_us - offset) // hop * hop + offset + hop


def last_window(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the start of the latest window that contains each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - offset) // hop * hop + offset


def last_closed(logic: CompiledPaneWindow, watermark: int) -> int:
    """Return the start of the last window that is closed at a watermark (or, given a horizon, has left the state)."""
    hop, offset = logic.hop_us, logic.offset_us
    return (watermark - logic.duration_us - offset) // hop * hop + offset


def lift_rows(logic: CompiledPaneWindow, rows: pl.DataFrame) -> pl.DataFrame:
    """Aggregate rows (`__kh`, `__ts`, keys, inputs) into partial accumulators per key and pane, in any order.

    If every aggregation has a SQL form, Spark computes the same before the shuffle.
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


def late_before(logic: CompiledPaneWindow, watermark: int) -> int:
    """Return the end of the last window that has left the state. A row before it is late for at least one window."""
    return last_closed(logic, logic.horizon(watermark)) + logic.duration_us


def missed_windows(logic: CompiledPaneWindow, ts: Int64s, watermark: int) -> tuple[Int64s, Int64s]:
    """For each time, return the first of its windows that has left the state, and the number of such windows."""
    first = first_window(logic, ts)
    gone = np.minimum(last_window(logic, ts), last_closed(logic, logic.horizon(watermark)))
    return first, np.clip((gone - first) // logic.hop_us + 1, 0, None)


def ingest_panes(logic: CompiledPaneWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> IngestResult:
    """Merge lifted panes (`__kh`, `__start`, `__n`, keys, accumulators) into the touched units.

    `watermark` is that of the previous epoch. A row is late for a window that has left the state by then, and dropped
    only if it is late for all its windows. `__n` is the number of raw rows in a lifted row.
    """
    horizon = logic.horizon(watermark)
    pane, n = rows["__start"].to_numpy(), rows["__n"].to_numpy()
    first, last = first_window(logic, pane), last_window(logic, pane)
    missed = np.clip((np.minimum(last, last_closed(logic, horizon)) - first) // logic.hop_us + 1, 0, None)
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
    """Merge rows with equal key and pane into one state row, which is DIRTY if any of them is."""
    pane = rows["__start"].to_numpy()
    earliest = np.maximum(first_window(logic, pane), last_closed(logic, logic.horizon(watermark)) + logic.hop_us)
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
    first, begun = first_window(logic, merged["__start"].to_numpy()), np.logical_and.reduceat(fresh, heads)
    return record_missed_emissions(merged, begun, first, last_closed(logic, watermark), logic.hop_us)


def is_overlapping(logic: CompiledPaneWindow) -> bool:
    """Return whether a pane can belong to several windows."""
    return logic.hop_us != logic.duration_us


def pane_due_times(logic: CompiledPaneWindow, pane: Int64s) -> Int64s:
    """Return the watermark at which the last window of each pane leaves the state."""
    return last_window(logic, pane) + logic.duration_us + logic.retain_us


def admit_groups(
    logic: CompiledPaneWindow, rows: pl.DataFrame, existing: pl.DataFrame, watermark: int, limit: int
) -> tuple[pl.DataFrame, int]:
    """Apply `on_state_cap = "drop_new_groups"` in a shard: return admitted rows and the number of refused raw rows.

    Called only if the limit may be reached. `existing` contains all live panes of the shard (`__kh`, `__start`, keys).
    A group counts in every open window that contains its pane. Groups are admitted in order of (first event time, key),
    and only if all these windows have room. The loop runs over new groups, not over rows.
    """
    names = logic.key_names
    members: dict[int, set[tuple[object, ...]]] = {}
    first_open = last_closed(logic, logic.horizon(watermark)) + logic.hop_us

    def windows_of(pane: int) -> range:
        starts = np.array([pane])
        low = max(int(first_window(logic, starts)[0]), first_open)
        return range(low, int(last_window(logic, starts)[0]) + 1, logic.hop_us)

    for *key, pane in existing.select(*names, "__start").iter_rows():
        for window in windows_of(pane):
            members.setdefault(window, set()).add(tuple(map(_hashable, key)))
    ordered = rows.with_row_index("__row").sort(["__first", *names], nulls_last=False)
    admitted: list[int] = []
    refused = 0
    for row, *key, pane, n in ordered.select("__row", *names, "__start", "__n").iter_rows():
        group = tuple(map(_hashable, key))
        held = [members.setdefault(w, set()) for w in windows_of(pane)]
        if all(group in m or len(m) < limit for m in held):
            admitted.append(row)
            for m in held:
                m.add(group)
        elif held:
            refused += n
        else:
            admitted.append(row)  # late for all its windows: counted as late, not as refused
    return rows[sorted(admitted)], refused


def _hashable(value: object) -> object:
    return "NaN" if isinstance(value, float) and value != value else value


def convert_emission(logic: CompiledPaneWindow, state: pl.DataFrame, updates: bool) -> pl.DataFrame:
    """Convert state rows to a new emission mode. `updates`: whether the old mode emitted changed windows early."""
    state = state.with_columns(pl.Series("__due", pane_due_times(logic, state["__start"].to_numpy())))
    if logic.updates and not updates:  # open windows have not been emitted yet
        return state.with_columns(pl.lit(DIRTY, pl.Int8).alias("__kind"))
    if not logic.updates:
        return state.with_columns(pl.lit(CLEAN, pl.Int8).alias("__kind"))
    return state


def window_totals(logic: CompiledPaneWindow, panes: dict[int, int], watermark: int) -> dict[int, int]:
    """Return, for each open or retained window, the total number of groups in its panes.

    `panes`: the number of groups by start of the pane. The total is exact for tumbling windows, and an upper limit for
    hopping windows, in which a group may have several panes.
    """
    totals: dict[int, int] = {}
    closed = last_closed(logic, logic.horizon(watermark))
    for pane, groups in panes.items():
        starts = np.array([pane])
        low = max(int(first_window(logic, starts)[0]), closed + logic.hop_us)
        for window in range(low, int(last_window(logic, starts)[0]) + 1, logic.hop_us):
            totals[window] = totals.get(window, 0) + groups
    return totals


def exact_totals(logic: CompiledPaneWindow, state: pl.DataFrame, windows: list[int]) -> dict[int, int]:
    """Count the groups of each of these windows (by start) in `state`, the live panes of one shard."""
    keys = ["__kh", *logic.key_names]
    return {
        w: state.filter(pl.col("__start").is_between(w, w + logic.duration_us, closed="left"))
        .select(keys)
        .unique()
        .height
        for w in windows
    }
