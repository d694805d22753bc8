"""Rows of Parquet files, sorted, with times as microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl


def read_sorted_rows(path: Path) -> list[dict[str, Any]]:
    frame = pl.concat([pl.read_parquet(f) for f in sorted(path.rglob("*.parquet"))])
    return to_sorted_rows(frame)


def to_sorted_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    plain = frame.with_columns(pl.col(pl.Datetime).dt.timestamp("us")) if frame.height else frame
    return sorted(plain.to_dicts(), key=lambda r: json.dumps(r, sort_keys=True, default=str))
