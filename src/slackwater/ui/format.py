"""Format times, durations, sizes and counts for the page."""

from __future__ import annotations

import datetime as dt

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("µs", 1))


def format_time(us: int | None) -> str:
    """Format a time (µs UTC) as `2024-03-01 09:02:00Z`, with a fraction if it has one."""
    if us is None:
        return "none yet"
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us:,} µs"
    rest = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{rest}Z"


def format_seconds(us: int) -> str:
    """Format a time (µs UTC) without its fraction of a second."""
    return format_time(us - us % 1_000_000)


def format_span(us: int) -> str:
    """Format a duration (µs) in its two largest units, such as `14 min 3 s`; below a second, in one unit."""
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


def format_size(count: float) -> str:
    """Format a number of bytes as `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


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


def format_key(key: dict[str, object]) -> str:
    """Format a key as `user=u7, region=NULL`."""
    return ", ".join(f"{n}={'NULL' if v is None else v}" for n, v in key.items()) or "(no key)"
