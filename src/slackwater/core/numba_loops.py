"""Numba decorators for loops over rows, and a compiled sort of intervals by (key hash, start, last).

Compiled code is cached on disk, once per machine. Modules with compiled loops are imported only where their loops are
needed. Importing Numba takes a third of a second, and neither `import slackwater` nor `slackwater check` runs a loop.

Hashes are uniformly distributed, so their leading bits almost determine their position in the sorted order:

    rows in any order ─▶ bucketed by the leading bits ─▶ each small bucket sorted in place

A large bucket (a key with many rows, or hashes chosen by an attacker) is merge-sorted, which avoids quadratic time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function to machine code on its first call, to run without the GIL, and cache the code on disk.

    The cache is next to the source or, failing that, in the user's cache directory. If neither is writable, each
    process compiles the function again. Constants from other modules are compiled in, and the cache does not notice
    when they change, so pass them as arguments instead.
    """
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # Numba has no writable cache directory
        return cast(F, njit(nogil=True)(function))


def inline_loop(function: F) -> F:
    """Inline a function into the compiled functions that call it.

    Within loops, pass only numbers to such a function, because Numba would count the references to arrays.
    """
    return cast(F, njit(inline="always")(function))


Int64s = NDArray[np.int64]

FEW = 32  # up to this many intervals are sorted by insertion


@compiled
def sort_intervals(hashes: Int64s, start: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """Return the stable order of intervals by (hash, start, last), and the hashes in that order."""
    ends, shift = _buckets(hashes)
    order, by_hash, by_start = np.empty_like(hashes), np.empty_like(hashes), np.empty_like(hashes)
    for i in range(len(hashes)):
        bucket_of_hash = _bucket(hashes[i], shift)
        to = ends[bucket_of_hash]
        ends[bucket_of_hash] = to + 1
        order[to], by_hash[to], by_start[to] = i, hashes[i], start[i]
    spare = np.empty(0, np.int64)
    begin = 0
    for bucket in range(len(ends) - 1):
        stop = ends[bucket]
        if stop - begin <= FEW:
            _insert(order, by_hash, by_start, begin, stop, last)
        else:
            if not len(spare):
                spare = np.empty(len(order), np.int64)
            merge_sort(order, begin, stop, hashes, start, last, spare)
            for position in range(begin, stop):
                by_hash[position] = hashes[order[position]]
        begin = stop
    return order, by_hash


@compiled
def distinct_hashes(hashes: Int64s) -> Int64s:
    """Return the distinct hashes in ascending order."""
    ends, shift = _buckets(hashes)
    distinct = np.empty(len(hashes), np.int64)
    for value in hashes:
        bucket_of_hash = _bucket(value, shift)
        distinct[ends[bucket_of_hash]] = value
        ends[bucket_of_hash] += 1
    begin, count = 0, 0
    for bucket in range(len(ends) - 1):
        stop = ends[bucket]
        if stop - begin > FEW:
            distinct[begin:stop] = np.sort(distinct[begin:stop])
        else:
            for i in range(begin + 1, stop):
                one, to = distinct[i], i
                while to > begin and distinct[to - 1] > one:
                    distinct[to] = distinct[to - 1]
                    to -= 1
                distinct[to] = one
        for i in range(begin, stop):
            if not count or distinct[count - 1] != distinct[i]:
                distinct[count] = distinct[i]
                count += 1
        begin = stop
    return distinct[:count].copy()


@compiled
def find_ranges(ordered: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Return the start and end positions of each of these values in an ordered array.

    The search for a value begins where the previous value was found, with steps of doubling size. Ascending values thus
    touch few distant parts of a large array.
    """
    begin, end = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    low, count = 0, len(ordered)
    for i in range(len(values)):
        value = values[i]
        if i and value == values[i - 1]:
            begin[i], end[i] = begin[i - 1], end[i - 1]
            continue
        if i and value < values[i - 1]:
            low = 0
        step = 1
        while low + step < count and ordered[low + step] < value:
            low += step
            step *= 2
        high = min(low + step, count)
        while low < high:
            middle = (low + high) // 2
            if ordered[middle] < value:
                low = middle + 1
            else:
                high = middle
        begin[i], stop = low, low
        while stop < count and ordered[stop] == value:
            stop += 1
        end[i] = stop
    return begin, end


@inline_loop
def _buckets(hashes: Int64s) -> tuple[Int64s, np.uint64]:
    """Return an array of the bucket starts, followed by the number of hashes, and the shift for `_bucket`."""
    bits = 1
    while (4 << bits) < len(hashes):
        bits += 1
    shift = np.uint64(64 - bits)
    ends = np.zeros((1 << bits) + 1, np.int64)
    for value in hashes:
        ends[_bucket(value, shift) + 1] += 1
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    return ends, shift


@inline_loop
def _bucket(value: np.int64, shift: np.uint64) -> np.int64:
    """Return the bucket number of a hash: its leading bits, with the sign bit flipped to put negative hashes first."""
    return np.int64((np.uint64(value) ^ np.uint64(1 << 63)) >> shift)


@inline_loop
def _insert(order: Int64s, by_hash: Int64s, by_start: Int64s, begin: int, stop: int, last: Int64s) -> None:
    """Sort a short range of intervals with an insertion sort."""
    for i in range(begin + 1, stop):
        one, hash_, time, to = order[i], by_hash[i], by_start[i], i
        while to > begin:
            other = order[to - 1]
            if (by_hash[to - 1], by_start[to - 1], last[other], other) < (hash_, time, last[one], one):
                break
            order[to], by_hash[to], by_start[to] = other, by_hash[to - 1], by_start[to - 1]
            to -= 1
        order[to], by_hash[to], by_start[to] = one, hash_, time


@inline_loop
def merge_sort(order: Int64s, begin: int, stop: int, first: Int64s, then: Int64s, last: Int64s, spare: Int64s) -> None:
    """Sort one range of `order` by three columns, with a bottom-up merge sort."""
    width = 1
    while width < stop - begin:
        for low in range(begin, stop - width, 2 * width):
            _merge(order, low, low + width, min(low + 2 * width, stop), first, then, last, spare)
        width *= 2


@inline_loop
def _merge(
    order: Int64s, begin: int, middle: int, stop: int, first: Int64s, then: Int64s, last: Int64s, spare: Int64s
) -> None:
    """Merge two adjacent sorted ranges, unless they are already in order."""
    one, other = order[middle - 1], order[middle]
    if (first[one], then[one], last[one], one) > (first[other], then[other], last[other], other):
        i, j = begin, middle
        for to in range(begin, stop):
            one, other = order[min(i, middle - 1)], order[min(j, stop - 1)]
            earlier = (first[one], then[one], last[one], one) < (first[other], then[other], last[other], other)
            if j == stop or (i < middle and earlier):
                spare[to] = one
                i += 1
            else:
                spare[to] = other
                j += 1
        order[begin:stop] = spare[begin:stop]
