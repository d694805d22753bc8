"""Backfill: run a pipeline over a bounded history with a separate state, and write the windows to the target.

              from                     to
    rows      │                        │
    ├─ reach ─┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒├─ reach ─┤     read: rows here may belong to a window in the range
    windows   │                        │
        [─────┼──]                     │              starts before the range: omitted (unless --partial)
              │   [──]  [────]         │              written
              │                     [──┼────]         starts in the range: complete, and written
              │                        │ [───]        starts after the range: omitted

reach = the duration of tumbling and hopping windows, or the gap plus the cap of sessions. Spark's streaming query is
not used: this module cuts the batches from offsets and lists of files. Therefore, an interrupted backfill continues from
its state.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.config.window import effective_allowed_lateness_ms
from slackwater.connectors.files.source import FilesSource
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.source import SelfPlannedSource, combine_batches, spark_error_reason
from slackwater.connectors.target import TargetWriter
from slackwater.engine.status import Status
from slackwater.errors import EpochError, SlackwaterError
from slackwater.operators.base import Operator
from slackwater.runner.backfill_plan import BackfillRange, backfill_pipeline, reach_us
from slackwater.runner.backfill_source import FilesRangeReader, KafkaRangeReader, PlannedRangeReader
from slackwater.runner.backfill_target import RangeCounts, RangeFilterTarget
from slackwater.runner.components import create_target_writers
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.runner.run_log import RunNotifier
from slackwater.state.commit import BatchId, Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BackfillResult:
    """The outcome of a backfill.

    Args:
        status: The status after the last commit; None if there was nothing to read.
        written: Counts of the windows that this start wrote or omitted.
        done: False if the backfill was stopped before its end.
        after: The last epoch of the interrupted backfill that this start continued; None for a new backfill.
    """

    pipeline: str
    status: Status | None
    written: RangeCounts
    done: bool
    after: int | None = None


def run_backfill(
    pipeline: Pipeline,
    since_us: int,
    until_us: int,
    *,
    partial: bool = False,
    into: str | None = None,
    slack_ms: int | None = None,
    spark: SparkSession | None = None,
    on_status: Callable[[Status], None] | None = None,
    on_notice: Callable[[str, str], None] | None = None,
    stop: threading.Event | None = None,
) -> BackfillResult:
    """Write the windows that start in [since_us, until_us), computed from the history that the sources still contain.

    The backfill has a separate state, `<pipeline>-backfill-<from>-<to>`. An interrupted backfill continues from that
    state, and a completed one removes it. Dead letters are not written.

    Args:
        since_us: Start of the range (µs UTC).
        until_us: End of the range (µs UTC), not included.
        partial: Also write windows that start before the range and extend into it, and windows that are not over yet.
        into: The path, table or topic to write to; by default, that of the pipeline's target.
        slack_ms: How far the time of a Kafka record may be from its event time. By default, the lateness plus the
            allowed lateness.
        stop: An event that ends the backfill after the epoch in progress.

    Raises:
        StartError: A source cannot be read again, or the target is append-only.
        SlackwaterError: Any other failure.
    """
    backfill = backfill_pipeline(pipeline, since_us, until_us, into)
    window = pipeline.transform.window
    assert window is not None
    lateness = max(window.lateness_ms if s.lateness_ms is None else s.lateness_ms for s in pipeline.sources)
    slack = lateness + effective_allowed_lateness_ms(window) if slack_ms is None else slack_ms
    span = BackfillRange(since_us, until_us, reach_us(window), 1000 * slack)
    written = RangeCounts()

    def range_targets(
        pipeline: Pipeline, operators: Mapping[str, Operator], state_id: str, latest: Commit | None
    ) -> dict[str, TargetWriter]:
        now = time.time_ns() // 1000
        targets = create_target_writers(pipeline, operators, state_id, latest)
        return {name: RangeFilterTarget(inner, window, span, now, partial, written) for name, inner in targets.items()}

    runner = PipelineRunner(backfill, spark, RunNotifier(on_notice or (lambda level, line: None), on_status), stop)
    with runner.error_boundary():
        latest = runner.store.open()
        try:
            if latest is not None:
                runner.reporter.notice("info", f"continuing after epoch {latest.epoch}, where it was interrupted")
            components = runner.prepare(latest, range_targets)
            last_status = None
            if components is not None:
                _HistoryRunner(runner, components, span).read()
                last_status = _finish(runner, components)
            previous_epoch = None if latest is None else latest.epoch
            return BackfillResult(
                backfill.name, last_status or runner.reporter.last, written, last_status is not None, previous_epoch
            )
        finally:
            runner.close()


def _finish(runner: PipelineRunner, components: RunComponents) -> Status | None:
    """Close all open windows and remove the state. Return the last status, or None if the run was stopped early."""
    if runner.stop.is_set():
        return None
    components.driver.flush()
    last_status = runner.reporter.last or components.driver.status_at_start()
    runner.store.remove()
    return last_status


class _HistoryRunner:
    """Passes the rows of the range to the driver, batch by batch."""

    def __init__(self, runner: PipelineRunner, components: RunComponents, span: BackfillRange) -> None:
        self.pipeline, self.store, self.stop = runner.pipeline, runner.store, runner.stop
        self.notice = runner.reporter.notice
        self.session, self.driver, self.engine, self.span = (
            components.session,
            components.driver,
            components.engines[0],
            span,
        )
        self.readers = [self._reader(s) for s in components.streams.sources]

    def read(self) -> None:
        run, number = uuid.uuid4().hex, 0
        while not self.stop.is_set():
            state = self.driver.state
            batches = {r.source.name: r.next(state.sources[r.source.name], state.epoch + 1) for r in self.readers}
            available = {name: source_batch for name, source_batch in batches.items() if source_batch is not None}
            if not available:
                return
            in_range = {name: replace(p, frame=self._rows_of_range(name, p.frame)) for name, p in available.items()}
            batch = combine_batches(BatchId(checkpoint=run, batch=number), in_range)
            try:
                self.driver.run_batch(batch, 0)
            except SlackwaterError:
                raise
            except Exception as error:
                raise EpochError(
                    f"{self.pipeline.name}: epoch {state.epoch + 1} failed: {spark_error_reason(error)}"
                ) from error
            number += 1

    def _reader(self, source: object) -> FilesRangeReader | KafkaRangeReader | PlannedRangeReader:
        if isinstance(source, FilesSource):
            return FilesRangeReader(self.session, self.store, source)
        if not isinstance(source, KafkaSource):
            assert isinstance(source, SelfPlannedSource)
            return PlannedRangeReader(self.session, self.store, source, self.driver.state.sources[source.name])
        reader = KafkaRangeReader(self.session, source, self.span)
        if reader.missing and self.driver.state.sources[source.name].offsets is None:
            self.notice(
                "warning",
                f'source "{source.name}": the first records of {", ".join(reader.missing)} were deleted from Kafka; '
                "if these records belong to the range, its first windows are incomplete",
            )
        return reader

    def _rows_of_range(self, name: str, frame: DataFrame) -> DataFrame:
        """Return the rows whose event time is in the range.

        Rows without a usable time are included, and the engine treats them as bad rows.
        """
        low, high = self.span.rows_us
        time_sql = f"unix_micros({self.engine.rows.times[name]})"
        return frame.where(f"{time_sql} IS NULL OR ({time_sql} >= {low}L AND {time_sql} < {high}L)")
