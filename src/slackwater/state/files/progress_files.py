"""Small files next to the commits: the last published epoch, the targets that hold the latest epoch, and past runs.

The last published epoch is the last one that all targets hold. Until all targets hold an epoch, a second file lists
those that already do. Each file has a checksum, except the history of runs.
"""

from __future__ import annotations

import json
import logging
import re

from slackwater.errors import ExhaustedError, StateError, Topic
from slackwater.state.run_history import Run, add_or_replace_run, encode_runs, parse_runs
from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import Storage, VersionedContent

log = logging.getLogger("slackwater")


class _SmallFile:
    """A file that only the runner writes. In an object store, the runner caches the content, to save requests."""

    def __init__(self, storage: Storage, file: str) -> None:
        self._storage, self._file = storage, file
        self.full_name = storage.full_name(file)
        self._known: VersionedContent | None = None
        self._is_known = False

    def read(self, held: bool) -> bytes | None:
        """Return the content; None if the file does not exist. Raises OSError if it cannot be read.

        `held`: whether this process is the runner and may use its cache.
        """
        if not (held and self._is_known and self._storage.is_remote):
            try:
                self._known = self._storage.read(self._file)
            except FileNotFoundError:
                self._known = None
            self._is_known = True
        return None if self._known is None else self._known.content

    def read_text(self, held: bool) -> str | None:
        """Return the content as text; None if the file does not exist. Raises StateError if it cannot be read."""
        try:
            content = self.read(held)
        except OSError as error:
            raise ExhaustedError.from_error(error) or StateError(
                f"{self.full_name} cannot be read ({error.strerror}); check its permissions"
            ) from error
        return None if content is None else content.decode(errors="replace")

    def write(self, text: str) -> None:
        """Replace the content. Raises EpochError if this fails, and FencedError if another runner has replaced it."""
        if self._storage.is_remote and not self._is_known:
            self.read(held=False)
        content, version = text.encode(), None if self._known is None else self._known.version
        self._known = VersionedContent(content, self._storage.replace(self._file, content, version))
        self._is_known = True

    def invalidate(self) -> None:
        """Drop the cached content, which another runner may have replaced."""
        self._known, self._is_known = None, False


class ProgressFiles:
    """The progress of one state. `held`: whether this process is the runner, which caches what it writes."""

    def __init__(self, storage: Storage) -> None:
        self._published, self._reached, self._runs = (_SmallFile(storage, n) for n in ("published", "reached", "runs"))

    def invalidate(self) -> None:
        """Drop everything cached, because another runner may have written since."""
        for file in (self._published, self._reached, self._runs):
            file.invalidate()

    @property
    def published_file(self) -> str:
        """Return the full name of the file with the last published epoch, for messages."""
        return self._published.full_name

    def published_epoch(self, held: bool = False) -> int:
        """Return the last published epoch, or -1 if there is none. Raises StateError."""
        text = self._published.read_text(held)
        if text is None:
            return -1
        match = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions wrote no checksum
        if match is None or match[2] not in (None, file_checksum(match[1].encode())):
            raise StateError(
                f"{self.published_file} is damaged; restore it from a copy of the directory, or remove it: the next start "
                "then publishes the latest epoch again, and a target that stores its last epoch ignores it",
                Topic.STATE_DAMAGED,
            )
        return int(match[1])

    def mark_published(self, epoch: int) -> None:
        """Record an epoch as the last published one. Raises EpochError."""
        number = str(epoch)
        self._published.write(f"{number} {file_checksum(number.encode())}\n")

    def delivered_targets(self, epoch: int, held: bool = False) -> frozenset[str]:
        """Return the targets that are recorded to hold this epoch.

        A damaged file counts as empty, because most targets ignore an epoch that they already hold.
        """
        record = None
        try:
            content = self._reached.read(held)
            if content is None:
                return frozenset()
            text, _, checksum = content.decode(errors="replace").strip().rpartition("\n")
            record = json.loads(text) if file_checksum(text.encode()) == checksum else None
        except (OSError, ValueError):
            pass
        if not isinstance(record, dict) or not isinstance(record.get("targets"), list):
            log.warning(
                "%s is damaged; if the last epoch reached only some targets, it is published again to all of them",
                self._reached.full_name,
            )
            return frozenset()
        return frozenset(map(str, record["targets"])) if record.get("epoch") == epoch else frozenset()

    def mark_delivered(self, epoch: int, target: str) -> None:
        """Record that a target holds an epoch, in addition to the targets recorded before. Raises EpochError."""
        text = json.dumps({"epoch": epoch, "targets": sorted({*self.delivered_targets(epoch, held=True), target})})
        self._reached.write(f"{text}\n{file_checksum(text.encode())}\n")

    def runs(self, held: bool = False) -> tuple[Run, ...]:
        """Return the recorded runs, oldest first, without damaged lines. Raises StateError."""
        return parse_runs((self._runs.read_text(held) or "").splitlines())

    def save_run(self, run: Run) -> None:
        """Add a run to the history, or replace its entry. Raises EpochError or StateError."""
        self._runs.write(encode_runs(add_or_replace_run(self.runs(held=True), run)))
