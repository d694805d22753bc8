"""The two main loops of a run: one polls the sources itself, and one follows a streaming query of Spark.

PollingLoop polls the sources, then runs an epoch or an idle tick:

    polls     ● ●   ○ ○  ○    ○      ○      ●        ●  rows: an epoch follows      ○  no rows: silence up to this poll
    epochs    ██ ███                        ████
    ticks            ▪   ▪    ▪      ▪               the pause between polls grows with the silence

With `trigger_interval`, polls are due at whole multiples of the interval, as with Spark.

`run_streaming_query` is for sources that only Spark can plan. Spark's thread calls back with each batch, and the run's
thread runs idle ticks in between. A lock ensures that only one of them is active:

    Spark's thread    ● batch 7     ● batch 8                             ● batch 9
    thread of the run                           tick    tick      tick

By default, Spark polls its sources every 10 ms, which costs a seventh of a core for a directory. `PollInterval` makes
the pause between polls longer while no rows arrive. If a version of Spark stores the pause elsewhere, the query
continues to poll every 10 ms.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.pipeline_sources import SourcePlanners
from slackwater.connectors.source import Batch, PlannedBatch, SourceUnavailableError, spark_error_reason
from slackwater.errors import EpochError
from slackwater.runner.epoch_execution import EpochExecutor, cause_without_secrets
from slackwater.state.commit import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("slackwater")

PATIENCE_S = 120.0  # how long a source may not respond before the run fails
_RETRY_S = 1.0
_CHECK_S = 1.0


# -- polling -----------------------------------------------------------------------------------------------------------


class PollingLoop:
    """The loop of one run. `available_now`: end when all input that existed at the first poll has been processed."""

    def __init__(self, epochs: EpochExecutor, planners: SourcePlanners, available_now: bool) -> None:
        # configuration
        self.epochs, self.planners, self.available_now = epochs, planners, available_now
        self.stop, pipeline = epochs.stop, epochs.pipeline
        self._pause, self._every = pipeline.idle_pause_ms / 1000, pipeline.trigger_interval_ms / 1000
        # state of the run, in seconds of the monotonic clock
        self._run, self._number = uuid.uuid4().hex, 0
        self._failure: BaseException | None = None
        self._silence_counted = self._rows_at = time.monotonic()  # silence has been counted up to this time
        self._answered: float | None = None
        self._unanswered = False

    def follow(self, thread_class: Callable[..., threading.Thread] | None = None) -> None:
        """Run the loop in a separate thread until the input or the run ends. Raise the error of the loop, if any.

        If the caller is interrupted, the epoch in progress still finishes. Meanwhile, the thread of the caller checks that
        Spark's process is alive, because an idle loop would not notice its end.

        `thread_class`: the class of the thread. The default inherits the caller's Spark job settings.
        """
        make: Callable[..., threading.Thread] = thread_class or spark_connect_support.inheriting_thread_class(
            self.planners.streams.session
        )
        thread = make(target=self._run_guarded, name=f"epochs {self.epochs.pipeline.name}", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_CHECK_S)
                self.epochs.check_spark()
        except BaseException:
            self.stop.set()
            thread.join()
            if self._failure is None:
                raise
        if self._failure is not None:
            self.epochs.raise_failure(self._failure)

    def _run_guarded(self) -> None:
        try:
            self._run_epochs()
        except BaseException as error:
            self._failure = error

    def _run_epochs(self) -> None:
        self._silence_counted = self._rows_at = time.monotonic()
        while not self.stop.is_set():
            began, clock = time.monotonic(), time.time()
            planned = self._poll_sources(began)
            if self.stop.is_set():
                return
            if planned:
                self._run_epoch(planned, began)
                self.stop.wait(self._until_trigger(clock) if self._every and not self.available_now else 0)
            elif planned is None:
                self.stop.wait(_RETRY_S)
            elif self.available_now:
                return
            else:
                self._tick(began)
                self.stop.wait(
                    self._until_trigger(clock) if self._every else compute_poll_seconds(began - self._rows_at)
                )

    def _poll_sources(self, began: float) -> Mapping[str, PlannedBatch] | None:
        """Return the next batches of the sources; None if a source does not respond.

        Raises the error of a source that has not responded for PATIENCE_S. `began`: when the poll began (monotonic
        seconds).
        """
        self.epochs.expect_next()
        try:
            planned = self.planners.next()
        except SourceUnavailableError as error:
            if self._answered is None or began - self._answered > PATIENCE_S:
                raise error.cause from None
            if not self._unanswered:
                log.warning("%s: %s; the run retries for two minutes", self.epochs.pipeline.name, error.cause)
            self._unanswered = True
            return None
        if self._unanswered:
            self._silence_counted, self._unanswered = began, False  # an outage does not count as silence
        self._answered = time.monotonic()
        return planned

    def _run_epoch(self, planned: Mapping[str, PlannedBatch], began: float) -> None:
        id_, self._number = BatchId(checkpoint=self._run, batch=self._number), self._number + 1

        def batch() -> Batch:
            return replace(self.planners.batch(id_, planned, self.epochs.driver.state), began=began)

        quiet_us, self._silence_counted = self._quiet_us(began), began
        self.epochs.run(batch, quiet_us)
        self._rows_at = time.monotonic()

    def _tick(self, polled_at: float) -> None:
        """Run an idle tick if the pause since the previous tick is over. `polled_at`: monotonic seconds."""
        if polled_at - self._silence_counted >= self._pause:
            quiet_us, self._silence_counted = self._quiet_us(polled_at), polled_at
            self.epochs.tick(quiet_us)

    def _quiet_us(self, polled_at: float) -> int:
        """Return the silence (µs) up to this poll that has not been counted yet.

        A poll reads all rows since the previous poll, so the duration of an epoch in between counts as silence. A long
        pause, for example while the machine slept, counts only in part, because nothing was polled.
        """
        longest = max(self._every, 4 * max(self._pause, compute_poll_seconds(polled_at - self._rows_at)))
        return int(min(polled_at - self._silence_counted, longest) * 1e6)

    def _until_trigger(self, polled_at: float) -> float:
        """Return the seconds until the next poll is due, at a whole multiple of the interval.

        The result is 0 if that time has passed, and at most one interval even if the clock was set back.
        """
        due = (math.floor(polled_at / self._every) + 1) * self._every
        return min(max(due - time.time(), 0), self._every)


# -- Spark's streaming query -------------------------------------------------------------------------------------------


def run_streaming_query(epochs: EpochExecutor, available_now: bool) -> None:
    """Run the batches that Spark plans, until the input ends (`available_now`) or the run is stopped."""
    streaming = _StreamingQuery(epochs, available_now)
    query = streaming.start()
    try:
        streaming.watch(query)
    finally:
        streaming.end(query)


class _StreamingQuery:
    """Starts, watches and ends one streaming query."""

    def __init__(self, epochs: EpochExecutor, available_now: bool) -> None:
        # configuration
        self.epochs, self.available_now = epochs, available_now
        self.pipeline, self.stop, self.streams = epochs.pipeline, epochs.stop, epochs.components.streams
        self.checkpoint = self.streams.checkpoint(epochs.driver.state)
        # shared by the two threads
        self._turn = threading.Lock()  # held by an epoch or a tick
        self._failure: BaseException | None = None
        self._stopping = False
        self._idle_since = self._rows_at = time.monotonic()
        self._has_polled = False  # whether the sources have been polled at all: a query needs time to start
        self._poll_interval = PollInterval(None)

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
            self._poll_interval = poll_interval_from_query(query)
        return query

    def _on_batch(self, planned: DataFrame, number: int) -> None:
        """Run the epoch of a batch; called by Spark.

        An error must reach Spark, which would otherwise mark the batch as done.
        """
        with self._turn:
            if self._stopping:
                raise _StoppedError
            try:
                quiet = int((time.monotonic() - self._idle_since) * 1e6)
                self.epochs.run(lambda: self._batch(planned, number), quiet)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._has_polled = True
                self._idle_since = self._rows_at = time.monotonic()
                self._poll_interval.speed_up()

    def _batch(self, planned: DataFrame, number: int) -> Batch | None:
        state = self.epochs.driver.state
        if state.batch and state.batch.checkpoint == self.checkpoint.name and number <= state.batch.batch:
            return None
        return self.streams.batch(self.checkpoint, number, planned, state)

    def watch(self, query: StreamingQuery) -> None:
        """Wait for the end of the query, and run idle ticks while the sources have no rows."""
        pause_s, interval_s = self.pipeline.idle_pause_ms / 1000, self.pipeline.trigger_interval_ms / 1000
        while query.isActive and not self.stop.is_set():
            quiet_s = time.monotonic() - self._rows_at
            self.stop.wait(0.02 if self.available_now else self._poll_interval.check_seconds(quiet_s))
            now = time.monotonic() if interval_s else self._poll_interval.polled_until(time.monotonic())
            since = self._idle_since
            waited_s = now - since
            # with timed triggers, the sources are polled once per interval, so whole intervals count
            counted_s = waited_s // interval_s * interval_s if interval_s else min(waited_s, 4 * pause_s)
            if self.available_now or self._failure is not None or waited_s < pause_s or not counted_s:
                continue
            is_idle = _has_nothing(query)
            if self._turn.acquire(blocking=False):
                try:
                    if not self._has_polled:  # the time before the first poll does not count as silence
                        self._has_polled, self._idle_since = is_idle, time.monotonic()
                    if not is_idle or self._idle_since != since:
                        continue  # the sources are being polled, or rows have arrived in the meantime
                    self.epochs.tick(int(counted_s * 1e6))
                    self._idle_since = self._idle_since + counted_s if interval_s else now
                    self._poll_interval.slow_down(time.monotonic() - self._rows_at)
                except BaseException:
                    self._stopping = True
                    raise
                finally:
                    self._turn.release()

    def end(self, query: StreamingQuery) -> None:
        """Stop the query and raise the error that ended it."""
        failed: BaseException | None
        with self._turn:
            self._stopping = True
        try:
            failed = None if query.isActive else query.exception()
            query.stop()
        except Exception as error:  # Spark's process has ended
            failed = error
        if self._failure is not None:
            self.epochs.raise_failure(self._failure)
        if failed is not None and not self.stop.is_set():
            raise EpochError(
                f"{self.pipeline.name}: Spark's streaming query failed: {spark_error_reason(failed)}"
            ) from cause_without_secrets(failed)


def _has_nothing(query: StreamingQuery) -> bool:
    """Return whether the latest poll of the query returned no rows. False while the query starts, polls or plans."""
    status = query.status
    return str(status["message"]).startswith("Waiting") and not status["isDataAvailable"]


class _StoppedError(Exception):
    """Raised to reject a batch that Spark planned, because the run is ending."""


# -- the pause between two polls -----------------------------------------------------------------------------------------


SHORTEST_MS, LONGEST_MS = 10, 1000
_SHARE = 0.02  # the pause as a share of the silence so far


def compute_poll_seconds(quiet_s: float) -> float:
    """Return the pause after a poll in seconds, given how long no rows have arrived (`quiet_s`, seconds)."""
    return min(max(quiet_s * _SHARE, SHORTEST_MS / 1000), LONGEST_MS / 1000)


class PollInterval:
    """The pause between two polls of a streaming query. Thread-safe. `set_pause_ms`: sets the pause in the query."""

    def __init__(self, set_pause_ms: Callable[[int], None] | None) -> None:
        self.pause_ms = SHORTEST_MS
        self._set_pause_ms = set_pause_ms

    def speed_up(self) -> None:
        """Poll as often as possible, because rows have arrived."""
        self._change(SHORTEST_MS)

    def slow_down(self, quiet_s: float) -> None:
        """Poll less often, because no rows have arrived for `quiet_s` seconds.

        The pause is changed only when it has doubled or reached its maximum, since each change requires a call to Spark.
        """
        new_pause_ms = int(1000 * compute_poll_seconds(quiet_s))
        if new_pause_ms >= 2 * self.pause_ms or new_pause_ms == LONGEST_MS:
            self._change(new_pause_ms)

    def polled_until(self, now: float) -> float:
        """Return the time up to which the sources have certainly been polled. `now`: the current time in seconds."""
        return now - self.pause_ms / 1000

    def check_seconds(self, quiet_s: float) -> float:
        """Return the seconds until the next check of the query. `quiet_s`: how long no rows have arrived (seconds)."""
        return min(max(quiet_s * _SHARE, 0.02), 0.2)

    def _change(self, pause_ms: int) -> None:
        if self._set_pause_ms is not None and pause_ms != self.pause_ms:
            self._set_pause_ms(pause_ms)
            self.pause_ms = pause_ms


def poll_interval_from_query(query: StreamingQuery) -> PollInterval:
    """Return the poll interval of a running streaming query."""
    try:
        execution: Any = query._jsq.streamingQuery()
        kind = execution.getClass()
        while not kind.getName().endswith(".StreamExecution"):
            kind = kind.getSuperclass()
        field = kind.getDeclaredField("pollingDelayMs")
        field.setAccessible(True)
        field.setLong(execution, SHORTEST_MS)
    except Exception as error:
        log.debug("the query's pause cannot be set: %s", error)
        return PollInterval(None)
    return PollInterval(lambda ms: field.setLong(execution, ms))
