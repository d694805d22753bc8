"""The interface of a shard's join buffers: what a join reads from them, and the changes that it makes to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import Int64s
from slackwater.joins.sorted_match import SortedRows

OUTLINE = {"__kh": pl.Int64(), "__ts": pl.Int64(), "__matched": pl.Boolean()}
NONE: Int64s = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class BufferChange:
    """The changes that an epoch makes to one side's buffer.

    `rows`: new rows, sorted by (`__kh`, `__ts`, `__id`). `matched`: `__kh`, `__ts` and `__id` of buffered rows that
    got their first partner (outer sides only). `evicted`: the same columns of rows that were dropped to respect the
    limit on rows per key.
    """

    rows: pl.DataFrame
    matched: pl.DataFrame = field(default_factory=lambda: row_references())
    evicted: pl.DataFrame = field(default_factory=lambda: row_references())

    @property
    def is_empty(self) -> bool:
        return not (self.rows.height or self.matched.height or self.evicted.height)


def row_references(kh: Int64s = NONE, ts: Int64s = NONE, id_: Int64s = NONE) -> pl.DataFrame:
    """Return a frame that identifies rows by key hash, time and id."""
    return pl.DataFrame({"__kh": kh, "__ts": ts, "__id": id_}, schema=dict.fromkeys(("__kh", "__ts", "__id"), pl.Int64))


class Buffers(Protocol):
    """The buffered rows of both sides in one shard, as of a commit or of the current epoch's staged changes."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        """Return sorted runs with all rows of a side that have these hashes (sorted, unique) and times `low` to `high`.

        The runs may contain other rows as well.
        """
        ...

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        """Return a mask of the rows that have a partner. `rows`: buffered rows with `__kh`, `__id` and `__matched`."""
        ...

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the rows that were evicted, given the key hashes and ids of rows from `runs`."""
        ...

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        """Return the rows of an outer side that expire between two watermarks without a partner."""
        ...

    def bound(self, which: int) -> int:
        """Return an upper limit for the number of rows per key on a side. The actual numbers may be much lower."""
        ...

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        """Return the number of unexpired rows on a side for each of these hashes (sorted, unique)."""
        ...

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        """Return all unexpired rows of a side, with `__matched` up to date."""
        ...

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        """Return only the columns `__kh`, `__ts` and `__matched` of the rows that `scan` returns."""
        ...


class NoBuffers:
    """Empty buffers, for a batch run that sees all rows at once."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        return ()

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        return np.zeros(rows.height, dtype=bool)

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        return np.zeros(len(kh), dtype=bool)

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        return row_references()

    def bound(self, which: int) -> int:
        return 0

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        return np.zeros(len(hashes), dtype=np.int64)

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        return row_references()

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        return pl.DataFrame(schema=OUTLINE)


Changes = Mapping[int, BufferChange]
