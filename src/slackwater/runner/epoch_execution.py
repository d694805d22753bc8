"""Run epochs one at a time, as `PollingLoop` or Spark's streaming query plans them.

run: read, aggregate, commit, publish ─▶ remember the files that were read, commit offsets to Kafka's consumer groups
tick: an epoch without rows              └─▶ on failure: a one-line error

Files that change after they were read are logged and recorded in a commit, but not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.planner import (
    CHANGES_SHOWN,
    FILES_PER_CHECK,
    FileChangeTracker,
    store_changed_files,
)
from slackwater.connectors.files.planner import changed_files_text as changed_text
from slackwater.connectors.files.source import FileEntry, FilesSource
from slackwater.connectors.source import Batch, SeekableSource, spark_error_reason
from slackwater.core.offset_base import Offsets
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path
from slackwater.errors import EpochError, ResourceExhaustedError, SlackwaterError
from slackwater.runner import error_boundary
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.runner.run_log import RunNotifier
from slackwater.secret_masking import has_secrets

log = logging.getLogger("slackwater")


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
        """Run an idle tick. `quiet_us`: how long the sources have returned no rows (µs)."""
        self.driver.tick(quiet_us)
        self.files.report_changes()

    def check_spark(self) -> None:
        """Raise EpochError if Spark's process has ended. Without this check, an idle run would not notice."""
        if self._spark is not None and error_boundary.has_spark_ended(self._spark):
            raise EpochError(f"{self.pipeline.name}: the Spark process has ended; start again")

    def _advertise(self, batch: Batch) -> None:
        for source in self.components.streams.sources:
            offsets = batch.offsets.get(source.name)
            if offsets is not None and isinstance(source, SeekableSource):
                source.advertise(offsets)

    def raise_failure(self, failure: BaseException) -> None:
        """Raise the failure of an epoch as a one-line error that says whether the epoch was committed."""
        if isinstance(failure, SlackwaterError):
            raise failure
        if exhausted := ResourceExhaustedError.from_error(failure):
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
    """Return the cause to attach to an error, or None if a secret is registered, because Spark's errors quote SQL."""
    return None if has_secrets() else cause


# -- files that changed after they were read -----------------------------------------------------------------------------


class ChangedFileReporter:
    """Reports files that change after they were read. `remember` adds the files of the latest epoch."""

    def __init__(self, pipeline: str, components: RunComponents, reporter: RunNotifier) -> None:
        self._pipeline, self._components, self._reporter = pipeline, components, reporter
        self._store = components.streams.store
        self._sources = {s.name: s for s in components.streams.sources if isinstance(s, FilesSource)}
        self._trackers = {name: FileChangeTracker() for name in self._sources}
        for name in self._sources:
            self._trackers[name].add(files_source.load_file_list(self._store, self._offsets(name)))

    @property
    def read(self) -> Mapping[str, Collection[FileEntry]]:
        """The files that have been read, by source, with their sizes and modification times when they were read."""
        return {name: tracker.entries.values() for name, tracker in self._trackers.items()}

    def remember(self, names: Iterable[str]) -> None:
        """Add the files that the latest epoch has read from these sources."""
        for name in names:
            if name in self._sources:
                latest = FileOffsets(self._offsets(name).lists[-1:])
                self._trackers[name].add(files_source.load_file_list(self._store, latest))

    def report_changes(self, limit: int | None = FILES_PER_CHECK) -> None:
        """Log and count the files that changed after they were read, and record the changes in a commit.

        `limit`: the maximum number of files to check per source; None for all files.
        """
        driver, count = self._components.driver, 0
        offsets: dict[str, Offsets] = {}
        for name in self._sources:
            changed_entries = self._trackers[name].find_changed(limit)
            if changed_entries:
                names = [file_uri_to_path(e.path) for e in changed_entries[:CHANGES_SHOWN]]
                log.warning("%s: %s", self._pipeline, changed_text(name, names, len(changed_entries)))
                state, count = driver.state, count + len(changed_entries)
                offsets[name] = store_changed_files(self._store, state.epoch + 1, self._offsets(name), changed_entries)
        if offsets:
            driver.commit_start_offsets(offsets, count)
            self._reporter.status(driver.status_at_start())

    def count_unread_files(self) -> int:
        """Return the number of files that have not been read yet. Sources that cannot be listed are omitted."""
        total = 0
        for name, source in self._sources.items():
            try:
                listed = files_source.absolute_query(source.spec.query or "")
                existing = len(self._components.session.read.format("binaryFile").load(listed).inputFiles())
            except Exception:
                continue
            total += max(existing - self._offsets(name).count, 0)
        return total

    def _offsets(self, name: str) -> FileOffsets:
        return FileOffsets.coerce(self._components.driver.state.sources[name].offsets)
