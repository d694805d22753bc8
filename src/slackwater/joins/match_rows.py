"""One epoch of a join in one shard: late rows, pairs, buffered rows, and rows that expire without a partner.

new left  ─┬─ late, NULL keys ─▶ counted; rows of outer sides with a NULL key are emitted immediately
           ├─▶ buffered right, new right ─▶ pairs ─┬▶ output, in chunks
new right ─┴─▶ buffered left ────────────▶ pairs ─┴▶ changes to both buffers: new rows, first partners
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.humanize import plural
from slackwater.core.sorted_arrays import Int64s, distinct_values, find_run_starts, is_in_sorted
from slackwater.joins.compiled_join import LEFT, RIGHT, CompiledJoin, JoinSide
from slackwater.joins.join_buffers import (
    BufferChange,
    Buffers,
    Changes,
    SortedRows,
    build_row_references,
    find_matching_pairs,
    find_matching_ranges,
    sort_order,
)

MOST = 500_000  # pairs per output chunk
NUMBERS = 1 << 32  # number of row ids that each epoch may use

Sink = Callable[[pl.DataFrame], None]


@dataclass
class SideCounts:
    """Row counts of one side, for one shard and epoch."""

    rows: int = 0
    buffered: int = 0
    late: int = 0
    late_idle: int = 0  # late rows from idle sources
    null_keys: int = 0
    matched: int = 0  # rows that got their first partner
    unmatched: int = 0  # rows of an outer side that were emitted without a partner
    evicted: int = 0  # rows that were dropped at the limit on rows per key


@dataclass
class JoinResult:
    """Result of matching an epoch's rows in one shard. Mappings are keyed by side."""

    changes: Changes
    tallies: Mapping[int, SideCounts]
    late: Mapping[int, pl.DataFrame]  # the late rows, with their original columns
    matches: int = 0  # number of pairs
    # the key with the most rows, if they are more than half of the limit: the number of rows, and the key as text
    hot_key: Mapping[int, tuple[int, str]] = field(default_factory=dict)


@dataclass
class NewRows:
    """The new rows of a side that take part in the join: neither late, nor with a NULL key."""

    side: JoinSide
    rows: pl.DataFrame  # sorted by (`__kh`, `__ts`)
    run: SortedRows
    matched: NDArray[np.bool_]  # a mask of the rows that have a partner


class RowsPerKeyExceededError(Exception):
    """Raised when a key has more than `max_rows_per_key` rows. `rows`: the number of rows. `key`: the key as text."""

    def __init__(self, side: JoinSide, rows: int, key: str) -> None:
        super().__init__(f"{plural(rows, 'row')} of {key}")
        self.side, self.rows, self.key = side, rows, key


def ingest_rows(
    logic: CompiledJoin, new: Mapping[int, pl.DataFrame], buffers: Buffers, watermark: int, epoch: int, sink: Sink
) -> JoinResult:
    """Match an epoch's rows with each other and with the buffered rows.

    Args:
        logic: The join.
        new: The rows of each side: `__kh`, `__ts`, and the columns of the side.
        buffers: The buffered rows of the shard.
        watermark: The watermark (µs) of the previous epoch.
        epoch: The number of the epoch, from which the ids of the rows are derived.
        sink: Receives the output, frame by frame.

    Raises RowsPerKeyExceededError if a key has too many rows, unless the oldest rows may be dropped.
    """
    work = _JoinEpoch(logic, buffers, watermark, sink, {w: SideCounts(rows=rows.height) for w, rows in new.items()})
    late: dict[int, pl.DataFrame] = {}
    fresh: dict[int, NewRows] = {}
    for which, rows in new.items():
        late[which], usable = work.split_late(which, rows)
        keyless, usable = _split_keyless(logic.sides[which], usable)
        work.tallies[which].null_keys = keyless.height
        if keyless.height and logic.sides[which].outer:
            work.tallies[which].unmatched += keyless.height
            sink(logic.unmatched_rows(which, keyless))
        fresh[which] = _sort_new_rows(logic.sides[which], usable, epoch * NUMBERS)
    matches = sum(work.match(fresh[which], fresh.get(1 - which)) for which in (LEFT, RIGHT) if which in fresh)
    changes = {side.which: work.build_change(side, fresh.get(side.which)) for side in logic.sides}
    return JoinResult(changes, work.tallies, late, matches, work.hot_key)


