"""The streaming query of a run: Spark offers batches on a thread of its own, ours ticks while there are none.

Spark's thread   ● batch 7     ● batch 8                             ● batch 9
ours                                       tick    tick      tick
                 one at a time: whoever has the turn
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.core.offsets import KafkaOffsets
from slackwater.errors import EpochError, ExhaustedError, SlackwaterError
from slackwater.runner import pace
from slackwater.runner.runner import Parts, Runner
from slackwater.runner.watched_files import WatchedFiles
from slackwater.secrets import any_known
from slackwater.sources.base import Batch, reason
from slackwater.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def follow(runner: Runner, parts: Parts, *, available_now: bool, stated: bool) -> None:
    """Run to the end of the input (`available_now`) or until the runner is to stop. `stated`: sources begin where the start
    said, not the config."""
    anchor(parts, stated)
    files = WatchedFiles(runner.pipeline.name, parts, runner.reporter)
    checkpoint = parts.streams.checkpoint(parts.driver.state)
    if available_now:
        runner.reporter.expect_files(files.to_come())
    files.tell_changed(None)
    one = _Query(runner, parts, files, checkpoint, available_now)
    query = one.start()
    try:
        one.watch(query)
    finally:
        one.end(query)
    if available_now:
        files.tell_changed(None)
        for engine in parts.engines:
            engine.looks.tell_missing()


def anchor(parts: Parts, stated: bool) -> None:
    """Commit what "latest" means for Kafka sources that were never read, before anything else is."""
    kafka = [s for s in parts.streams.sources if isinstance(s, KafkaSource)]
    unread = [s for s in kafka if parts.driver.state.sources[s.name].offsets is None]
    found = {s.name: s.latest() for s in unread if s.spec.starting_offsets == "latest"}
    if stated:  # also if this run dies before its first epoch
        found |= {s.name: s.stated() for s in unread if s.name not in found}
    if found:
        parts.driver.anchor(found)


class _Query:
    """One query from its start to its end."""

    def __init__(
        self, runner: Runner, parts: Parts, files: WatchedFiles, checkpoint: Path, available_now: bool
    ) -> None:
        # configuration
        self.pipeline, self.stop, self.reporter = runner.pipeline, runner.stop, runner.reporter
        self.streams, self.driver = parts.streams, parts.driver
        self.files, self.checkpoint, self.available_now = files, checkpoint, available_now
        # shared by the two threads
        self._turn = threading.Lock()  # epochs and ticks, one at a time
        self._failure: BaseException | None = None
        self._stopping = False
        self._epoch = -1  # the epoch of the batch in progress
        self._idle_since = self._rows_at = time.monotonic()
        self._asked = False  # whether the sources were asked at all: a query takes its time to begin
        self._pace = pace.Pace(None)

    def start(self) -> StreamingQuery:
        planned = self.streams.plan()
        writer = planned.writeStream.foreachBatch(self._on_batch).option("checkpointLocation", str(self.checkpoint))
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.trigger_interval_ms:
            writer = writer.trigger(processingTime=f"{self.pipeline.trigger_interval_ms} milliseconds")
        self._idle_since = self._rows_at = time.monotonic()
        query = writer.start()
        if not (self.available_now or self.pipeline.trigger_interval_ms):
            self._pace = pace.of_query(query)
        return query

    def _on_batch(self, planned: DataFrame, number: int) -> None:
        """Called by Spark for each batch; a batch that is not finished here must not be noted by Spark as done."""
        with self._turn:
            if self._stopping:
                raise _StoppedError
            try:
                quiet = int((time.monotonic() - self._idle_since) * 1e6)
                state = self.driver.state
                self._epoch = state.epoch + 1
                self.driver.hooks.faults.hit("checkpoint.after", state.epoch)
                if state.batch and state.batch.checkpoint == self.checkpoint.name and number <= state.batch.batch:
                    return
                batch = self.streams.batch(self.checkpoint, number, planned, state)
                self.reporter.files_read(batch.files or 0)
                if batch.payload:
                    self.driver.run_batch(batch, quiet)
                    self.files.remember(batch.offsets)
                    self.files.tell_changed()
                    self._advertise(batch)
                    self.driver.hooks.faults.hit("checkpoint.before", self.driver.state.epoch)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._asked = True
                self._idle_since = self._rows_at = time.monotonic()
                self._pace.rows_came()

    def _advertise(self, batch: Batch) -> None:
        for source in self.streams.sources:
            offsets = batch.offsets.get(source.name)
            if isinstance(source, KafkaSource) and isinstance(offsets, KafkaOffsets):
                source.advertise(offsets)

    def watch(self, query: StreamingQuery) -> None:
        """Wait for the end; tick while the sources have nothing."""
        pause, every = self.pipeline.idle_pause_ms / 1000, self.pipeline.trigger_interval_ms / 1000
        while query.isActive and not self.stop.is_set():
            quiet_for = time.monotonic() - self._rows_at
            self.stop.wait(0.02 if self.available_now else self._pace.look_seconds(quiet_for))
            now = time.monotonic() if every else self._pace.asked(time.monotonic())
            since = self._idle_since
            waited = now - since
            # with timed triggers the sources are asked once per interval: whole intervals count
            quiet = waited // every * every if every else min(waited, 4 * pause)
            if self.available_now or self._failure is not None or waited < pause or not quiet:
                continue
            nothing = _has_nothing(query)
            if self._turn.acquire(blocking=False):
                try:
                    if not self._asked:  # until now is no silence
                        self._asked, self._idle_since = nothing, time.monotonic()
                    if not nothing or self._idle_since != since:
                        continue  # the sources are being asked, or rows came meanwhile
                    self.driver.tick(int(quiet * 1e6))
                    self.files.tell_changed()
                    self._idle_since = self._idle_since + quiet if every else now
                    self._pace.quiet_for(time.monotonic() - self._rows_at)
                except BaseException:
                    self._stopping = True
                    raise
                finally:
                    self._turn.release()

    def end(self, query: StreamingQuery) -> None:
        """Stop the query; raise what ended it."""
        failed: BaseException | None
        with self._turn:
            self._stopping = True
        try:
            failed = None if query.isActive else query.exception()
            query.stop()
        except Exception as error:  # its process is gone
            failed = error
        if isinstance(self._failure, SlackwaterError):
            raise self._failure
        if self._failure is not None:
            if exhausted := ExhaustedError.of(self._failure):
                raise exhausted from None
            committed = self.driver.state.epoch >= self._epoch
            what = (
                "was committed, and publishing it failed; the next start publishes it"
                if committed
                else "was not committed"
            )
            raise EpochError(f"{self.pipeline.name}: epoch {self._epoch} {what}: {reason(self._failure)}") from _shown(
                self._failure
            )
        if failed is not None and not self.stop.is_set():
            raise EpochError(f"{self.pipeline.name}: the query failed: {reason(failed)}") from _shown(failed)


def _has_nothing(query: StreamingQuery) -> bool:
    """Whether the query has asked its sources, and had nothing: not while it begins, looks, or plans a batch."""
    status = query.status
    return str(status["message"]).startswith("Waiting") and not status["isDataAvailable"]


def _shown(cause: BaseException) -> BaseException | None:
    """An error of Spark as the cause of ours: it quotes the SQL, so it is left out where that may hold a secret."""
    return None if any_known() else cause


class _StoppedError(Exception):
    """Tells Spark that the batch it offers was not taken because the run is ending."""
