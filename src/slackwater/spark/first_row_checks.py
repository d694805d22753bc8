"""Check whether the first rows of a source match its schema and event-time unit, and give hints if they do not.

Hints do not change how rows are processed. They are not stored, so every start checks again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.core.humanize import plural

ROWS = 1000  # number of rows to check
_SHOWN = 30  # column names in a message
_1990_US = 631_152_000_000_000
_AHEAD_US = 86_400_000_000
_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


@dataclass
class FirstRowCounts:
    """Counts over the first rows of a source: the number of non-NULL values in each column of the schema."""

    columns: Sequence[str]
    rows: int = 0
    values: dict[str, int] = field(default_factory=dict)
    is_warned: bool = False
    unit_is_hinted: bool = False

    @property
    def needs_rows(self) -> bool:
        return self.rows < ROWS

    def add(self, rows: int, values: Mapping[str, int]) -> None:
        self.rows += rows
        for name, count in values.items():
            self.values[name] = self.values.get(name, 0) + count

    @property
    def missing(self) -> list[str]:
        """The columns that are NULL in all counted rows."""
        return [name for name in self.columns if not self.values.get(name)]


def describe_empty_column(source: str, column: str, rows: int, names: Iterable[str]) -> str:
    """Return the warning about a column that is NULL in the first `rows` rows. `names`: the field names in the data."""
    sorted_names = sorted(names)
    folded = {n.casefold(): n for n in reversed(sorted_names)}
    similar = folded.get(column.casefold()) or next(
        (folded[n] for n in difflib.get_close_matches(column.casefold(), folded, n=1)), None
    )
    hint = f'; did you mean "{similar}"?' if similar else ""
    more = f" and {len(sorted_names) - _SHOWN} more" if len(sorted_names) > _SHOWN else ""
    listed = f"; available: {', '.join(sorted_names[:_SHOWN])}{more}" if sorted_names else ""
    return (
        f'source "{source}": the column "{column}" of the schema does not occur in the first {plural(rows, "row")}, so it is NULL in '
        f"all of them{listed}{hint}"
    )


def suggest_time_unit(number: int | None, unit: str | None, kind: str, clock_us: int) -> str | None:
    """Return a hint about the event-time unit if the first event times make sense only in another unit, else None.

    A time makes sense if it is between 1990 and tomorrow.

    Args:
        number: The median of the first event times, as a number; None if there is none.
        unit: The configured unit, if any.
        kind: The type of the event time: "integer", "string" (of digits, without a unit) or "timestamp" (for which
            `number` is in seconds since 1970).
        clock_us: The current time in microseconds.
    """
    if number is None:
        return None

    def fits(candidate: str) -> bool:
        return _1990_US * 1000 <= number * _NS[candidate] <= (clock_us + _AHEAD_US) * 1000

    declared = "s" if kind == "timestamp" else unit
    if kind != "string" and fits(declared or "s"):
        return None
    meant = next((each for each in _NS if each != declared and fits(each)), None)
    if kind == "string":
        meant = next((each for each in _NS if fits(each)), None)
    if meant is None:
        return None
    if kind == "integer":
        return f'did you mean event_time_unit = "{meant}"?'
    if kind == "timestamp":
        return (
            f'a number in a TIMESTAMP is read as epoch seconds: did you mean a BIGINT and event_time_unit = "{meant}"?'
        )
    return f'strings of digits are not times: did you mean a BIGINT and event_time_unit = "{meant}"?'
