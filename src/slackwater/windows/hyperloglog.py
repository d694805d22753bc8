"""HyperLogLog as a set of coupons, so that merging sketches uses the same vectorized operations as other aggregations.

A coupon is `slot * 64 + rank`: the slot is the low `precision` bits of a value's 64-bit hash, and the rank is one plus
the number of trailing zeros of the remaining bits. A sketch is the sorted list of the largest coupon of each slot; the
union of two sketches is the union of the lists. The estimate is Ertl's improved raw estimator ("New cardinality
estimation algorithms for HyperLogLog sketches", 2017, algorithm 6): it needs no tables, is unbiased over the whole
range, and depends only on the registers, not on order or batching. The standard error is 1.04 / sqrt(2^precision).
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

RANK_BITS = 6


def coupon_sql(hash_sql: str, precision: int) -> str:
    """Return Spark SQL that maps a BIGINT hash to its coupon (INT); NULL for NULL."""
    rest = f"shiftrightunsigned({hash_sql}, {precision})"
    rank = f"least(bit_count(({rest} & -{rest}) - 1), {64 - precision}) + 1"
    return f"CAST(({hash_sql} & {(1 << precision) - 1}) * {1 << RANK_BITS} + {rank} AS INT)"


def hash_coupons(hashes: pl.Series, precision: int) -> pl.Series:
    """Map each Int64 hash to its coupon (Int32); NULL for NULL."""
    values = hashes.fill_null(0).to_numpy().view(np.uint64)
    rest = values >> np.uint64(precision)
    lowest = rest & (~rest + np.uint64(1))
    rank = np.where(rest == 0, 64 - precision, np.bitwise_count(lowest - np.uint64(1))) + 1
    slot = (values & np.uint64((1 << precision) - 1)).astype(np.int64)
    return pl.Series(hashes.name, (slot << RANK_BITS) + rank.astype(np.int64), dtype=pl.Int32).set(
        hashes.is_null(), None
    )


def merge_sketches(lists: pl.Expr) -> pl.Expr:
    """Merge the sketches of a group into one sorted list with the largest coupon of each slot."""
    sorted_coupons = lists.explode().drop_nulls().unique().sort()
    slot = sorted_coupons // (1 << RANK_BITS)
    return sorted_coupons.filter(slot != slot.shift(-1).fill_null(-1))


def estimate_distinct(sketches: pl.Series, precision: int) -> pl.Series:
    """Estimate the number of distinct values (Int64) in each sketch (List(Int32)); 0 for an empty sketch."""
    groups, registers, ranks = sketches.len(), 1 << precision, 64 - precision + 1
    lengths = sketches.list.len().fill_null(0).to_numpy().astype(np.int64)
    exploded = sketches.explode().drop_nulls().to_numpy().astype(np.int64)
    cells = np.repeat(np.arange(groups), lengths) * (ranks + 1) + (exploded & ((1 << RANK_BITS) - 1))
    counts = np.bincount(cells, minlength=groups * (ranks + 1)).reshape(groups, ranks + 1).astype(float)
    counts[:, 0] = registers - lengths
    z = registers * _tau(1.0 - counts[:, ranks] / registers)
    for rank in range(ranks - 1, 0, -1):
        z = 0.5 * (z + counts[:, rank])
    with np.errstate(divide="ignore"):
        z = z + registers * _sigma(counts[:, 0] / registers)
        raw = registers * registers / (2.0 * np.log(2.0)) / z
    return pl.Series(sketches.name, np.rint(np.where(lengths == 0, 0.0, raw)).astype(np.int64))


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    full = x >= 1.0
    x = np.where(full, 0.0, x)
    y, z = np.ones_like(x), x.copy()
    while True:
        x = x * x
        previous = z
        z = z + x * y
        y = y + y
        if np.array_equal(z, previous):
            return np.where(full, np.inf, z)


def _tau(x: NDArray[np.float64]) -> NDArray[np.float64]:
    trivial = (x <= 0.0) | (x >= 1.0)
    x = np.where(trivial, 0.25, x)
    y, z = np.ones_like(x), 1.0 - x
    while True:
        x = np.sqrt(x)
        previous = z
        y = 0.5 * y
        z = z - (1.0 - x) ** 2 * y
        if np.array_equal(z, previous):
            return np.where(trivial, 0.0, z / 3.0)
