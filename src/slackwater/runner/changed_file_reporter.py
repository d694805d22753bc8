"""Watch the files that a run has read. Changed files are logged and recorded in a commit, but not read again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.file_change_tracker import AT_ONCE, FileChangeTracker
from slackwater.connectors.files.file_change_tracker import changed_files_text as changed_text
from slackwater.connectors.files.source import FileEntry, FilesSource
from slackwater.core.offsets import FileOffsets, Offsets
from slackwater.core.paths import file_uri_to_path
from slackwater.runner.pipeline_runner import RunComponents
from slackwater.runner.run_log import RunNotifier

log = logging.getLogger("slackwater")


class ChangedFileReporter:
    """Watches the files that have been read according to the state. `remember` adds the files of each epoch."""

    def __init__(self, pipeline: str, components: RunComponents, reporter: RunNotifier) -> None:
        self._pipeline, self._components, self._reporter = pipeline, components, reporter
        self._store = components.streams.store
        self._sources = {s.name: s for s in components.streams.sources if isinstance(s, FilesSource)}
        self._trackers = {name: FileChangeTracker() for name in self._sources}
        for name in self._sources:
            self._trackers[name].add(files_source.load_file_list(self._store, self._offsets(name)))

    @property
    def read(self) -> Mapping[str, Collection[FileEntry]]:
        """The files that have been read, by source, with the sizes and modification times that they had then."""
        return {name: tracker.entries.values() for name, tracker in self._trackers.items()}

    def remember(self, names: Iterable[str]) -> None:
        """Add the files of these sources that the latest epoch has read."""
        for name in names:
            if name in self._sources:
                latest = FileOffsets(self._offsets(name).lists[-1:])
                self._trackers[name].add(files_source.load_file_list(self._store, latest))

    def report_changes(self, limit: int | None = AT_ONCE) -> None:
        """Log and count the files that changed after they were read, and record them in a commit.

        `limit`: how many files to check per source; None for all.
        """
        driver, count = self._components.driver, 0
        offsets: dict[str, Offsets] = {}
        for name in self._sources:
            changed_entries = self._trackers[name].find_changed(limit)
            if changed_entries:
                names = [file_uri_to_path(e.path) for e in changed_entries[: files_source.CHANGES_SHOWN]]
                log.warning("%s: %s", self._pipeline, changed_text(name, names, len(changed_entries)))
                state, count = driver.state, count + len(changed_entries)
                offsets[name] = files_source.store_changed_files(
                    self._store, state.epoch + 1, self._offsets(name), changed_entries
                )
        if offsets:
            driver.commit_start_offsets(offsets, count)
            self._reporter.status(driver.status_at_start())

    def count_unread_files(self) -> int:
        """Return how many files have not been read yet. Sources that cannot be listed are omitted."""
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
