"""Run epochs one at a time, as planned by `PollingLoop` or by Spark's streaming query.

run: read, aggregate, commit, publish ─▶ remember the files that were read, commit offsets to Kafka's consumer groups
tick: an epoch without rows              └─▶ on failure: an error on one line
"""

from __future__ import annotations

from collections.abc import Callable

from slackwater.connectors.source import Batch, Seekable, spark_error_reason
from slackwater.errors import EpochError, ExhaustedError, SlackwaterError
from slackwater.runner import error_boundary
from slackwater.runner.changed_file_reporter import ChangedFileReporter
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.secrets import has_secrets


class EpochExecutor:
    """Runs epochs. `run` and `tick` must be called from one thread at a time."""

    def __init__(self, runner: PipelineRunner, components: RunComponents, files: ChangedFileReporter) -> None:
        # configuration
        self.pipeline, self.reporter, self.stop = runner.pipeline, runner.reporter, runner.stop
        self.components, self.files, self.driver = components, files, components.driver
        self._spark = runner.spark
        # state of the run
        self._epoch = -1  # the epoch in progress

    def expect_next(self) -> None:
        """Attribute failures from now on to the next epoch."""
        self._epoch = self.driver.state.epoch + 1

    def run(self, plan_batch: Callable[[], Batch | None], quiet_us: int) -> None:
        """Run the epoch of a batch.

        Args:
            plan_batch: Returns the batch; None if the batch is already part of the state.
            quiet_us: How long the sources had returned no rows before this batch (µs).
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
        """Run an idle tick. `quiet_us`: how long the sources have had no rows (µs)."""
        self.driver.tick(quiet_us)
        self.files.report_changes()

    def check_spark(self) -> None:
        """Raise EpochError if Spark's process has ended. Without this check, an idle run would not notice."""
        if self._spark is not None and error_boundary.has_spark_ended(self._spark):
            raise EpochError(f"{self.pipeline.name}: Spark's process is gone")

    def _advertise(self, batch: Batch) -> None:
        for source in self.components.streams.sources:
            offsets = batch.offsets.get(source.name)
            if offsets is not None and isinstance(source, Seekable):
                source.advertise(offsets)

    def raise_failure(self, failure: BaseException) -> None:
        """Raise the failure of an epoch as a one-line error that says whether the epoch was committed."""
        if isinstance(failure, SlackwaterError):
            raise failure
        if exhausted := ExhaustedError.from_error(failure):
            raise exhausted from None
        committed = self.driver.state.epoch >= self._epoch
        outcome = (
            "was committed, but could not be published; it will be published at the next start"
            if committed
            else "was not committed"
        )
        raise EpochError(
            f"{self.pipeline.name}: epoch {self._epoch} {outcome}: {spark_error_reason(failure)}"
        ) from cause_without_secrets(failure)


def cause_without_secrets(cause: BaseException) -> BaseException | None:
    """Return the cause to attach to an error; None if any secret is registered, because Spark's errors quote SQL."""
    return None if has_secrets() else cause
