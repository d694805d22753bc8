"""The engine that runs the shard tasks of an epoch as Spark jobs.

rows of the batch ─▶ event time ─▶ SQL, lookups ─▶ pre-aggregation, if chosen ─▶ shuffle by key ─▶ a task per shard
        ╰─▶ statistics per source: from file footers, a separate job, or an observation of the main job

If some event times in a batch are in the far future, the batch is processed a second time, with those rows treated as
bad. Bad rows, rows that cannot be stored, and late rows of pre-aggregated windows are read again for samples and dead
letters.

If an epoch consists of plain Parquet files, tasks read them with PyArrow instead (`spark.file_epoch`).

If an epoch is small and Spark runs in local mode, the query of an earlier epoch runs again, and threads of the driver
run the shards (`spark.epoch_query`).

If the new watermark is known before the rows are read, the tasks also emit. Otherwise, `emit` runs a second set of
tasks: in threads of this process if Spark runs on this machine, or else as another job.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import Pipeline
from slackwater.connectors import spark_connect_support
from slackwater.connectors.source import Batch, TooManyBytesError, spark_error_reason
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.engine.engine_interface import IngestOutcome, SourceStats, UnstorableRows
from slackwater.errors import EpochError, NeedsSparkError
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator, ShardCount, ShardTask
from slackwater.operators.dead_letters import (
    ORIGIN,
    numbered_origin,
)
from slackwater.operators.reports import EmitReport, IngestReport
from slackwater.spark import operator_input
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.epoch_query import EpochQuery, EpochQueryBuilder
from slackwater.spark.file_epoch import FileEpochPolicy, count_tasks, find_file_inputs, ingest_files_task
from slackwater.spark.first_rows_check import FirstRowsCheck
from slackwater.spark.rejected_rows import RejectedRowHandler
from slackwater.spark.row_query_builder import LETTER_NUMBER, RowQueryBuilder
from slackwater.spark.tuning.shuffle_tuning import ArrowBatchSizer
from slackwater.spark.tuning.source_statistics import (
    FILE,
    FINGERPRINT,
    Facts,
    build_statistics_columns,
    derive_statistics_from_footers,
    locate_newest_event_times,
    needs_separate_job,
    newest_times_by_partition,
    source_stats,
)
from slackwater.spark.worker_tasks import (
    Task,
    count_task,
    emit_task,
    ingest_in_driver,
    ingest_task,
    ingest_task_for_all_shards,
    run_in_driver,
    run_on_partitions,
)
from slackwater.tuning_switches import is_enabled
from slackwater.watermark import Span

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("slackwater")


@dataclass
class SparkEngine:
    """Engine that runs shard tasks as Spark tasks. The payload of a batch is one DataFrame per source.

    Args:
        rows: The builder of the plan for the rows of the step.
        refresh: A function that reloads the lookups that are due. It is called before rows are read.
        hints: The checks of the first rows.
        queries: The builder of the queries of epochs.
        batch_sizer: The policy that chooses the size of Arrow batches.
        file_epochs: The policy that decides whether to run epochs of plain Parquet files without Spark's reader.
    """

    rows: RowQueryBuilder
    refresh: Callable[[], None] = field(default=lambda: None)
    hints: FirstRowsCheck = field(init=False)
    queries: EpochQueryBuilder = field(init=False)
    batch_sizer: ArrowBatchSizer = field(default_factory=ArrowBatchSizer)
    file_epochs: FileEpochPolicy = field(default_factory=FileEpochPolicy)

    def __post_init__(self) -> None:
        """Make Spark pickle the modules of user-defined aggregations by value, since workers may not have them."""
        from pyspark import cloudpickle

        self.hints = FirstRowsCheck(self.session, self.pipeline, self.rows.times)
        self.queries = EpochQueryBuilder(self.rows, self.hints)
        for agg in operator_input.worker_aggregations(self.logic):
            if agg.module not in (None, "__main__"):
                top = sys.modules[agg.module.partition(".")[0]]
                cloudpickle.register_pickle_by_value(top)  # type: ignore[no-untyped-call]

    @property
    def session(self) -> SparkSession:
        return self.rows.session

    @property
    def pipeline(self) -> Pipeline:
        return self.rows.pipeline

    @property
    def logic(self) -> Operator:
        return self.rows.logic

    # -- ingest -------------------------------------------------------------------------------------------------

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        self.hints.start_counting(batch.payload)
        return {
            name: source_stats(facts, {}, lambda fingerprint: None)
            for name, facts in self._facts_before_read(batch, clock_us).items()
        }

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Run the query of an epoch and its shards.

        If the records have too many bytes to be collected, the epoch runs again in the workers. If event times are in the
        far future, it runs again with those rows as bad. No commit references the files that an earlier run staged.

        The plan of the first run has no upper limit for event times. The limit changes with every epoch, and Spark
        compiles literals into generated code, so Spark would compile the code again in every epoch.

        Args:
            batch: The batch of the epoch.
            tasks: The tasks of all shards.
            clock_us: The current time in microseconds.
            idle: The names of the idle partitions, by source.
        """
        self.refresh()
        self.hints.start_counting(batch.payload)
        latest = self.rows.latest_allowed_us(clock_us)
        facts = self._facts_before_read(batch, clock_us)
        if (file_outcome := self._run_file_epoch(batch, tasks, clock_us, facts)) is not None:
            return file_outcome
        query = self.queries.get_or_build(batch, tasks, clock_us, idle, facts)
        try:
            outcome = self._run_epoch(query, batch, tasks)
        except TooManyBytesError:
            self.queries.halve_collection_limit(batch)
            query = self.queries.get_or_build(batch, tasks, clock_us, idle, facts)
            outcome = self._run_epoch(query, batch, tasks)
        newest = [s.max_event_us for n, s in outcome.sources.items() if not self.rows.is_stage_output(n)]
        if any(us is not None and us > latest for us in newest):
            query = self.queries.build_with_time_limit(batch, tasks, clock_us, idle, latest)
            outcome = self._run_epoch(query, batch, tasks)
        outcome = self.hints.add_time_unit_hints(outcome, batch, clock_us)
        return RejectedRowHandler(self.rows).with_dead_letters(query.read, outcome, tasks)

    def _run_file_epoch(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, facts: Mapping[str, Facts]
    ) -> IngestOutcome | None:
        """Run an epoch of plain Parquet files. Return None if Spark must read them. See `ingest` for the arguments."""
        inputs = find_file_inputs(self.rows, batch, tasks, facts)
        if not inputs or not self.file_epochs.start_epoch():
            return None
        operator = self.queries.preaggregation.operator_for_epoch(tasks[0].operator, one_task=True)
        shard_tasks = [replace(t, operator=operator) for t in tasks]
        count = count_tasks(self.rows, len(tasks))
        numbers = self.session.range(0, count, 1, count)
        try:
            answers = run_on_partitions(numbers, ["id"], ingest_files_task(inputs, shard_tasks, count))
        except NeedsSparkError as error:
            log.info("%s: Spark reads the files of this epoch again: %s", self.pipeline.name, error)
            self.file_epochs.observe(has_failed=True)
            return None
        self.file_epochs.observe(has_failed=False)
        reports = sorted(_parse_reports(answers), key=lambda report: report.shard)
        self.queries.preaggregation.observe(reports)
        stats: dict[str, SourceStats] = {}
        for name in batch.payload:
            stats[name] = source_stats(facts[name], {}, batch.name_files.get(name, lambda fingerprint: None))
            self.hints.add_statistics(name, facts[name])
            self.queries.statistics.record_rows(name, stats[name].rows)

        def spans(source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
            timed = self.rows.with_event_time(source, batch.payload[source], clock_us, None)
            return locate_newest_event_times(timed, jump_us, False)

        return self.hints.add_time_unit_hints(IngestOutcome(reports, stats, spans=spans), batch, clock_us)

    def _run_epoch(self, query: EpochQuery, batch: Batch, tasks: Sequence[ShardTask]) -> IngestOutcome:
        """Run a query and its shards, and return their reports with the statistics of each source."""
        read = query.read
        reports = self._run_shards(query, batch, [replace(t, operator=query.operator) for t in tasks])
        stats: dict[str, SourceStats] = {}
        for name, pending in query.statistics.items():
            statistics = pending.get()
            counts = batch.partitions.get(name, {})
            self.hints.add_statistics(name, statistics)
            if statistics["bad"] and "undecodable" not in statistics:
                usable_aggregates = build_statistics_columns(read.timed[name], counts, True)
                statistics = read.timed[name].agg(*usable_aggregates).collect()[0].asDict()
            newest = (
                newest_times_by_partition(read.timed[name], name, statistics["newest"], self._busy_tasks)
                if needs_separate_job(counts)
                else None
            )
            stats[name] = source_stats(statistics, counts, batch.name_files.get(name, lambda fingerprint: None), newest)
            self.queries.statistics.record_rows(name, stats[name].rows)
        unstorable_counts = {
            name: sum(o.get["unfit"] or 0 for o in observations) for name, observations in query.unstorable.items()
        }

        def spans(source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
            return locate_newest_event_times(read.timed[source], jump_us, bool(batch.partitions.get(source)))

        return IngestOutcome(
            reports,
            stats,
            unstorable=[UnstorableRows(name, {"": n}, ()) for name, n in unstorable_counts.items() if n],
            spans=spans,
        )

    def _run_shards(self, query: EpochQuery, batch: Batch, tasks: Sequence[ShardTask]) -> list[IngestReport]:
        """Run the query of an epoch and the tasks of the shards, and return their reports."""
        if query.observer is not None:  # the driver collects the rows
            reports = ingest_in_driver(tasks, query.collect_rows())
        else:
            task = ingest_task_for_all_shards(tasks) if query.is_one_task else ingest_task(tasks)
            answers = run_on_partitions(query.rows, query.columns, task, self.rows.expressions, self.batch_sizer)
            reports = _parse_reports(answers)
        self.queries.preaggregation.observe(reports)
        self.queries.one_task.observe(batch, reports)
        return reports

    def _facts_before_read(self, batch: Batch, clock_us: int) -> dict[str, Facts]:
        """Return the statistics that are available without reading any row, by source.

        Only sources of Parquet files with a plain event-time column have these statistics.
        """
        if not is_enabled("statistics"):
            return {}
        first, last = unstorable_rows.storable_event_times(self.logic)
        facts_by_source = dict[str, Facts]()
        for name in batch.payload:
            ask, plain = batch.column_stats.get(name), self.rows.time_column(name)
            if ask is None or plain is None:
                continue
            column, unit_us = plain
            facts = derive_statistics_from_footers(
                ask(column), unit_us, first, min(last, self.rows.latest_allowed_us(clock_us))
            )
            if facts is not None and self.hints.aggregates(name):
                footers = batch.file_rows[name].footers if name in batch.file_rows else None
                checks = self.hints.derive_from_footers(name, facts, footers, clock_us)
                facts = None if checks is None else {**facts, **checks}
            if facts is not None:
                facts_by_source[name] = facts
        return facts_by_source

    @property
    def _busy_tasks(self) -> int:
        """The number of tasks that a job needs to keep the cluster busy."""
        return 2 * self.rows.task_slots

    def payload(self, rows: pl.DataFrame) -> DataFrame:
        import polars as pl

        return self.session.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        """Run the SQL over the rows of dead letters, and return its output, which must fit into memory.

        The number of each dead letter passes through the SQL as part of `_origin`.

        Args:
            payload: The rows of the dead letters as a DataFrame, by source.
            clock_us: The current time in microseconds.
            capacity: The limits on values that the target can store. Other rows are omitted.

        Raises:
            EpochError: The rows cannot be read.
        """

        self.refresh()
        latest = self.rows.latest_allowed_us(clock_us)
        frames: list[DataFrame] = []
        for name, frame in payload.items():
            rows = self.rows.with_event_time(name, frame, clock_us, latest).where("__bad IS NULL")
            plain = [
                quote_identifier(c)
                for c in rows.columns
                if c not in (FILE, FINGERPRINT, LETTER_NUMBER, "__bad", CORRUPT)
            ]
            rows = rows.selectExpr(*plain, numbered_origin(LETTER_NUMBER))
            for input_path in self.pipeline.input_paths_from(name):
                out = sql_analysis.run_sql(
                    self.session, self.pipeline, input_path, rows, self.rows.sql_with_origin(input_path, frame)
                )
                reason_sql = unstorable_rows.unstorable_reason_sql(
                    self.logic, self.logic.input_index(input_path.name), capacity
                )
                out = out if reason_sql is None else out.where(f"({reason_sql}) IS NULL")
                frames.append(
                    out.selectExpr(*self.rows.columns(input_path, None, None), f"{ORIGIN}.offset AS {LETTER_NUMBER}")
                )
        return operator_input.to_dead_letter_rows(self.logic, _read_letters(frames), LETTER_NUMBER)

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        import polars as pl

        latest = self.rows.latest_allowed_us(clock_us)
        timed = (self.rows.with_event_time(name, frame, clock_us, latest) for name, frame in payload.items())
        rows_read = _read_letters([rows.selectExpr(LETTER_NUMBER, "__bad") for rows in timed])
        return rows_read.cast({LETTER_NUMBER: pl.Int64(), "__bad": pl.String()})

    # -- emit ----------------------------------------------------------------------------------------------------

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        if spark_connect_support.is_local_spark(self.session):  # threads of this process, without the overhead of a job
            return run_in_driver(self.logic, tasks, lambda task: task.operator.emit(task))
        return [EmitReport.model_validate_json(r) for r in self._over_shards(tasks, emit_task(tasks))]

    def count(self, tasks: Sequence[ShardTask], shard_count: ShardCount) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for report in self._over_shards(tasks, count_task(tasks, shard_count)):
            counts.update({int(w): n for w, n in json.loads(report).items()})
        return counts

    def _over_shards(self, tasks: Sequence[ShardTask], task: Task) -> list[str]:
        return run_on_partitions(self.session.range(0, len(tasks), 1, len(tasks)), ["id"], task)


def _parse_reports(answers: Sequence[str]) -> list[IngestReport]:
    # not `splitlines`, which would also split at characters such as U+2028 in a quoted key
    lines = [line for answer in answers for line in answer.split("\n") if line]
    return [IngestReport.model_validate_json(line) for line in lines]


def _read_letters(frames: Sequence[DataFrame]) -> pl.DataFrame:
    """Read rows of dead letters into the memory of this process. Raises EpochError if this fails."""
    import polars as pl

    try:
        rows = pl.from_arrow(reduce(lambda a, b: a.unionByName(b), frames).toArrow())
    except Exception as error:
        raise EpochError(
            f"the dead letters cannot be read, so nothing was replayed: {spark_error_reason(error)}"
        ) from error
    assert isinstance(rows, pl.DataFrame)
    return rows
