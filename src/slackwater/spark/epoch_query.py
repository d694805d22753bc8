"""Build the query of an epoch, or run the query of an earlier epoch again, so that Spark need not plan it.

    shuffled     rows of sources ─▶ event time ─▶ SQL ─▶ shuffle by shard     a task for each shard
    one task     the same, with the number of the shard, without a shuffle    one task for all shards
    collected    the same                                                     threads of the driver run the shards
    reused       the same, run again                                          its sources read other records in each epoch

A source says whether its DataFrame reads other records in each epoch (`SourceBatch.is_shared`). All else that a query depends
on is part of its key. The SQL of a pipeline is deterministic, so it does not matter when Spark planned it.

The plan of a reused query has no shuffle, broadcast or table, because Spark would return the rows of the first run. The driver
runs the shards: their tasks change with each epoch, and a worker would need them as part of the query.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.source import (
    MAX_COLLECTED_ROWS,
    MAX_ONE_TASK_ROWS,
    MOST_BYTES_PROPERTY,
    Batch,
    TooManyBytesError,
    spark_error_reason,
)
from slackwater.errors import EpochError
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator, ShardTask
from slackwater.spark import operator_input
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.first_rows_check import FirstRowsCheck
from slackwater.spark.row_query_builder import RowQueryBuilder, TimedRows
from slackwater.spark.tuning.shuffle_tuning import OneTaskPolicy, PreaggregationPolicy, count_source_rows
from slackwater.spark.tuning.source_statistics import (
    Facts,
    PendingStatistics,
    SourceStatisticsCollector,
    build_statistics_columns,
    count_unstorable_rows,
    needs_separate_job,
)
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

_MAX_QUERIES = 8  # another query is needed if partitions become idle or active, or if only some sources have rows
_END_OF_TIME_US = 2**63 - 1
MOST_COLLECTED_BYTES = 32 << 20  # of the records of a source; the rows may have a few times as many bytes
_EXCHANGES = "org.apache.spark.sql.execution.exchange."
_REREAD_LEAVES = ("org.apache.spark.sql.execution.RangeExec",)


# -- metrics of a query ------------------------------------------------------------------------------------------------


class OneTimeObserver:
    """Observes queries with PySpark's `Observation`, which returns the result of the first run of a query."""

    def observe(self, rows: DataFrame, aggregates: Sequence[Any]) -> tuple[DataFrame, Any]:
        """Return `rows` with an observation, and the handle whose attribute `get` contains its result."""
        observation = spark_connect_support.new_observation(rows)
        return rows.observe(observation, *aggregates), observation


class RepeatableObserver(OneTimeObserver):
    """Observes queries that run several times, by reading results from their plans. Not for Spark Connect."""

    def __init__(self) -> None:
        self._results: dict[str, Mapping[str, Any]] = {}
        self._count = 0

    def observe(self, rows: DataFrame, aggregates: Sequence[Any]) -> tuple[DataFrame, Any]:
        self._count += 1
        name = _observation_name(self._count)
        return rows.observe(name, *aggregates), RepeatableObservation(name, self._results)

    def read_results(self, query: DataFrame) -> None:
        """Read the results of the last run of a query."""
        from pyspark.serializers import CPickleSerializer

        results = query._jdf.queryExecution().observedMetrics()
        jvm: Any = query.sparkSession._jvm
        to_bytes = getattr(jvm, "org.apache.spark.sql.api.python.PythonSQLUtils").toPyRow
        for name in map(_observation_name, range(1, self._count + 1)):
            row: Any = CPickleSerializer().loads(to_bytes(results.apply(name)))  # type: ignore[no-untyped-call]
            self._results[name] = row.asDict()


def _observation_name(number: int) -> str:
    return f"observation{number}"


