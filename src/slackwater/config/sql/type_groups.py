"""Groups of Spark's type names, such as all integer types."""

from __future__ import annotations

from collections.abc import Iterator

INTEGERS = ("tinyint", "smallint", "int", "bigint")
NUMBERS = (*INTEGERS, "float", "double", "decimal")
SCALARS = (*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
NO_KEYS = ("array", "map", "struct", "variant", "interval", "void")  # types that are certainly not scalars


def strip_type_parameters(type_: str) -> str:
    """Return a type without its parameters."""
    return type_.partition("(")[0].partition("<")[0]


def find_event_time_type_problems(type_: str, unit: str | None) -> Iterator[tuple[str, str]]:
    """Yield each reason why a column of this type cannot be the event time, as (config key, message).

    `unit`: the value of `event_time_unit`.
    """
    if type_ in INTEGERS:
        if unit is None:
            yield "event_time_unit", f'is {type_}; set event_time_unit to "s", "ms", "us" or "ns"'
    elif type_ not in ("timestamp", "timestamp_ntz", "date", "string"):
        yield "event_time_column", f"is {type_}; expected a timestamp, a date, an ISO-8601 string or an integer"
