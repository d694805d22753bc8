"""Exact sums of doubles, compiled by Numba. The total does not depend on the order or grouping of the values.

    values ─▶ sum + rest, two doubles         if these two hold the total exactly, which is the usual case
           └▶ limbs of a superaccumulator     otherwise: 32-bit integers that cover all doubles and their squares

`sum` is the correctly rounded total, and `rest` is the remainder of the exact total. Both are functions of the exact
total alone, and so are the limbs. Doubles are added exactly with Knuth's TwoSum. The superaccumulator is a variant of
the small one in R. Neal, "Fast exact summation using small and large superaccumulators" (2015).

Limb `i` counts units of 2^(32 i - 2176). A stored array begins with the index of its lowest limb, followed by the
limbs. All but the last are between 0 and 2^32 - 1; the last one carries the sign.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from slackwater.core.numba_loops import compiled
from slackwater.core.sorted_arrays import Int64s

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LOWEST = -2176  # exponent of the lowest limb: squares of the smallest doubles are 2^-2148
LIMBS = 144  # up to 2^2400: 2^63 squares of the largest double
_MASK = (1 << 32) - 1
_EXACT = 2.0**1000  # TwoSum may overflow for larger totals, which therefore use limbs
_SETTLE = 1 << 28  # the number of additions after which carries must be propagated
LARGE, SMALL = 2.0**480, 2.0**-450  # between these, a square is the exact sum of two doubles


@compiled
def _two_sum(a: float, b: float) -> tuple[float, float]:
    """Return a + b rounded, and the rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@compiled
