"""A pipeline over bounded history, beside the live one: a state of its own, its windows into the target.

              from                     to
    rows      │                        │
    ├─ reach ─┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒├─ reach ─┤     read: so far away may lie what belongs to a window of the range
    windows   │                        │
        [─────┼──]                     │              begins before it: left out (or --partial)
              │   [──]  [────]         │              written
              │                     [──┼────]         begins in it: whole, and written
              │                        │ [───]        not of the range

reach = the duration of tumbling and hopping windows; the gap and the cap of sessions. No streaming query takes part: the
batches are cut here, from offsets and lists of files, so that an interrupted run goes on from its state.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater import explain
from slackwater.config.connection import FilesConnection, KafkaConnection
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.target import Target as TargetSpec
from slackwater.config.window import Window, allowed_ms
from slackwater.core.capacity import capacity_of
from slackwater.core.time import iso
from slackwater.engine.status import Status
from slackwater.errors import EpochError, SlackwaterError, StartError
from slackwater.operators.base import Operator
from slackwater.runner.assemble import target_of
from slackwater.runner.run import _Run
from slackwater.sources import files
from slackwater.sources.base import Batch, SourceBatch, reason
from slackwater.sources.files import FilesSource
from slackwater.sources.kafka import KafkaSource, Offsets
from slackwater.spark.engine import SparkEngine
from slackwater.state.commit import BatchId, SourceRecord
from slackwater.targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 1_000_000  # of Kafka, per epoch, where the source sets no max_offsets_per_trigger


@dataclass(frozen=True)
class Range:
    """Windows that start in [since, until), µs UTC. `reach_us`: how far beyond rows are read; `slack_us`: see `backfill`."""

    since_us: int
    until_us: int
    reach_us: int
    slack_us: int

    @property
    def rows_us(self) -> tuple[int, int]:
        """From when to when rows are read; the end is not included."""
        return self.since_us - self.reach_us, self.until_us + self.reach_us

    @property
    def records_ms(self) -> tuple[int, int]:
        """The same of Kafka records, by their own time."""
        low, high = self.rows_us
        return (low - self.slack_us) // 1000, -((-high - self.slack_us) // 1000)


@dataclass
class Written:
    """Windows of this run: those written, those left out as they begin before the range, or were not over at the start."""

    windows: int = 0
    before: int = 0
    unfinished: int = 0


@dataclass(frozen=True)
class Backfilled:
    """The outcome. `status`: of the last commit, None if there was nothing to read; `done`: False if it was stopped.

    `after`: the epoch of an interrupted start that this one went on from; `written` counts from there.
    """

    pipeline: str
    status: Status | None
    written: Written
    done: bool
    after: int | None = None


def backfill(
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
) -> Backfilled:
    """Write the windows that start in [since, until) as the pipeline would, from the history that its sources hold.

    Its state is its own (`<pipeline>-backfill-<from>-<to>`), goes on where it was interrupted, and is removed at the end.
    `partial`: also windows that begin before the range and reach into it, and those that are not over yet. `into`: another
    path, table or topic. `slack_ms`: how far the time of a Kafka record may be from its event time, by default the lateness
    and the allowed lateness. Dead letters are not written. Raises StartError for what cannot be read again, else
    SlackwaterError.
    """
    own = described(pipeline, since_us, until_us, into)
    window = pipeline.transform.window
    assert window is not None
    lateness = max(window.lateness_ms if s.lateness_ms is None else s.lateness_ms for s in pipeline.sources)
    slack = lateness + allowed_ms(window) if slack_ms is None else slack_ms
    span = Range(since_us, until_us, reach_us(window), 1000 * slack)
    one = _Backfill(own, span, partial, spark, on_status, on_notice or (lambda level, line: None), stop)
    with one.border():
        return one.run()


def reach_us(window: Window) -> int:
    """How far from its start a window may have rows, and a session a predecessor that it would be one with."""
    if window.kind != "session":
        return 1000 * (window.duration_ms or 0)
    cap = window.max_session_duration_ms or 0
    return 1000 * (cap + (window.gap_ms if isinstance(window.gap_ms, int) else cap))


def described(pipeline: Pipeline, since_us: int, until_us: int, into: str | None) -> Pipeline:
    """The pipeline of a backfill: a name and a state of its own, no dead letters, maybe another place to write to.

    Raises StartError where history cannot be read again, or would be added beside the windows that are there.
    """
    name, window = pipeline.name, pipeline.transform.window
    if since_us >= until_us:
        raise StartError(f"{name}: --from {iso(since_us)} is not before --to {iso(until_us)}; expected a range of time")
    if window is None or pipeline.stages:
        raise StartError(
            f"{name}: a backfill writes windows by their start; expected [transform.window] alone, found a join"
        )
    if window.time_mode == "processing":
        raise StartError(f'{name}: time_mode = "processing" takes the time of reading, which history has none of')
    for source in pipeline.sources:
        connection = resolve(source.connection, pipeline.connections)
        if not isinstance(connection, KafkaConnection | FilesConnection):
            kind = "a DataFrame" if connection is None else connection.kind
            raise StartError(
                f'{name}: source "{source.name}" is {kind}, which keeps no history; expected kafka or files'
            )
    target, connections = _target(pipeline, into), dict(pipeline.connections)
    kind = explain.kind_of(pipeline.target, pipeline)
    same = (target.path, target.table, target.topic) == (
        pipeline.target.path,
        pipeline.target.table,
        pipeline.target.topic,
    )
    if not pipeline.target.upserts(kind, window) and same:
        raise StartError(
            f"{name}: its target, {explain.target_text(pipeline)}, only adds rows, and the windows of the range may be there: "
            "name another place with --into"
        )
    if kind == "console":
        connections["backfill"] = FilesConnection()
    kept = {"late_data": "drop"} if window.late_data == "dlq" else {}
    on_error = "drop" if pipeline.transform.on_error == "dlq" else pipeline.transform.on_error
    transform = {"window": window.model_copy(update=kept), "on_error": on_error}
    return pipeline.model_copy(
        update={
            "name": f"{name}-backfill-{_stamp(since_us)}-{_stamp(until_us)}",
            "connections": connections,
            "sources": tuple(s.model_copy(update={"commit_group": None}) for s in pipeline.sources),
            "transform": pipeline.transform.model_copy(update=transform),
            "target": target,
            "dead_letter": None,
        }
    )


def _target(pipeline: Pipeline, into: str | None) -> TargetSpec:
    """The target, elsewhere. A console has no other place: its windows go to Parquet files."""
    target, kind = pipeline.target, explain.kind_of(pipeline.target, pipeline)
    if into is None:
        return target
    if kind == "console":
        return TargetSpec(connection="backfill", path=into, format="parquet")
    return target.model_copy(update={TargetSpec.NEEDED[kind][0]: into})


def _stamp(us: int) -> str:
    at = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    return f"{at:%Y%m%dT%H%M%S}{f'.{at.microsecond:06}' if at.microsecond else ''}Z"


# -- windows out -------------------------------------------------------------------------------------------------------


@dataclass
class Within:
    """A target that is given the windows of the range alone."""

    target: Target
    window: Window
    span: Range
    clock_us: int
    partial: bool
    written: Written = field(default_factory=Written)

    def __post_init__(self) -> None:
        self.guarantee, self.upserts = self.target.guarantee, self.target.upserts
        self.description, self.capacity = self.target.description, capacity_of(self.target)

    def open(self) -> None:
        self.target.open()

    def close(self) -> None:
        self.target.close()

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None) -> None:
        """Superseded rows of an append-only target have no end: the start decides."""
        start = pl.col(self.window.window_start_column).dt.timestamp("us")
        end = pl.col(self.window.window_end_column).dt.timestamp("us")
        span = self.span
        sides = rows.select(
            (start < span.until_us).alias("due"),
            (start < span.since_us).alias("early"),
            (end <= span.since_us).fill_null(False).alias("over"),
            (end > self.clock_us).fill_null(False).alias("unfinished"),
        )
        due, early, over, unfinished = (sides[c] for c in sides.columns)
        reaching = due & early & ~over
        chosen = due & ~early & ~unfinished
        if self.partial:
            chosen = due & ~over
        else:
            self.written.before += int(reaching.sum())
            self.written.unfinished += int((due & ~early & unfinished).sum())
        if gone is not None:
            gone = gone.filter(start.is_between(NEVER if self.partial else span.since_us, span.until_us - 1))
        kept = rows.filter(chosen)
        if kept.height or (gone is not None and gone.height):
            self.target.publish(epoch, kept, gone)
        self.written.windows += kept.height


NEVER = -(1 << 62)


# -- rows in -----------------------------------------------------------------------------------------------------------


class _Backfill(_Run):
    """One run of it; owns the lock of its state."""

    def __init__(
        self,
        pipeline: Pipeline,
        span: Range,
        partial: bool,
        spark: SparkSession | None,
        on_status: Callable[[Status], None] | None,
        notice: Callable[[str, str], None],
        stop: threading.Event | None,
    ) -> None:
        super().__init__(pipeline, True, spark, on_status, notice, stop or threading.Event())
        self.span, self.partial, self.written = span, partial, Written()

    def _target_of(self, results: Operator, state_id: str) -> Target:
        window = self.pipeline.transform.window
        assert window is not None
        inner = target_of(self.pipeline, results, state_id)
        return Within(inner, window, self.span, time.time_ns() // 1000, self.partial, self.written)

    def run(self) -> Backfilled:
        latest = self.store.open()
        try:
            if latest is not None:
                self.notice("info", f"going on after epoch {latest.epoch}, where it was interrupted")
            if self._prepare(latest):
                self._over_history()
            if not self.stop.is_set():
                self.driver.flush()
                self.last = self.last or self.driver.recovered()
                self.store.remove()
            after = None if latest is None else latest.epoch
            return Backfilled(self.pipeline.name, self.last, self.written, not self.stop.is_set(), after)
        finally:
            self._close()

    def _over_history(self) -> None:
        if self.stop.is_set():
            return
        readers = [self._reader(s) for s in self.streams.sources]
        run, number = uuid.uuid4().hex, 0
        while not self.stop.is_set():
            state = self.driver.state
            found = {r.source.name: r.next(state.sources[r.source.name], state.epoch + 1) for r in readers}
            parts = {name: part for name, part in found.items() if part is not None}
            if not parts:
                return
            batch = Batch(
                BatchId(checkpoint=run, batch=number),
                {name: p.offsets for name, p in parts.items()},
                {name: self._rows_of_range(name, p.frame) for name, p in parts.items()},
                sum(p.files for p in parts.values()),
                {name: p.partitions for name, p in parts.items() if p.partitions},
                {name: p.lost for name, p in parts.items() if p.lost},
            )
            try:
                self.driver.run_batch(batch, 0)
            except SlackwaterError:
                raise
            except Exception as error:
                raise EpochError(f"{self.pipeline.name}: epoch {state.epoch + 1} failed: {reason(error)}") from error
            number += 1

    def _reader(self, source: object) -> _FilesReader | _KafkaReader:
        if isinstance(source, FilesSource):
            return _FilesReader(self, source)
        assert isinstance(source, KafkaSource)
        return _KafkaReader(self, source)

    def _rows_of_range(self, name: str, frame: DataFrame) -> DataFrame:
        """Rows without a usable time stay: what becomes of them is not decided here."""
        engine = self.driver.stage.engine
        assert isinstance(engine, SparkEngine)
        low, high = self.span.rows_us
        at = f"unix_micros({engine.times[name]})"
        return frame.where(f"{at} IS NULL OR ({at} >= {low}L AND {at} < {high}L)")


class _FilesReader:
    """All files that are there at the start, in the order of a stream."""

    def __init__(self, run: _Backfill, source: FilesSource) -> None:
        self.source, self._run = source, run
        self._every = source.listed(run.session)

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        known = {e.path for e in files.recall(self._run.store, record.offsets)}
        left = [e for e in self._every if e.path not in known]
        some = left[: self.source.spec.max_files_per_trigger or len(left)]
        if not some:
            return None
        offsets = files.remember(self._run.store, epoch, record.offsets, some)
        return SourceBatch(self.source.read(self._run.session, some), offsets, files=len(some))


class _KafkaReader:
    """The records whose own time lies in the range, give or take the slack."""

    def __init__(self, run: _Backfill, source: KafkaSource) -> None:
        self.source, self._run = source, run
        there = source.broker.partitions(source.spec.query or "", f'source "{source.name}"')
        parts = [(t, p) for t, listed in there.items() for p in listed]
        low, high = run.span.records_ms
        self._start, self._end = source.broker.at(parts, low), source.broker.at(parts, high)
        gone = [
            f"{t}-{p}"
            for (t, p), (first, _) in source.broker.bounds(parts).items()
            if 0 < first == self._start[t, p] < self._end[t, p]
        ]
        if gone and run.driver.state.sources[source.name].offsets is None:
            run.notice(
                "warning",
                f'source "{source.name}": the first records of {", ".join(gone)} are gone from Kafka; if they were of the '
                "range, its first windows lack them",
            )

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        start = {key: self._known(record.offsets, *key, offset) for key, offset in self._start.items()}
        left = {key: max(self._end[key] - offset, 0) for key, offset in start.items()}
        total = sum(left.values())
        if not total:
            return None
        most = min(self.source.spec.max_offsets_per_trigger or RECORDS, total)
        # every partition gets on by its share, so that their times stay side by side
        end = {key: start[key] + -(-most * n // total) for key, n in left.items()}
        found = self.source.between(self._run.session, _by_topic(start), _by_topic(end))
        if found is None:  # the topic was made anew, and holds less
            found = SourceBatch(self._run.session.createDataFrame([], self.source.schema), _by_topic(end))
        # a partition that has nothing in the range would hold the watermark back
        some = {f"{t}-{p}" for (t, p), offset in self._start.items() if offset < self._end[t, p]}
        return replace(found, partitions={p: n for p, n in found.partitions.items() if p in some})

    def _known(self, offsets: Mapping[str, Any] | None, topic: str, part: int, otherwise: int) -> int:
        return int((offsets or {}).get(topic, {}).get(str(part), otherwise))


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    found: dict[str, dict[str, int]] = {}
    for (topic, part), offset in offsets.items():
        found.setdefault(topic, {})[str(part)] = offset
    return found


__all__ = ["Backfilled", "Range", "Within", "Written", "backfill", "described", "reach_us"]
