"""Set operations on sorted int64 arrays, and sorting of rows by key, which is correct even if key hashes collide.

Sorted arrays are faster here than NumPy's hash-based `unique` and `isin`. Keys themselves are compared only if hashes
collide, that is, if two neighbors with equal hashes have different keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
LARGE = 500_000  # above this length, `find_ranges` uses a compiled loop


def distinct_values(values: Int64s, is_sorted: bool = False) -> Int64s:
    """Return the distinct values in ascending order."""
    ordered = values if is_sorted else np.sort(values)
    if len(ordered) < 2:
        return ordered
    return ordered[find_run_starts(ordered)]


def find_run_starts(values: Int64s) -> Int64s:
    """Return the index at which each distinct value of a sorted array begins."""
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return np.flatnonzero(first)


def is_in_sorted(values: Int64s, sorted_values: Int64s) -> NDArray[np.bool_]:
    """Return a mask of the values that occur in `sorted_values`."""
    if not len(sorted_values):
        return np.zeros(len(values), dtype=bool)
    positions = np.searchsorted(sorted_values, values)
    positions[positions == len(sorted_values)] = 0
    result: NDArray[np.bool_] = sorted_values[positions] == values
    return result


def find_ranges(ordered: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Return the start and end positions of each value in an ordered array. They are equal if the value does not occur.

    This is fastest if the values are ascending. In a large array, a compiled loop takes a quarter to a half of NumPy's time.
    """
    if len(ordered) > LARGE:
        from slackwater.core.numba_loops import find_ranges

        return find_ranges(ordered, np.require(values, requirements="W"))
    begin = np.searchsorted(ordered, values, "left")
    end = begin.copy()
    hit = begin < len(ordered)
    hit[hit] = ordered[begin[hit]] == values[hit]
    end[hit] = np.searchsorted(ordered, values[hit], "right")
    return begin, end


def repeat_positions(counts: Int64s) -> tuple[Int64s, Int64s]:
    """Repeat each position by its count. Return the positions, and the number of each repetition, from 0."""
    positions = np.repeat(np.arange(len(counts)), counts)
    return positions, np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)


# -- rows by key ------------------------------------------------------------------------------------------------------


def sorted_by_key(frame: pl.DataFrame, keys: Sequence[str], last: str = "__last") -> tuple[pl.DataFrame, Int64s]:
    """Return the frame sorted by (`__kh`, key, `__start`, `last`), and the key number of each row, from 0."""
    columns = (frame[column].to_numpy() for column in ("__start", last))
    order, _, heads = order_by_key(frame["__kh"].to_numpy(), frame.select(keys), *columns)
    return frame[order], np.repeat(np.arange(len(heads) - 1), np.diff(heads))


def order_by_key(hashes: Int64s, keys: pl.DataFrame, start: Int64s, last: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the order of rows by (hash, key, start, last), the sorted hashes, and where each key begins.

    The array of key starts ends with the number of rows.
    """
    from slackwater.core.numba_loops import sort_intervals

    order, ordered = sort_intervals(*(np.require(column, requirements="W") for column in (hashes, start, last)))
    changed = np.ones(len(order) + 1, dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=changed[1:-1])
    differs = _differs(keys, order)
    if bool((differs & ~changed[:-1]).any()):
        frame = keys.with_columns(__kh=pl.Series(hashes), __start=pl.Series(start), __last=pl.Series(last))
        frame = frame.with_columns(__at=pl.int_range(pl.len())).sort(
            ["__kh", *keys.columns, "__start", "__last"], maintain_order=True
        )
        order = frame["__at"].to_numpy().astype(np.int64)
        changed[:-1] |= _differs(keys, order)
    return order, ordered, np.flatnonzero(changed)


def distinct_hashes(hashes: Int64s) -> Int64s:
    """Return the distinct hashes in ascending order. This compiled loop takes a third of the time of `np.unique`."""
    from slackwater.core.numba_loops import distinct_hashes

    return distinct_hashes(np.require(hashes, requirements="W"))


def order_by_unit(hashes: Int64s, groups: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """Return a stable order of rows by (hash, group), and the positions in this order at which groups begin."""
    order = np.argsort(hashes, kind="stable")
    changed = np.ones(len(order), dtype=bool)
    changed[1:] = hashes[order[1:]] != hashes[order[:-1]]
    differs = _differs(groups, order)
    if bool((differs & ~changed).any()):
        frame = groups.with_columns(__h=pl.Series(hashes)).with_columns(__at=pl.int_range(pl.len()))
        order = frame.sort(["__h", *groups.columns], maintain_order=True)["__at"].to_numpy()
        changed |= _differs(groups, order)
    return order, np.flatnonzero(changed)


def _differs(keys: pl.DataFrame, order: Int64s) -> NDArray[np.bool_]:
    """Return a mask of the keys that differ from the previous key in this order."""
    if not keys.width:
        return np.zeros(len(order), dtype=bool)
    either = pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys.columns)
    return keys[order].select(either).to_series().to_numpy()
