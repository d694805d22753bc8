"""Tumbling and hopping windows over panes.

A pane is the longest stretch that lies wholly inside or outside every window: gcd(duration, hop), on the grid of
`offset`. Rows are folded into one pane each, however many windows overlap; windows are put together when they close.

    duration 60, hop 20        pane 20
    windows   [0 ............ 60)
                   [20 ........... 80)
                        [40 .......... 100)
    panes     |0   |20   |40   |60   |80
                         ^ a row here is written once and read by three windows

A pane is `due` at the end of the last window that holds it; after that the watermark alone says that it is gone.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from slackwater.core.arrays import distinct, member
from slackwater.windows.logic import (
    FAR,
    NEVER,
    SETTLED,
    Counts,
    Emitted,
    Forgotten,
    Ingested,
    Int64s,
    Logic,
    Stats,
    Visit,
    sorted_by_key,
)


def pane_us(logic: Logic) -> int:
    """The length of a pane in microseconds."""
    return math.gcd(logic.duration_us, logic.hop_us)


def pane_start(logic: Logic, ts: Int64s) -> Int64s:
    """The start of the pane that holds each time; floor division, so times before 1970 work."""
    pane, offset = pane_us(logic), logic.offset_us
    return (ts - offset) // pane * pane + offset


def first_window(logic: Logic, pane: Int64s) -> Int64s:
    """The start of the earliest window that holds each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - logic.duration_us - offset) // hop * hop + offset + hop


def last_window(logic: Logic, pane: Int64s) -> Int64s:
    """The start of the latest window that holds each pane."""
    hop, offset = logic.hop_us, logic.offset_us
    return (pane - offset) // hop * hop + offset


def last_closed(logic: Logic, watermark: int) -> int:
    """The largest window start whose window is closed at a watermark."""
    hop, offset = logic.hop_us, logic.offset_us
    return (watermark - logic.duration_us - offset) // hop * hop + offset


def late_before(logic: Logic, watermark: int) -> int:
    """Rows before this time are late for at least one window: it is the end of the last closed one."""
    return last_closed(logic, watermark) + logic.duration_us


