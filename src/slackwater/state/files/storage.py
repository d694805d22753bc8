"""Where the bytes of a state lie; the files store knows no more of it than this.

                   directory (`directory.py`)           prefix of an object store (`objects.py`)
a file of its own  written, flushed, memory-mapped   put; mapped from a copy in a local cache
a commit           linked: refused if it is there    put if absent
a note             replaced by a rename              put if it is still what was read
who runs           flock (`lock.py`)                 a lease (`lease.py`)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import polars as pl
import pyarrow as pa

from slackwater.core.humanize import plural
from slackwater.errors import StateError
from slackwater.state.commit import SegmentMeta
from slackwater.state.files import arrow

NAMED = ("segments", "outputs", "offsets")  # folders of files that commits name


class FileRef(NamedTuple):
    """A file that a commit names. `bytes`, `rows`: None where the commit does not say."""

    file: str
    checksum: str
    bytes: int | None = None
    rows: int | None = None


def file_ref(meta: SegmentMeta) -> FileRef:
    return FileRef(meta.file, meta.checksum, meta.bytes, meta.rows)


class VersionedContent(NamedTuple):
    """What a small file holds, and what tells this content from a later one (of objects)."""

    content: bytes
    version: str = ""


class StorageLock(Protocol):
    """Held by a runner. `token`: tells it from every other runner; empty where nobody asks."""

    @property
    def token(self) -> str: ...

    def confirm(self, doing: str) -> None:
        """Raise FencedError if another runner has it by now. `doing`: what this one must not do then."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """The state of one pipeline; files are known by their names relative to it ("segments/x.arrow"). Goes to workers.

    What cannot be read or written is an OSError or an error of ours; what is not there, FileNotFoundError.
    """

    @property
    def root(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def name(self) -> str:
        """The pipeline."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each look is a request."""
        ...

    def shown(self, file: str) -> str:
        """A file, for messages."""
        ...

    def sibling(self, name: str) -> Storage:
        """The state of another pipeline beside it."""
        ...

    def names(self) -> list[str]:
        """The pipelines that have their state next to this one, itself included."""
        ...

    # -- files that are written once, under names of their own

    def write(self, file: str, frame: pl.DataFrame) -> tuple[int, str]:
        """A frame as an Arrow file; its size and checksum. Raises EpochError."""
        ...

    def put(self, file: str, content: bytes) -> None:
        """Raises EpochError."""
        ...

    def local_path(self, file: FileRef) -> Path:
        """A file of this machine with these bytes; it stays readable while it is open. Raises StateError."""
        ...

    def fetch(self, files: Sequence[FileRef]) -> None:
        """Get them at once, where that is faster than one by one."""
        ...

    def find_damage(self, file: FileRef) -> str:
        """What is wrong with a file, as it lies there: missing, cut, other bytes; empty if nothing is."""
        ...

    def check(self, files: Sequence[FileRef]) -> None:
        """Raise StateError if one of these is not there, or not what was written, as far as a start looks."""
        ...

    # -- files that say what there is

    def read(self, file: str) -> VersionedContent: ...

    def create(self, file: str, content: bytes) -> bool:
        """Down for good, if there is none; False if there is one."""
        ...

    def replace(self, file: str, content: bytes, version: str | None) -> str:
        """Instead of what has this version (None: nothing); the new one. Raises FencedError if there is something else."""
        ...

    def sizes(self, folder: str) -> Mapping[str, int]:
        """The files of a folder, by name within it, and their bytes."""
        ...

    def has(self, file: str) -> bool: ...

    def delete(self, files: Collection[str]) -> None: ...

    # -- the whole

    def prepare(self) -> None:
        """Make room. Raises StateError."""
        ...

    def lock(self) -> StorageLock:
        """Take the lock. Raises LockHeldError, StateError."""
        ...

    def holder(self) -> str | None: ...

    def is_fresh(self) -> bool:
        """Whether there is nothing at all."""
        ...

    def copy_from(self, origin: Storage, file: str) -> None:
        """Get a file of another state here. Raises FileNotFoundError, whose `filename` is the one that is gone."""
        ...

    def put_aside(self, name: str) -> str:
        """Make it the state of that pipeline, which has none, with the lock held; where that is. Raises StateError."""
        ...

    def remove(self) -> None:
        """All of it, as far as that can be done."""
        ...


def open_file(place: Storage, file: FileRef) -> pa.Table:
    """A file of which a commit says that it holds so many rows. Raises StateError if it does not."""
    table = arrow.open_arrow(place.local_path(file), place.shown(file.file))
    if table.num_rows != file.rows:
        raise StateError(
            f"state file {place.shown(file.file)} holds {plural(table.num_rows, 'row')}, the commit says {file.rows or 0:,}; "
            "restore both from a copy of the state directory"
        )
    return table


def verify_file(place: Storage, file: FileRef) -> None:
    """Raise StateError if a file is missing, was cut, or holds other bytes than were written."""
    arrow.verify_file(place.local_path(file), file.checksum, file.bytes, place.shown(file.file))
