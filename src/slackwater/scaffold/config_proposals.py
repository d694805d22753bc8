"""Proposals for a config, derived from a sample: the event time, the keys, and a column to sum."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.core.column_names import quote_identifier_if_needed
from slackwater.core.time import parse_timestamp_us
from slackwater.scaffold.sample import Sample

_KEYS = re.compile(
    r"user|customer|account|session|device|client|visitor|member|author|sender|source|host|^ip$|key", re.IGNORECASE
)
_ID = re.compile(r"(^|_)id$|Id$|ID$")
_PER_UNIT = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0, "ns": 0.001}
_DIVIDED = {"s": "", "ms": " / 1000", "us": " / 1000000", "ns": " / 1000000000"}
_RESERVED = {"_event_ts", "session_id", "window_start", "window_end", "events"}  # names of result columns
_ADDS_UP = re.compile(
    r"amount|price|total|cost|revenue|quantity|qty|bytes|size|duration|added|deleted|count|sum|value|score",
    re.IGNORECASE,
)
_NUMBERS = ("BIGINT", "INT", "DOUBLE", "FLOAT")


def propose_time_columns(sample: Sample) -> list[TimeColumnCandidate]:
    """Return the columns that could be the event time, most likely first."""
    candidates = []
    for path, values in _paths(sample):
        column = _time_column(path, values, len(sample.rows))
        if column is not None:
            candidates.append(column)
    return sorted(candidates, key=lambda c: -c.score)


def _paths(sample: Sample) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Yield the path and the values of each column or struct field that could contain times."""
    for name, kind in sample.columns.items():
        values = [row.get(name) for row in sample.rows]
        if kind.startswith("STRUCT<"):
            fields = dict.fromkeys(f for v in values if isinstance(v, dict) for f in v)
            for field in fields:
                if re.fullmatch(r"[A-Za-z_]\w*", field):
                    yield (name, field), [v.get(field) if isinstance(v, dict) else None for v in values]
        elif not kind.startswith(("ARRAY<", "MAP<", "DECIMAL", "BOOLEAN")):
            yield (name,), values