def missed(logic: Logic, ts: Int64s, watermark: int) -> tuple[Int64s, Int64s]:
    """Of the windows that hold each time those that `watermark` has closed: the first one's start, and how many."""
    first = first_window(logic, ts)
    closed = np.minimum(last_window(logic, ts), last_closed(logic, watermark))
    return first, np.clip((closed - first) // logic.hop_us + 1, 0, None)


def ingest(logic: Logic, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> Ingested:
    """Fold lifted panes (`__kh`, `__start`, `__n`, keys, accumulators) into the touched units.

    A row is late for a window that `watermark` (of the previous epoch) has closed, and late for good if that holds for
    all its windows. `__n` is how many raw rows a lifted row stands for.
    """
    pane, n = rows["__start"].to_numpy(), rows["__n"].to_numpy()
    first, last = first_window(logic, pane), last_window(logic, pane)
    closed = np.clip((np.minimum(last, last_closed(logic, watermark)) - first) // logic.hop_us + 1, 0, None)
    is_late = last + logic.duration_us <= watermark
    late = rows.filter(pl.Series(is_late)) if is_late.any() else rows.clear()
    fresh = rows.filter(pl.Series(~is_late)) if is_late.any() else rows
    idle = int(late["__n"].filter(late["__idle"]).sum()) if "__idle" in late.columns else 0
    total = int(n.sum())
    merged = _merge(logic, fresh, state)
    known = distinct(state["__h"].to_numpy())
    is_new = ~member(merged["__h"].to_numpy(), known)
    starts, counts = np.unique(merged["__start"].to_numpy()[is_new], return_counts=True)
    return Ingested(
        state=merged.sort("__h"),
        counts=Counts(
            used=int(fresh["__n"].sum()),
            late=total - int(fresh["__n"].sum()),
            late_idle=idle,
            late_windows=int((closed * n).sum()),
        ),
        late=late,
        new_groups=dict(zip(starts.tolist(), counts.tolist(), strict=True)),
    )


def _merge(logic: Logic, rows: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
    """Rows of equal key and pane become one state row."""
    last = pl.Series("__due", last_window(logic, rows["__start"].to_numpy()) + logic.duration_us)
    lifted = rows.with_columns(
        last,
        pl.col("__start").alias("__last"),
        pl.lit(SETTLED, pl.Int8).alias("__kind"),
    ).select(logic.state_schema.keys())
    both = pl.concat([state.select(lifted.columns), lifted])
    if both.is_empty():
        return both
    both, key = sorted_by_key(both, logic.key_names, "__start")
    start = both["__start"].to_numpy()
    new = np.ones(both.height, dtype=bool)
    new[1:] = (key[1:] != key[:-1]) | (start[1:] != start[:-1])
    carried = [pl.col(c).first() for c in ("__h", "__kh", "__kind", "__start", "__last", "__due")]
    return logic.merge_groups(both, np.cumsum(new), carried)


def emit(logic: Logic, panes: pl.DataFrame, since: int, watermark: int) -> Emitted:
    """The windows that close in (since, watermark], put together from the panes they hold."""
    if panes.is_empty():
        return _emitted(logic, panes.with_columns(__end=pl.col("__due")))
    pane = panes["__start"].to_numpy()
    low = np.maximum(first_window(logic, pane), last_closed(logic, since) + logic.hop_us)
    high = np.minimum(last_window(logic, pane), last_closed(logic, watermark))
    times = np.clip((high - low) // logic.hop_us + 1, 0, None)
    index = np.repeat(np.arange(panes.height), times)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
    window = low[index] + nth * logic.hop_us
    spread = panes.select("__kh", *logic.key_names, *logic.accumulators)[index].with_columns(
        pl.Series("__start", window),
        pl.Series("__last", window),
        pl.Series("__end", window + logic.duration_us),
    )
    if logic.hop_us != logic.duration_us and spread.height:
        spread, key = sorted_by_key(spread, logic.key_names, "__start")
        start = spread["__start"].to_numpy()
        new = np.ones(spread.height, dtype=bool)
        new[1:] = (key[1:] != key[:-1]) | (start[1:] != start[:-1])
        carried = [pl.col(c).first() for c in ("__kh", "__start", "__last", "__end")]
        spread = logic.merge_groups(spread, np.cumsum(new), carried)
    return _emitted(logic, spread)


def _emitted(logic: Logic, rows: pl.DataFrame) -> Emitted:
    reasoned = rows.with_columns(pl.lit("close").alias("__reason"))
    return Emitted(reasoned, logic.empty_state(), groups=0, windows=0)


def admit(
    logic: Logic, rows: pl.DataFrame, existing: pl.DataFrame, watermark: int, bound: int
) -> tuple[pl.DataFrame, int]:
    """`on_state_cap = "drop_new_groups"` in one shard: the rows that fit, and how many raw rows were refused.

    `existing` holds all live panes of the shard (`__kh`, `__start`, keys). A group takes a place in every open window
    that holds its pane; groups are admitted in order of (first event time, key), and only if each of those windows has room.
    Only called when the bound may be reached, so the loop below runs over new groups, not over rows.
    """
    names = logic.key_names
    members: dict[int, set[tuple[object, ...]]] = {}
    first_open = last_closed(logic, watermark) + logic.hop_us

    def windows_of(pane: int) -> range:
        at = np.array([pane])
        low = max(int(first_window(logic, at)[0]), first_open)
        return range(low, int(last_window(logic, at)[0]) + 1, logic.hop_us)

    for *key, pane in existing.select(*names, "__start").iter_rows():
        for window in windows_of(pane):
            members.setdefault(window, set()).add(tuple(map(_hashable, key)))
    ordered = rows.with_row_index("__row").sort(["__first", *names], nulls_last=False)
    admitted: list[int] = []
    refused = 0
    for row, *key, pane, n in ordered.select("__row", *names, "__start", "__n").iter_rows():
        group = tuple(map(_hashable, key))
        held = [members.setdefault(w, set()) for w in windows_of(pane)]
        if all(group in m or len(m) < bound for m in held):
            admitted.append(row)
            for m in held:
                m.add(group)
        elif held:
            refused += n
        else:
            admitted.append(row)  # late for all its windows: judged as late, not refused
    return rows[sorted(admitted)], refused


def _hashable(value: object) -> object:
    return "NaN" if isinstance(value, float) and value != value else value


def stats(logic: Logic, state: pl.DataFrame) -> Stats:
    """Of a set of panes that is not empty."""
    start, due = state["__start"].to_numpy(), int(state["__due"].to_numpy().max())
    first = int(first_window(logic, start.min()) + logic.duration_us)
    return Stats(first_due=first, last_due=due, close=due, dead=due)


def visit(logic: Logic, since: int, watermark: int) -> Visit:
    """The panes that are part of a window that closes in (since, watermark]."""
    if logic.hop_us == logic.duration_us:
        return Visit(since, watermark, loose_upto=NEVER, start_before=FAR)
    return Visit(since, FAR, loose_upto=NEVER, start_before=last_closed(logic, watermark) + logic.duration_us)


def forgotten(logic: Logic, watermark: int) -> Forgotten:
    """Panes that are out of their last window."""
    return Forgotten(settled_upto=watermark, floor_upto=NEVER)


def forget(logic: Logic, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """The panes that some window still needs."""
    return state.filter(pl.col("__due") > watermark)


def window_totals(logic: Logic, panes: dict[int, int], watermark: int) -> dict[int, int]:
    """Per open window the sum of its panes' groups: exact for tumbling, an upper bound for hopping windows."""
    totals: dict[int, int] = {}
    closed = last_closed(logic, watermark)
    for pane, groups in panes.items():
        at = np.array([pane])
        low = max(int(first_window(logic, at)[0]), closed + logic.hop_us)
        for window in range(low, int(last_window(logic, at)[0]) + 1, logic.hop_us):
            totals[window] = totals.get(window, 0) + groups
    return totals


def exact_totals(logic: Logic, state: pl.DataFrame, windows: list[int]) -> dict[int, int]:
    """The number of groups in each of these windows, counted in the live panes of one shard."""
    keys = ["__kh", *logic.key_names]
    return {
        w: state.filter(pl.col("__start").is_between(w, w + logic.duration_us, closed="left"))
        .select(keys)
        .unique()
        .height
        for w in windows
    }
