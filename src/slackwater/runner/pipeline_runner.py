"""The runner, which owns the state lock and the Spark session, and builds, opens and closes the components of a run.

    open ─▶ prepare: Spark ─▶ lookups, sources ─▶ event time, SQL, operators ─▶ target, dead letters ─▶ driver ─▶ close

The main loop, a replay or a backfill then passes batches to the driver.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.config import config_warnings
from slackwater.config.pipeline import Pipeline
from slackwater.connectors import pipeline_sources, spark_connect_support
from slackwater.connectors.lookup_views import LookupViews
from slackwater.connectors.pipeline_sources import SourceSet
from slackwater.connectors.target import TargetWriter
from slackwater.core.schema import Field
from slackwater.engine import kill_points
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks, RunSchema
from slackwater.errors import StartError
from slackwater.evolution import added_columns
from slackwater.operators.base import Operator
from slackwater.runner import existing_output, run_log
from slackwater.runner.component_factory import (
    bind_stages,
    create_dead_letter_writer,
    create_source,
    create_stage_runners,
    create_target_writers,
    spark_settings,
)
from slackwater.runner.error_boundary import ErrorBoundary, hide_stack_traces
from slackwater.runner.run_log import RunNotifier
from slackwater.spark.engine import SparkEngine
from slackwater.spark.sessions import spark_session
from slackwater.spark.worker_warm_up import warm_up
from slackwater.state.commit import LETTERS, Commit
from slackwater.state.store_access import create_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("slackwater")

MakeTargets = Callable[[Pipeline, Mapping[str, Operator], str, Commit | None], Mapping[str, TargetWriter]]


@dataclass(frozen=True)
class RunComponents:
    """The components of a run: the sources, the stages' engines, and the started driver. Nothing has been read yet."""

    session: SparkSession
    streams: SourceSet
    engines: Sequence[SparkEngine]
    driver: EpochDriver