@dataclass
class _JoinEpoch:
    """One epoch of a join in one shard: the common arguments of all steps, and their counts."""

    logic: CompiledJoin
    buffers: Buffers
    watermark: int
    sink: Sink
    tallies: dict[int, SideCounts]
    # the buffered rows of each outer side that have a partner in this epoch
    firsts: dict[int, list[pl.DataFrame]] = field(default_factory=lambda: {LEFT: [], RIGHT: []})
    hot_key: dict[int, tuple[int, str]] = field(default_factory=dict)

    def split_late(self, which: int, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Split the rows of a side into late rows and usable rows, and count the late rows."""
        is_late = rows["__ts"].to_numpy() < self.watermark - self.logic.allowed_us
        if not is_late.any():
            return rows.clear(), rows
        late, tally = rows.filter(pl.Series(is_late)), self.tallies[which]
        tally.late = late.height
        tally.late_idle = int(late["__idle"].sum()) if "__idle" in late.columns else 0
        return late, rows.filter(pl.Series(~is_late))

    # -- pairs ---------------------------------------------------------------------------------------------------

    def match(self, query: NewRows, other: NewRows | None) -> int:
        """Pair a side's new rows with rows of the other side, and emit the pairs. Return the number of pairs.

        The buffered rows of the other side are always matched. Its new rows (`other`) are matched only if `query` is
        the left side, so that each pair is emitted once.
        """
        if not query.rows.height:
            return 0
        side, which = query.side, 1 - query.side.which
        low, high = query.run.ts + side.low_us, query.run.ts + side.high_us
        hashes = distinct_values(query.run.kh, is_sorted=True)
        runs = self.buffers.runs(which, hashes, int(low.min()), int(high.max()))
        count = sum(self._match_run(query, run, low, high) for run in runs)
        if side.which == LEFT and other is not None and other.rows.height:
            count += self._match_run(query, other.run, low, high, other.matched)
        return count

    def _match_run(
        self, query: NewRows, run: SortedRows, low: Int64s, high: Int64s, matched: NDArray[np.bool_] | None = None
    ) -> int:
        """Pair new rows with the rows of a run, and emit the pairs. Return the number of pairs.

        Args:
            query: The new rows of one side.
            run: Rows of the other side.
            low: For each new row, the earliest event time of its partners.
            high: For each new row, the latest event time of its partners.
            matched: A mask of the rows of the run, in which rows with a partner are set; None if the run is buffered.
        """
        logic, other = self.logic, self.logic.sides[1 - query.side.which]
        begin, end = find_matching_ranges(run, query.run.kh, low, high)
        count = 0
        for which, positions in find_matching_pairs(begin, end, MOST):
            rows, partners = query.rows[which], run.take(positions)
            good = _equal_keys(query.side, other, rows, partners)
            if matched is None:
                good &= other.due(partners["__ts"].to_numpy()) > self.watermark
                good &= ~self.buffers.evicted(other.which, partners["__kh"].to_numpy(), partners["__id"].to_numpy())
            if not good.all():
                selected = np.flatnonzero(good)
                which, positions = which[selected], positions[selected]
                rows, partners = rows[selected], partners[selected]
            if not rows.height:
                continue
            count += rows.height
            self.sink(logic.join_rows(rows, partners) if query.side.which == LEFT else logic.join_rows(partners, rows))
            query.matched[which] = True
            if matched is not None:
                matched[positions] = True
            elif other.outer:
                first = partners.unique("__id", keep="first").select("__kh", "__ts", "__id", "__matched")
                self.firsts[other.which].append(first)
        return count

    # -- buffers -------------------------------------------------------------------------------------------------

    def build_change(self, side: JoinSide, new: NewRows | None) -> BufferChange:
        """Return the changes to the buffer of a side, and count them. `new`: the new rows of the side."""
        rows = pl.DataFrame(schema=side.schema)
        if new is not None:
            rows = new.rows.with_columns(pl.Series("__matched", new.matched))
        change = BufferChange(rows.select(list(side.schema)), self._first_matches(side))
        tally = self.tallies.setdefault(side.which, SideCounts())
        tally.buffered = change.rows.height
        tally.matched = change.matched.height + int(rows["__matched"].sum() or 0)
        if self.logic.max_rows_per_key is None or rows.is_empty():
            return change
        return self._enforce_limit(side, change, tally, self.logic.max_rows_per_key)

    def _first_matches(self, side: JoinSide) -> pl.DataFrame:
        """Return references to the buffered rows of a side that got their first partner in this epoch."""
        frames = self.firsts[side.which]
        if not frames:
            return build_row_references()
        rows = pl.concat(frames).unique(["__kh", "__id"], keep="first", maintain_order=True)
        fresh = rows.filter(pl.Series(~self.buffers.matched(side.which, rows)))
        return fresh.select("__kh", "__ts", "__id").sort("__kh", "__id")

    def _enforce_limit(self, side: JoinSide, change: BufferChange, tally: SideCounts, most: int) -> BufferChange:
        """Enforce the limit on rows per key: raise RowsPerKeyExceededError, or evict the oldest rows."""
        kh = change.rows["__kh"].to_numpy()
        begins = find_run_starts(kh)
        hashes, new_counts = kh[begins], np.diff(begins, append=len(kh))
        if 2 * (int(new_counts.max()) + self.buffers.bound(side.which)) <= most:
            return change
        counts = new_counts + self.buffers.counts(side.which, hashes, self.watermark)
        largest = int(counts.argmax())
        if 2 * counts[largest] > most:
            self.hot_key[side.which] = (int(counts[largest]), _describe_key(side, change.rows, int(begins[largest])))
        if counts[largest] <= most:
            return change
        if not self.logic.drop_oldest:
            raise RowsPerKeyExceededError(side, *self.hot_key[side.which])
        return self._evict_oldest(side, change, tally, most, hashes[counts > most])

    def _evict_oldest(
        self, side: JoinSide, change: BufferChange, tally: SideCounts, most: int, hashes: Int64s
    ) -> BufferChange:
        """Evict the oldest rows of the keys with these hashes, so that each key keeps `most` rows.

        Evicted rows of an outer side that have no partner are emitted.
        """
        fields = list(side.schema)
        held = []
        for run in self.buffers.runs(side.which, hashes, int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)):
            rows = run.take(np.flatnonzero(is_in_sorted(run.kh, hashes) & (side.due(run.ts) > self.watermark)))
            gone = self.buffers.evicted(side.which, rows["__kh"].to_numpy(), rows["__id"].to_numpy())
            held.append(rows.select(fields).filter(pl.Series(~gone)))
        old = pl.concat(held) if held else change.rows.clear()
        old = old.with_columns(pl.Series("__matched", self.buffers.matched(side.which, old)))
        if change.matched.height:
            now = pl.Series(is_in_sorted(old["__id"].to_numpy(), np.sort(change.matched["__id"].to_numpy())))
            old = old.with_columns(pl.col("__matched") | now)
        is_affected = pl.Series(is_in_sorted(change.rows["__kh"].to_numpy(), hashes))
        every = pl.concat([old, change.rows.filter(is_affected)]).sort("__kh", "__ts", "__id")
        rank = pl.int_range(pl.len()).over("__kh")
        over = every.filter(rank < pl.len().over("__kh") - most)
        tally.evicted = over.height
        if side.outer:
            lonely = over.filter(~pl.col("__matched"))
            tally.unmatched += lonely.height
            if lonely.height:
                self.sink(self.logic.unmatched_rows(side.which, lonely))
        ids = np.sort(over["__id"].to_numpy())
        rows = change.rows.filter(pl.Series(~is_in_sorted(change.rows["__id"].to_numpy(), ids)))
        buffered = over.filter(pl.Series(is_in_sorted(over["__id"].to_numpy(), np.sort(old["__id"].to_numpy()))))
        return BufferChange(rows, change.matched, buffered.select("__kh", "__ts", "__id").sort("__kh", "__id"))


def emit_unmatched_rows(
    logic: CompiledJoin, buffers: Buffers, since: int, watermark: int, sink: Sink
) -> Mapping[int, int]:
    """Emit the rows of outer sides that expire between two watermarks without a partner. Return row counts by side.

    Args:
        logic: The join.
        buffers: The buffered rows of the shard.
        since: The watermark (µs) of the previous epoch.
        watermark: The new watermark (µs).
        sink: Receives the output, frame by frame.
    """
    counts: dict[int, int] = {}
    for side in logic.sides:
        if side.outer:
            rows = buffers.due(side.which, since, watermark)
            if rows.height:
                counts[side.which] = rows.height
                sink(logic.unmatched_rows(side.which, rows))
    return counts


def _split_keyless(side: JoinSide, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    names = [k.name for k in side.keys]
    if not any(rows[n].null_count() for n in names):
        return rows.clear(), rows
    missing = rows.select(pl.any_horizontal(pl.col(names).is_null())).to_series()
    return rows.filter(missing), rows.filter(~missing)


def _sort_new_rows(side: JoinSide, rows: pl.DataFrame, first_id: int) -> NewRows:
    rows = rows[sort_order(rows["__kh"].to_numpy(), rows["__ts"].to_numpy())]
    rows = rows.with_columns(pl.int_range(first_id, first_id + pl.len(), dtype=pl.Int64).alias("__id"))
    return NewRows(side, rows, SortedRows.from_frame(rows), np.zeros(rows.height, dtype=bool))


def _equal_keys(side: JoinSide, other: JoinSide, rows: pl.DataFrame, partners: pl.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the pairs with equal keys. Different keys may have the same hash.

    NaN equals NaN, and 0.0 equals -0.0.
    """
    good = np.ones(rows.height, dtype=bool)
    for a, b in zip(side.keys, other.keys, strict=True):
        good &= (rows[a.name] == partners[b.name]).to_numpy()
    return good


def _describe_key(side: JoinSide, rows: pl.DataFrame, row: int) -> str:
    return ", ".join(f"{k.name} = {rows[k.name][row]!r}" for k in side.keys)
