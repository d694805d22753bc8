"""Detect files that changed after they were read. Such files are not read again, but reported and counted.

files that were read    a b c d … w x y z
first check                           ◀──     the newest files
second check                      ◀──         the next older files; after the oldest, checks start over

A check covers a limited number of files, so its cost does not depend on how many files were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from slackwater.connectors.files.source import FileEntry, store_file_list
from slackwater.core.offset_base import ChangedFiles
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path
from slackwater.state.protocol import StateStore

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
