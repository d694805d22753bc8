"""Build the Spark plan for the rows of a step: event time ─▶ SQL of each input path ─▶ columns for the shards.

This module does not run the plan. The engine runs it, `sw.batch` returns it to the caller, and tests prepare rows with
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.stage import InputPath
from slackwater.connectors import spark_connect_support
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.schema import Field, ValueLimits
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import OUTSIDE, origin_column
from slackwater.spark import operator_input
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.epoch_sql import PER_UNIT, event_time_sql
from slackwater.spark.tuning.expression_cache import ExpressionCache
from slackwater.spark.tuning.source_statistics import FILE, FINGERPRINT, build_fingerprint_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LETTER_NUMBER = "__letter"  # hidden column in a replay: the number of a row's dead letter


@dataclass(frozen=True)
class TimedRows:
    """The rows of a batch with event times.

    Args:
        timed: The rows of each source, with `_event_ts` and `__bad`.
        split: For each source, the idle partitions that have rows in the batch.
        tagged: Whether rows need a tag that identifies their source.
    """

    timed: Mapping[str, DataFrame]
    split: Mapping[str, Sequence[str]]
    tagged: bool


@dataclass(frozen=True)
class RowQueryBuilder:
    """Builder of the Spark plan for the rows of one step.

    Args:
        session: The Spark session.
        pipeline: The pipeline that contains the step.
        logic: The operator of the step.
        times: SQL for the event time of each source.
        sql: The queries that carry `_origin`, by the `key` of the input path. Empty if late rows do not become dead
            letters.
        end: SQL for the time at which a row's gap ends. None if rows do not have their own gaps.
        expressions: A cache of Spark expressions.
    """

    session: SparkSession
    pipeline: Pipeline
    logic: Operator
    times: Mapping[str, str]
    sql: Mapping[str, Sequence[str]] = field(default_factory=dict)
    end: str | None = None
    expressions: ExpressionCache = field(default_factory=ExpressionCache, compare=False)

    @property
    def task_slots(self) -> int:
        """The number of tasks that Spark can run in parallel."""
        return self.expressions.get_or_create(
            "parallelism", lambda: spark_connect_support.count_task_slots(self.session)
        )

    def latest_allowed_us(self, clock_us: int) -> int:
        """Return the last event time, in microseconds, that is not in the far future. Later rows are bad."""
        return clock_us + self.pipeline.transform.step.max_future_ms * 1000

    def time_column(self, name: str) -> tuple[str, int] | None:
        """Return the event-time column of a source and its unit in microseconds.

        The unit is 0 for a TIMESTAMP, because the file defines its unit. None if the event time is not a plain column.
        """
        step, sql = self.pipeline.transform.step, self.times[name]
        column, unit = step.event_time_column, step.event_time_unit
        if sql == event_time_sql(quote_identifier(column), Field("t", "timestamp"), None, ""):
            return column, 0
        if unit in PER_UNIT and sql == event_time_sql(quote_identifier(column), Field("t", "bigint"), unit, ""):
            return column, PER_UNIT[unit]
        return None

    def is_stage_output(self, name: str) -> bool:
        """Return whether a source is the output of a stage, to which the limit on future event times does not apply."""
        return any(s.is_stage_output for s in self.pipeline.sources if s.name == name)

    def with_event_time(self, name: str, frame: DataFrame, clock_us: int, latest: int | None) -> DataFrame:
        """Add `_event_ts` and `__bad` to rows. `__bad` is the reason why a row is bad, or NULL for a usable row.

        Args:
            name: The name of the source.
            frame: The rows of the source.
            clock_us: The current time in microseconds.
            latest: The last usable event time in microseconds. None means no limit.
        """
        time = f"timestamp_micros({clock_us}L)" if self.times[name] == sql_analysis.CLOCK else self.times[name]
        undecodable, columns = "false", frame.columns
        if CORRUPT in columns:
            # Spark decodes only requested columns, and only their values can fail. So every job requests all columns.
            every = ", ".join(quote_identifier(c) for c in columns if c != CORRUPT)
            undecodable = f"{CORRUPT} IS NOT NULL AND to_json(struct({every})) IS NOT NULL"
        future = (
            ""
            if latest is None or self.is_stage_output(name)
            else f" WHEN unix_micros({time}) > {latest}L THEN 'future'"
        )
        first, last = unstorable_rows.storable_event_times(self.logic)
        sane = f"coalesce(unix_micros({time}) BETWEEN {first}L AND {last}L, false)"
        reason = f"CASE WHEN ({time}) IS NULL THEN 'no event time' ELSE '{OUTSIDE}' END"
        bad = f"CASE WHEN {undecodable} THEN 'undecodable' WHEN NOT {sane} THEN {reason}{future} END AS __bad"
        data_columns = [quote_identifier(c) for c in columns if c != "_event_ts"]
        adds_file = name in self._file_sources and FILE not in columns  # dead letters provide the file name
        file = [f"_metadata.file_path AS {FILE}", build_fingerprint_sql()] if adds_file else []
        return self.expressions.select(frame, [*data_columns, *file, f"{time} AS _event_ts", bad], schema_key=name)

    @property
    def _file_sources(self) -> list[str]:
        """The names of the sources for which Spark knows the file of each row."""
        connections = self.pipeline.connections
        by_source = {
            s.name: resolve_connection(s.connection, connections)
            for s in self.pipeline.sources
            if s.connection is not None
        }
        return [name for name, c in by_source.items() if c is not None and CONNECTORS[c.kind].exposes_files]

    def outputs(
        self, read: TimedRows, name: str, timed: DataFrame, observed: DataFrame | None = None
    ) -> Iterator[tuple[InputPath, int | None, DataFrame]]:
        """Yield the output of the SQL for the usable rows of a source, as (input path, tag, output).

        The tags are those of `_by_idleness`, or None if rows do not need a tag.

        Args:
            read: The rows of the batch.
            name: The name of the source.
            timed: The rows of the source.
            observed: `timed` with an observation attached, to use for the first input path.
        """
        names = [s.name for s in self.pipeline.sources]
        for number, input_path in enumerate(self.pipeline.input_paths_from(name)):
            rows = self._with_origin(timed if number or observed is None else observed, name)
            for tag, tagged_rows in _by_idleness(rows, names.index(name), len(names), read.split[name]):
                if self.pipeline.sql_chain(input_path):
                    tagged_rows = tagged_rows.drop("__bad", CORRUPT)
                if self.pipeline.transform.is_stateless and self.times[name] == sql_analysis.CLOCK:
                    tagged_rows = tagged_rows.drop("_event_ts")  # not a column of the source
                out = sql_analysis.run_sql(
                    self.session, self.pipeline, input_path, tagged_rows, self.sql.get(input_path.key)
                )
                yield input_path, tag if read.tagged else None, out

    def _with_origin(self, timed: DataFrame, name: str) -> DataFrame:
        """Return the usable rows, with `_origin` if the config requires this column."""
        rows = timed.where("__bad IS NULL")
        if not self.pipeline.tracks_origin:
            return rows.drop(FILE, FINGERPRINT)
        plain = [c for c in rows.columns if c not in (FILE, FINGERPRINT)]
        bytes_of = {c: kind for c, kind in rows.dtypes if c not in (FILE, FINGERPRINT, CORRUPT)}
        file = FILE if FILE in rows.columns else "NULL"
        return rows.selectExpr(*map(quote_identifier, plain), origin_column(bytes_of, name, file))

    def with_unstorable_reason(self, input_path: InputPath, out: DataFrame, capacity: ValueLimits) -> DataFrame | None:
        """Add a column with the reason why a row cannot be stored, or NULL.

        Return None if every row can be stored.

        Args:
            input_path: The input path of the rows.
            out: The output of the input path's SQL.
            capacity: The limits on values that the target can store.
        """
        reason_sql = unstorable_rows.unstorable_reason_sql(
            self.logic, self.logic.input_index(input_path.name), capacity
        )
        return None if reason_sql is None else out.selectExpr("*", f"{reason_sql} AS {unstorable_rows.UNFIT}")

    def columns(self, input_path: InputPath, tag: int | None, before: int | None) -> list[str]:
        """Return the columns that are sent to the shards, as expressions over the output of an input path's SQL.

        Args:
            input_path: The input path.
            tag: The tag that identifies the source of the rows. None if rows do not need a tag.
            before: Rows before this time (in microseconds) keep `_origin`. If None, no row keeps it.
        """
        return operator_input.shard_columns(self.logic, input_path.name, tag, before, self.end)

    def sql_with_origin(self, input_path: InputPath, frame: DataFrame) -> Sequence[str] | None:
        """Return the queries of an input path that carry `_origin`, even if late rows do not become dead letters.

        None if there is no SQL. `frame`: the rows of the source. Raises StartError if `_origin` cannot be added.
        """
        if input_path.key in self.sql or not self.pipeline.sql_chain(input_path):
            return self.sql.get(input_path.key)
        plain = frame.drop(FILE, FINGERPRINT, LETTER_NUMBER)
        return sql_analysis.add_origin_to_sql(
            self.session, self.pipeline, input_path, sql_analysis.empty_frame(self.session, plain)
        )


def _by_idleness(rows: DataFrame, index: int, sources: int, idle: Sequence[str]) -> list[tuple[int, DataFrame]]:
    """Split the rows of a source into those of active and those of idle partitions. Return both with their tags.

    Args:
        rows: The rows.
        index: The index of the source, which is the tag of the rows of active partitions.
        sources: The number of sources. The tag of the rows of idle partitions is `sources + index`.
        idle: The names of the idle partitions.
    """
    if not idle:
        return [(index, rows)]
    listed = ", ".join("'" + p.replace("'", "\\'") + "'" for p in idle)
    of_idle = f"concat(_topic, '-', _partition) IN ({listed})"
    return [(index, rows.where(f"NOT {of_idle}")), (sources + index, rows.where(of_idle))]
