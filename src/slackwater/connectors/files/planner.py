"""Plan file sources without Spark, count their unread files, and detect files that changed after they were read.

A planner lists the directory and takes new files, oldest first, up to a limit per epoch. Changed files are not read
again, but reported and counted:

    files that were read    a b c d … w x y z
    first check                           ◀──     the newest files
    second check                      ◀──         the next older files; after the oldest, checks start over

A check covers a limited number of files, so its cost does not depend on how many files were read.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.source import Source
from slackwater.connectors.connector import Backlog, BacklogCounter
from slackwater.connectors.files import directory_listing
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.directory_listing import DirectoryListing
from slackwater.connectors.files.source import FileEntry, FilesSource, store_file_list
from slackwater.connectors.source import SelfPlannedSource, SourceBatch
from slackwater.core.humanize import plural
from slackwater.core.offset_base import ChangedFiles
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path
from slackwater.errors import EpochError, ResourceExhaustedError, StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import Snapshot, StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("slackwater")

# options of Spark's file stream; Spark plans a source that sets one of them
_SPARK_STREAM_OPTIONS = frozenset(
    {
        "basepath",
        "cleansource",
        "discardcachedinputratio",
        "filenameonly",
        "latestfirst",
        "maxbytespertrigger",
        "maxcachedfiles",
        "maxfileage",
        "maxfilespertrigger",
        "modifiedafter",
        "modifiedbefore",
        "sourcearchivedir",
    }
)
MAX_COMPARED = 100_000  # the maximum number of files to list or compare for the backlog
_LOCAL = re.compile(r"file:(?://)?(?=/)")


def create_listing(spec: Source) -> DirectoryListing | None:
    """Return a listing of a source's files that does not need Spark.

    Return None if only Spark can list the files, because they are not on a local disk, or because the source sets an
    option of Spark's file stream.
    """
    options = {name.lower(): value for name, value in spec.options.items()}
    pattern = _LOCAL.sub("", files_source.absolute_query(spec.query or ""), count=1)
    if not pattern.startswith("/") or _SPARK_STREAM_OPTIONS & set(options):
        return None
    return DirectoryListing(
        pattern, options.get("recursivefilelookup", "").lower() == "true", options.get("pathglobfilter")
    )


@dataclass(frozen=True)
class FileBatch:
    """The files of one epoch."""

    source: FilesSource
    entries: Sequence[FileEntry]

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        offsets = files_source.store_file_list(store, epoch, FileOffsets.coerce(record.offsets), self.entries)
        return self.source.batch_from_files(session, self.entries, offsets)


def check_readable(spec: Source) -> None:
    """Raise StartError if this user cannot list the directories of a local source or cannot read one of its files."""
    file_listing = create_listing(spec)
    if file_listing is None:
        return
    try:
        refused = [path for path in file_listing.files() if not os.access(path, os.R_OK)]
    except ValueError as error:
        raise StartError(f'source "{spec.name}": {error}') from None
    except OSError as error:
        raise StartError(f'source "{spec.name}": {_unlistable_reason(error)}') from None
    if refused:
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        raise StartError(
            f'source "{spec.name}": "{min(refused)}"{more} cannot be read (Permission denied); give this user read '
            "access, or set query to a narrower pattern",
            Topic.OUTPUT_UNREADABLE,
        )


def _unlistable_reason(error: OSError) -> str:
    """Describe why a directory cannot be listed, and how to fix this."""
    return (
        f'"{error.filename}" cannot be listed ({error.strerror}); give this user read access, or set query to a '
        "narrower pattern"
    )


def count_backlog(source: Source) -> BacklogCounter:
    """List the files of a source, and return a function that counts those that a commit does not contain."""
    file_listing = create_listing(source) or DirectoryListing(files_source.absolute_query(source.query or ""))
    try:
        paths = list(islice(file_listing.files(), MAX_COMPARED + 1))
    except ValueError as error:
        raise EpochError(f'source "{source.name}": {error}') from None

    def count(snapshot: Snapshot) -> Backlog:
        record = snapshot.commit.sources.get(source.name)
        read = FileOffsets.coerce(None if record is None else record.offsets)
        rows = 0 if record is None else snapshot.commit.clocks[source.name].rows
        if max(len(paths), read.count) > MAX_COMPARED:
            problem = f"more than {plural(MAX_COMPARED, 'file')}, which are not compared"
            return Backlog(source.name, "files", None, None, problem)
        names = {os.path.normpath(file_uri_to_path(e.path)) for e in files_source.load_file_list(snapshot, read)}
        unread = sum(1 for path in paths if os.path.normpath(path) not in names)
        unread_rows = round(rows / read.count * unread) if read.count else (0 if not unread else None)
        return Backlog(source.name, "files", unread, unread_rows)

    return count


class FilesPlanner:
    """Planner for a local file source. `read`: the files that the state lists as read."""

    def __init__(self, source: FilesSource, read: Iterable[FileEntry]) -> None:
        file_listing = create_listing(source.spec)
        assert file_listing is not None, "see `PlannedFilesSource`"
        self._source, self._listing = source, file_listing
        self._max_files = source.spec.max_files_per_trigger
        self._seen_paths = {file_uri_to_path(e.path) for e in read}  # files that are planned or must not be read
        self._pending: list[FileEntry] = []  # listed but not yet planned
        self._ended = False

    @property
    def unplanned_files(self) -> int:
        return len(self._pending)

    def stop_at_current_end(self) -> None:
        self._pending, self._ended = self._new_files(), True

    def next(self) -> FileBatch | None:
        if not self._ended and len(self._pending) < (self._max_files or 1):
            self._pending = self._new_files()
        entries: list[FileEntry] = []
        while self._pending and not entries:
            selected, self._pending = (
                self._pending[: self._max_files],
                self._pending[self._max_files :] if self._max_files else [],
            )
            entries = [now for entry in selected if (now := self._refresh(entry)) is not None]
        return FileBatch(self._source, entries) if entries else None

    def _refresh(self, entry: FileEntry) -> FileEntry | None:
        """Return the current entry of a file just before it is read. None if the file no longer exists."""
        self._seen_paths.add(file_uri_to_path(entry.path))
        if (now := entry.current) is None:
            name = file_uri_to_path(entry.path)
            log.warning('source "%s": %s was removed before it was read; it is skipped', self._source.name, name)
        return now

    def _new_files(self) -> list[FileEntry]:
        """Return the new files in the order in which they will be read.

        Raises EpochError or ResourceExhaustedError if a directory cannot be listed.
        """
        try:
            new = {path for path in self._listing.files() if path not in self._seen_paths}
        except ValueError as error:
            raise EpochError(f'source "{self._source.name}": {error}') from None
        except OSError as error:
            raise ResourceExhaustedError.from_error(error) or EpochError(
                f'source "{self._source.name}": {_unlistable_reason(error)}'
            ) from None
        entries = [entry for path in new if (entry := self._file_entry(path)) is not None]
        return sorted(entries, key=lambda e: (e.timestamp, e.path))

    def _file_entry(self, path: str) -> FileEntry | None:
        """Return the entry of a file. None if the file no longer exists, or has a name that Spark cannot read."""
        try:
            status = Path(path).stat()
            return FileEntry(directory_listing.to_uri(path), status.st_mtime_ns // 1_000_000, status.st_size)
        except FileNotFoundError:
            return None
        except UnicodeEncodeError:
            self._seen_paths.add(path)
            name = os.fsencode(path).decode(errors="backslashreplace")
            log.warning(
                'source "%s": the name of %s is not UTF-8, so Spark cannot read the file; rename it',
                self._source.name,
                name,
            )
            return None


class PlannedFilesSource(FilesSource, SelfPlannedSource):
    """File source that the run plans without Spark if its files are on a local disk."""

    @property
    def plans_without_spark(self) -> bool:
        return create_listing(self.spec) is not None

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> FilesPlanner:
        return FilesPlanner(self, files)


# -- changed files -------------------------------------------------------------------------------------------------------


FILES_PER_CHECK = 200
CHANGES_SHOWN = 3  # the number of names of changed files that the state keeps for messages


@dataclass
class FileChangeTracker:
    """Tracker of the files that a source has read.

    `entries`: the entry of each file when it was read or when its last change was detected, by path.
    """

    entries: dict[str, FileEntry] = field(default_factory=dict)
    _unchecked: list[str] = field(default_factory=list)  # paths to check in this round; the last one is checked next

    def add(self, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            self.entries[entry.path] = entry
            self._unchecked.append(entry.path)

    def find_changed(self, limit: int | None = FILES_PER_CHECK) -> list[FileEntry]:
        """Check the next `limit` files, or all files if `limit` is None. Return the current entries of changed files.

        Each change is returned once.
        """
        if limit is None or not self._unchecked:
            self._unchecked = list(self.entries)
        count = len(self._unchecked) if limit is None else min(limit, len(self._unchecked))
        paths = dict.fromkeys(self._unchecked.pop() for _ in range(count))
        changed_entries = []
        for path in paths:
            now = self.entries[path].current
            if now is not None and self.entries[path].differs(now):
                changed_entries.append(now)
                self.entries[path] = now
        return changed_entries


def store_changed_files(store: StateStore, epoch: int, before: FileOffsets, files: Sequence[FileEntry]) -> FileOffsets:
    """Store the current entries of changed files, so that each change is reported once.

    Args:
        store: The state store.
        epoch: The epoch that detected the changes.
        before: The offsets of the previous epoch.
        files: The current entries of the changed files.

    Returns:
        The new offsets, including the number of changed files and a few of their names.
    """
    earlier = before.changed or ChangedFiles()
    names = (*earlier.last, *(file_uri_to_path(e.path) for e in files))
    changed = ChangedFiles(earlier.count + len(files), names[-CHANGES_SHOWN:])
    return replace(store_file_list(store, epoch, before, files), count=before.count, changed=changed)


def changed_files_text(source: str, names: list[str], count: int) -> str:
    """Return a warning about changed files.

    Args:
        source: The name of the source.
        names: The names of a few changed files.
        count: The number of changed files.
    """
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    one = count == 1
    return (
        f'source "{source}": {count:,} {"file" if one else "files"} changed after {"it was" if one else "they were"} read, and '
        f"{'is' if one else 'are'} not read again: {', '.join(names)}{more}; write files elsewhere and rename them "
        "into the directory, or start over with --rebuild"
    )
