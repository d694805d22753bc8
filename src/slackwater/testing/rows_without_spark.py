"""Prepare the rows of a test without Spark. Pipelines with SQL are rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.source import Batch
from slackwater.core.hashing import key_hash, spark_xxhash64
from slackwater.core.row_format import row_to_json
from slackwater.core.schema import Field, ValueLimits
from slackwater.core.time import parse_timestamp_us
from slackwater.errors import StartError, Topic, raise_unregistered
from slackwater.operators import shard_rows, unstorable_rows
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import ORIGIN, ORIGIN_FIELDS, OUTSIDE
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.testing.local_engine import PreparedRows
from slackwater.testing.stub_sources import NUMBER, read_declared_columns, to_micros_utc
from slackwater.windows.aggregations import normalize_columns
from slackwater.windows.state_layout import FAR

Columns = Mapping[str, Field]
_PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}


def _find_sql(pipeline: Pipeline, columns: Mapping[str, Columns]) -> list[str]:
    """Return the settings of a pipeline that contain SQL, as `key = "SQL"`. Only Spark can run them."""
    texts = []
    for stage_pipeline in pipeline.stage_pipelines.values():
        step = stage_pipeline.transform.step
        texts += [
            f"{key} = {_sql_line(sql)}"
            for path in stage_pipeline.input_paths
            for key, sql in stage_pipeline.sql_chain(path)
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
            "test a pipeline without SQL",
            Topic.TEST_UNUSABLE,
        )
    for source, source_fields in columns.items():
        _check_ts(pipeline, source, source_fields)


def source_columns(pipeline: Pipeline, given_columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of each source, from the test (`given_columns`) or else from the config.

    Raises StartError if neither defines the columns of a source.
    """
    columns = {}
    for index, source in enumerate(pipeline.sources):
        is_given = source.name in given_columns
        declared = given_columns[source.name] if is_given else read_declared_columns(pipeline, index)
        if declared is None:
            raise StartError(
                f'{pipeline.name}: source "{source.name}" declares no schema; pass schema={{"column": "type"}}',
                Topic.TEST_UNUSABLE,
            )
        columns[source.name] = declared
    return columns


def _check_ts(pipeline: Pipeline, source: str, declared: Columns) -> None:
    """Raise StartError if a column `ts` is not the event time. The in-process engine reserves this name."""
    if "ts" not in declared:
        return
    transform = next(p for p in pipeline.stage_pipelines.values() if p.input_paths_from(source)).transform
    step, window = transform.step, transform.window
    used = window is not None and "ts" in (*window.group_by, *(a.column for a in window.aggregations))
    if used or step.event_time_column != "ts" or (window is None and declared["ts"].type != "timestamp"):
        raise StartError(
            f'{pipeline.name}: source "{source}" uses the column "ts" for more than the event time, which is possible '
            "only with Spark; pass a Spark session as session=",
            Topic.TEST_UNUSABLE,
        )


def build_frame(
    pipeline: Pipeline, source: str, rows: Sequence[Mapping[str, Any]], fields: Columns, clock_us: int
) -> pl.DataFrame:
    """Build a frame for the in-process engine, with the event time as `ts` (µs; NULL if the row has no valid time).

    Args:
        pipeline: The pipeline of the stage that reads the source.
        source: The name of the source.
        rows: The rows.
        fields: The columns of the source.
        clock_us: The processing time (µs).

    Raises StartError if a value has the wrong type.
    """
    step = pipeline.transform.step
    event_times = {"ts": [_event_time_us(step.event_time_column, step.event_time_unit, row) for row in rows]}
    if step.time_mode == "processing":
        event_times["ts"] = [clock_us] * len(rows)
    columns = [pl.Series("ts", event_times["ts"], dtype=pl.Int64)]
    for name, column in fields.items():
        if name in ("_event_ts", "ts"):  # the event time
            continue
        try:
            columns.append(build_series([row.get(name) for row in rows], column.polars).alias(name))
        except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise StartError(
                f'source "{source}": column "{name}" is {column.type}, but a row of the test has a value of another '
                f"type ({(str(error).splitlines() or [''])[0][:200]}); correct the row or the schema",
                Topic.TEST_UNUSABLE,
            ) from None
    return pl.DataFrame(columns)


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


def decode_dead_letter(value: bytes) -> dict[str, Any]:
    """Decode the bytes of a dead letter. Bytes that are not JSON become an empty row, which is again a bad row."""
    try:
        return dict(json.loads(value))
    except ValueError:
        return {}


