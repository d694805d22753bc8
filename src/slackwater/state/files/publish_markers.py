"""Notes beside the commits. How far the targets got: the last epoch that all have, and those that have their part of one that others
miss; each a file with a checksum. The history of runs."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field

from slackwater.errors import ExhaustedError, StateError
from slackwater.state.files.arrow import file_checksum
from slackwater.state.files.storage import Storage, VersionedContent
from slackwater.state.runs import Run, encode_runs, parse_runs, with_run

log = logging.getLogger("slackwater")

PUBLISHED, REACHED, RUNS = "published", "reached", "runs"


@dataclass
class MarkerFile:
    """A note that one runner alone writes. Where each look is a request, a runner remembers what it wrote."""

    place: Storage
    file: str
    _known: VersionedContent | None = field(default=None, init=False)
    _is_known: bool = field(default=False, init=False)

    @property
    def shown(self) -> str:
        return self.place.shown(self.file)

    def read(self) -> bytes | None:
        """What it holds now; None for nothing. Raises OSError."""
        try:
            stored = self.place.read(self.file)
        except FileNotFoundError:
            stored = None
        self._known, self._is_known = stored, True
        return None if stored is None else stored.content

    def read_cached(self) -> bytes | None:
        """The same, as the runner that holds the lock knows it."""
        if not (self._is_known and self.place.is_remote):
            return self.read()
        return None if self._known is None else self._known.content

    def write(self, content: bytes) -> None:
        """Raises EpochError; FencedError if somebody else wrote it meanwhile."""
        if self.place.is_remote and not self._is_known:
            self.read()
        version = self.place.replace(self.file, content, None if self._known is None else self._known.version)
        self._known, self._is_known = VersionedContent(content, version), True

    def invalidate(self) -> None:
        """Look again before the next write: another runner may have had the state."""
        self._known, self._is_known = None, False


def epoch_in(marker: MarkerFile, content: bytes | None) -> int:
    """The last epoch that was published, -1 for none. Raises StateError."""
    if content is None:
        return -1
    text = content.decode(errors="replace")
    match = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions wrote no checksum
    if match is None or match[2] not in (None, file_checksum(match[1].encode())):
        raise StateError(
            f"{marker.shown} is damaged; restore it from a copy of the directory, or remove it: the latest epoch is published "
            "once more then, which a target that knows its last epoch ignores"
        )
    return int(match[1])


def read_marker(marker: MarkerFile, held: bool = False) -> int:
    """The last epoch that was published, -1 for none. `held`: as the runner knows it. Raises StateError."""
    try:
        content = marker.read_cached() if held else marker.read()
    except OSError as error:
        raise ExhaustedError.from_error(error) or StateError(
            f"{marker.shown} cannot be read ({error.strerror}); check who may read it"
        ) from error
    return epoch_in(marker, content)


def write_marker(marker: MarkerFile, epoch: int) -> None:
    """Put down an epoch as the last one that was published. Raises EpochError."""
    number = str(epoch)
    marker.write(f"{number} {file_checksum(number.encode())}\n".encode())


def delivered_targets(marker: MarkerFile, epoch: int, held: bool = False) -> frozenset[str]:
    """The targets that have their part of this epoch; a damaged note is none: most targets ignore an epoch that they have."""
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
        log.warning("%s is damaged; what an epoch left in part is published once more", marker.shown)
        return frozenset()
    return frozenset(map(str, record["targets"])) if record.get("epoch") == epoch else frozenset()


def note_reached(marker: MarkerFile, epoch: int, target: str) -> None:
    """Put down that a target has its part of an epoch, beside those that were put down of it. Raises EpochError."""
    text = json.dumps({"epoch": epoch, "targets": sorted({*delivered_targets(marker, epoch, held=True), target})})
    marker.write(f"{text}\n{file_checksum(text.encode())}\n".encode())


def read_runs(marker: MarkerFile, held: bool = False) -> tuple[Run, ...]:
    """The noted runs, oldest first; damaged lines are left out. `held`: as the runner knows it. Raises StateError."""
    try:
        content = marker.read_cached() if held else marker.read()
    except OSError as error:
        raise ExhaustedError.from_error(error) or StateError(
            f"{marker.shown} cannot be read ({error.strerror}); check who may read it"
        ) from error
    return parse_runs((content or b"").decode(errors="replace").splitlines())


def note_run(marker: MarkerFile, run: Run) -> None:
    """Add a run to the history, or replace its former note. Raises EpochError, StateError."""
    marker.write(encode_runs(with_run(read_runs(marker, held=True), run)).encode())
