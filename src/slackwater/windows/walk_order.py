"""The order in which sessions are walked: intervals by (hash of the key, start, last); compiled."""

from __future__ import annotations

import numpy as np

from slackwater.core.arrays import Int64s
from slackwater.core.compiled import compiled, inlined

FEW = 32  # intervals that are sorted by insertion


@compiled
def put_in_order(order: Int64s, hashes: Int64s, start: Int64s, last: Int64s) -> None:
    """Complete an order by hashes alone: intervals of one hash by (start, last), equal ones as they came.

    `hashes` are in that order; `start` and `last` as they came.
    """
    spare = np.empty(len(order), np.int64)
    begin = 0
    while begin < len(order):
        stop = begin + 1
        while stop < len(order) and hashes[stop] == hashes[begin]:
            stop += 1
        sort(order, begin, stop, start, last, spare)
        begin = stop


@inlined
def sort(order: Int64s, begin: int, stop: int, start: Int64s, last: Int64s, spare: Int64s) -> None:
    for few in range(begin, stop, FEW):
        _insert(order, few, min(few + FEW, stop), start, last)
    width = FEW
    while width < stop - begin:
        for left in range(begin, stop, 2 * width):
            _merge(order, left, min(left + width, stop), min(left + 2 * width, stop), start, last, spare)
        width *= 2


@inlined
def _insert(order: Int64s, begin: int, stop: int, start: Int64s, last: Int64s) -> None:
    """Sort a few by insertion."""
    for i in range(begin + 1, stop):
        one, to = order[i], i
        while to > begin:
            other = order[to - 1]
            if (start[other], last[other], other) < (start[one], last[one], one):
                break
            order[to] = other
            to -= 1
        order[to] = one


@inlined
def _merge(order: Int64s, begin: int, middle: int, stop: int, start: Int64s, last: Int64s, spare: Int64s) -> None:
    """Make one of two sorted stretches that stand together."""
    left, right = begin, middle
    for to in range(begin, stop):
        one, other = order[min(left, middle - 1)], order[min(right, stop - 1)]
        earlier = (start[one], last[one], one) < (start[other], last[other], other)
        if right == stop or (left < middle and earlier):
            spare[to] = one
            left += 1
        else:
            spare[to] = other
            right += 1
    order[begin:stop] = spare[begin:stop]
