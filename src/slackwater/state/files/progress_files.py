"""Small files next to the commits: the last published epoch, the targets that hold the latest epoch, and past runs.

The last published epoch is the last one that all targets hold. Until all targets hold an epoch, a second file lists
those that already do. Each file has a checksum, except the history of runs.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field

from slackwater.errors import ExhaustedError, StateError, Topic
from slackwater.state.run_history import Run, add_or_replace_run, encode_runs, parse_runs
from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import Storage, VersionedContent

log = logging.getLogger("slackwater")

PUBLISHED, REACHED, RUNS = "published", "reached", "runs"


@dataclass
class ProgressFile:
    """A small file that only the runner writes. In an object store, the runner caches the content, to save requests."""

    storage: Storage
    file: str
    _known: VersionedContent | None = field(default=None, init=False)
    _is_known: bool = field(default=False, init=False)

    @property
    def full_name(self) -> str:
        return self.storage.full_name(self.file)

    def read(self) -> bytes | None:
        """Return the current content; None if the file does not exist. Raises OSError if it cannot be read."""
        try:
            stored = self.storage.read(self.file)
        except FileNotFoundError:
            stored = None
        self._known, self._is_known = stored, True
        return None if stored is None else stored.content

    def read_cached(self) -> bytes | None:
        """Return the content, from the cache if there is one. Only for the runner that holds the lock."""
        if not (self._is_known and self.storage.is_remote):
            return self.read()
        return None if self._known is None else self._known.content

    def write(self, content: bytes) -> None:
        """Replace the content. Raises EpochError if this fails, and FencedError if another runner has replaced it."""
        if self.storage.is_remote and not self._is_known:
            self.read()
        version = self.storage.replace(self.file, content, None if self._known is None else self._known.version)
        self._known, self._is_known = VersionedContent(content, version), True

    def invalidate(self) -> None:
        """Drop the cached content, which another runner may have replaced."""
        self._known, self._is_known = None, False


def parse_epoch(marker: ProgressFile, content: bytes | None) -> int:
    """Parse the last published epoch. Return -1 if `content` is None. Raises StateError if the content is damaged."""
    if content is None:
        return -1
    text = content.decode(errors="replace")
    match = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions did not write a checksum
    if match is None or match[2] not in (None, file_checksum(match[1].encode())):
        raise StateError(
            f"{marker.full_name} is damaged; restore it from a copy of the directory, or remove it: the next start "
            "then publishes the latest epoch again, and a target that stores its last epoch ignores it",
            Topic.STATE_DAMAGED,
        )
    return int(match[1])


def read_published_epoch(marker: ProgressFile, held: bool = False) -> int:
    """Return the last published epoch, or -1 if there is none. `held`: use the runner's cache. Raises StateError."""
    try:
        content = marker.read_cached() if held else marker.read()
    except OSError as error:
        raise ExhaustedError.from_error(error) or StateError(
            f"{marker.full_name} cannot be read ({error.strerror}); check its permissions"
        ) from error
    return parse_epoch(marker, content)


def write_published_epoch(marker: ProgressFile, epoch: int) -> None:
    """Record an epoch as the last published one. Raises EpochError."""
    number = str(epoch)
    marker.write(f"{number} {file_checksum(number.encode())}\n".encode())


def delivered_targets(marker: ProgressFile, epoch: int, held: bool = False) -> frozenset[str]:
    """Return the targets that are recorded to hold this epoch. `held`: use the runner's cache.

    A damaged file counts as empty, because most targets ignore an epoch that they already hold.
    """
    record = None
    try:
        content = marker.read_cached() if held else marker.read()
        if content is None:
            return frozenset()
        text, _, sum_ = content.decode(errors="replace").strip().rpartition("\n")
        record = json.loads(text) if file_checksum(text.encode()) == sum_ else None
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("targets"), list):
        log.warning("%s is damaged; an epoch that was published in part is published again", marker.full_name)
        return frozenset()
    return frozenset(map(str, record["targets"])) if record.get("epoch") == epoch else frozenset()


def mark_delivered(marker: ProgressFile, epoch: int, target: str) -> None:
    """Record that a target holds an epoch, in addition to the targets recorded before. Raises EpochError."""
    text = json.dumps({"epoch": epoch, "targets": sorted({*delivered_targets(marker, epoch, held=True), target})})
    marker.write(f"{text}\n{file_checksum(text.encode())}\n".encode())


def read_runs(marker: ProgressFile, held: bool = False) -> tuple[Run, ...]:
    """Return the recorded runs, oldest first, without damaged lines.

    `held`: use the runner's cache. Raises StateError.
    """
    try:
        content = marker.read_cached() if held else marker.read()
    except OSError as error:
        raise ExhaustedError.from_error(error) or StateError(
            f"{marker.full_name} cannot be read ({error.strerror}); check its permissions"
        ) from error
    return parse_runs((content or b"").decode(errors="replace").splitlines())


def save_run(marker: ProgressFile, run: Run) -> None:
    """Add a run to the history, or replace its entry. Raises EpochError or StateError."""
    marker.write(encode_runs(add_or_replace_run(read_runs(marker, held=True), run)).encode())
