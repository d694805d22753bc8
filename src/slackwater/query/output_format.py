"""Formats query results: values for users, rows as JSON and CSV, and clocks in sentences."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from slackwater.core.humanize import format_duration
from slackwater.query.why_report import ClockReport, StageReport


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


def quote_stage(name: str) -> str:
    """Quote the name of a stage for a sentence."""
    return json.dumps(name, ensure_ascii=False)


def describe_watermark_wait(w: StageReport) -> str:
    """Describe what the watermark of a stage waits for: a source, or a stage that is itself waiting."""
    if w.holder is None:
        return _blocked_text("all sources are idle", w.through)
    hold_text = ""
    if w.held_back_us:
        length = format_duration(max(w.held_back_us // 1000, 1))
        hold_text = f"; it holds its results back by {length}, since sessions may still be cut at their cap"
    return _blocked_text(name_clock(w.holder), w.through) + hold_text


def _blocked_text(end: str, through: Sequence[str]) -> str:
    """Describe the chain of stages that leads to the cause `end`. `through`: the stages, nearest first."""
    if not through:
        return end
    first, *more = through
    steps = "".join(f", which waits for stage {quote_stage(name)}" for name in more)
    idle = end.startswith("all sources")
    return f"stage {quote_stage(first)}{steps}, " + (
        "whose sources are all idle" if idle else f"whose watermark is held by {end}"
    )


def name_clock(c: ClockReport) -> str:
    """Return the name of a source, a partition or a stage, for use in a sentence."""
    return f'{"stage" if c.of_stage else "source"} "{c.source}"' + (
        f", partition {c.partition}" if c.partition is not None else ""
    )
