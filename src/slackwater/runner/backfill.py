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

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.config.window import allowed_ms
from slackwater.engine.status import Status
from slackwater.errors import EpochError, SlackwaterError
from slackwater.operators.base import Operator
from slackwater.runner.assemble import targets_of
from slackwater.runner.backfill_plan import Range, described, reach_us
from slackwater.runner.backfill_source import FilesReader, KafkaReader
from slackwater.runner.backfill_target import Within, Written
from slackwater.runner.run import _Run
from slackwater.sources.base import Batch, reason
from slackwater.sources.files import FilesSource
from slackwater.sources.kafka import KafkaSource
from slackwater.spark.engine import SparkEngine
from slackwater.state.commit import BatchId
from slackwater.targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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

    def _targets_of(self, operators: Mapping[str, Operator], state_id: str) -> dict[str, Target]:
        window = self.pipeline.transform.window
        assert window is not None
        now = time.time_ns() // 1000
        return {
            name: Within(inner, window, self.span, now, self.partial, self.written)
            for name, inner in targets_of(self.pipeline, operators, state_id).items()
        }

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

    def _reader(self, source: object) -> FilesReader | KafkaReader:
        if isinstance(source, FilesSource):
            return FilesReader(self.session, self.store, source)
        assert isinstance(source, KafkaSource)
        reader = KafkaReader(self.session, source, self.span)
        if reader.missing and self.driver.state.sources[source.name].offsets is None:
            self.notice(
                "warning",
                f'source "{source.name}": the first records of {", ".join(reader.missing)} are gone from Kafka; if they were of '
                "the range, its first windows lack them",
            )
        return reader

    def _rows_of_range(self, name: str, frame: DataFrame) -> DataFrame:
        """Rows without a usable time stay: what becomes of them is not decided here."""
        engine = self.driver.stage.engine
        assert isinstance(engine, SparkEngine)
        low, high = self.span.rows_us
        at = f"unix_micros({engine.times[name]})"
        return frame.where(f"{at} IS NULL OR ({at} >= {low}L AND {at} < {high}L)")
