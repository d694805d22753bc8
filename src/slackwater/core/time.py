"""Times and durations.

Internally, times are microseconds in UTC; the public API uses milliseconds or strings like `"30s"`.
"""

from __future__ import annotations

import datetime as dt
import re

NO_WATERMARK = -(1 << 62)  # before every event time; far enough from the int64 limit to add durations
EARLIEST_US = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z
LATEST_US = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(-?\d+)\s*(ms|s|m|h|d)")


def parse_duration_ms(value: int | str) -> int:
    """Parse `250`, `"250ms"`, `"30s"`, `"5m"`, `"2h"` or `"30d"` to milliseconds. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"not a duration: {value!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


def format_ms(ms: int) -> str:
    """Format a duration in its shortest exact spelling: 90000 -> `90s`, 7200000 -> `2h`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def format_iso(us: int) -> str:
    """Format a time (microseconds in UTC) as ISO 8601."""
    if us <= NO_WATERMARK:
        return "none yet"
    try:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)).isoformat() + "Z"
    except OverflowError:
        return f"{us} µs"
