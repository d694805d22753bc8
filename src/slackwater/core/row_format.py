"""Rows as JSON and CSV, and single values as text for users."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl


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
    """Yield the rows as lines of CSV: NULL is empty, lists and structs are JSON, times are ISO 8601."""
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