# -- the rows of a batch -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolarsRowPreparer:
    """Prepares frames from `build_frame` for one step. Event times are in `ts`, and partitions in `__partition`.

    Args:
        logic: The operator of the step.
        source_names: The names of the step's sources, in config order.
        max_future_ms: How far an event time may be ahead of the clock (ms). A row further ahead is bad.
        inputs: The input names of the step, by source. By default, an input has the name of its source.
    """

    logic: Operator
    source_names: Sequence[str]
    max_future_ms: int = 3_600_000
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def prepare_source(self, name: str, batch: Batch, clock_us: int, capacity: ValueLimits) -> PreparedRows:
        rows: pl.DataFrame = batch.payload[name]
        bad = self._bad_reason(FAR if name in batch.stage_rows else clock_us + self.max_future_ms * 1000)
        partition = pl.col("__partition") if "__partition" in rows.columns else pl.lit(None, pl.String)
        number = pl.int_range(pl.len(), dtype=pl.Int64).alias(NUMBER)
        timed = rows.select(number, "ts", bad.alias("bad"), partition.alias("partition"), _origin(name, rows.schema))
        usable, numbers = rows.filter(timed["bad"].is_null()), timed.filter(pl.col("bad").is_null())[NUMBER]
        inputs = [self._prepare_input(which, usable, numbers, capacity) for which in self.inputs.get(name, (name,))]
        return PreparedRows(timed, pl.concat(inputs))

    def _bad_reason(self, latest: int) -> pl.Expr:
        """Return an expression for the reason why a row is bad, or NULL. `latest`: the last allowed event time (µs)."""
        ts = pl.col("ts")
        outside = ~ts.is_between(*unstorable_rows.storable_event_times(self.logic))
        no_time = pl.when(ts.is_null()).then(pl.lit("no event time"))
        return no_time.when(outside).then(pl.lit(OUTSIDE)).when(ts > latest).then(pl.lit("future")).otherwise(None)

    def _prepare_input(self, which: str, rows: pl.DataFrame, numbers: pl.Series, capacity: ValueLimits) -> pl.DataFrame:
        why = unstorable_rows.unstorable_reason(self.logic, self.logic.input_index(which), capacity, rows, rows["ts"])
        if why is None:
            why = pl.Series(unstorable_rows.UNFIT, [None], dtype=pl.String).new_from_index(0, rows.height)
        fits = why.is_null()
        columns = _select_shard_columns(self.logic, which, rows.filter(fits))
        fit = columns.with_columns(why.filter(fits), numbers.filter(fits))
        unfit = pl.DataFrame([why.filter(~fits), numbers.filter(~fits)])
        return pl.concat([fit, unfit], how="diagonal") if unfit.height else fit

    def payload(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(rows["_event_ts"].dt.timestamp("us").alias("ts")).drop("_event_ts")

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits) -> pl.DataFrame:
        bad, lifted = self._bad_reason(clock_us + self.max_future_ms * 1000), []
        for name, frame in payload.items():
            rows = frame.filter(bad.is_null())
            for which in self.inputs.get(name, (name,)):
                why = unstorable_rows.unstorable_reason(
                    self.logic, self.logic.input_index(which), capacity, rows, rows["ts"]
                )
                lifted.append(_lift_letters(self.logic, which, rows if why is None else rows.filter(why.is_null())))
        return pl.concat(lifted)

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        bad = self._bad_reason(clock_us + self.max_future_ms * 1000).alias("__bad")
        return pl.concat([frame.select("__letter", bad) for frame in payload.values()])


def _origin(source: str, columns: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for the origin of a row (see `operators.dead_letters`). Its bytes are the row as JSON."""
    values = {"source": pl.lit(source), "value": row_to_json(columns).cast(pl.Binary)}
    fields = [values.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in ORIGIN_FIELDS]
    return pl.struct(fields).alias(ORIGIN)


def _select_shard_columns(operator: Operator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that a shard needs from the rows of an input."""
    keys = shard_rows.find_hashed_keys(operator, source)
    hashes = key_hash(normalize_columns(rows, list(keys)), keys)
    return shard_rows.select_shard_columns(
        operator, source, shard_rows.HashedRows(rows, rows["ts"], hashes, _hash_values)
    )


def _hash_values(column: pl.Series, field: Field) -> pl.Series:
    values = column.cast(pl.Int64) if field.base.startswith("timestamp") else column
    types = (Field("type", "string"), field)
    hashes = [None if v is None else spark_xxhash64((field.type, v), types) for v in values.to_list()]
    return pl.Series(hashes, dtype=pl.Int64)


@singledispatch
def _lift_letters(operator: Operator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of dead letters with `__letter`, `__kh` and `__ts`.

    Windows also lift each row into accumulators, and drop a row whose gap is not usable.
    """
    raise_unregistered(operator, "slackwater.testing.rows_without_spark._lift_letters")


@_lift_letters.register(WindowOperator)
def _(operator: WindowOperator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    lifted = operator.lift_rows(_select_shard_columns(operator, source, rows)).with_columns(rows["__letter"])
    return lifted.drop_nulls("__end") if operator.ends else lifted


@_lift_letters.register
def _(operator: IntervalJoinOperator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    return _select_shard_columns(operator, source, rows).select("__kh", "__ts").with_columns(rows["__letter"])
