"""Answers as text: values for people, rows as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import polars as pl


def plain(value: Any) -> str:
    """A value for people: times in ISO 8601, binary in hexadecimal."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("+00:00", "Z")
    return str(value)


def json_lines(frame: pl.DataFrame) -> Iterator[str]:
    """The rows as JSON objects; what JSON has no word for is text, as NaN is."""
    for row in frame.iter_rows(named=True):
        yield json.dumps({k: _finite(v) for k, v in row.items()}, default=plain, ensure_ascii=False)


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def plain_json(value: Any) -> str:
    """A list or struct in one line."""
    return json.dumps(value, default=plain, ensure_ascii=False)
