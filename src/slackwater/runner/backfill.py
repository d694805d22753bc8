"""Backfill: run a pipeline over a bounded history with a separate state, and write the windows to the target.

              from                     to
    rows      │                        │
    ├─ reach ─┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒├─ reach ─┤     read: rows here may belong to a window in the range
    windows   │                        │
        [─────┼──]                     │              starts before the range: omitted (unless --partial)
              │   [──]  [────]         │              written
              │                     [──┼────]         starts in the range: complete, and written
              │                        │ [───]        starts after the range: omitted

reach = the duration of tumbling and hopping windows, or the gap plus the cap of sessions. This module plans the batches
from offsets and lists of files, so an interrupted backfill continues from its state.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.config.window import Window, effective_allowed_lateness_ms
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.source import FilesSource
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.source import SelfPlannedSource, SourceBatch, combine_batches, spark_error_reason
from slackwater.connectors.target import TargetWriter
from slackwater.core.offsets import FileOffsets, KafkaOffsets, group_by_topic
from slackwater.core.schema import find_value_limits
from slackwater.core.time import NO_WATERMARK
from slackwater.engine.observer import Status
from slackwater.errors import EpochError, SlackwaterError
from slackwater.operators.base import Operator
from slackwater.runner.backfill_plan import BackfillRange, backfill_pipeline, reach_us
from slackwater.runner.component_factory import create_target_writers
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.runner.run_log import RunNotifier
from slackwater.state.commit import BatchId, Commit, SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BackfillResult:
    """The outcome of a backfill.

    Args:
        status: The status after the last commit; None if there was nothing to read.
        written: Counts of the windows that this run wrote or omitted.
        done: Whether the backfill is complete. False if it was stopped before its end.
        after: The last epoch of the interrupted backfill that this run continued; None for a new backfill.
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
        pipeline: The pipeline.
        since_us: The start of the range (µs UTC).
        until_us: The end of the range (µs UTC), not included.
        partial: Also write windows that start before the range and extend into it, and windows that are not over yet.
        into: The path, table or topic to write to; by default, that of the pipeline's target.
        slack_ms: How far the timestamp of a Kafka record may be from the event time. By default, the lateness plus the
            allowed lateness.
        spark: The Spark session to use; None starts one.
        on_status: Called with the status after each commit.
        on_notice: Called with the level and the text of each line about the backfill.
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
        return {name: BackfillTarget(inner, window, span, now, partial, written) for name, inner in targets.items()}

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
                "if these records belong to the range of the backfill, the first windows of the range are incomplete",
            )
        return reader

    def _rows_of_range(self, name: str, frame: DataFrame) -> DataFrame:
        """Return the rows whose event time is in the range.

        Rows without a usable time are included, and the engine treats them as bad rows.
        """
        low, high = self.span.rows_us
        time_sql = f"unix_micros({self.engine.rows.times[name]})"
        return frame.where(f"{time_sql} IS NULL OR ({time_sql} >= {low}L AND {time_sql} < {high}L)")


# -- the target ----------------------------------------------------------------------------------------------------------


@dataclass
class RangeCounts:
    """The window counts of one backfill.

    Args:
        windows: Windows written.
        before: Windows omitted because they start before the range.
        unfinished: Windows omitted because they were not over when the backfill started.
    """

    windows: int = 0
    before: int = 0
    unfinished: int = 0


@dataclass
class BackfillTarget:
    """A target writer that passes on only the windows in the range.

    Args:
        clock_us: When the backfill was started (µs UTC). Windows that end later are unfinished.
        partial: Also pass on windows that extend into the range or are unfinished.
        written: The counts, which `publish` updates.
    """

    target: TargetWriter
    window: Window
    span: BackfillRange
    clock_us: int
    partial: bool
    written: RangeCounts = field(default_factory=RangeCounts)

    def __post_init__(self) -> None:
        self.guarantee, self.upserts = self.target.guarantee, self.target.upserts
        self.description, self.capacity = self.target.description, find_value_limits(self.target)

    def open(self) -> None:
        self.target.open()

    def close(self) -> None:
        self.target.close()

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        """Publish the rows in the range. Superseded rows are selected by their start only, because they lack an end."""
        start = pl.col(self.window.window_start_column).dt.timestamp("us")
        end = pl.col(self.window.window_end_column).dt.timestamp("us")
        span = self.span
        flags = rows.select(
            (start < span.until_us).alias("due"),
            (start < span.since_us).alias("early"),
            (end <= span.since_us).fill_null(False).alias("over"),
            (end > self.clock_us).fill_null(False).alias("unfinished"),
        )
        due, early, over, unfinished = (flags[c] for c in flags.columns)
        reaching = due & early & ~over
        chosen = due & ~early & ~unfinished
        if self.partial:
            chosen = due & ~over
        else:
            self.written.before += int(reaching.sum())
            self.written.unfinished += int((due & ~early & unfinished).sum())
        if superseded is not None:
            superseded = superseded.filter(
                start.is_between(NO_WATERMARK if self.partial else span.since_us, span.until_us - 1)
            )
        range_rows = rows.filter(chosen)
        if range_rows.height or (superseded is not None and superseded.height):
            self.target.publish(epoch, range_rows, superseded, commit)
        self.written.windows += range_rows.height


