"""The join buffers of a shard: sorted runs of rows, the search for partners, and the changes that an epoch makes.

A run is sorted by (key hash, time). One vectorized binary search finds the partners of all new rows in a run:

run      kh   3   3   3   7   9        query (3, low = 4, high = 8)
         ts   1   5   8   2   6               └───┴─▶ begin and end of the range of partners
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import Int64s

OUTLINE = {"__kh": pl.Int64(), "__ts": pl.Int64(), "__matched": pl.Boolean()}
NONE: Int64s = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class SortedRows:
    """Rows of one side, sorted by (`kh`, `ts`)."""

    kh: Int64s  # key hashes
    ts: Int64s  # event times (µs)
    id: Int64s
    take: Callable[[Int64s], pl.DataFrame]  # returns the rows at these positions, with all columns

    @classmethod
    def from_frame(cls, frame: pl.DataFrame) -> SortedRows:
        """Wrap a frame that is sorted by `__kh` and `__ts`, and has `__id`."""
        kh, ts, id_ = (frame[c].to_numpy() for c in ("__kh", "__ts", "__id"))
        return cls(kh, ts, id_, frame.__getitem__)


@dataclass(frozen=True)
class BufferChange:
    """Changes that an epoch makes to the buffer of one side."""

    rows: pl.DataFrame  # new rows, sorted by (`__kh`, `__ts`, `__id`)
    # references to buffered rows that got their first partner (outer sides only)
    matched: pl.DataFrame = field(default_factory=lambda: build_row_references())
    # references to buffered rows that were dropped at the limit on rows per key
    evicted: pl.DataFrame = field(default_factory=lambda: build_row_references())

    @property
    def is_empty(self) -> bool:
        return not (self.rows.height or self.matched.height or self.evicted.height)


def build_row_references(kh: Int64s = NONE, ts: Int64s = NONE, id_: Int64s = NONE) -> pl.DataFrame:
    """Return a frame of references to rows, by key hash, event time and id."""
    return pl.DataFrame({"__kh": kh, "__ts": ts, "__id": id_}, schema=dict.fromkeys(("__kh", "__ts", "__id"), pl.Int64))


class Buffers(Protocol):
    """The buffered rows of both sides in one shard, as committed or with the staged changes of the current epoch."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        """Return sorted runs that contain all rows of a side with one of these hashes and a time from `low` to `high`.

        `hashes` must be sorted and unique. The runs may contain additional rows.
        """
        ...

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        """Return a mask of the rows that have a partner. `rows`: buffered rows with `__kh`, `__id` and `__matched`."""
        ...

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the evicted rows. `kh` and `id_`: the key hashes and ids of rows from `runs`."""
        ...

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        """Return the rows of an outer side that expire between two watermarks without a partner."""
        ...

    def bound(self, which: int) -> int:
        """Return an upper limit for the number of rows per key of a side. The actual numbers may be much lower."""
        ...

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        """Return the number of unexpired rows of a side for each of these hashes, which must be sorted and unique."""
        ...

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        """Return all unexpired rows of a side, with `__matched` up to date."""
        ...

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        """Return all unexpired rows of a side, with only the columns `__kh`, `__ts` and `__matched`."""
        ...


class EmptyBuffers:
    """Empty buffers, for a batch run that reads all rows at once."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        return ()

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        return np.zeros(rows.height, dtype=bool)

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        return np.zeros(len(kh), dtype=bool)

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        return build_row_references()

    def bound(self, which: int) -> int:
        return 0

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        return np.zeros(len(hashes), dtype=np.int64)

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        return build_row_references()

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        return pl.DataFrame(schema=OUTLINE)


Changes = Mapping[int, BufferChange]


# -- finding partners --------------------------------------------------------------------------------------------------


def sort_order(kh: Int64s, ts: Int64s) -> Int64s:
    """Return the positions that sort rows stably by (`kh`, `ts`).

    If few keys repeat, the cost is that of sorting one column of numbers.
    """
    order = np.argsort(kh)  # three times as fast as a stable sort, or as a sort by both columns
    hashes = kh[order]
    repeats = hashes[1:] == hashes[:-1]
    if repeats.any():
        tied = np.append(repeats, False) | np.append(False, repeats)
        some = order[tied]
        order[tied] = some[np.lexsort((some, ts[some], hashes[tied]))]
    return order


def find_matching_ranges(run: SortedRows, kh: Int64s, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
    """Return, for each query, the positions at which the matching rows of a run begin and end.

    Args:
        run: The rows to search.
        kh: The key hash of each query. The search is fastest if the hashes are ascending.
        low: The earliest matching event time of each query.
        high: The latest matching event time of each query.
    """
    begin = np.searchsorted(run.kh, kh, "left")
    end = begin.copy()
    here = np.flatnonzero(begin < len(run.kh))
    here = here[run.kh[begin[here]] == kh[here]]
    end[here] = np.searchsorted(run.kh, kh[here], "right")
    first = bisect_ranges(run.ts, begin[here], end[here], low[here], False)
    end[here] = bisect_ranges(run.ts, first, end[here], high[here], True)
    begin[here] = first
    return begin, end


def bisect_ranges(values: Int64s, begin: Int64s, end: Int64s, thresholds: Int64s, after_equals: bool) -> Int64s:
    """Find a threshold in each of several ranges of ascending values.

    Args:
        values: The values of all ranges.
        begin: The first position of each range.
        end: The position after the last one of each range.
        thresholds: The threshold of each range.
        after_equals: Whether to find the first value above the threshold, not the first value at or above it.

    Returns the first such position of each range, or the end of the range.
    """
    low, high = begin.copy(), end.copy()
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) >> 1
        middle_values = values[middle]
        below = middle_values <= thresholds[open_] if after_equals else middle_values < thresholds[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
        open_ = open_[low[open_] < high[open_]]
    return low


def find_matching_pairs(begin: Int64s, end: Int64s, most: int) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the pairs of queries and the positions in their ranges, as arrays of at most `most` elements.

    Because a hot key can have very many pairs, `most` limits the memory. `begin` and `end`: see `find_matching_ranges`.
    """
    counts = end - begin
    upto = np.cumsum(counts)
    total = int(upto[-1]) if len(upto) else 0
    for start in range(0, total, most):
        flat = np.arange(start, min(start + most, total))
        query = np.searchsorted(upto, flat, "right")
        yield query, begin[query] + flat - (upto[query] - counts[query])
