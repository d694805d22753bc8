"""Column types in Spark's DDL, inferred from JSON values, CSV cells and Parquet schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.core.column_names import quote_identifier_if_needed
from slackwater.core.time import parse_timestamp_us

_MANY_KEYS = 64  # objects with more distinct keys are maps
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?\.?[0-9]+([eE][+-]?[0-9]{1,3})?")


@dataclass
class TypeStats:
    """The kinds of values seen in one column, field or list item."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, TypeStats] = field(default_factory=dict)
    items: TypeStats | None = None
    digits: int = 0
    times: bool = True  # every string so far is a date with a time of day

    def add(self, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool):
            self.kinds.add("boolean")
        elif isinstance(value, int):
            self.kinds.add("whole" if -(2**63) <= value < 2**63 else "long")
            self.digits = max(self.digits, len(str(abs(value))))
        elif isinstance(value, float):
            self.kinds.add("number")
        elif isinstance(value, str):
            self.kinds.add("text")
            self.times = self.times and len(value.strip()) > 10 and parse_timestamp_us(value) is not None
        elif isinstance(value, Mapping):
            self.kinds.add("object")
            for key, inner in value.items():
                self.fields.setdefault(key, TypeStats()).add(inner)
        else:
            self.kinds.add("list")
            self.items = self.items or TypeStats()
            for inner in value:
                self.items.add(inner)

    def ddl(self) -> str:
        """Return the narrowest type that fits all values. STRING fits everything."""
        kinds = self.kinds
        if kinds == {"boolean"}:
            return "BOOLEAN"
        if kinds == {"whole"}:
            return "BIGINT"
        if kinds and kinds <= {"whole", "long"} and self.digits <= 38:
            return "DECIMAL(38,0)"
        if kinds and kinds <= {"whole", "number"}:
            return "DOUBLE"
        if kinds == {"text"}:
            return "TIMESTAMP" if self.times else "STRING"
        if kinds == {"list"} and self.items is not None:
            return f"ARRAY<{self.items.ddl()}>"
        if kinds == {"object"} and self.fields:
            return self._object()
        return "STRING"

    def _object(self) -> str:
        if len(self.fields) > _MANY_KEYS:
            types = {stats.ddl() for stats in self.fields.values() if stats.kinds}
            return f"MAP<STRING, {types.pop() if len(types) == 1 else 'STRING'}>"
        names = distinct_ignoring_case(self.fields)
        if not all(names):
            return "STRING"
        return (
            f"STRUCT<{', '.join(f'{quote_identifier_if_needed(name)}: {self.fields[name].ddl()}' for name in names)}>"
        )


def distinct_ignoring_case(names: Iterable[str]) -> list[str]:
    """Return the names without those that differ from an earlier name only in case, which Spark cannot distinguish."""
    first_spelling: dict[str, str] = {}
    for name in names:
        first_spelling.setdefault(name.casefold(), name)
    return list(first_spelling.values())


def parse_csv_cell(text: str | None) -> Any:
    """Return the value of a CSV cell; None if it is empty. A number with leading zeros remains a string."""
    if text is None or text == "":
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and not re.match(r"-?0[0-9]", text):
        return float(text)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def polars_type_to_ddl(kind: Any) -> str | None:
    """Return the Spark type of a Parquet column with the Polars type `kind`; None if Spark cannot read it."""
    import polars as pl

    simple = {
        pl.Boolean: "BOOLEAN",
        pl.Int8: "TINYINT",
        pl.Int16: "SMALLINT",
        pl.Int32: "INT",
        pl.Int64: "BIGINT",
        pl.UInt8: "SMALLINT",
        pl.UInt16: "INT",
        pl.UInt32: "BIGINT",
        pl.UInt64: "DECIMAL(20,0)",
        pl.Float32: "FLOAT",
        pl.Float64: "DOUBLE",
        pl.String: "STRING",
        pl.Binary: "BINARY",
        pl.Date: "DATE",
        pl.Categorical: "STRING",
        pl.Enum: "STRING",
    }
    base = kind.base_type()
    if base in simple:
        return simple[base]
    if base is pl.Datetime:
        return None if kind.time_unit == "ns" else "TIMESTAMP" if kind.time_zone else "TIMESTAMP_NTZ"
    if base is pl.Decimal:
        return f"DECIMAL({kind.precision or 38},{kind.scale})"
    if base is pl.List:
        inner = polars_type_to_ddl(kind.inner)
        return None if inner is None else f"ARRAY<{inner}>"
    if base is pl.Struct:
        fields = [(f.name, polars_type_to_ddl(f.dtype)) for f in kind.fields]
        members = [
            f"{quote_identifier_if_needed(name)}: {inner}" for name, inner in fields if name and inner is not None
        ]
        return f"STRUCT<{', '.join(members)}>" if members and len(members) == len(fields) else None
    return None
