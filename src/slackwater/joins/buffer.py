"""What a join asks of the buffers of a shard, and what it changes in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.arrays import Int64s
from slackwater.joins.match import SortedRows

OUTLINE = {"__kh": pl.Int64(), "__ts": pl.Int64(), "__matched": pl.Boolean()}
NONE: Int64s = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class BufferChange:
    """What an epoch does to one side's buffer.

    `rows`: added, sorted by (`__kh`, `__ts`, `__id`). `matched`: `__kh`, `__ts`, `__id` of rows that were there and found their
    first partner (outer sides). `evicted`: the same of rows that had to go before their time.
    """

    rows: pl.DataFrame
    matched: pl.DataFrame = field(default_factory=lambda: row_places())
    evicted: pl.DataFrame = field(default_factory=lambda: row_places())

    @property
    def is_empty(self) -> bool:
        return not (self.rows.height or self.matched.height or self.evicted.height)


def row_places(kh: Int64s = NONE, ts: Int64s = NONE, id_: Int64s = NONE) -> pl.DataFrame:
    """Rows by where they are."""
    return pl.DataFrame({"__kh": kh, "__ts": ts, "__id": id_}, schema=dict.fromkeys(("__kh", "__ts", "__id"), pl.Int64))


class Buffers(Protocol):
    """Both sides' buffered rows of one shard, as of a commit or of a step of the epoch in progress."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        """All rows of a side with these hashes (sorted, unique) and times from `low` to `high`, and maybe others."""
        ...

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        """Which buffered rows (with `__kh`, `__id`, `__matched`) have found a partner."""
        ...

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        """Which rows of `runs` had to go before their time."""
        ...

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        """The rows of an outer side that expire between two watermarks and found no partner."""
        ...

    def bound(self, which: int) -> int:
        """Not less than the number of rows that any one key has on a side; may be far more."""
        ...

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        """How many rows that are not expired each of these hashes (sorted, unique) has on a side."""
        ...

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        """Every row of a side that is not expired, `__matched` up to date."""
        ...

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        """The same rows, and of their columns `__kh`, `__ts` and `__matched` alone."""
        ...


class NoBuffers:
    """Nothing is buffered: all rows there will ever be are at hand."""

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        return ()

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        return np.zeros(rows.height, dtype=bool)

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        return np.zeros(len(kh), dtype=bool)

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        return row_places()

    def bound(self, which: int) -> int:
        return 0

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        return np.zeros(len(hashes), dtype=np.int64)

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        return row_places()

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        return pl.DataFrame(schema=OUTLINE)


Changes = Mapping[int, BufferChange]