# -- the sources ---------------------------------------------------------------------------------------------------------


RECORDS = 1_000_000  # Kafka records per epoch if the source does not set max_offsets_per_trigger


class FilesRangeReader:
    """Reads all files that exist at the start, in the order in which a run would read them."""

    def __init__(self, session: SparkSession, store: StateStore, source: FilesSource) -> None:
        self.source, self._session, self._store = source, session, store
        self._every = source.list_files(session)

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        """Return the files of the next epoch; None if all files have been read. `record`: the progress so far."""
        read_paths = {e.path for e in files_source.load_file_list(self._store, FileOffsets.coerce(record.offsets))}
        remaining = [e for e in self._every if e.path not in read_paths]
        batch_files = remaining[: self.source.spec.max_files_per_trigger or len(remaining)]
        if not batch_files:
            return None
        offsets = files_source.store_file_list(self._store, epoch, FileOffsets.coerce(record.offsets), batch_files)
        return SourceBatch(self.source.read(self._session, batch_files), offsets, files=len(batch_files))


class PlannedRangeReader:
    """Reads all rows that a table contains at the start, in the batches of a normal run."""

    def __init__(
        self, session: SparkSession, store: StateStore, source: SelfPlannedSource, record: SourceRecord
    ) -> None:
        spec = source.spec.model_copy(update={"starting_offsets": None, "starting_version": None})
        from_start = replace(source, spec=spec)
        self.source, self._session, self._store = source, session, store
        self._planner = from_start.planner(record, ())
        self._planner.stop_at_current_end()

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        planned = self._planner.next()
        return None if planned is None else planned.read(self._session, self._store, epoch, record)


class KafkaRangeReader:
    """Reads the Kafka records whose record time is in the range, extended by the slack.

    `missing`: the partitions whose oldest records have been removed, so records in the range may be missing.
    """

    def __init__(self, session: SparkSession, source: KafkaSource, span: BackfillRange) -> None:
        self.source, self._session = source, session
        topics = source.broker.partitions(source.spec.query or "", f'source "{source.name}"')
        partitions = [(t, p) for t, listed in topics.items() for p in listed]
        low, high = span.records_ms
        self._start, self._end = (
            source.broker.offsets_at_ms(partitions, low),
            source.broker.offsets_at_ms(partitions, high),
        )
        self.missing = [
            f"{t}-{p}"
            for (t, p), (first, _) in source.broker.offset_ranges(partitions).items()
            if 0 < first == self._start[t, p] < self._end[t, p]
        ]

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        """Return the Kafka records of the next epoch, or None at the end of the range. `record`: the source's last offsets."""
        committed = KafkaOffsets.coerce(record.offsets)
        start = {
            key: offset if (next_offset := committed.next_offset(*key)) is None else next_offset
            for key, offset in self._start.items()
        }
        remaining = {key: max(self._end[key] - offset, 0) for key, offset in start.items()}
        total = sum(remaining.values())
        if not total:
            return None
        limit = min(self.source.spec.max_offsets_per_trigger or RECORDS, total)
        # all partitions advance in proportion, so that their event times stay close together
        end = {key: start[key] + -(-limit * n // total) for key, n in remaining.items()}
        batch = self.source.read_between(self._session, group_by_topic(start), group_by_topic(end), record)
        if batch is None:  # the topic was recreated and holds fewer records
            batch = SourceBatch(
                self._session.createDataFrame([], self.source.schema), KafkaOffsets(group_by_topic(end))
            )
        # a partition without records in the range would hold the watermark back
        active = {f"{t}-{p}" for (t, p), offset in self._start.items() if offset < self._end[t, p]}
        return replace(batch, partitions={p: n for p, n in batch.partitions.items() if p in active})
