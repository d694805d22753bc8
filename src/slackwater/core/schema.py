"""Column types, and limits on the values that a target or a store can hold.

Each type is named as in Spark, and has an Arrow and a Polars counterpart.

Keys and inputs are scalars. Results may also be `array<T>`, `map<K,V>` and `struct<name:T,…>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from slackwater.core.time import EARLIEST_US, LATEST_US

_SIMPLE: dict[str, tuple[pa.DataType, pl.DataType]] = {
    "boolean": (pa.bool_(), pl.Boolean()),
    "tinyint": (pa.int8(), pl.Int8()),
    "smallint": (pa.int16(), pl.Int16()),
    "int": (pa.int32(), pl.Int32()),
    "bigint": (pa.int64(), pl.Int64()),
    "float": (pa.float32(), pl.Float32()),
    "double": (pa.float64(), pl.Float64()),
    "string": (pa.string(), pl.String()),
    "binary": (pa.binary(), pl.Binary()),
    "date": (pa.date32(), pl.Date()),
    "timestamp": (pa.timestamp("us", tz="UTC"), pl.Datetime("us", "UTC")),
    "timestamp_ntz": (pa.timestamp("us"), pl.Datetime("us")),
}
_DECIMAL = re.compile(r"decimal\(([1-9]|[12]\d|3[0-8]),\s*(-?\d{1,2})\)")  # at most 38 digits, as in Spark
_ARRAY = re.compile(r"array<(.+)>")
_MAP = re.compile(r"map<(.+)>")
_STRUCT = re.compile(r"struct<(.+)>")
_MEMBER = re.compile(r"\s*([^:<>,]+?)\s*:\s*(.+?)\s*")

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")
MAX_TEXT = 100_000  # maximum length of a column with its type, in a fingerprint
NUMBERS = (*INTEGERS, *FLOATS, "decimal")
YEARS = (EARLIEST_US, LATEST_US)  # the range of Python's calendar and of four-digit years in ISO 8601


@dataclass(frozen=True)
class Field:
    """A column: its name and its type as Spark spells it (`bigint`, `decimal(10,2)`)."""

    name: str
    type: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the name and the type. A task carries many fields, and the cached types would enlarge it."""
        return Field, (self.name, self.type)

    @cached_property
    def base(self) -> str:
        """The type without parameters: `decimal` for `decimal(10,2)`, `array` for `array<int>`."""
        return self.type.partition("(")[0].partition("<")[0]

    @property
    def is_scalar(self) -> bool:
        """Return whether the type is scalar. Only scalars can be keys and inputs."""
        return self.type in _SIMPLE or _DECIMAL.fullmatch(self.type) is not None

    @property
    def is_result_type(self) -> bool:
        """Return whether a result can have this type: a scalar, or an array, map or struct of result types."""
        if self.element is not None:
            return self.element.is_result_type
        if self.entry is not None:
            return all(part.is_result_type for part in self.entry)
        if self.members is not None:
            return len(self.members) > 0 and all(m.is_result_type for m in self.members)
        return self.is_scalar

    @property
    def element(self) -> Field | None:
        """The element field of an array; None for another type."""
        match = _ARRAY.fullmatch(self.type)
        return Field("element", match[1].strip()) if match else None

    @property
    def entry(self) -> tuple[Field, Field] | None:
        """The key and value fields of a map; None for another type."""
        match = _MAP.fullmatch(self.type)
        if match is None:
            return None
        key, *value = _parts(match[1])
        return Field("key", key.strip()), Field("value", ",".join(value).strip())

    @property
    def members(self) -> tuple[Field, ...] | None:
        """The fields of a struct, empty if they cannot be parsed; None for another type."""
        match = _STRUCT.fullmatch(self.type)
        if match is None:
            return None
        matches = [_MEMBER.fullmatch(part) for part in _parts(match[1])]
        return tuple(Field(m[1], m[2]) for m in matches if m) if all(matches) else ()

    @property
    def decimal(self) -> tuple[int, int]:
        """The (precision, scale) of a decimal. Raises ValueError for another type."""
        match = _DECIMAL.fullmatch(self.type)
        if match is None:
            raise ValueError(f"{self.name} is {self.type}, not a decimal")
        return int(match[1]), int(match[2])

    @cached_property
    def arrow(self) -> pa.DataType:
        """The corresponding Arrow type."""
        if self.element is not None:
            return pa.list_(self.element.arrow)
        if self.entry is not None:
            return pa.map_(self.entry[0].arrow, self.entry[1].arrow)
        if self.members is not None:
            return pa.struct([(m.name, m.arrow) for m in self.members])
        return pa.decimal128(*self.decimal) if self.base == "decimal" else _SIMPLE[self.type][0]

    @cached_property
    def polars(self) -> pl.DataType:
        """The corresponding Polars type."""
        if self.element is not None:
            return pl.List(self.element.polars)
        if self.entry is not None:
            return pl.Map(self.entry[0].polars, self.entry[1].polars)
        if self.members is not None:
            return pl.Struct({m.name: m.polars for m in self.members})
        return pl.Decimal(*self.decimal) if self.base == "decimal" else _SIMPLE[self.type][1]