class PipelineRunner:
    """Owns the lock of the store, the Spark session, and all open components. Starts nothing once `stop` is set."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession | None, reporter: RunNotifier, stop: threading.Event | None = None
    ) -> None:
        # configuration
        self.pipeline, self.reporter, self.stop = pipeline, reporter, stop or threading.Event()
        self.store = create_store(pipeline)
        self._lent_session = spark
        # state of the run: None before `prepare`
        self.spark: SparkSession | None = None
        self._latest: Commit | None = None  # the latest commit at the start
        self._driver: EpochDriver | None = None
        self._opened = ExitStack()
        self._opened.callback(self.store.close)

    def create_runner(self) -> PipelineRunner:
        """Return a runner that starts the pipeline again on the same Spark session. Close this one first."""
        return PipelineRunner(self.pipeline, self.spark, self.reporter, self.stop)

    @property
    def epoch(self) -> int:
        """The last committed epoch, or -1 if there is none."""
        latest: Commit | None = getattr(self._driver, "state", self._latest)
        return -1 if latest is None else latest.epoch

    def error_boundary(self) -> ErrorBoundary:
        """Return a context manager that converts exceptions into one-line errors."""
        return ErrorBoundary(self.pipeline.name, lambda: self.spark, self._committed)

    def _committed(self) -> str:
        """Describe the last commit of this run or, before the first one, the last commit of the state at the start."""
        return run_log.describe_last_commit(getattr(self._driver, "state", self._latest))

    def close(self) -> None:
        """Close all components in reverse order, and the store last."""
        self._opened.close()

    def prepare(
        self, latest: Commit | None, make_targets: MakeTargets = create_target_writers, former_output: str | None = None
    ) -> RunComponents | None:
        """Build and open the components, and start the driver. Return None if the run is stopped before this is done.

        Args:
            latest: The commit to continue from; None for a new state.
            make_targets: Creates the target writers. Only the writers that the default function creates receive every
                epoch, so only their markers must match exactly.
            former_output: The choice for targets whose markers do not match the state; see
                `existing_output.resolve_mismatches`.
        """
        pipeline, notice = self.pipeline, self.reporter.notice
        self._latest = stored_commit = latest
        is_exact = make_targets is create_target_writers
        if latest is not None:
            latest, lines = existing_output.resolve_mismatches(pipeline, self.store, latest, former_output, is_exact)
            for line in lines:
                notice("warning", line)
        held_markers = existing_output.read_unrecorded_markers(pipeline, latest) if is_exact else {}
        spark = self._start_spark()
        if spark is None:
            return None
        store = pipeline.state_store
        shards = (store.shards if store else None) or spark_connect_support.count_task_slots(spark)
        private_session = spark_session.private_session(spark, shards)
        warm_up_thread = threading.Thread(
            target=_warm_up_workers, args=(private_session, shards, pipeline), daemon=True
        )
        warm_up_thread.start()
        lookups = LookupViews(private_session, pipeline.lookups, lambda line: notice("warning", line))
        lookups.load()
        stored_columns = {n: s.columns for n, s in latest.sources.items()} if latest else {}
        sources = [
            create_source(private_session, pipeline, i, stored_columns.get(s.name))
            for i, s in enumerate(pipeline.sources)
        ]
        if spark_connect_support.is_connect(private_session):
            pipeline_sources.check_spark_connect_support(pipeline.name, sources)
        streams = SourceSet(private_session, sources, self.store)
        steps = bind_stages(pipeline, private_session, sources)
        schemas = {s.name: s.schema.json() for s in sources}
        self._warn_about_config(schemas, stored_columns)
        hooks = DriverCallbacks(
            lambda: time.time_ns() // 1000,
            self.reporter.committed,
            notice,
            self.reporter.observers.on_pending,
            kill_points.fault_injector_from_environment(),
        )
        state_id = latest.lineage if latest else uuid.uuid4().hex
        engines = {name: step.engine(private_session, lookups.refresh) for name, step in steps.items()}
        stages = create_stage_runners(steps, engines, self.store, hooks.faults)
        operators = {s.name: s.operator for s in stages}
        output = {
            n: operators[str(target_pipeline.target.from_)].output for n, target_pipeline in pipeline.per_target.items()
        }
        self.reporter.observers.on_schema(RunSchema({s.name: _fields(s.schema) for s in sources}, output))
        letters, targets = (
            create_dead_letter_writer(pipeline, state_id),
            make_targets(pipeline, operators, state_id, latest),
        )
        open_errors = self._open_targets(targets, letters)
        driver = self._driver = EpochDriver(
            pipeline, stages, self.store, targets, hooks, letters, open_errors, held_markers
        )
        if self.stop.is_set():
            return None
        driver.start(latest, shards, schemas, state_id, branches=latest is not stored_commit)
        if latest is not None:
            self.reporter.status(driver.status_at_start())
        for target in targets.values():
            if target.guarantee != "exactly once":
                notice(
                    "warning",
                    f"delivery to {target.description} is {target.guarantee}: after a crash, the target may receive an "
                    "epoch a second time",
                )
        warm_up_thread.join()
        return None if self.stop.is_set() else RunComponents(private_session, streams, list(engines.values()), driver)

    def _open_targets(self, targets: Mapping[str, TargetWriter], letters: TargetWriter | None) -> dict[str, StartError]:
        """Open the targets. Return the errors of the targets that cannot be opened, by name.

        These errors make startup fail, but only after the other targets have received their pending output.
        """
        errors = {}
        for name, writer in ((LETTERS, letters), *targets.items()):
            if writer is None:
                continue
            self._opened.callback(writer.close)
            try:
                writer.open()
            except StartError as error:
                has_name = len(targets) > 1 and writer is not letters
                errors[name] = StartError(f'target "{name}": {error}') if has_name else error
        return errors

    def _start_spark(self) -> SparkSession | None:
        if self.stop.is_set():
            return None
        notice = self.reporter.notice
        with spark_session.mark_spark_starting():  # this may also download jars
            self.spark = self._lent_session or spark_session.start_session(
                spark_settings(self.pipeline, notice), notice
            )
        if self.stop.is_set():
            return None
        self._opened.callback(hide_stack_traces(self.spark))
        self.reporter.observers.on_spark()
        return self.spark

    def _warn_about_config(self, schemas: Mapping[str, str], stored_columns: Mapping[str, str | None]) -> None:
        for name, schema in schemas.items():
            for line in added_columns.check_schema(name, stored_columns.get(name), schema):
                self.reporter.notice("warning", line)
        for stage_pipeline in self.pipeline.stage_pipelines.values():
            for line in config_warnings.size_warnings(stage_pipeline.transform.step):
                self.reporter.notice("warning", line)


def _warm_up_workers(spark: SparkSession, shards: int, pipeline: Pipeline) -> None:
    windows = [stage.transform.window for stage in pipeline.stage_pipelines.values()]
    try:
        has_sessions = any(w is not None and w.kind == "session" for w in windows)
        warm_up(spark, shards, has_sessions, reads_files=any(s.format == "parquet" for s in pipeline.sources))
    except Exception as error:
        log.debug("warming up the workers failed: %s", error)


def _fields(schema: StructType) -> list[Field]:
    return [Field(f.name, f.dataType.simpleString()) for f in schema.fields]
