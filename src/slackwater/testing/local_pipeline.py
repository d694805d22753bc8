"""Run a pipeline in one process with a virtual clock. The test decides when rows arrive and when the process crashes.

The driver, the state store and the operators are the real ones. Sources are scripted, and targets are in memory.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.step_base import StepBase
from slackwater.connectors.source import Batch
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import ANYTHING, Field
from slackwater.core.time import parse_duration_ms
from slackwater.dead_letters.replay import ReplayResult, replay_filtered_dead_letters
from slackwater.engine import next_commit
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.engine.stage_runner import StageRunner
from slackwater.errors import ConfigError, StartError, Topic
from slackwater.state import protocol
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing import pipeline_setup, rows_without_spark
from slackwater.testing.memory_target import (
    START_US,
    LocalFaults,
    LocalResult,
    MemoryTarget,
    SimulatedCrash,
    create_memory_targets,
)
from slackwater.testing.stub_sources import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.testing.rows_with_spark import InputRows, Rows, SparkRowPreparer


class LocalPipeline:
    """A pipeline whose input, clock and crashes are controlled by a test. Use it as a context manager, or call `close`.

    Args:
        described: A Pipeline, or a single step (such as a Window, Join or Dedup) over rows with the event time `ts`.
        schema: The columns of the rows and their Spark types, for sources that do not declare them.
        session: The Spark session that evaluates event times and SQL. Without one, SQL raises StartError.
        shards: The number of shards.
        clock_us: The start of the virtual clock (µs).
        store: A function that returns the state store at each start; by default, a files store in `state_dir`.
        state_dir: The directory of the state; by default, a temporary directory.
        on_publish: A function to call with the published rows of each epoch.
        letters: Dead letters that exist before the run.
        capture_losses: Whether rows that the config drops become dead letters, and targets reject unsupported values.
        extra_stages: Stages without a target whose results the test can read.

        >>> import slackwater as sw
        >>> from slackwater.testing import LocalPipeline
        >>> window = sw.Window(kind="session", gap_ms="30m", max_session_duration_ms="12h", group_by=["user"],
        ...                    aggregations=[sw.Aggregation(agg="count", as_="clicks")])
        >>> with LocalPipeline(window, {"user": "string"}) as test:
        ...     test.pipe([{"user": "u1", "ts": "2024-03-01T09:00:00Z"}, {"user": "u1", "ts": "2024-03-01T09:10:00Z"}])
        ...     test.crash("commit.before")  # the next epoch crashes at this point and is repeated, as on Spark
        ...     test.pipe([{"user": "u1", "ts": "2024-03-01T11:00:00Z"}])
        ...     test.flush()
        ...     [row["clicks"] for row in test.result().rows]
        [2, 1]
    """

    def __init__(  # noqa: PLR0913 -- the public class has one argument per option
        self,
        described: Pipeline | StepBase,
        schema: Mapping[str, str] | None = None,
        *,
        session: SparkSession | None = None,
        shards: int = 2,
        clock_us: int = START_US,
        store: Callable[[], protocol.StateStore] | None = None,
        state_dir: str | None = None,
        on_publish: Callable[[pl.DataFrame], None] | None = None,
        letters: Sequence[Mapping[str, Any]] = (),
        capture_losses: bool = True,
        extra_stages: Sequence[str] = (),
        **renamed: Any,
    ) -> None:
        self._schema = None if schema is None else {name: Field(name, kind) for name, kind in schema.items()}
        options = pipeline_setup.map_old_options(renamed, capture_losses=capture_losses, extra_stages=extra_stages)
        self._session, self._store = session, store
        self._capture_losses, self._extra_stages = options["capture_losses"], tuple(options["extra_stages"])
        self._home = None if store or state_dir else tempfile.TemporaryDirectory(prefix="slackwater-test-")
        self._directory = state_dir or (self._home.name if self._home else "")
        self._open, self.now_us, self.shards, self._on_publish = False, clock_us, shards, on_publish
        self._faults = LocalFaults()
        self._reshard: int | None = None
        self._driver: EpochDriver
        self._checkpoint, self._batches, self._state_id = uuid.uuid4().hex, 0, uuid.uuid4().hex
        self._result = LocalResult()
        self._letter_target = MemoryTarget(LETTER, (), upserts=False)
        # by name in the config and the name chosen by the test, including targets that are no longer in use
        self._all_targets: dict[tuple[str, str], MemoryTarget] = {}
        try:
            columns = [rows_without_spark.build_series([r.get(f.name) for r in letters], f.polars) for f in LETTER]
            self._letter_target.preload(pl.DataFrame(columns, [f.name for f in LETTER]))
            self._describe(described)
            self._set_targets("")
            self._start()
        except BaseException:
            self.close()
            raise

    # -- actions of a test ----------------------------------------------------------------------------------------

    def pipe(
        self,
        rows: Sequence[Row] | Mapping[str, Sequence[Row]],
        *,
        partitions: Mapping[str, Sequence[str]] | None = None,
        took_ms: int = 0,
    ) -> None:
        """Run one epoch. Raises ConfigError if a source does not exist.

        Args:
            rows: Rows of the only source, or rows by source. A string is a raw record, which may be broken.
            partitions: All partitions of each partitioned source. Rows have their partition in "partition", or in
                "_partition" for Kafka.
            took_ms: How long the epoch takes on the virtual clock (ms).
        """
        for name in (rows_by_source := rows if isinstance(rows, Mapping) else {self._only_source(): rows}):
            if name not in self.source_names:
                expected = ", ".join(self.source_names)
                raise ConfigError([f'{self.pipeline.name}: source "{name}" does not exist; expected one of {expected}'])
        self.now_us += took_ms * 1000
        if self._session is not None:
            from slackwater.testing.rows_with_spark import InputRows

            input_rows = [
                InputRows(name, tuple(source_rows), (), self.now_us) for name, source_rows in rows_by_source.items()
            ]
            self.pipe_prepared(dict(zip(rows_by_source, self.prepare(input_rows), strict=True)), partitions)
            return
        payload, parts = {}, {}
        for name, source_rows in rows_by_source.items():
            payload[name] = self._bound.source_frame(name, source_rows, self.now_us)
            if partitions and name in partitions:
                names = [r["partition"] for r in source_rows]  # type: ignore[index]
                payload[name] = payload[name].with_columns(pl.Series("__partition", names, dtype=pl.String))
                parts[name] = {p: names.count(p) for p in partitions[name]}
        self._run_epoch(payload, parts)

    def prepare(self, input_rows: Sequence[InputRows]) -> list[Rows]:
        """Prepare input rows with Spark. Return them in the same order, in the form that `pipe_prepared` accepts."""
        from slackwater.testing.rows_with_spark import LazyRows

        readers = {s.name: n for n, p in reversed(self.pipeline.stage_pipelines.items()) for s in p.sources}
        stages = {readers[one.source] for one in input_rows}
        read_sources = [not all(s.is_stage_output for s in p.sources) for p in self.pipeline.stage_pipelines.values()]
        if len(stages) == 1 and sum(read_sources) == 1:
            return list(self._spark_preparers[stages.pop()].prepare(input_rows, self._offsets))
        lazy_rows: list[Rows] = []
        for one in input_rows:
            lazy = LazyRows(one, dict(self._offsets))
            lazy.prepare(self._spark_preparers[readers[one.source]])
            self._offsets |= lazy.next_offsets
            lazy_rows.append(lazy)
        return lazy_rows

    def pipe_prepared(self, rows: Mapping[str, Rows], partitions: Mapping[str, Sequence[str]] | None = None) -> None:
        """Run one epoch with rows that `prepare` has returned, by source. `partitions`: all partitions by source."""
        parts = {}
        for name, prepared in rows.items():
            row_partitions = prepared.timed["partition"].drop_nulls()
            all_partitions = (partitions or {}).get(name) or row_partitions.unique(maintain_order=True).to_list()
            if all_partitions:
                parts[name] = {p: int((row_partitions == p).sum()) for p in all_partitions}
        self._run_epoch(dict(rows), parts)

    def quiet(self, ms: int | str) -> None:
        """Let time pass while no source returns rows. `ms`: milliseconds, or a string such as "10m"."""
        length = parse_duration_ms(ms)
        self.now_us += length * 1000
        self._run_with_restart(lambda: self._driver.tick(length * 1000), again=False)

    def crash(self, step: str, shards: int | None = None, nth: int = 1) -> None:
        """Crash the next epoch at a kill point. The process then starts again and repeats the epoch.

        Args:
            step: One of KILL_POINTS.
            shards: The number of shards after the crash; None for no change.
            nth: Crash when the kill point is reached for the nth time. Some, such as `write.before`, are reached once
                per target.
        """
        if step not in KILL_POINTS:
            raise ValueError(f"unknown kill point {step!r}; expected one of {', '.join(KILL_POINTS)}")
        self._faults.step, self._faults.nth, self._reshard = step, nth, shards

    def restart(
        self, described: Pipeline | StepBase | None = None, *, shards: int | None = None, target: str | None = None
    ) -> None:
        """Stop and start again with the same state. Raises startup errors, for example if the config does not match.

        Args:
            described: The new config; None for no change.
            shards: The new number of shards; None for no change.
            target: A name for the targets; None for no change. Targets under a new name are empty, and targets under
                an earlier name have kept their rows.
        """
        self._stop()
        self.shards = shards or self.shards
        if described is not None:
            self._describe(described)
        self._set_targets(self._target_name if target is None else target)
        self._start()

    def replay(self, limit: int | None = None, dry: bool = False) -> ReplayResult:
        """Replay at most `limit` of the stored dead letters. `dry`: whether this is a dry run, without changes."""

        def replay_once() -> None:
            letters = self._letter_target.table
            payload = partial(self._bound.replay_rows, now_us=self.now_us)
            self._result.replays.append(replay_filtered_dead_letters(self._driver, letters, payload, dry, limit))

        self._run_with_restart(replay_once)
        return self._result.replays[-1]

    def flush(self) -> None:
        """Close all open windows, as `--flush` does at the end of the input."""
        self._run_with_restart(lambda: self._driver.flush())

    def result(self) -> LocalResult:
        """Return everything that has been published and counted so far."""
        outcome, state = self._result, self._driver.state
        first, *_ = current = list(self._targets.values())
        outcome.rows, outcome.gone, outcome.letters = first.rows, first.gone, self._letter_target.rows
        outcome.former = {
            place or name: (t.rows, t.gone) for (name, place), t in self._all_targets.items() if t not in current
        }
        outcome.tables = {
            name: t.held for name, t in self._targets.items() if not name.startswith(pipeline_setup.WATCHED)
        }
        by_stage = {str(p.target.from_): self._targets[n] for n, p in reversed(self.pipeline.per_target.items())}
        outcome.stages = {stage: target.held for stage, target in by_stage.items()}
        outcome.counters, outcome.watermark_us = next_commit.sum_counters(state), state.watermark_us
        ended = state.stages[-1]
        outcome.open_sessions, outcome.open_keys, outcome.table = sum(ended.windows), sum(ended.groups), first.held
        return outcome

    def target(self, name: str | None = None) -> MemoryTarget:
        """Return the target with this name, by default the first target."""
        return next(iter(self._targets.values())) if name is None else self._targets[name]

    @property
    def epoch(self) -> int:
        """Return the epoch of the latest commit."""
        return self._driver.state.epoch

    @property
    def identity(self) -> tuple[str, ...] | None:
        """Return the columns that identify a result of the first target; None if results may be equal, as in a join."""
        return self.identity_of(str(next(iter(self.pipeline.per_target.values())).target.from_)) or None

    def identity_of(self, stage: str) -> tuple[str, ...]:
        """Return the columns that identify a result of a stage; empty if results may be equal, as in a join."""
        return tuple(self._steps[stage].identity or ())

    @property
    def front(self) -> SparkRowPreparer | None:
        """Return the row preparer of the first stage; None if Spark does not prepare its rows."""
        return self._bound.first_row_preparer

    @property
    def source_names(self) -> list[str]:
        return [s.name for s in self.pipeline.sources]

    def close(self) -> None:
        """Close the state and remove its temporary directory."""
        self._stop()
        if self._home is not None:
            self._home.cleanup()

    def __enter__(self) -> LocalPipeline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- setup ---------------------------------------------------------------------------------------------------

    def _describe(self, described: Pipeline | StepBase) -> None:
        if not isinstance(described, Pipeline):
            if self._schema is None:
                raise StartError(
                    'a step without a pipeline does not define the columns of its rows; pass schema={"column": "type"}',
                    Topic.TEST_UNUSABLE,
                )
            sources = ("a", "b") if isinstance(described, Join) else ("a",)
            described = pipeline_setup.build_pipeline(described, sources)
        pipeline = pipeline_setup.add_stage_targets(described, self._extra_stages)
        if self._capture_losses:
            pipeline = pipeline_setup.capture_dropped_rows(pipeline)
        self.pipeline = pipeline
        given_columns = {} if self._schema is None else {s.name: self._schema for s in pipeline.sources}
        self._offsets: dict[tuple[str, int], int] = {}
        self._bound = pipeline_setup.CompiledSteps(pipeline, given_columns, self._session)
        self._steps, self._spark_preparers = self._bound.operators, self._bound.spark_preparers
        self._capacities = pipeline_setup.find_target_limits(pipeline, self._steps) if self._capture_losses else {}
        capacities = dict.fromkeys(self._spark_preparers, ANYTHING)
        for name, target_pipeline in pipeline.per_target.items():
            if (stage := str(target_pipeline.target.from_)) in capacities:
                capacities[stage] &= self._capacities.get(name, ANYTHING)
        for name, capacity in capacities.items():  # a row that a target cannot store is bad even before aggregation
            self._spark_preparers[name].capacity = capacity

    def _set_targets(self, target_name: str) -> None:
        """Use the config's targets, renamed to `target_name`, and create them if they do not exist."""
        self._target_name = target_name
        self._targets = create_memory_targets(
            self.pipeline, self._steps, self._capacities, self._all_targets, target_name, self._on_publish
        )

    def _start(self) -> None:
        try:
            self._start_driver()
        except SimulatedCrash:
            self._start_driver()

    def _start_driver(self) -> None:
        pipeline, faults = self.pipeline, self._faults
        hooks = DriverCallbacks(lambda: self.now_us, on_status=self._result.statuses.append, faults=faults)
        store = self._store() if self._store else FilesStore(self._directory, pipeline.name)
        stages = [
            StageRunner(
                *(name, p, self._steps[name], store, self._bound.create_engine(name, p), faults.in_worker, number),
                skew_warnings=ClockSkewWarnings(p),
            )
            for number, (name, p) in enumerate(pipeline.stage_pipelines.items())
        ]
        self._driver = EpochDriver(pipeline, stages, store, self._targets, hooks, self._letter_target)
        try:
            self._driver.start(store.open(), self.shards, {}, self._state_id)
        except BaseException:
            store.close()
            raise
        self._open = True

    def _stop(self) -> None:
        if self._open:
            self._driver.store.close()
            self._open = False

    # -- epochs --------------------------------------------------------------------------------------------------

    def _run_epoch(self, payload: Mapping[str, Any], partitions: Mapping[str, Mapping[str, int]]) -> None:
        number = BatchId(checkpoint=self._checkpoint, batch=self._batches)
        self._batches += 1
        batch = Batch(number, {}, payload, partitions=partitions)
        self._run_with_restart(lambda: self._driver.run_batch(batch, 0), checkpoints=True)

    def _run_with_restart(self, work: Callable[[], object], again: bool = True, checkpoints: bool = False) -> None:
        """Run a function. If it crashes, restart the driver.

        Args:
            work: The function.
            again: Whether to repeat `work` after a restart.
            checkpoints: Whether `work` ends with the checkpoint of a streaming query, where a crash is possible.
        """
        try:
            work()
            if checkpoints:
                self._faults.hit("checkpoint.before", self.epoch)
                self._faults.hit("checkpoint.after", self.epoch)
        except SimulatedCrash:
            self._stop()
            self.shards, self._reshard = self._reshard or self.shards, None
            self._start()
            if again:
                work()

    def _only_source(self) -> str:
        if len(self.source_names) > 1:
            names = ", ".join(self.source_names)
            raise ConfigError(
                [
                    f"{self.pipeline.name}: found rows without a source; pass {{name: rows}} with one of the names "
                    f"{names}"
                ]
            )
        return self.source_names[0]


__all__ = ["KILL_POINTS", "START_US", "LocalPipeline", "LocalResult", "SimulatedCrash"]
