"""Parser for strings that are times: a four-digit year, month and day, then a time of day, then a zone.

The rule is in docs/semantics.md.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from zoneinfo import ZoneInfo

_TEXT = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](?:(\d{1,2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?\s*([A-Za-z+-][A-Za-z0-9:+/_-]*)?)?)?)?)?\s*"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


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
    """Parse a string that is a time to microseconds since 1970 (UTC); return None for other strings.

    A time without a zone is in UTC.
    """
    match = _TEXT.fullmatch(text)
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