def _two_product(a: float, b: float) -> tuple[float, float]:
    """Return a * b rounded, and the rounding error (Dekker, Veltkamp). Neither may overflow or underflow."""
    product = a * b
    x, y = 134217729.0 * a, 134217729.0 * b
    a_high, b_high = x - (x - a), y - (y - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@compiled
def _add_integer(limbs: Int64s, value: int, exponent: int) -> None:
    """Add value * 2^exponent to `limbs`, where |value| < 2^63."""
    bit = exponent - LOWEST
    limb, shift = bit >> 5, bit & 31
    sign = 1
    if value < 0:
        sign, value = -1, -value
    low, high = (value & _MASK) << shift, (value >> 32) << shift  # 32 and 31 bits before, 63 and 62 after
    limbs[limb] += sign * (low & _MASK)
    limbs[limb + 1] += sign * ((low >> 32) + (high & _MASK))
    limbs[limb + 2] += sign * (high >> 32)


@compiled
def _add_double(limbs: Int64s, value: float) -> None:
    """Add a finite double to `limbs`."""
    if value != 0.0:
        mantissa, exponent = math.frexp(value)
        _add_integer(limbs, int(mantissa * 9007199254740992.0), exponent - 53)


@compiled
def _add_square(limbs: Int64s, value: float) -> None:
    """Add the square of a finite double to `limbs`."""
    if value != 0.0:
        mantissa, exponent = math.frexp(abs(value))
        whole = int(mantissa * 9007199254740992.0)
        high, low = whole >> 27, whole & ((1 << 27) - 1)
        exponent = 2 * (exponent - 53)
        _add_integer(limbs, low * low, exponent)
        _add_integer(limbs, 2 * high * low, exponent + 27)
        _add_integer(limbs, high * high, exponent + 54)


@compiled
def _carry_limbs(limbs: Int64s) -> None:
    """Propagate carries, so that every limb but the last is between 0 and 2^32 - 1."""
    for i in range(len(limbs) - 1):
        limbs[i + 1] += limbs[i] >> 32
        limbs[i] &= _MASK


@compiled
def _round_limbs(limbs: Int64s) -> float:
    """Round carried limbs to the nearest double (ties to even), or to infinity beyond the largest double."""
    work = limbs.copy()
    negative = work[-1] < 0
    if negative:
        for i in range(len(work)):
            work[i] = -work[i]
        _carry_limbs(work)
    top = len(work) - 1
    while top >= 0 and work[top] == 0:
        top -= 1
    if top < 0:
        return 0.0
    bits = 0
    while bits < 32 and (work[top] >> bits) != 0:
        bits += 1
    lowest = max(32 * top + bits - 53 + LOWEST, -1074)  # exponent of the last bit that is kept
    bit = lowest - LOWEST
    limb, shift = bit >> 5, bit & 31
    whole = 0
    for i in range(min(top, limb + 2), limb - 1, -1):
        part = work[i] >> shift if i == limb else work[i]
        whole += part << (0 if i == limb else 32 * (i - limb) - shift)
    half_at, half_shift = (bit - 1) >> 5, (bit - 1) & 31
    half = (work[half_at] >> half_shift) & 1
    if half:
        sticky = (work[half_at] & ((1 << half_shift) - 1)) != 0
        for i in range(half_at):
            sticky = sticky or work[i] != 0
        if sticky or (whole & 1):
            whole += 1
    rounded = math.ldexp(float(whole), lowest)
    return -rounded if negative else rounded


@compiled
def _store(limbs: Int64s, values: Int64s, used: int) -> tuple[Int64s, int]:
    """Append carried limbs in their stored form. Return the array, possibly reallocated, and its used length."""
    low, top = 0, len(limbs) - 1
    while limbs[low] == 0:
        low += 1
    last = limbs[top]
    while top > low and (last == 0 or last == -1):
        # a last limb of -1 is only the sign
        below = limbs[top - 1] + (last << 32)
        if last == -1 and below < -(1 << 32):
            break
        top, last = top - 1, below
    if used + top - low + 2 > len(values):
        longer = np.empty(2 * len(values) + LIMBS + 1, np.int64)
        longer[:used] = values[:used]
        values = longer
    values[used] = low
    for i in range(low, top):
        values[used + 1 + i - low] = limbs[i]
    values[used + 1 + top - low] = last
    return values, used + top - low + 2


@compiled
def _take(limbs: Int64s, sums: Floats, rests: Floats, group: int, values: Int64s, used: int) -> tuple[Int64s, int]:
    """Write the total in `limbs` as the sum and rest of a group. Also store the limbs if two doubles cannot hold it."""
    _carry_limbs(limbs)
    total = _round_limbs(limbs)
    sums[group], rests[group] = total, 0.0
    if not math.isinf(total):
        work = limbs.copy()
        _add_double(work, -total)
        _carry_limbs(work)
        rest = _round_limbs(work)
        _add_double(work, -rest)
        _carry_limbs(work)
        if not work.any():
            rests[group] = rest
            return values, used
    return _store(limbs, values, used)


@compiled
def sum_pairs(sums: Floats, rests: Floats, wide: Bools, heads: Int64s) -> tuple[Floats, Floats, Int64s]:
    """Return the sum and rest of each group of totals, and the groups whose exact total needs more than two doubles.

    The totals of a group are adjacent, beginning at an index in `heads`. `wide` is a mask of the totals with limbs, or
    empty if no total has limbs.
    """
    groups = len(heads)
    total_of, rest_of = np.empty(groups), np.empty(groups)
    inexact, count = np.empty(groups, np.int64), 0
    for group in range(groups):
        end = heads[group + 1] if group + 1 < groups else len(sums)
        total, rest, is_exact = 0.0, 0.0, True
        for i in range(heads[group], end):
            total, lost = _two_sum(total, sums[i])
            rest, lost = _two_sum(rest, lost)
            is_exact = is_exact and lost == 0.0
            if rests[i] != 0.0:
                rest, lost = _two_sum(rest, rests[i])
                is_exact = is_exact and lost == 0.0
            if len(wide) and wide[i]:
                is_exact = False
        total, rest = _two_sum(total, rest)
        total_of[group], rest_of[group] = total, rest
        if not (is_exact and abs(total) < _EXACT):
            inexact[count] = group
            count += 1
    return total_of, rest_of, inexact[:count]


@compiled
def sum_limbs(
    groups: Int64s,
    sums: Floats,
    rests: Floats,
    offsets: Int64s,
    limbs: Int64s,
    heads: Int64s,
    total_of: Floats,
    rest_of: Floats,
) -> tuple[Int64s, Int64s]:
    """Write the sum and rest of each group in `groups` to `total_of` and `rest_of`.

    The limbs of total `i` begin at `offsets[i]`; `offsets` is empty if no total has limbs. Return the limbs of all
    groups, and where the limbs of each group end.
    """
    values, used = np.empty(LIMBS, np.int64), 0
    ends = np.empty(len(groups), np.int64)
    work = np.zeros(LIMBS, np.int64)
    for index in range(len(groups)):
        group = groups[index]
        end = heads[group + 1] if group + 1 < len(heads) else len(sums)
        work[:] = 0
        added, upward, downward, undefined = 0, False, False, False
        for i in range(heads[group], end):
            if len(offsets) and offsets[i + 1] > offsets[i]:
                for j in range(offsets[i] + 1, offsets[i + 1]):
                    work[limbs[offsets[i]] + j - offsets[i] - 1] += limbs[j]
            elif math.isnan(sums[i]):
                undefined = True
            elif math.isinf(sums[i]):
                upward, downward = upward or sums[i] > 0, downward or sums[i] < 0
            else:
                _add_double(work, sums[i])
                _add_double(work, rests[i])
            added += 2
            if added >= _SETTLE:
                _carry_limbs(work)
                added = 0
        if undefined or upward or downward:
            rest_of[group] = 0.0
            total_of[group] = math.nan if undefined or (upward and downward) else math.inf if upward else -math.inf
        else:
            values, used = _take(work, total_of, rest_of, group, values, used)
        ends[index] = used
    return values[:used], ends


@compiled
def add_squares(values: Floats, sums: Floats, rests: Floats) -> tuple[Int64s, Int64s, Int64s]:
    """Write squares to `sums` and `rests`. Return the positions whose square needs limbs, the limbs, and their ends."""
    count = 0
    for i in range(len(values)):
        size = abs(values[i])
        if size == 0.0 or (SMALL < size < LARGE):
            sums[i], rests[i] = _two_product(values[i], values[i])
        elif math.isnan(size) or math.isinf(size):
            sums[i], rests[i] = size, 0.0
        else:
            count += 1
    extreme, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    stored_limbs, used, count = np.empty(LIMBS, np.int64), 0, 0
    work = np.zeros(LIMBS, np.int64)
    for i in range(len(values) if len(ends) else 0):
        size = abs(values[i])
        if size == 0.0 or SMALL < size < LARGE or math.isnan(size) or math.isinf(size):
            continue
        work[:] = 0
        _add_square(work, values[i])
        stored_limbs, used = _take(work, sums, rests, i, stored_limbs, used)
        extreme[count], ends[count] = i, used
        count += 1
    return extreme, stored_limbs[:used], ends


@compiled
def compute_grid_sums(
    counts: Int64s, outside: Floats, parts: Int64s, exponents: Int64s, sums: Floats, rests: Floats
) -> tuple[Int64s, Int64s]:
    """Write the total of each row to `sums` and `rests`. Return all limbs, and where the limbs of each row end.

    The total of row `i` is the sum of `parts[i, j]` * 2^`exponents[j]`, plus `counts[i]` * `outside[i]` (finite).
    """
    values, used = np.empty(LIMBS, np.int64), 0
    ends = np.empty(len(counts), np.int64)
    work = np.zeros(LIMBS, np.int64)
    for i in range(len(counts)):
        total, rest, is_exact = 0.0, 0.0, outside[i] == 0.0
        for j in range(len(exponents)):
            unit = math.ldexp(1.0, exponents[j])
            high = (parts[i, j] >> 32) << 32
            for part in (float(high) * unit, float(parts[i, j] - high) * unit):
                total, lost = _two_sum(total, part)
                rest, lost = _two_sum(rest, lost)
                is_exact = is_exact and lost == 0.0
        sums[i], rests[i] = _two_sum(total, rest)
        if not is_exact:
            work[:] = 0
            for j in range(len(exponents)):
                _add_integer(work, parts[i, j], exponents[j])
            if outside[i] != 0.0:
                mantissa, exponent = math.frexp(outside[i])
                whole = int(mantissa * 9007199254740992.0)
                high, low = counts[i] >> 9, counts[i] & 511
                _add_integer(work, whole * low, exponent - 53)
                for k in range(6):  # 54 and 9 bits at a time
                    _add_integer(work, whole * ((high >> (9 * k)) & 511), exponent - 53 + 9 * (k + 1))
            values, used = _take(work, sums, rests, i, values, used)
        ends[i] = used
    return values[:used], ends


@compiled
def write_variances(
    n: Int64s, sums: Floats, rests: Floats, squares_of: Floats, square_rests: Floats, variances: Floats
) -> Int64s:
    """Write the sample variances of groups: (n * squares - sum^2) / (n * (n - 1)). Return the undecided groups.

    `sums` and `rests` are the sums of the `n` values, and `squares_of` and `square_rests` are those of their squares. A
    group remains undecided if its values, or the differences between them, are too extreme for doubles.
    """
    undecided, count = np.empty(len(n), np.int64), 0
    work = np.zeros(LIMBS, np.int64)
    terms = np.empty(10)
    for i in range(len(n)):
        if n[i] < 2:
            variances[i] = math.nan
            continue
        if not (math.isfinite(sums[i]) and math.isfinite(squares_of[i])):
            variances[i] = math.nan
            if not math.isnan(sums[i]):
                undecided[count] = i
                count += 1
            continue
        size, half, square_half = abs(sums[i]), abs(rests[i]), abs(square_rests[i])
        usual = (size == 0.0 or SMALL < size < LARGE) and (half == 0.0 or half > SMALL) and squares_of[i] < LARGE
        usual = (
            usual and (squares_of[i] == 0.0 or squares_of[i] > SMALL) and (square_half == 0.0 or square_half > SMALL)
        )
        if not usual or n[i] > 1 << 26:
            undecided[count] = i
            count += 1
            continue
        count_of = float(n[i])
        terms[0], terms[1] = _two_product(count_of, squares_of[i])
        terms[2], terms[3] = _two_product(count_of, square_rests[i])
        terms[4], terms[5] = _two_product(-sums[i], sums[i])
        terms[6], terms[7] = _two_product(-2.0 * sums[i], rests[i])
        terms[8], terms[9] = _two_product(-rests[i], rests[i])
        total, rest, lost_of_all = 0.0, 0.0, 0.0
        for j in range(10):
            total, lost = _two_sum(total, terms[j])
            rest, lost = _two_sum(rest, lost)
            lost_of_all += abs(lost)
        total, rest = _two_sum(total, rest)
        if lost_of_all > 2.0**-70 * abs(total):
            work[:] = 0
            for j in range(10):
                _add_double(work, terms[j])
            _carry_limbs(work)
            total = _round_limbs(work)
        variances[i] = total / (count_of * (count_of - 1.0))
    return undecided[:count]


@compiled
def compute_wide_variances(
    groups: Int64s, n: Int64s, sums: Floats, rests: Floats, offsets: Int64s, limbs: Int64s, variances: Floats
) -> Int64s:
    """Write the variances of `groups`, whose square limbs begin at `offsets[i]`. Return the undecided groups."""
    undecided, count = np.empty(len(groups), np.int64), 0
    work = np.zeros(LIMBS, np.int64)
    for i in range(len(groups)):
        group = groups[i]
        size, half, rows = abs(sums[group]), abs(rests[group]), n[group]
        variance = math.inf
        if (size == 0.0 or SMALL < size < LARGE) and (half == 0.0 or half > SMALL) and rows <= 1 << 26:
            work[:] = 0
            low = limbs[offsets[i]]
            for j in range(offsets[i] + 1, offsets[i + 1]):
                work[low + j - offsets[i] - 1] = limbs[j] * rows
            for a, b in (
                (-sums[group], sums[group]),
                (-2.0 * sums[group], rests[group]),
                (-rests[group], rests[group]),
            ):
                product, lost = _two_product(a, b)
                _add_double(work, product)
                _add_double(work, lost)
            _carry_limbs(work)
            variance = _round_limbs(work) / (float(rows) * float(rows - 1))
        variances[group] = variance
        if not (variance == 0.0 or SMALL < variance < LARGE):
            undecided[count] = group
            count += 1
    return undecided[:count]
