"""Limits on the values that a target or a store can hold.

They are checked before each commit, because the target or store must be able to write everything that is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

# the first and last µs of the years 1 to 9999, the range of ISO 8601 with four digits and of Python's calendar
YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


@dataclass(frozen=True)
class ValueLimits:
    """The values that a system can hold.

    `allows_nul`: whether text may contain U+0000, and bytes may be invalid UTF-8. `time_range`: the first and the last
    time (µs UTC, both inclusive). `key_bytes`: the maximum total size of the columns that identify a row. None means no
    limit. `covers_state`: whether the limits also apply to values that are stored only in the state.
    """

    allows_nul: bool = True
    time_range: tuple[int, int] | None = None
    key_bytes: int | None = None
    covers_state: bool = False

    def __and__(self, other: ValueLimits) -> ValueLimits:
        """Return the limits for values that both systems can hold."""
        times = [t for t in (self.time_range, other.time_range) if t is not None]
        sizes = [n for n in (self.key_bytes, other.key_bytes) if n is not None]
        return ValueLimits(
            self.allows_nul and other.allows_nul,
            (max(t[0] for t in times), min(t[1] for t in times)) if times else None,
            min(sizes, default=None),
            self.covers_state or other.covers_state,
        )


ANYTHING = ValueLimits()


def find_value_limits(holder: object) -> ValueLimits:
    """Return the limits that a target or store declares as its attribute `capacity`.

    Without this attribute, any value is allowed.
    """
    limits = getattr(holder, "capacity", ANYTHING)
    return limits if isinstance(limits, ValueLimits) else ANYTHING
