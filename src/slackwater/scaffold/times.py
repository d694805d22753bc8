"""Which column holds the event time, in which unit, and how far its rows are out of order.

Texts are times by the rule of docs/semantics.md: a year of four digits, month and day, then a time of day, then a zone.
Numbers are times if nearly all lie between 1990 and 2100 in one unit; the ranges of the units do not overlap.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}  # unit -> microseconds; of "ns" there are 1000 in one
_FROM_S, _TO_S = 631_152_000, 4_102_444_800  # 1990, 2100
_TEXT = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](?:(\d{1,2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?\s*([A-Za-z+-][A-Za-z0-9:+/_-]*)?)?)?)?)?\s*"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_NAMED = re.compile(r"time|stamp|date|epoch|when|created|occurred|^ts$|_ts$|^ts_|_at$|^at$|^t$", re.IGNORECASE)
_STEPS_S = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)


@lru_cache(maxsize=64)
def _zone(name: str) -> dt.tzinfo | None:
    if name in ("Z", "z", "UTC", "GMT"):
        return dt.UTC
    if match := _OFFSET.fullmatch(name):
        sign, hours, minutes, seconds = match.groups()
        ahead = dt.timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        if ahead > dt.timedelta(hours=18):
            return None
        return dt.timezone(ahead if sign == "+" else -ahead)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # no such zone, or no name of one
        return None


def text_time_us(text: str) -> int | None:
    """Microseconds since 1970 of a text that is a time, one without a zone as UTC; None where it is none."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(n or 0) for n in numbers)
    try:
        at = dt.datetime(year, month, day, hour, minute, second, int(f"{fraction or 0:0<6}"[:6]))
    except ValueError:
        return None
    of = dt.UTC if zone is None else _zone(zone)
    if of is None:
        return None
    try:
        return (at.replace(tzinfo=of) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    except OverflowError:
        return None


def unit_of(values: Sequence[int | float]) -> str | None:
    """The unit in which nearly all of these numbers are times; None if there is none."""
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        fit = sum(_FROM_S * factor <= v < _TO_S * factor for v in values)
        if values and fit >= 0.99 * len(values):
            return unit
    return None


@dataclass(frozen=True)
class TimeColumn:
    """A column that may be the event time. `times_us`: of the rows that have one, in the order of the sample."""

    name: str  # as `event_time_column` writes it
    unit: str | None  # of integers
    times_us: tuple[int, ...]
    rows: int  # of the sample
    zoned: bool = True  # False: texts without a zone

    @property
    def missing(self) -> int:
        """Rows without a usable time: bad rows."""
        return self.rows - len(self.times_us)

    @property
    def score(self) -> float:
        """Named as a time, then there in every row, then in order."""
        in_order = sum(a <= b for a, b in zip(self.times_us, self.times_us[1:], strict=False))
        share = in_order / max(1, len(self.times_us) - 1)
        name = self.name.rpartition(".")[2]
        return (
            2.0 * bool(_NAMED.search(name)) + len(self.times_us) / max(1, self.rows) + share - 0.5 * ("." in self.name)
        )


@dataclass(frozen=True)
class Disorder:
    """How far rows lie behind the newest one before them, and the lateness that this suggests."""

    most_us: int
    lateness_ms: int
    in_time: float  # the share of the rows that this lateness keeps
    rows: int


def disorder(times_us: Sequence[int]) -> Disorder:
    newest, behind = None, []
    for at in times_us:
        newest = at if newest is None or at > newest else newest
        behind.append(newest - at)
    most = max(behind, default=0)
    steps = [1000 * step for step in _STEPS_S]

    def kept(ms: int) -> float:
        return sum(b <= ms * 1000 for b in behind) / max(1, len(behind))

    lateness = 10_000
    if most:
        whole = next((ms for ms in steps if ms * 1000 >= most), None)
        lateness = whole or next((ms for ms in steps if kept(ms) >= 0.99), steps[-1])
    return Disorder(most, lateness, kept(lateness), len(behind))
