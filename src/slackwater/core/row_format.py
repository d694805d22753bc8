"""Format rows as JSON and CSV, format single values for users, and transform nested values.

`json_lines` and `csv_lines` format rows for users. `row_to_json` and `value_to_json` return Polars expressions, which
convert values to JSON for systems that lack some types.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

TIME = "%Y-%m-%dT%H:%M:%S%.6f"


def format_value(value: Any) -> str:
    """Format a value for users: times in ISO 8601, binary in hexadecimal."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("+00:00", "Z")
    return str(value)


def json_lines(frame: pl.DataFrame) -> Iterator[str]:
    """Yield the rows as JSON objects. Values that JSON lacks, such as NaN, become strings."""
    for row in frame.iter_rows(named=True):
        yield json.dumps({k: _json_number(v) for k, v in row.items()}, default=format_value, ensure_ascii=False)


def csv_lines(frame: pl.DataFrame, with_head: bool = True) -> Iterator[str]:
    """Yield the rows as CSV lines: NULL is empty, lists and structs are JSON, times are ISO 8601."""
    if with_head:
        yield _csv_line(frame.columns)
    for row in frame.iter_rows():
        yield _csv_line(
            ["" if v is None else format_json(v) if isinstance(v, list | dict) else format_value(v) for v in row]
        )


def _csv_line(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue()


def _json_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def format_json(value: Any) -> str:
    """Format a list or struct as JSON on one line."""
    return json.dumps(value, default=format_value, ensure_ascii=False)


def value_to_json(value: pl.Expr, kind: pl.DataType, binary: str = "hex") -> pl.Expr:
    """Return an expression that converts a value to JSON text.

    Times are ISO 8601. Decimals and non-finite floats are strings. NULL is the text `null`, also within arrays and
    structs. A map is an object if its keys are strings, otherwise an array of entries.

    Args:
        value: The expression to convert.
        kind: The type of its values.
        binary: The encoding of bytes: "hex" or "base64".
    """
    if isinstance(kind, pl.Map):
        return _map_text(value, kind, binary)
    if isinstance(kind, pl.List):
        inner = value_to_json(pl.element(), kind.inner, binary)  # type: ignore[arg-type]  # an instance
        whole = pl.concat_str(pl.lit("["), value.list.eval(inner).list.join(","), pl.lit("]"))
        return pl.when(value.is_null()).then(pl.lit("null")).otherwise(whole)
    if isinstance(kind, pl.Struct):
        parts: list[pl.Expr] = []
        for field in kind.fields:
            parts += [pl.lit(("," if parts else "{") + json.dumps(field.name, ensure_ascii=False) + ":")]
            parts += [value_to_json(value.struct.field(field.name), field.dtype, binary)]  # type: ignore[arg-type]
        return pl.when(value.is_null()).then(pl.lit("null")).otherwise(pl.concat_str(*parts, pl.lit("}")))
    encoded = _encode(_json_scalar(value, kind, binary))
    if not kind.is_float():
        return encoded
    return (
        pl.when(value.is_nan())
        .then(pl.lit('"NaN"'))
        .when(value.is_infinite())
        .then(pl.when(value > 0).then(pl.lit('"Infinity"')).otherwise(pl.lit('"-Infinity"')))
        .otherwise(encoded)
    )


def row_to_json(schema: Mapping[str, pl.DataType], binary: str = "hex") -> pl.Expr:
    """Return an expression that converts a whole row to a JSON object."""
    parts: list[pl.Expr] = []
    for name, kind in schema.items():
        parts += [
            pl.lit(("," if parts else "{") + json.dumps(name, ensure_ascii=False) + ":"),
            value_to_json(pl.col(name), kind, binary),
        ]
    return pl.concat_str([*parts, pl.lit("}")])


def has_map(kind: pl.DataType) -> bool:
    """Return whether a type is a map or contains one."""
    if isinstance(kind, pl.List):
        return has_map(kind.inner)  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return any(has_map(f.dtype) for f in kind.fields)  # type: ignore[arg-type]
    return isinstance(kind, pl.Map)


def _map_entries_type(kind: pl.Map) -> pl.List:
    """Return the type of a map's entries: a list of structs with `key` and `value`."""
    return pl.List(pl.Struct({"key": kind.key, "value": kind.value}))


def _map_text(value: pl.Expr, kind: pl.Map, binary: str) -> pl.Expr:
    listed = _map_entries_type(kind)
    if kind.key != pl.String:
        return value_to_json(value.cast(listed), listed, binary)
    pair = pl.element().struct.field
    parts = [_encode(pair("key")), pl.lit(":"), value_to_json(pair("value"), kind.value, binary)]  # type: ignore[arg-type]
    whole = pl.concat_str(pl.lit("{"), value.cast(listed).list.eval(pl.concat_str(parts)).list.join(","), pl.lit("}"))
    return pl.when(value.is_null()).then(pl.lit("null")).otherwise(whole)


def _encode(value: pl.Expr) -> pl.Expr:
    return pl.struct(value.alias("v")).struct.json_encode().str.strip_prefix('{"v":').str.head(-1)


def _json_scalar(value: pl.Expr, kind: pl.DataType, binary: str) -> pl.Expr:
    """Return an expression that converts a scalar to a type that JSON supports."""
    if kind == pl.Binary:
        return value.bin.encode("base64" if binary == "base64" else "hex")
    if isinstance(kind, pl.Datetime):
        return value.dt.strftime(TIME + ("Z" if kind.time_zone else ""))
    return value.cast(pl.String) if isinstance(kind, pl.Decimal) else value


def is_nested(kind: pl.DataType) -> bool:
    """Return whether a type is a list, map or struct."""
    return isinstance(kind, pl.List | pl.Map | pl.Struct)


def apply_to_scalars(value: pl.Expr, kind: pl.DataType, scalar: Callable[[pl.Expr, pl.DataType], pl.Expr]) -> pl.Expr:
    """Return a nested value with `scalar` applied to each scalar in it. A map becomes a list of entries."""
    if isinstance(kind, pl.Map):
        return apply_to_scalars(value.cast(_map_entries_type(kind)), _map_entries_type(kind), scalar)
    if isinstance(kind, pl.List):
        return value.list.eval(apply_to_scalars(pl.element(), kind.inner, scalar))  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        fields = [apply_to_scalars(value.struct.field(f.name), f.dtype, scalar).alias(f.name) for f in kind.fields]  # type: ignore[arg-type]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    return scalar(value, kind)
