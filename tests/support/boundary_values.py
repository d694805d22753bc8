"""Columns of every simple type for tests of tables, with boundary values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl

from slackwater.core.schema import Field

AT = dt.datetime(2024, 3, 1, 9, 0, 0, 250_001)
TYPES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [float("nan"), -0.5],
    "double": [float("nan"), float("inf")],
    "string": ["", "a'\"\n"],
    "binary": [b"", b"\x00\xff"],
    "date": [dt.date(1969, 12, 31), dt.date(9999, 1, 1)],
    "timestamp": [AT.replace(tzinfo=dt.UTC), AT.replace(year=1901, tzinfo=dt.UTC)],
    "timestamp_ntz": [AT, AT.replace(year=1901)],
    "decimal(10,2)": [Decimal("-1.25"), Decimal("99999999.99")],
}
WIDE = tuple(Field(t.split("(")[0], t) for t in TYPES)
NARROW = (Field("at", "timestamp"), Field("key", "string"), Field("n", "bigint"))


def build_typed_frame(fields: tuple[Field, ...], *rows: tuple[object, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={f.name: f.polars for f in fields}, orient="row")
