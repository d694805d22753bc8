"""Files that changed after they were read: they are not read again, so it is said, and counted.

files that were read    a b c d … x y z        a look takes a few, the newest first, and goes round
each look                      ◀──│──▶          so an epoch costs the same, however many there are
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slackwater.sources.files import FileEntry

AT_ONCE = 200  # files that one look takes


@dataclass
class FileChangeTracker:
    """The files that a source has read, by path, as they were."""

    entries: dict[str, FileEntry] = field(default_factory=dict)
    _unchecked: list[str] = field(default_factory=list)  # of the round that goes on; the next to look at is the last

    def add(self, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            self.entries[entry.path] = entry
            self._unchecked.append(entry.path)

    def find_changed(self, limit: int | None = AT_ONCE) -> list[FileEntry]:
        """Which of the next files (None: of all) are others now, as they are now. Told once, until they change again."""
        if limit is None or not self._unchecked:
            self._unchecked = list(self.entries)
        count = len(self._unchecked) if limit is None else min(limit, len(self._unchecked))
        paths = dict.fromkeys(self._unchecked.pop() for _ in range(count))
        changed_entries = []
        for path in paths:
            now = self.entries[path].now
            if now is not None and self.entries[path].differs(now):
                changed_entries.append(now)
                self.entries[path] = now
        return changed_entries


def changed_files_text(source: str, names: list[str], count: int) -> str:
    """What is said of files that changed: the names of a few."""
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    one = count == 1
    return (
        f'source "{source}": {count:,} {"file" if one else "files"} changed after {"it was" if one else "they were"} read, and '
        f"{'is' if one else 'are'} not read again: {', '.join(names)}{more}; write elsewhere and rename, or start over with --rebuild"
    )
