"""Sums, averages and variances of floating-point numbers in exact fractions, rounded once."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

LARGEST = 1.7976931348623157e308


def round_to_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def compute_exact_sum_average_variance(numbers: list[float]) -> tuple[float, float, float]:
    """Return sum, average and variance (NaN for one value)."""
    if not all(map(math.isfinite, numbers)):
        return sum(numbers), sum(numbers) / len(numbers), math.nan
    exact, n = [Fraction(v) for v in numbers], len(numbers)
    total = sum(exact, Fraction(0))
    rounded = round_to_float(total)
    average = round_to_float(total / n) if math.isinf(rounded) else rounded / n
    if n < 2:
        return rounded, average, math.nan
    return rounded, average, round_to_float((n * sum((v * v for v in exact), Fraction(0)) - total**2) / (n * (n - 1)))


def encode_float_bits(number: float | None) -> Any:
    return None if number is None else "NaN" if number != number else struct.pack(">d", number).hex()