@dataclass(frozen=True)
class RepeatableObservation:
    """An observation whose result is in `results`, by its name, after each run of its query."""

    name: str
    results: Mapping[str, Mapping[str, Any]]

    @property
    def get(self) -> Mapping[str, Any]:
        """Return the metrics of the last run, like the property of PySpark's `Observation`."""
        return self.results[self.name]


def can_run_again(query: DataFrame) -> bool:
    """Return whether each run of a query reads its sources again.

    Spark keeps the result of an exchange (a shuffle or a broadcast) and the files of a table with the plan. The plan of a shared
    DataFrame reads a range of one number.
    """
    plans, to_visit = list[Any](), [query._jdf.queryExecution().executedPlan()]
    while to_visit:
        plan = to_visit.pop()
        plans.append(plan)
        to_visit += [group.apply(n) for group in (plan.children(), plan.subqueries()) for n in range(group.size())]
    kinds = [(plan.getClass().getName(), plan.children().size()) for plan in plans]
    has_exchange = any(name.startswith(_EXCHANGES) for name, _ in kinds)
    return not has_exchange and all(children or name in _REREAD_LEAVES for name, children in kinds)


# -- queries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochQuery:
    """The query of an epoch, with handles to the metrics that Spark collects when it runs.

    Args:
        read: The rows of each source with event times.
        operator: The variant of the operator that processes the rows.
        rows: The rows for the shards, distributed to tasks.
        columns: The columns of `rows`.
        statistics: The statistics of each source.
        unstorable: For each source, the observations that count its unstorable rows.
        is_one_task: Whether one task has the rows of all shards.
        observer: The observer of a query whose rows the driver collects. None for other queries.
    """

    read: TimedRows
    operator: Operator
    rows: DataFrame
    columns: list[str]
    statistics: Mapping[str, PendingStatistics]
    unstorable: Mapping[str, Sequence[Any]]
    is_one_task: bool
    observer: RepeatableObserver | None

    def collect_rows(self) -> pl.DataFrame:
        """Run the query, and return its rows. An empty result has no columns.

        Raises:
            TooManyBytesError: The records of a source have more than MOST_COLLECTED_BYTES.
            EpochError: The query fails for another reason.
        """
        import polars as pl
        import pyarrow as pa

        assert self.observer is not None
        rows: Any = self.rows
        context = rows.sparkSession.sparkContext
        context.setLocalProperty(MOST_BYTES_PROPERTY, str(MOST_COLLECTED_BYTES))
        try:
            # `toArrow` would cast to the nullability of the schema, which differs from that of the plan
            batches = rows._collect_as_arrow()
            self.observer.read_results(rows)
        except Exception as error:
            if TooManyBytesError.__name__ in str(error):
                raise TooManyBytesError from None
            raise EpochError(f"the epoch failed and was not committed: {spark_error_reason(error)}") from error
        finally:
            context.setLocalProperty(MOST_BYTES_PROPERTY, None)
        collected = pl.from_arrow(pa.Table.from_batches(batches)) if batches else pl.DataFrame()
        assert isinstance(collected, pl.DataFrame)
        return collected


