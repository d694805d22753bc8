"""The same windows and joins over batch DataFrames: one epoch that holds all rows, no store, nothing late.

DataFrame ─▶ event time ─▶ SQL ─▶ input columns ─▶ shuffle by key ─▶ mapInArrow: fold, emit ─▶ DataFrame
                                  (panes: partial aggregates)        a shard's rows at once

All of it is a plan: nothing runs before the result is asked for.
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
from slackwater.config.target import StateStore, Target
from slackwater.config.transform import Transform
from slackwater.config.window import Window
from slackwater.core.schema import Field, arrow_schema
from slackwater.errors import ConfigError, StartError
from slackwater.operators.base import Operator
from slackwater.runner import error_boundary, stage_binding
from slackwater.sources import spark_connect
from slackwater.sources.base import CORRUPT
from slackwater.sources.streaming_plan import DataFrameSource, in_session
from slackwater.spark import batch_operators, connect_session, session
from slackwater.spark.batch_operators import UPTO, Fold
from slackwater.spark.row_plan import RowPlan
from slackwater.spark.shard_columns import lift_rows
from slackwater.windows.aggregations import quote_column
from slackwater.windows.logic import allowed_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Planned = ParamSpec("Planned")
ROWS = "rows"  # what the only source of a window is called


def _hide_analysis_log(plan: Callable[Planned, DataFrame]) -> Callable[Planned, DataFrame]:
    """Without Spark's log of an analysis that failed: what failed is raised, in a line of ours."""

    @wraps(plan)
    def planned(*args: Planned.args, **kwargs: Planned.kwargs) -> DataFrame:
        from pyspark.sql import DataFrame

        frame = next((a for a in (*args, *kwargs.values()) if isinstance(a, DataFrame)), None)
        undo = error_boundary.hide_traces(frame.sparkSession) if frame is not None else None
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
    """The windows of a batch DataFrame: the columns and rows that a pipeline would write, in no order between shards.

    All rows are one epoch, so none is late, and the watermark then goes to the end of time: every window closes, with
    `_emit_reason` `close` or `cap`. `flush=False` leaves out what the newest event (minus `lateness`) does not close.
    `transform_sql` reads the view `source`; `lookups` are DataFrames that it may join by name.

    A shard's rows are in memory at once, and a key's rows are in one shard. `shards`: how many; by default Spark decides by
    size (spark.sql.shuffle.partitions, and adaptive execution). Bounds of the state (`max_groups_per_window`) do not apply.

    Rows without a usable event time or gap make the run fail, naming one, or are left out (`on_error="drop"`; not counted).
    Raises ConfigError, StartError; the rest is found when Spark runs it.
    """
    update: dict[str, Any] = {"emit": "final" if window.late_data == "reopen" else "on_close", "crash_recovery": None}
    if window.late_data != "reopen":  # which only says when a window is final; nothing comes late
        update["late_data"] = "drop"
    planner = _plan(name, {ROWS: df}, window.model_copy(update=update), transform_sql, on_error, lookups)
    timed = planner.usable_rows(ROWS, df)
    rows = lift_rows(planner.rows.logic, planner.columns(ROWS, timed, None), tagged=False)
    if not flush:
        behind = 1000 * window.lateness_ms + (allowed_us(window) if window.emit == "final" else 0)
        newest = (
            planner.with_event_time(ROWS, df)
            .where("__bad IS NULL")
            .selectExpr(f"max(unix_micros(_event_ts)) - {behind}L AS {UPTO}")
        )
        rows = rows.crossJoin(newest.hint("broadcast"))
    return _run_on_shards(rows, shards, planner.rows.logic, batch_operators.fold_windows(planner.rows.logic), df)


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
    """The join of two batch DataFrames: the columns and rows that a pipeline would write, in no order between shards.

    No row is late, and every outer row without a partner comes out. `join.left_sql` and `right_sql` read the view `source`.
    The rest is as in `batch`; `max_rows_per_key` does not apply.
    """
    join = join.model_copy(update={"late_data": "drop", "allowed_lateness_ms": None, "crash_recovery": None})
    frames = {join.left_source: left, join.right_source: right}
    planner = _plan(name, frames, join, None, on_error, lookups)
    sides = [planner.columns(source, planner.usable_rows(source, frame), None) for source, frame in frames.items()]
    rows = reduce(lambda a, b: a.unionByName(b), sides)
    return _run_on_shards(rows, shards, planner.rows.logic, batch_operators.fold_pairs(planner.rows.logic), left)


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planner:
    """Plans what the streaming engine plans for an epoch."""

    rows: RowPlan
    clock_us: int

    def with_event_time(self, name: str, frame: DataFrame) -> DataFrame:
        """Rows with `_event_ts` and `__bad`."""
        local_frame, latest = in_session(self.rows.session, frame), self.rows.latest_allowed_us(self.clock_us)
        return self.rows.with_event_time(name, local_frame, self.clock_us, latest)

    def usable_rows(self, name: str, frame: DataFrame) -> DataFrame:
        """The rows that have an event time; the others fail the run, or are left out."""
        F = spark_connect.sql_functions(frame)  # noqa: N806 — Spark's own name for it
        timed = self.with_event_time(name, frame)
        if self.rows.pipeline.transform.on_error == "drop":
            return timed.where("__bad IS NULL")
        step = self.rows.pipeline.transform.step
        keys = step.group_by if isinstance(step, Window) else ()
        keys = (*step.left_keys, *step.right_keys) if isinstance(step, Join) else keys
        shown = [c for c in frame.columns if c == CORRUPT or c in step.event_time_column or c in keys]
        message = F.concat(
            F.lit(f'{self.rows.pipeline.name}: bad row of "{name}": '),
            F.col("__bad"),
            F.lit(f' in "{step.event_time_column}": '),
            F.to_json(F.struct(*(quote_column(c) for c in shown or frame.columns))),
            F.lit('; correct the input, or give on_error="drop" to leave such rows out'),
        )
        fits = F.when(F.col("__bad").isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))
        # not deterministic, as far as Spark knows: else conditions of the SQL would be tried first, and hide bad rows
        return timed.where(fits & (F.monotonically_increasing_id() >= 0))

    def columns(self, name: str, usable: DataFrame, tag: int | None) -> DataFrame:
        """The columns that go to the shards."""
        from slackwater.spark import analysis

        (way,) = self.rows.pipeline.ways_from(name)
        if self.rows.pipeline.texts(way):
            usable = usable.drop("__bad", CORRUPT)
        out = analysis.run_sql(self.rows.session, self.rows.pipeline, way, usable)
        rows = out.selectExpr(*self.rows.columns(way, tag, None))
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
    """The checks that a pipeline makes at its start, over these DataFrames."""
    if on_error not in ("fail", "drop"):
        raise ConfigError(
            [f'{name}: on_error: found "{on_error}", expected "fail" or "drop"; a batch has no dead letters']
        )
    for source, frame in frames.items():
        if getattr(frame, "isStreaming", False):
            raise StartError(f'{name}: "{source}" is a streaming DataFrame, expected a batch one; run it as a pipeline')
        if spark_connect.is_connect(frame):
            connect_session.check_session_settings(frame.sparkSession, name)
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
    if spark_connect.is_connect(caller_session):  # a plan of Connect means what it does in its own session alone
        plan_session = spark_connect.ConnectTables(caller_session, lookups or {})
    else:
        plan_session = session.private_session(caller_session, 1)
        for view, frame in (lookups or {}).items():
            in_session(plan_session, frame).createOrReplaceTempView(view)
    sources = [DataFrameSource(source, in_session(plan_session, frame)) for source, frame in frames.items()]
    one = stage_binding.bind_stage(pipeline, plan_session, stage_binding.frames_of(plan_session, sources))
    return _Planner(
        RowPlan(plan_session, pipeline, one.operator, one.times, end=one.end(plan_session)), time.time_ns() // 1000
    )


def _run_on_shards(
    rows: DataFrame, shards: int | None, logic: Operator, fold: Fold, caller_frame: DataFrame
) -> DataFrame:
    """Run `fold` over all rows of each shard; the result is a DataFrame of the caller's session."""
    names = rows.columns
    moved = rows.repartition("__kh") if shards is None else rows.repartition(shards, "__kh")
    plain_names = moved.selectExpr(*(f"{quote_column(c)} AS c{i}" for i, c in enumerate(names)))
    output = plain_names.mapInArrow(_task(names, list(logic.output), fold), _ddl(logic.output))
    return in_session(caller_frame.sparkSession, output)


def _ddl(fields: Sequence[Field]) -> str:
    return ", ".join(f"{quote_column(f.name)} {f.type}" for f in fields)


# -- what runs in the workers ------------------------------------------------------------------------------------------


def _task(names: list[str], output: list[Field], fold: Fold) -> Any:
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
        results = fold(rows).select(f.name for f in output)
        yield from results.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(arrow_schema(output)).to_batches(100_000)

    return shard