def parse_field(text: object) -> Field:
    """Parse a column in the form stored in fingerprints: name, space, type. Raises TypeError for any other text.

    Names and struct types may contain spaces. The text is split at the first space that is followed by a valid type.
    """
    if isinstance(text, str) and len(text) <= MAX_TEXT:
        for index in range(1, len(text)):
            if text[index] == " " and is_column_type(text[index + 1 :]):
                return Field(text[:index], text[index + 1 :])
    raise TypeError("not a column")


def is_column_type(text: str) -> bool:
    """Return whether the text is the name of a column type. Never raises."""
    try:
        field = Field("", text)
        # long runs of spaces would make the regular expression for struct members slow
        return len(text) <= MAX_TEXT and "  " not in text and field.is_result_type and field.polars is not None
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError, pl.exceptions.PolarsError):
        return False


def polars_to_spark_type(kind: pl.DataType) -> str:
    """Return Spark's name for a Polars type."""
    if isinstance(kind, pl.Map):
        return f"map<{polars_to_spark_type(kind.key)},{polars_to_spark_type(kind.value)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.List):
        return f"array<{polars_to_spark_type(kind.inner)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return f"struct<{','.join(f'{f.name}:{polars_to_spark_type(f.dtype)}' for f in kind.fields)}>"  # type: ignore[arg-type]
    if isinstance(kind, pl.Decimal):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, (_, dtype) in _SIMPLE.items() if dtype == kind), str(kind).lower())


def _parts(text: str) -> Iterator[str]:
    """Split the text at commas that are not inside brackets."""
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def decimal_type(precision: int, scale: int) -> str:
    """Return the name of a decimal type. Precision and scale are limited to 38, as in Spark."""
    return f"decimal({min(precision, 38)},{min(scale, 38)})"


def to_arrow_schema(fields: list[Field]) -> pa.Schema:
    return pa.schema([(f.name, f.arrow) for f in fields])


@dataclass(frozen=True)
class ValueLimits:
    """Limits on the values that a system can store. None means no limit.

    Values are checked before each commit, because a target must be able to store every committed row.

    Args:
        allows_nul: Whether text may contain U+0000, and bytes may be invalid UTF-8.
        time_range: The earliest and the latest allowed time (µs UTC, both inclusive).
        key_bytes: The maximum total size, in bytes, of the columns that identify a row.
        covers_state: Whether the limits also apply to values that are stored only in the state.
    """

    allows_nul: bool = True
    time_range: tuple[int, int] | None = None
    key_bytes: int | None = None
    covers_state: bool = False

    def __and__(self, other: ValueLimits) -> ValueLimits:
        """Return the limits on values that both systems can hold."""
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
    """Return the `capacity` attribute of a target or store, or limits that allow any value if it does not exist."""
    limits = getattr(holder, "capacity", ANYTHING)
    return limits if isinstance(limits, ValueLimits) else ANYTHING