def find_closest_time_column(sample: Sample, name: str | None = None) -> tuple[str, int, Any] | None:
    """Return the column that looks most like an event time, to explain to the user why no column is usable.

    Return its name, the index of its first row without a valid time, and the value in that row. Return None if no
    column is named like a time or contains one. `name`: restricts the search to one column.
    """
    candidates = []
    for path, values in _paths(sample):
        present = [(row, v) for row, v in enumerate(values) if v is not None]
        column = ".".join(path)
        if (name is not None and column != name) or not present:
            continue
        time_share = sum(_is_time(v) for _, v in present) / len(present)
        row, value = next(((row, v) for row, v in present if not _is_time(v)), present[0])
        named = bool(NAMED.search(path[-1]))
        if name is not None or named or time_share:
            candidates.append(((named, time_share), (column, row, value)))
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _is_time(value: Any) -> bool:
    if isinstance(value, str):
        return parse_timestamp_us(value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return infer_time_unit([value]) is not None
    return isinstance(value, dt.date)


def _time_column(path: tuple[str, ...], values: list[Any], rows: int) -> TimeColumnCandidate | None:
    present = [v for v in values if v is not None]
    if len(present) < rows / 2 or not present:
        return None
    name = path[0] if len(path) == 1 else ".".join(map(quote_identifier_if_needed, path))
    first, absent = present[0], next((row for row, v in enumerate(values) if v is None), None)
    if all(isinstance(v, str) for v in present):
        times = [parse_timestamp_us(v) for v in present]
        parsed = tuple(t for t in times if t is not None)
        # a struct field must be a time in every row; otherwise it remains a string
        required_share = 0.9 if len(path) == 1 else 1.0
        zoned = bool(re.search(r":\d\d.*[A-Za-z+-]", first.strip()[10:]))
        first_unusable = next((row for row, v in enumerate(values) if v is None or parse_timestamp_us(v) is None), None)
        return (
            TimeColumnCandidate(name, None, parsed, rows, zoned, first_unusable)
            if len(parsed) >= required_share * len(present)
            else None
        )
    if all(isinstance(v, dt.date) for v in present):
        moments = [v if isinstance(v, dt.datetime) else dt.datetime(v.year, v.month, v.day) for v in present]
        aware = [m if m.tzinfo else m.replace(tzinfo=dt.UTC) for m in moments]
        zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return TimeColumnCandidate(
            name, None, tuple((m - zero) // dt.timedelta(microseconds=1) for m in aware), rows, first_bad=absent
        )
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in present):
        return None
    unit = infer_time_unit(present)
    if unit is None:
        return None
    us = tuple(int(v * _PER_UNIT[unit]) for v in present)
    if any(isinstance(v, float) for v in present):
        plain = ".".join(map(quote_identifier_if_needed, path))
        return TimeColumnCandidate(f"CAST({plain}{_DIVIDED[unit]} AS TIMESTAMP)", None, us, rows, first_bad=absent)
    return TimeColumnCandidate(name, unit, us, rows, first_bad=absent)


@dataclass(frozen=True)
class KeyColumnCandidate:
    """A column that could be a key."""

    name: str
    values: int  # number of distinct values
    score: float


def propose_key_columns(sample: Sample, time: TimeColumnCandidate | None) -> list[KeyColumnCandidate]:
    """Return the columns that could be a key, most likely first.

    These columns have a value in nearly all rows. Those in which several rows have the same value come first.
    """
    candidates = []
    for name, kind in sample.columns.items():
        if kind not in ("STRING", "BIGINT", "INT", "SMALLINT") or (time is not None and name == time.name):
            continue
        if name.casefold() in _RESERVED:
            continue
        present = [row[name] for row in sample.rows if row.get(name) is not None]
        share, distinct = len(present) / len(sample.rows), len(set(map(str, present)))
        if share < 0.9 or not distinct or infer_time_unit([v for v in present if isinstance(v, int)]) is not None:
            continue
        per_value = len(present) / distinct
        length = max(len(str(v)) for v in present)
        score = 3.0 * bool(_KEYS.search(name)) + 1.0 * bool(_ID.search(name)) + (1.0 if kind == "STRING" else 0.0)
        score += share + (1.0 if per_value >= 1.5 else -2.0 if len(sample.rows) > 20 else 0.0)
        score -= (2.0 if distinct < 5 and len(sample.rows) > 20 else 0.0) + (1.0 if length > 64 else 0.0)
        candidates.append(KeyColumnCandidate(name, distinct, score))
    return sorted(candidates, key=lambda k: -k.score)


def propose_measure_column(sample: Sample, *taken: str) -> str | None:
    """Return a numeric column that is worth summing; None if the sample has none. `taken`: columns to ignore."""
    for name, kind in sample.columns.items():
        if kind not in _NUMBERS or name in taken or not _ADDS_UP.search(name) or _ID.search(name):
            continue
        values = [row[name] for row in sample.rows if row.get(name) is not None]
        if values and infer_time_unit(values) is None:
            return name
    return None


def declare_event_time(sample: Sample, time: TimeColumnCandidate | None) -> Sample:
    """Return the sample with its event-time column declared as TIMESTAMP, if that is a string in JSON or CSV."""
    if time is None or time.unit is not None or time.name not in sample.columns or sample.format == "parquet":
        return sample
    return replace(sample, columns={**sample.columns, time.name: "TIMESTAMP"})


# -- times in a sample ---------------------------------------------------------------------------------------------------


UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}  # unit -> microseconds; 0: a nanosecond is less than one
_FROM_S, _TO_S = 631_152_000, 4_102_444_800  # 1990, 2100
NAMED = re.compile(r"time|stamp|date|epoch|when|created|occurred|^ts$|_ts$|^ts_|_at$|^at$|^t$", re.IGNORECASE)
ENOUGH = 0.999  # share of the rows that the proposed lateness keeps; the others are late
_STEPS_S = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)


def infer_time_unit(values: Sequence[int | float]) -> str | None:
    """Return the unit in which nearly all of these numbers are plausible times; None if there is no such unit."""
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        fit = sum(_FROM_S * factor <= v < _TO_S * factor for v in values)
        if values and fit >= 0.99 * len(values):
            return unit
    return None


@dataclass(frozen=True)
class TimeColumnCandidate:
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


def measure_out_of_orderness(times_us: Sequence[int]) -> OutOfOrderness:
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
