"""Parse durations and times. `core.humanize` formats them.

Internally, times are microseconds in UTC; the public API uses milliseconds or strings like `"30s"`.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from zoneinfo import ZoneInfo

NO_WATERMARK = -(1 << 62)  # before every event time; far enough from the int64 limit to add durations
EARLIEST_US = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z
LATEST_US = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(-?\d+)\s*(ms|s|m|h|d)")
_TIMESTAMP = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](?:(\d{1,2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?\s*([A-Za-z+-][A-Za-z0-9:+/_-]*)?)?)?)?)?\s*"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


def parse_duration_ms(value: int | str) -> int:
    """Parse `250`, `"250ms"`, `"30s"`, `"5m"`, `"2h"` or `"30d"` into milliseconds. Raises ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"not a duration: {value!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


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
    except (OSError, ValueError, KeyError):  # not the name of a zone
        return None


def parse_timestamp_us(text: str) -> int | None:
    """Parse a time such as `2024-03-01 09:02:00+01:00` into microseconds since 1970 (UTC); None for other strings.

    The date is required, with a four-digit year. The time of day and the zone are optional; see docs/semantics.md. A
    time without a zone is in UTC.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(n or 0) for n in numbers)
    try:
        local_time = dt.datetime(year, month, day, hour, minute, second, int(f"{fraction or 0:0<6}"[:6]))
    except ValueError:
        return None
    zone_info = dt.UTC if zone is None else _zone(zone)
    if zone_info is None:
        return None
    try:
        return (local_time.replace(tzinfo=zone_info) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
            microseconds=1
        )
    except OverflowError:
        return None