@dataclass
class EpochQueryBuilder:
    """Builder of the queries of one engine.

    Args:
        rows: The builder of the plan for the rows of the step.
        hints: The checks of the first rows.
        statistics: The policy that chooses how to get statistics.
        preaggregation: The policy that decides whether rows are pre-aggregated.
        one_task: The policy that decides whether one task has the rows of all shards. A pipeline with lookups never uses
            one task, because the task would also join all rows of the lookups.
        max_collected_records: The largest number of records of an epoch whose rows are collected.
    """

    rows: RowQueryBuilder
    hints: FirstRowsCheck
    statistics: SourceStatisticsCollector = field(default_factory=SourceStatisticsCollector)
    preaggregation: PreaggregationPolicy = field(default_factory=PreaggregationPolicy)
    one_task: OneTaskPolicy = field(default_factory=OneTaskPolicy)
    max_collected_records: int = MAX_COLLECTED_ROWS
    # each query by its key, with the objects whose ids the key contains: an id is unique as long as the object exists
    _reusable: OrderedDict[Hashable, tuple[EpochQuery, list[Any]]] = field(default_factory=OrderedDict)
    _runs_once: bool = False  # whether the SQL has a plan that cannot run again

    def get_or_build(
        self,
        batch: Batch,
        tasks: Sequence[ShardTask],
        clock_us: int,
        idle: Mapping[str, Sequence[str]],
        known_facts: Mapping[str, Facts],
    ) -> EpochQuery:
        """Return the query of an epoch, which may be the query of an earlier epoch.

        Args:
            batch: The batch of the epoch.
            tasks: The tasks of all shards.
            clock_us: The current time in microseconds.
            idle: The names of the idle partitions, by source.
            known_facts: The statistics that are available before rows are read, by source.
        """
        frames: Mapping[str, DataFrame] = batch.payload

        def build() -> EpochQuery:
            return self.build(self._timed_rows(batch, tasks, clock_us, None, idle), batch, tasks, known_facts)

        if not self._is_reusable(batch):
            return build()
        objects = [tasks[0].operator, *frames.values()]
        key = (
            tuple(frames),
            tuple(map(id, objects)),
            tuple((name, *partitions) for name, partitions in self._idle_partitions(batch, idle).items()),
            tuple((name, needs_separate_job(counts), *counts) for name, counts in batch.partitions.items()),
            tuple(bool(self.hints.aggregates(name)) for name in frames),
            (len(tasks), tasks[0].capacity, 0 in tasks[0].idle_sources),
        )
        if key not in self._reusable:
            query = build()
            if not can_run_again(query.rows):
                self._runs_once = True
                return query
            self._reusable[key] = query, objects
            if len(self._reusable) > _MAX_QUERIES:
                self._reusable.popitem(last=False)
        self._reusable.move_to_end(key)
        return self._reusable[key][0]

    def build_with_time_limit(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]], latest: int
    ) -> EpochQuery:
        """Return a query for which rows after `latest` (in microseconds) are bad. See `get_or_build` for the other arguments."""
        return self.build(self._timed_rows(batch, tasks, clock_us, latest, idle), batch, tasks, {})

    def _is_reusable(self, batch: Batch) -> bool:
        """Return whether later epochs may run the query of this epoch again."""
        has_clock = sql_analysis.CLOCK in self.rows.times.values()
        reads_shared_frames = batch.payload.keys() <= batch.shared
        return self._is_collected(batch) and reads_shared_frames and not has_clock and not self._runs_once

    def _is_collected(self, batch: Batch) -> bool:
        """Return whether the driver collects the rows of an epoch and runs its shards.

        The rows must have few bytes, as those of shared DataFrames and of stages do. Before the first epoch, it is unknown how
        many rows the SQL returns per record.
        """
        is_local = spark_connect_support.is_local_spark(self.rows.session)
        is_small = self._has_few_rows(batch, self.max_collected_records)
        has_few_bytes = batch.payload.keys() <= batch.shared | batch.stage_rows.keys()
        has_few_results = self.one_task.knows_result_size or not self._has_sql
        return is_local and is_small and has_few_bytes and has_few_results and is_enabled("query_reuse")

    @cached_property
    def _has_sql(self) -> bool:
        pipeline = self.rows.pipeline
        return any(pipeline.sql_chain(path) for s in pipeline.sources for path in pipeline.input_paths_from(s.name))

    def halve_collection_limit(self, batch: Batch) -> None:
        """Collect the rows of an epoch only if it has at most half as many records as this batch."""
        self.max_collected_records = (count_source_rows(batch) or 0) // 2

    def _has_few_rows(self, batch: Batch, max_rows: int) -> bool:
        return not self.rows.pipeline.lookups and self.one_task.applies(batch, max_rows)

    def _keeps_origin_before(self, batch: Batch, task: ShardTask) -> int | None:
        """Return the time in microseconds before which rows keep their origin, because they may be late. None if no row does.

        This time changes with each epoch, so all rows keep their origin in a reusable query. Aggregated rows have none, so
        `RejectedRowHandler` reads them again.
        """
        if not self.rows.pipeline.tracks_origin or self.rows.logic.is_preaggregated:
            return None
        return _END_OF_TIME_US if self._is_reusable(batch) else task.operator.late_threshold(task.watermark)

    def _idle_partitions(self, batch: Batch, idle: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the idle partitions that have rows in the batch, by source."""
        names = [s.name for s in self.rows.pipeline.sources]
        return {name: [p for p in idle.get(name, ()) if batch.partitions.get(name, {}).get(p)] for name in names}

    def _timed_rows(
        self,
        batch: Batch,
        tasks: Sequence[ShardTask],
        clock_us: int,
        latest: int | None,
        idle: Mapping[str, Sequence[str]],
    ) -> TimedRows:
        frames: Mapping[str, DataFrame] = batch.payload
        names, split = [s.name for s in self.rows.pipeline.sources], self._idle_partitions(batch, idle)
        timed = {n: self.rows.with_event_time(n, frames[n], clock_us, latest) for n in names if n in frames}
        is_idle = 0 in tasks[0].idle_sources  # the late rows of a single idle source are counted separately
        return TimedRows(timed, split, is_idle or len(names) > 1 or any(split.values()))

    def build(
        self, read: TimedRows, batch: Batch, tasks: Sequence[ShardTask], known_facts: Mapping[str, Facts]
    ) -> EpochQuery:
        """Build a query over rows with event times. See `get_or_build` for the other arguments."""
        statistics: dict[str, PendingStatistics] = {}
        frames: list[DataFrame] = []
        observer = RepeatableObserver() if self._is_collected(batch) else None
        observations = observer or OneTimeObserver()
        before = self._keeps_origin_before(batch, tasks[0])
        unstorable: dict[str, list[Any]] = {}
        for name, timed in read.timed.items():
            aggregates = [*self._statistics(name, batch.partitions.get(name, {}), timed), *self.hints.aggregates(name)]
            passing, statistics[name] = self.statistics.attach(
                name, timed, aggregates, observations.observe, known_facts.get(name)
            )
            for input_path, tag, out in self.rows.outputs(read, name, timed, passing):
                if (marked := self.rows.with_unstorable_reason(input_path, out, tasks[0].capacity)) is not None:
                    out, observation = observations.observe(marked, [count_unstorable_rows(marked)])
                    unstorable.setdefault(name, []).append(observation)
                    out = out.where(f"{unstorable_rows.UNFIT} IS NULL")
                columns = self.rows.columns(input_path, tag, before)
                frames.append(self.rows.expressions.select(out, columns, schema_key=input_path.key))
        is_one_task = observer is not None or self._has_few_rows(batch, MAX_ONE_TASK_ROWS)
        operator = self.preaggregation.operator_for_epoch(tasks[0].operator, is_one_task)
        lifted = operator_input.lift_rows(operator, reduce(lambda a, b: a.unionByName(b), frames), read.tagged)
        if is_one_task:
            rows, columns = operator_input.gather_shards(operator, lifted, len(tasks)), [*lifted.columns, "__shard"]
        else:
            rows, columns = operator_input.repartition_to_shards(operator, lifted, len(tasks)), lifted.columns
        return EpochQuery(read, operator, rows, columns, statistics, unstorable, is_one_task, observer)

    def _statistics(self, name: str, partitions: Mapping[str, int], timed: DataFrame) -> list[Any]:
        key = ("statistics", name, tuple(partitions), needs_separate_job(partitions), tuple(timed.columns))
        return self.rows.expressions.get_or_create(key, lambda: build_statistics_columns(timed, partitions, False))
