"""Windows and joins over batch DataFrames: a single epoch with all rows, without a state store or late rows.

DataFrame ─▶ event time ─▶ SQL ─▶ input columns ─▶ shuffle by key ─▶ mapInArrow: aggregate, emit ─▶ DataFrame
                                  (panes: partial aggregates)        all rows of a shard at once

The functions return a lazy DataFrame: Spark does not run anything until its rows are needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from slackwater.config.connection import ConsoleConnection
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.stage import Transform
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.connectors import spark_connect_support
from slackwater.connectors.pipeline_sources import DataFrameSource, rebind_to_spark_session
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.humanize import mismatch
from slackwater.core.schema import Field, to_arrow_schema
from slackwater.errors import ConfigError, StartError, Topic
from slackwater.operators.base import Operator
from slackwater.runner import component_factory, error_boundary
from slackwater.spark import worker_tasks
from slackwater.spark.operator_input import lift_rows
from slackwater.spark.row_query_builder import RowQueryBuilder
from slackwater.spark.sessions import spark_session
from slackwater.spark.worker_tasks import END_WATERMARK, ShardFunction
from slackwater.windows.compiled_window import allowed_lateness_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Planned = ParamSpec("Planned")
ROWS = "rows"  # the name of the only source of a window


def _hide_analysis_log(plan: Callable[Planned, DataFrame]) -> Callable[Planned, DataFrame]:
    """Wrap `plan` so that Spark does not log failed analyses; the error itself is still raised."""

    @wraps(plan)
    def planned(*args: Planned.args, **kwargs: Planned.kwargs) -> DataFrame:
        from pyspark.sql import DataFrame

        frame = next((a for a in (*args, *kwargs.values()) if isinstance(a, DataFrame)), None)
        undo = error_boundary.hide_stack_traces(frame.sparkSession) if frame is not None else None
        try:
            return plan(*args, **kwargs)
        finally:
            if undo is not None:
                undo()

    return planned


@_hide_analysis_log
def batch(
    df: DataFrame,
    window: Window,
    transform_sql: str | None = None,
    flush: bool = True,
    shards: int | None = None,
    *,
    on_error: str = "fail",
    lookups: Mapping[str, DataFrame] | None = None,
    name: str = "batch",
) -> DataFrame:
    """Compute the windows of a batch DataFrame, with the columns and rows that a pipeline would write.

    All rows form one epoch, so no row is late. Unless `flush` is False, the watermark then advances to the end of time,
    so every window closes. If the output contains `_emit_reason`, its value is `close` or `cap`. The limit
    `max_groups_per_window` does not apply.

    All rows of a key are in one shard, and the rows of a shard are in memory at once. Rows from different shards are in
    no particular order.

    Args:
        df: The rows to aggregate.
        window: The window or session, as in a pipeline.
        transform_sql: A SELECT that reads the view `source`.
        flush: If False, omit windows that are still open at the final watermark. This is the newest event time minus
            `lateness` and, with `late_data = "reopen"`, also minus `allowed_lateness`.
        shards: The number of shards. By default, Spark chooses it according to the size of the data
            (spark.sql.shuffle.partitions, adaptive execution).
        on_error: What to do with a row that has no usable event time or gap: "fail" raises an error that names the row,
            and "drop" silently omits the row.
        lookups: The DataFrames that the SQL may join, by name.
        name: The name that error messages use for this computation.

    Raises:
        ConfigError: An argument is wrong.
        StartError: Columns are missing or unsuitable, or the SQL is invalid. Spark reports errors in the data later,
            when it runs the plan.
    """
    update: dict[str, Any] = {"emit": "final" if window.late_data == "reopen" else "on_close", "crash_recovery": None}
    if window.late_data != "reopen":  # "reopen" only decides when a window is final; no row is late here
        update["late_data"] = "drop"
    planner = _plan(name, {ROWS: df}, window.model_copy(update=update), transform_sql, on_error, lookups)
    timed = planner.usable_rows(ROWS, df)
    rows = lift_rows(planner.rows.logic, planner.columns(ROWS, timed, None), tagged=False)
    if not flush:
        behind = 1000 * window.lateness_ms + (allowed_lateness_us(window) if window.emit == "final" else 0)
        newest = (
            planner.with_event_time(ROWS, df)
            .where("__bad IS NULL")
            .selectExpr(f"max(unix_micros(_event_ts)) - {behind}L AS {END_WATERMARK}")
        )
        rows = rows.crossJoin(newest.hint("broadcast"))
    return _run_on_shards(
        rows, shards, planner.rows.logic, worker_tasks.make_window_shard_function(planner.rows.logic), df
    )


@_hide_analysis_log
def batch_join(
    left: DataFrame,
    right: DataFrame,
    join: Join,
    shards: int | None = None,
    *,
    on_error: str = "fail",
    lookups: Mapping[str, DataFrame] | None = None,
    name: str = "batch",
) -> DataFrame:
    """Join two batch DataFrames. The result has the columns and rows that a pipeline would write.

    No row is late, and every outer row without a match is emitted. `max_rows_per_key` does not apply. The row order,
    memory use, errors and other arguments are as in `batch`.

    Args:
        left: The rows of the left side.
        right: The rows of the right side.
        join: The join, as in a pipeline. `left_sql` and `right_sql` read the view `source`.
    """
    join = join.model_copy(update={"late_data": "drop", "allowed_lateness_ms": None, "crash_recovery": None})
    frames = {join.left_source: left, join.right_source: right}
    planner = _plan(name, frames, join, None, on_error, lookups)
    sides = [planner.columns(source, planner.usable_rows(source, frame), None) for source, frame in frames.items()]
    rows = reduce(lambda a, b: a.unionByName(b), sides)
    return _run_on_shards(
        rows, shards, planner.rows.logic, worker_tasks.make_join_shard_function(planner.rows.logic), left
    )


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planner:
    """Plans the steps of a batch run, as the streaming engine does for an epoch."""

    rows: RowQueryBuilder
    clock_us: int

    def with_event_time(self, name: str, frame: DataFrame) -> DataFrame:
        """Return the rows with the columns `_event_ts` and `__bad`."""
        local_frame, latest = (
            rebind_to_spark_session(self.rows.session, frame),
            self.rows.latest_allowed_us(self.clock_us),
        )
        return self.rows.with_event_time(name, local_frame, self.clock_us, latest)

    def usable_rows(self, name: str, frame: DataFrame) -> DataFrame:
        """Return the rows that have a usable event time. The others raise an error in Spark, or are omitted."""
        F = spark_connect_support.sql_functions(frame)  # noqa: N806 — the name that Spark's documentation uses
        timed = self.with_event_time(name, frame)
        if self.rows.pipeline.transform.on_error == "drop":
            return timed.where("__bad IS NULL")
        step = self.rows.pipeline.transform.step
        keys = step.group_by if isinstance(step, Window) else ()
        keys = (*step.left_keys, *step.right_keys) if isinstance(step, Join) else keys
        shown_columns = [c for c in frame.columns if c == CORRUPT or c in step.event_time_column or c in keys]
        message = F.concat(
            F.lit(f'{self.rows.pipeline.name}: bad row of "{name}": '),
            F.col("__bad"),
            F.lit(f' in "{step.event_time_column}": '),
            F.to_json(F.struct(*(quote_identifier(c) for c in shown_columns or frame.columns))),
            F.lit('; correct the input, or pass on_error="drop" to leave out such rows'),
        )
        fits = F.when(F.col("__bad").isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))
        # the ID makes the filter non-deterministic for Spark, which would otherwise apply filters of the SQL first and
        # hide bad rows
        return timed.where(fits & (F.monotonically_increasing_id() >= 0))

    def columns(self, name: str, usable: DataFrame, tag: int | None) -> DataFrame:
        """Return the columns that are sent to the shards."""
        from slackwater.spark.analysis import sql_analysis

        (path,) = self.rows.pipeline.input_paths_from(name)
        if self.rows.pipeline.sql_chain(path):
            usable = usable.drop("__bad", CORRUPT)
        out = sql_analysis.run_sql(self.rows.session, self.rows.pipeline, path, usable)
        rows = out.selectExpr(*self.rows.columns(path, tag, None))
        dropped = self.rows.end is not None and self.rows.pipeline.transform.on_error == "drop"
        return rows.where("__end IS NOT NULL") if dropped else rows


def _plan(
    name: str,
    frames: Mapping[str, DataFrame],
    step: Window | Join,
    sql: str | None,
    on_error: str,
    lookups: Mapping[str, DataFrame] | None,
) -> _Planner:
    """Check the DataFrames as the sources of a pipeline are checked at startup, and return the planner."""
    if on_error not in ("fail", "drop"):
        raise ConfigError(
            [
                f"{name}: on_error: "
                + mismatch(f'"{on_error}"', '"fail" or "drop"; dead letters are not available for a batch')
            ]
        )
    for source, frame in frames.items():
        if getattr(frame, "isStreaming", False):
            raise StartError(
                f'{name}: "{source}" is a streaming DataFrame; expected a batch DataFrame; run it as a pipeline',
                Topic.DATAFRAME_NOT_BATCH,
            )
        if spark_connect_support.is_connect(frame):
            spark_session.check_session_settings(frame.sparkSession, name)
    described = {"join": step} if isinstance(step, Join) else {"window": step, "sql": sql}
    pipeline = Pipeline(
        name=name,
        sources=tuple(Source(name=source, dataframe=frame) for source, frame in frames.items()),
        transform=Transform(**described, on_error=on_error),
        target=Target(connection=ConsoleConnection()),
        state_store=StateStore(kind="in_memory"),
    )
    caller_session = next(iter(frames.values())).sparkSession
    plan_session: Any
    if spark_connect_support.is_connect(caller_session):  # a Connect plan is only valid in the session that built it
        plan_session = spark_connect_support.ConnectTables(caller_session, lookups or {})
    else:
        plan_session = spark_session.private_session(caller_session, 1)
        for view, frame in (lookups or {}).items():
            rebind_to_spark_session(plan_session, frame).createOrReplaceTempView(view)
    sources = [
        DataFrameSource(source, rebind_to_spark_session(plan_session, frame)) for source, frame in frames.items()
    ]
    stage = component_factory.bind_stage(
        pipeline, plan_session, component_factory.create_empty_frames(plan_session, sources)
    )
    return _Planner(
        RowQueryBuilder(plan_session, pipeline, stage.operator, stage.times, end=stage.end_sql(plan_session)),
        time.time_ns() // 1000,
    )


def _run_on_shards(
    rows: DataFrame, shards: int | None, logic: Operator, shard_function: ShardFunction, caller_frame: DataFrame
) -> DataFrame:
    """Run `shard_function` over all rows of each shard. Return a DataFrame in the Spark session of `caller_frame`."""
    names = rows.columns
    moved = rows.repartition("__kh") if shards is None else rows.repartition(shards, "__kh")
    plain_names = moved.selectExpr(*(f"{quote_identifier(c)} AS c{i}" for i, c in enumerate(names)))
    output = plain_names.mapInArrow(_task(names, list(logic.output), shard_function), _ddl(logic.output))
    return rebind_to_spark_session(caller_frame.sparkSession, output)


def _ddl(fields: Sequence[Field]) -> str:
    return ", ".join(f"{quote_identifier(f.name)} {f.type}" for f in fields)


# -- code that runs in Spark's workers ---------------------------------------------------------------------------------


def _task(names: list[str], output: list[Field], shard_function: ShardFunction) -> Any:
    def shard(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        import polars as pl
        import pyarrow as pa

        record_batches = list(batches)
        if not record_batches:
            return
        rows = pl.from_arrow(pa.Table.from_batches(record_batches).rename_columns(names))
        assert isinstance(rows, pl.DataFrame)
        del record_batches
        results = shard_function(rows).select(f.name for f in output)
        yield from (
            results.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(to_arrow_schema(output)).to_batches(100_000)
        )

    return shard
