"""Read the rows of a test without Spark. Pipelines with SQL are rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.core.time import parse_timestamp_us
from slackwater.errors import StartError, Topic
from slackwater.testing.stub_sources import read_declared_columns, to_micros_utc

Columns = Mapping[str, Field]
_PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}


def _find_sql(pipeline: Pipeline, columns: Mapping[str, Columns]) -> list[str]:
    """Return all SQL in a pipeline that only Spark can run, each setting as `key = "SQL"`."""
    texts = []
    for stage_pipeline in pipeline.stage_pipelines.values():
        step = stage_pipeline.transform.step
        texts += [
            f"{key} = {_sql_line(sql)}"
            for way in stage_pipeline.input_paths
            for key, sql in stage_pipeline.sql_chain(way)
        ]
        for source in stage_pipeline.sources:
            source_fields = columns.get(source.name)
            time = step.event_time_column
            plain = ("_event_ts", "ts", *(source_fields or ()))  # columns that need no SQL
            if step.time_mode == "event" and time not in plain and not source.is_stage_output:
                texts.append(f"event_time_column = {_sql_line(time)}")
            gap = getattr(step, "gap_ms", None)
            if isinstance(gap, str) and source_fields is not None and gap not in source_fields:
                texts.append(f"gap = {_sql_line(gap)}")
    return list(dict.fromkeys(texts))


def _sql_line(sql: str) -> str:
    text = re.sub(r"\s+", " ", sql).strip()
    return f'"{text if len(text) <= 120 else f"{text[:117]}..."}"'


def reject_sql(pipeline: Pipeline, columns: Mapping[str, Columns]) -> None:
    """Raise StartError if a pipeline has SQL, or uses a column `ts` for anything but the event time."""
    if unsupported := _find_sql(pipeline, columns):
        raise StartError(
            f"{pipeline.name}: this SQL needs Spark: {'; '.join(unsupported)}; pass a Spark session as session=, or "
            "test a pipeline without such SQL",
            Topic.TEST_UNUSABLE,
        )
    for source, source_fields in columns.items():
        _check_ts(pipeline, source, source_fields)


def source_columns(pipeline: Pipeline, given_columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of each source: those that the test gives, or else those that the config declares.

    Raises StartError if a source has neither.
    """
    columns = {}
    for index, source in enumerate(pipeline.sources):
        declared = (
            given_columns[source.name] if source.name in given_columns else read_declared_columns(pipeline, index)
        )
        if declared is None:
            raise StartError(
                f'{pipeline.name}: source "{source.name}" declares no schema; pass schema={{"column": "type"}} to the test',
                Topic.TEST_UNUSABLE,
            )
        columns[source.name] = declared
    return columns


def _check_ts(pipeline: Pipeline, source: str, declared: Columns) -> None:
    """Raise StartError if a column `ts` is used for more than the event time. The in-process engine reserves it."""
    if "ts" not in declared:
        return
    stage_pipeline = next(
        stage_pipeline
        for stage_pipeline in pipeline.stage_pipelines.values()
        if stage_pipeline.input_paths_from(source)
    )
    step, window = stage_pipeline.transform.step, stage_pipeline.transform.window
    used = window is not None and "ts" in (*window.group_by, *(a.column for a in window.aggregations))
    if used or step.event_time_column != "ts" or (window is None and declared["ts"].type != "timestamp"):
        raise StartError(
            f'{pipeline.name}: source "{source}" uses the column "ts" for more than the event time, which is '
            "supported only with Spark; pass a Spark session as session=",
            Topic.TEST_UNUSABLE,
        )


def build_frame(
    pipeline: Pipeline, source: str, rows: Sequence[Mapping[str, Any]], fields: Columns, clock_us: int
) -> pl.DataFrame:
    """Build a frame for the in-process engine.

    It has the event time as `ts` (µs; NULL for a bad row), and the other columns of the source.

    Args:
        pipeline: The pipeline of the stage that reads the source.
        source: The name of the source.
        rows: The rows.
        fields: The columns of the source.
        clock_us: The processing time (µs).

    Raises StartError for a value of the wrong type.
    """
    step = pipeline.transform.step
    event_times = {"ts": [_event_time_us(step.event_time_column, step.event_time_unit, row) for row in rows]}
    if step.time_mode == "processing":
        event_times["ts"] = [clock_us] * len(rows)
    columns = [pl.Series("ts", event_times["ts"], dtype=pl.Int64)]
    for name, field in fields.items():
        if name in ("_event_ts", "ts"):  # the event time
            continue
        try:
            columns.append(build_series([row.get(name) for row in rows], field.polars).alias(name))
        except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise StartError(
                f'source "{source}": column "{name}" is {field.type}, but a row of the test has a value of another type '
                f"({_first_line(error)})",
                Topic.TEST_UNUSABLE,
            ) from None
    return pl.DataFrame(columns)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _event_time_us(column: str, unit: str | None, row: Mapping[str, Any]) -> int | None:
    value = row.get("ts") if column == "_event_ts" and "_event_ts" not in row else row.get(column)
    if value is None:
        return None
    if isinstance(value, str):
        return parse_timestamp_us(value)
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return value // 1000 if unit == "ns" else value * _PER_UNIT[unit or "us"]
        return to_micros_utc(value)
    except (ValueError, StartError):
        return None


def build_series(values: Sequence[Any], kind: pl.DataType) -> pl.Series:
    """Build a column from values. Times may be datetimes, strings or microseconds since 1970."""
    if isinstance(kind, pl.Datetime):
        numbers = [None if v is None else to_micros_utc(v) for v in values]
        return pl.Series(numbers, dtype=pl.Int64).cast(pl.Datetime("us")).cast(kind)
    return pl.Series(values, dtype=kind)


def decode_letter(value: bytes) -> dict[str, Any]:
    """Return the row of a dead letter with the bytes `value`; empty if they are not JSON.

    An empty row has no event time, so it becomes a bad row again.
    """
    try:
        return dict(json.loads(value))
    except ValueError:
        return {}


__all__ = ["build_frame", "build_series", "decode_letter", "reject_sql", "source_columns"]
