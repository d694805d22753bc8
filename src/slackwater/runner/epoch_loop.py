"""The loop of a run that plans its epochs itself: ask the sources, run what they have, tick while they have nothing.

    asks      ● ●   ○ ○  ○    ○      ○      ●        ●  rows, an epoch at once      ○  nothing: silence up to this ask
    epochs    ██ ███                        ████
    ticks            ▪   ▪    ▪      ▪               the pause between two asks grows with the silence, see `pace`

With timed triggers an ask is due at every whole interval of the clock, as with Spark's.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from slackwater.runner import poll_interval
from slackwater.runner.epoch_runner import EpochRunner
from slackwater.sources import spark_connect
from slackwater.sources.base import Batch, PlannedBatch, SourceUnavailableError
from slackwater.sources.planning import Planners
from slackwater.state.commit import BatchId

log = logging.getLogger("slackwater")

PATIENCE_S = 120.0  # for a source that does not answer any more
_AGAIN_S = 1.0
_LOOK_S = 1.0


class EpochLoop:
    """One run from its first ask to its end. `available_now`: what is there at the first ask is the end of the input."""

    def __init__(self, epochs: EpochRunner, planners: Planners, available_now: bool) -> None:
        # configuration
        self.epochs, self.planners, self.available_now = epochs, planners, available_now
        self.stop, pipeline = epochs.stop, epochs.pipeline
        self._pause, self._every = pipeline.idle_pause_ms / 1000, pipeline.trigger_interval_ms / 1000
        # as it goes, seconds of the monotonic clock
        self._run, self._number = uuid.uuid4().hex, 0
        self._failure: BaseException | None = None
        self._silence_counted = self._rows_at = time.monotonic()  # silence is counted up to then
        self._answered: float | None = None
        self._unanswered = False

    def follow(self, thread_of: Callable[..., threading.Thread] | None = None) -> None:
        """Run in a thread of its own, so that an interrupt of the caller lets the epoch in progress end first; and while there is none
        the caller's looks after Spark, which a loop that has nothing to do does not call.

        `thread_of`: makes it; unless given one of Spark's, which has the caller's settings of jobs.
        """
        make: Callable[..., threading.Thread] = thread_of or spark_connect.thread_of(self.planners.streams.session)
        thread = make(target=self._run_guarded, name=f"epochs {self.epochs.pipeline.name}", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_S)
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
            parts = self._poll_sources(began)
            if self.stop.is_set():
                return
            if parts:
                self._run_epoch(parts, began)
                self.stop.wait(self._until_trigger(clock) if self._every and not self.available_now else 0)
            elif parts is None:
                self.stop.wait(_AGAIN_S)
            elif self.available_now:
                return
            else:
                self._tick(began)
                self.stop.wait(
                    self._until_trigger(clock) if self._every else poll_interval.poll_seconds(began - self._rows_at)
                )

    def _poll_sources(self, began: float) -> Mapping[str, PlannedBatch] | None:
        """What the sources have; None where one does not answer. Raises what that says once it has lasted for too long."""
        self.epochs.expect_next()
        try:
            parts = self.planners.next()
        except SourceUnavailableError as error:
            if self._answered is None or began - self._answered > PATIENCE_S:
                raise error.cause from None
            if not self._unanswered:
                log.warning("%s: %s; it is asked again for two minutes", self.epochs.pipeline.name, error.cause)
            self._unanswered = True
            return None
        if self._unanswered:
            self._silence_counted, self._unanswered = began, False  # what nobody knows of is no silence
        self._answered = time.monotonic()
        return parts

    def _run_epoch(self, parts: Mapping[str, PlannedBatch], began: float) -> None:
        id_, self._number = BatchId(checkpoint=self._run, batch=self._number), self._number + 1

        def batch() -> Batch:
            return replace(self.planners.batch(id_, parts, self.epochs.driver.state), began=began)

        quiet_us, self._silence_counted = self._quiet_us(began), began
        self.epochs.run(batch, quiet_us)
        self._rows_at = time.monotonic()

    def _tick(self, polled_at: float) -> None:
        """The sources had nothing when they were asked."""
        if polled_at - self._silence_counted >= self._pause:
            quiet_us, self._silence_counted = self._quiet_us(polled_at), polled_at
            self.epochs.tick(quiet_us)

    def _quiet_us(self, polled_at: float) -> int:
        """How long it was silent, up to this ask, where that found nothing: since the last time that silence was counted.

        An ask says what came since the one before, so the time of an epoch between them counts as well; but a machine that slept, or
        had no time, did not hear a silence: of a long pause only a part counts.
        """
        most = max(self._every, 4 * max(self._pause, poll_interval.poll_seconds(polled_at - self._rows_at)))
        return int(min(polled_at - self._silence_counted, most) * 1e6)

    def _until_trigger(self, polled_at: float) -> float:
        """Return the seconds from now to the whole interval of the clock after an ask: 0 where it has passed, and at most one
        interval, whatever the clock was set to meanwhile."""
        due = (math.floor(polled_at / self._every) + 1) * self._every
        return min(max(due - time.time(), 0), self._every)
