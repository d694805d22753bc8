"""Candidates for the event-time column, their units, and how far rows are out of order.

Strings are times if `core.time` can parse them. Numbers are times if nearly all of them are between 1990 and 2100 in
the same unit. The number ranges of the units (s, ms, µs, ns) do not overlap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}  # unit -> microseconds; 0: a nanosecond is less than one
_FROM_S, _TO_S = 631_152_000, 4_102_444_800  # 1990, 2100
NAMED = re.compile(r"time|stamp|date|epoch|when|created|occurred|^ts$|_ts$|^ts_|_at$|^at$|^t$", re.IGNORECASE)
ENOUGH = 0.999  # share of the rows that the proposed lateness keeps; the others are late
_STEPS_S = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)


def find_time_unit(values: Sequence[int | float]) -> str | None:
    """Return the unit in which nearly all of these numbers are times; None if there is no such unit."""
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        fit = sum(_FROM_S * factor <= v < _TO_S * factor for v in values)
        if values and fit >= 0.99 * len(values):
            return unit
    return None


@dataclass(frozen=True)
class TimeColumn:
    """A column that could be the event time. `times_us`: the times of the rows that have one (µs), in sample order."""

    name: str  # the value of `event_time_column`
    unit: str | None  # for integers
    times_us: tuple[int, ...]
    rows: int  # in the sample
    zoned: bool = True  # False: strings without a zone
    first_bad: int | None = None  # the first row of the sample without a usable time

    @property
    def missing(self) -> int:
        """The number of rows without a usable time, which would be bad rows."""
        return self.rows - len(self.times_us)

    @property
    def score(self) -> float:
        """A score that ranks candidates by their name, the share of rows with a time, and the order of the times."""
        in_order = sum(a <= b for a, b in zip(self.times_us, self.times_us[1:], strict=False))
        share = in_order / max(1, len(self.times_us) - 1)
        name = self.name.rpartition(".")[2]
        return (
            2.0 * bool(NAMED.search(name)) + len(self.times_us) / max(1, self.rows) + share - 0.5 * ("." in self.name)
        )


@dataclass(frozen=True)
class OutOfOrderness:
    """How far the rows of a sample lag behind the newest row before them, and a lateness that keeps nearly all of them.

    `most_us`: the maximum lag (µs). `p50_us`, `p99_us`, `p999_us`: the 50th, 99th and 99.9th percentiles of the lag.
    """

    most_us: int
    lateness_ms: int
    in_time: float  # share of the rows that this lateness keeps
    rows: int
    p50_us: int = 0
    p99_us: int = 0
    p999_us: int = 0

    @property
    def late(self) -> int:
        """The number of rows in the sample that would be late with the lateness `lateness_ms`."""
        return round((1 - self.in_time) * self.rows)


def measure_disorder(times_us: Sequence[int]) -> OutOfOrderness:
    """Measure how far rows are out of order, and choose a lateness. `times_us`: event times in reading order."""
    newest, behind = None, []
    for time_us in times_us:
        newest = time_us if newest is None or time_us > newest else newest
        behind.append(newest - time_us)
    most = max(behind, default=0)
    ordered = sorted(behind)

    def quantile(share: float) -> int:
        """Return the smallest lag (µs) that at least this share of the rows does not exceed."""
        return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else 0

    steps = [1000 * step for step in _STEPS_S]

    def kept_share(ms: int) -> float:
        """Return the share of the rows that would not be late with this lateness (ms)."""
        return sum(b <= ms * 1000 for b in behind) / max(1, len(behind))

    lateness = 10_000
    if most:
        lateness = next((ms for share in (ENOUGH, 0.99) for ms in steps if kept_share(ms) >= share), steps[-1])
    return OutOfOrderness(
        most, lateness, kept_share(lateness), len(behind), quantile(0.5), quantile(0.99), quantile(0.999)
    )
