"""Column types: one name (Spark's), and its Arrow and Polars counterparts."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

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
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")
NUMBERS = (*INTEGERS, *FLOATS, "decimal")


@dataclass(frozen=True)
class Field:
    """A column: its name and its type as Spark spells it (`bigint`, `decimal(10,2)`)."""

    name: str
    type: str

    @property
    def base(self) -> str:
        """The type without parameters: `decimal` for `decimal(10,2)`."""
        return self.type.split("(", 1)[0]

    @property
    def supported(self) -> bool:
        return self.type in _SIMPLE or _DECIMAL.fullmatch(self.type) is not None

    @property
    def decimal(self) -> tuple[int, int]:
        """(precision, scale); raises ValueError for another type."""
        match = _DECIMAL.fullmatch(self.type)
        if match is None:
            raise ValueError(f"{self.name} is {self.type}, not a decimal")
        return int(match[1]), int(match[2])

    @property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(*self.decimal) if self.base == "decimal" else _SIMPLE[self.type][0]

    @property
    def polars(self) -> pl.DataType:
        return pl.Decimal(*self.decimal) if self.base == "decimal" else _SIMPLE[self.type][1]


def decimal(precision: int, scale: int) -> str:
    """The name of a decimal type, bounded as Spark bounds it (38 digits)."""
    return f"decimal({min(precision, 38)},{min(scale, 38)})"


def arrow_schema(fields: list[Field]) -> pa.Schema:
    return pa.schema([(f.name, f.arrow) for f in fields])
