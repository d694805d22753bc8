"""The loop of a run that plans its epochs without Spark's streaming query: poll the sources, run an epoch, or tick.

    polls     ● ●   ○ ○  ○    ○      ○      ●        ●  rows: an epoch follows      ○  no rows: silence up to this poll
    epochs    ██ ███                        ████
    ticks            ▪   ▪    ▪      ▪               the pause between polls grows with the silence: `streaming_query`

With `trigger_interval`, polls are due at whole multiples of the interval, as with Spark.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from slackwater.connectors import spark_connect
from slackwater.connectors.batch_planning import Planners
from slackwater.connectors.source import Batch, PlannedBatch, SourceUnavailableError
from slackwater.runner import streaming_query
from slackwater.runner.epoch_execution import EpochExecutor
from slackwater.state.commit import BatchId

log = logging.getLogger("slackwater")

PATIENCE_S = 120.0  # how long a source may not respond before the run fails
_RETRY_S = 1.0
_CHECK_S = 1.0


class PollingLoop:
    """The loop of one run. `available_now`: end when all input that existed at the first poll has been processed."""

    def __init__(self, epochs: EpochExecutor, planners: Planners, available_now: bool) -> None:
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
        """Run the loop in a separate thread until it ends, and raise its error.

        This lets the epoch in progress finish if the caller is interrupted. While the loop runs, the caller's thread
        checks that Spark's process is alive, because an idle loop would not notice that it has ended.

        `thread_class` creates the thread. The default is a Spark thread that inherits the caller's job settings.
        """
        make: Callable[..., threading.Thread] = thread_class or spark_connect.thread_class(
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
                    self._until_trigger(clock)
                    if self._every
                    else streaming_query.compute_poll_seconds(began - self._rows_at)
                )

    def _poll_sources(self, began: float) -> Mapping[str, PlannedBatch] | None:
        """Return the next batches of the sources; None if a source does not respond.

        Raises the source's error once the source has not responded for PATIENCE_S. `began`: when the poll began, in
        seconds on the monotonic clock.
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
        """Run an idle tick if it is time for one. `polled_at`: monotonic seconds."""
        if polled_at - self._silence_counted >= self._pause:
            quiet_us, self._silence_counted = self._quiet_us(polled_at), polled_at
            self.epochs.tick(quiet_us)

    def _quiet_us(self, polled_at: float) -> int:
        """Return the silence (µs) up to this poll that has not been counted yet.

        A poll finds all rows since the previous one, so the time of an epoch in between counts as well. After a long
        pause, such as when the machine slept, only a part counts, because nothing was polled during the pause.
        """
        longest = max(
            self._every, 4 * max(self._pause, streaming_query.compute_poll_seconds(polled_at - self._rows_at))
        )
        return int(min(polled_at - self._silence_counted, longest) * 1e6)

    def _until_trigger(self, polled_at: float) -> float:
        """Return the seconds until the next poll is due, at a whole multiple of the interval.

        The result is 0 if that time has passed, and at most one interval even if the clock was set back.
        """
        due = (math.floor(polled_at / self._every) + 1) * self._every
        return min(max(due - time.time(), 0), self._every)
