"""What a target or a store can hold of a row's values: asked before a commit, since what is committed must be writable."""

from __future__ import annotations

from dataclasses import dataclass

# the first and last µs of the years 1 to 9999: what ISO 8601 writes with four digits, and Python's calendar has
YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


@dataclass(frozen=True)
class ValueLimits:
    """`zero`: text may hold U+0000, and bytes that are no UTF-8. `times`: in µs UTC, both inclusive; None: any.

    `key_bytes`: the most that the columns which tell rows apart may take together. `state`: also what is kept to work out
    results, and not written itself, must be held.
    """

    allows_nul: bool = True
    time_range: tuple[int, int] | None = None
    key_bytes: int | None = None
    covers_state: bool = False

    def __and__(self, other: ValueLimits) -> ValueLimits:
        """What both can hold."""
        times = [t for t in (self.time_range, other.time_range) if t is not None]
        sizes = [n for n in (self.key_bytes, other.key_bytes) if n is not None]
        return ValueLimits(
            self.allows_nul and other.allows_nul,
            (max(t[0] for t in times), min(t[1] for t in times)) if times else None,
            min(sizes, default=None),
            self.covers_state or other.covers_state,
        )


ANYTHING = ValueLimits()


def value_limits_of(holder: object) -> ValueLimits:
    """What a target or store says that it can hold; one that says nothing can hold anything."""
    limits = getattr(holder, "capacity", ANYTHING)
    return limits if isinstance(limits, ValueLimits) else ANYTHING
