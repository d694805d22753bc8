"""Sets of int64 values as sorted arrays. They are faster here than NumPy's hash-based `unique` and `isin`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


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
