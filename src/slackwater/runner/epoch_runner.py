"""The epochs of a run, one at a time, whoever plans them: our own loop or a streaming query of Spark's.

begin ─▶ run: read, fold, commit, publish ─▶ files that were read are remembered, offsets told to those who watch the lag
tick: while there is nothing                 └─▶ what failed, in words
"""

from __future__ import annotations

from collections.abc import Callable

from slackwater.errors import EpochError, ExhaustedError, SlackwaterError
from slackwater.runner import error_boundary
from slackwater.runner.changed_files import WatchedFiles
from slackwater.runner.runner import RunComponents, Runner
from slackwater.secrets import has_secrets
from slackwater.sources.base import Batch, Seekable, spark_error_reason


class EpochRunner:
    """`run` and `tick` from one thread at a time."""

    def __init__(self, runner: Runner, parts: RunComponents, files: WatchedFiles) -> None:
        # configuration
        self.pipeline, self.reporter, self.stop = runner.pipeline, runner.reporter, runner.stop
        self.parts, self.files, self.driver = parts, files, parts.driver
        self._spark = runner.spark
        # as it goes
        self._epoch = -1  # in progress

    def expect_next(self) -> None:
        """What fails from now on is of the next epoch."""
        self._epoch = self.driver.state.epoch + 1

    def run(self, plan_batch: Callable[[], Batch | None], quiet_us: int) -> None:
        """The epoch of a batch that was planned. `plan_batch`: makes it; None: it is part of the state already.

        `quiet_us`: for so long the sources had had nothing.
        """
        faults, before = self.driver.hooks.faults, self.driver.state.epoch
        self.expect_next()
        faults.hit("checkpoint.after", before)
        planned = plan_batch()
        if planned is None:
            return
        self.reporter.files_read(planned.files or 0)
        if planned.payload:
            self.driver.run_batch(planned, quiet_us)
            self.files.remember(planned.offsets)
            self.files.report_changes()
            self._advertise(planned)
            faults.hit("checkpoint.before", self.driver.state.epoch)

    def tick(self, quiet_us: int) -> None:
        """The sources were asked for so long, and had nothing."""
        self.driver.tick(quiet_us)
        self.files.report_changes()

    def check_spark(self) -> None:
        """Raise EpochError if Spark's process has ended: while there are no rows nothing else would tell."""
        if self._spark is not None and error_boundary.has_ended(self._spark):
            raise EpochError(f"{self.pipeline.name}: Spark's process is gone")

    def _advertise(self, batch: Batch) -> None:
        for source in self.parts.streams.sources:
            offsets = batch.offsets.get(source.name)
            if offsets is not None and isinstance(source, Seekable):
                source.advertise(offsets)

    def raise_failure(self, failure: BaseException) -> None:
        """Raise what ended an epoch, in one line that says whether it was committed."""
        if isinstance(failure, SlackwaterError):
            raise failure
        if exhausted := ExhaustedError.from_error(failure):
            raise exhausted from None
        committed = self.driver.state.epoch >= self._epoch
        outcome = (
            "was committed, and publishing it failed; the next start publishes it" if committed else "was not committed"
        )
        raise EpochError(
            f"{self.pipeline.name}: epoch {self._epoch} {outcome}: {spark_error_reason(failure)}"
        ) from shown_cause(failure)


def shown_cause(cause: BaseException) -> BaseException | None:
    """An error of Spark as the cause of ours: it quotes the SQL, so it is left out where that may hold a secret."""
    return None if has_secrets() else cause
