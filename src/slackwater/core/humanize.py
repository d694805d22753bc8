"""Format counts with their nouns, durations and wrong values for messages."""

from __future__ import annotations

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def plural(count: int, word: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 row`, `2,000 rows`. `many` is the plural if it is not formed with an s."""
    return f"{count:,} {word if count == 1 else many or f'{word}s'}"


def mismatch(actual: object, expected: object) -> str:
    """Format a wrong value and what should be there instead. `expected` may end with advice: `at most 2; remove one`."""
    return f"found {actual}, expected {expected}"


def format_duration(ms: int) -> str:
    """Format a duration in its largest whole unit: `1 day`, `90 seconds`, `250 ms`."""
    ms = int(ms)
    for word, length in _UNITS:
        if ms and ms % length == 0:
            return plural(ms // length, word)
    return f"{ms:,} ms"
