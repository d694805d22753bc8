"""Format counts, durations, times and sizes for people.

duration    format_duration   90 seconds      in its largest whole unit, as a word
            format_ms         90s             as a config spells it
            format_age        90.0 s          rounded, in one unit
            format_span       1 min 30 s      in its two largest units
            format_estimate   90 s            rounded to two or three digits
time        format_time       2024-03-01 09:02:00Z
            format_exact_time 2024-03-01 09:02:00.5Z
            format_iso        2024-03-01T09:02:00.500000Z
            format_stamp      2024-03-01T09:02:00Z
size        format_size       1.2 MiB
count       plural            2,000 rows
            format_number     2,000
            format_brief      2 k
            format_rate       12.3
            format_percent    98.2%
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

from slackwater.core.time import NO_WATERMARK

_WORDS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
_LETTERS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("µs", 1))
_EPOCH = dt.datetime(1970, 1, 1)

# -- counts and values -----------------------------------------------------------------------------------------------


def plural(count: int, word: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 row`, `2,000 rows`. `many` is an irregular plural."""
    return f"{count:,} {word if count == 1 else many or f'{word}s'}"


def mismatch(actual: object, expected: object) -> str:
    """Format a wrong value and the expected one. `expected` may end with advice: `at most 2; remove one`."""
    return f"found {actual}, expected {expected}"


def format_key_values(key: Mapping[str, object]) -> str:
    """Format a key as `user=u7, region=NULL`."""
    return ", ".join(f"{n}={'NULL' if v is None else v}" for n, v in key.items()) or "(no key)"


def format_number(count: int | None) -> str:
    return "—" if count is None else f"{count:,}".replace("-", "−")


def format_brief(count: float) -> str:
    """Format a count for an axis as `12 k` or `3.4 M`."""
    for unit, length in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= length:
            return f"{count / length:.3g} {unit}"
    return f"{count:.3g}"


def format_rate(count: float) -> str:
    """Format a rate as `1,234`, `12.3` or `0.05`."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def format_percent(share: float) -> str:
    """Format a share as a percentage, rounded down: `98.2%`, and `99.97%` rather than `100%`."""
    for digits in (1, 2, 3, 4):
        cut = math.floor(share * 100 * 10**digits + 1e-6) / 10**digits
        if share <= 0.999 or cut > 99.9:
            break
    return f"{cut:.{digits}f}%" if cut < 100 else "100%" if share == 1 else "99.9999%"


def format_size(count: float) -> str:
    """Format a number of bytes as `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


# -- durations -------------------------------------------------------------------------------------------------------


def format_duration(ms: int) -> str:
    """Format a duration in its largest whole unit: `1 day`, `90 seconds`, `250 ms`."""
    ms = int(ms)
    for word, length in _WORDS:
        if ms and ms % length == 0:
            return plural(ms // length, word)
    return f"{ms:,} ms"


def format_ms(ms: int) -> str:
    """Format a duration in its shortest exact spelling: 90000 -> `90s`, 7200000 -> `2h`."""
    for letter, length in _LETTERS:
        if ms and ms % length == 0:
            return f"{ms // length}{letter}"
    return f"{ms}ms"


def format_age(us: int) -> str:
    """Format a duration (µs), rounded, in the largest unit in which it is at least 2: `3 d`, `90 m`, `12.0 s`."""
    seconds = us / 1e6
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def format_estimate(us: int) -> str:
    """Format a duration (µs), rounded, in one unit: `3 d`, `90 min`, `12 s`; with three digits below 10 s: `1.23 s`."""
    seconds = us / 1e6
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.3g} s"


def format_span(us: int) -> str:
    """Format a duration (µs) in its two largest units, such as `14 min 3 s`, or in one unit below a second."""
    sign, remaining, parts = ("−" if us < 0 else ""), abs(us), list[str]()
    for index, (name, length) in enumerate(_UNITS):
        if remaining >= length:
            parts.append(f"{remaining // length} {name}")
            remaining %= length
            if index + 1 < len(_UNITS) and remaining >= _UNITS[index + 1][1] and name not in ("ms", "µs"):
                follow, below = _UNITS[index + 1]
                parts.append(f"{remaining // below} {follow}")
            break
    return sign + " ".join(parts) if parts else "0 s"


# -- times -----------------------------------------------------------------------------------------------------------


def format_time(us: int | None) -> str:
    """Format a time (µs, UTC) to the second as `2024-03-01 09:02:00Z`; `none yet` for None."""
    moment = None if us is None else _moment(us)
    return _unusual_time(us) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def format_exact_time(us: int | None) -> str:
    """Format a time (µs, UTC) as `2024-03-01 09:02:00Z`, with a fraction if it has one; `none yet` for None."""
    moment = None if us is None else _moment(us)
    return _unusual_time(us) if moment is None else format_datetime(moment) + "Z"


def format_datetime(moment: dt.datetime) -> str:
    """Format a time as `2024-03-01 09:02:00`, or as `2024-03-01 09:02:00.5`, without the zone."""
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction}"


def format_iso(us: int) -> str:
    """Format a time (µs, UTC) as ISO 8601; `none yet` for NO_WATERMARK."""
    moment = _moment(us)
    return "none yet" if us <= NO_WATERMARK else _unusual_time(us) if moment is None else moment.isoformat() + "Z"


def format_stamp(us: int | None) -> str:
    """Format a time (µs, UTC) to the second and without spaces, for log lines; `none` for None."""
    moment = None if us is None else _moment(us)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else "none" if us is None else f"{us}µs"


def _moment(us: int) -> dt.datetime | None:
    """Return a time (µs, UTC) as a datetime; None if it is outside the range of Python's datetime."""
    try:
        return _EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return None


def _unusual_time(us: int | None) -> str:
    return "none yet" if us is None else f"{us} µs"
