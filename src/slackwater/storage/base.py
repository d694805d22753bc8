"""The protocol for storing a state's files. The files store accesses files only through it.

                   directory (`local.py`)               prefix of an object store (`object_store.py`)
immutable file     written, synced, memory-mapped       put; mapped from a copy in a local cache
commit             hard link: fails if it exists        put if absent
marker             replaced by a rename                 put if unchanged since it was read
lock               flock (`file_lock.py`)               lease (`object_store_lease.py`)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import polars as pl
import pyarrow as pa

from slackwater.core.humanize import plural
from slackwater.errors import StateError, Topic
from slackwater.storage import arrow_files

NAMED = ("segments", "outputs", "offsets")  # folders of files that commits reference


class FileRef(NamedTuple):
    """A file that a commit refers to. `bytes` and `rows` are None if the commit does not record them."""

    file: str
    checksum: str
    bytes: int | None = None
    rows: int | None = None


class StoredFile(Protocol):
    """What a commit records about a file."""

    @property
    def file(self) -> str: ...

    @property
    def checksum(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def rows(self) -> int: ...


def file_ref(meta: StoredFile) -> FileRef:
    return FileRef(meta.file, meta.checksum, meta.bytes, meta.rows)


class VersionedContent(NamedTuple):
    """The content of a small file, and its version in an object store (empty on disk)."""

    content: bytes
    version: str = ""


class StorageLock(Protocol):
    """The lock of a runner. `token` identifies the runner; empty if the storage needs no token."""

    @property
    def token(self) -> str: ...

    def confirm(self, doing: str) -> None:
        """Raise FencedError if another runner holds the lock. `doing` describes the forbidden action in the message."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """The files of one pipeline's state, by relative name such as "segments/x.arrow". It can be pickled for workers.

    Failed reads and writes raise OSError or SlackwaterError. A missing file raises FileNotFoundError.
    """

    @property
    def root(self) -> str:
        """Return the location of the state, for messages."""
        ...

    @property
    def name(self) -> str:
        """Return the name of the pipeline."""
        ...

    @property
    def is_remote(self) -> bool:
        """Return whether every access is a request to an object store."""
        ...

    def full_name(self, file: str) -> str:
        """Return the full name of a file, for messages."""
        ...

    def sibling(self, name: str) -> Storage:
        """Return the storage of another pipeline in the same location."""
        ...

    def names(self) -> list[str]:
        """Return the pipelines with a state in the same location, including this one."""
        ...

    # -- immutable files with unique names

    def write(self, file: str, frame: pl.DataFrame) -> tuple[int, str]:
        """Write a frame as an Arrow file; return its size in bytes and its checksum. Raises EpochError."""
        ...

    def put(self, file: str, content: bytes) -> None:
        """Write a file. Raises EpochError if this fails."""
        ...

    def local_path(self, file: FileRef) -> Path:
        """Return the path of a local file with this content. Once opened, it stays readable. Raises StateError."""
        ...

    def fetch(self, files: Sequence[FileRef]) -> None:
        """Fetch files to this machine in parallel, unless they are in a file system."""
        ...

    def find_damage(self, file: FileRef) -> str:
        """Describe how a file is damaged: missing, truncated or changed. Return "" if it is intact."""
        ...

    def check(self, files: Sequence[FileRef]) -> None:
        """Raise StateError if one of the files is missing or damaged. In an object store, only sizes are checked."""
        ...

    # -- commits and markers

    def read(self, file: str) -> VersionedContent: ...

    def create(self, file: str, content: bytes) -> bool:
        """Write a file durably if it does not exist. Return False if it already exists."""
        ...

    def replace(self, file: str, content: bytes, version: str | None) -> str:
        """Replace version `version` of a file (None: the file must not exist), and return the new version.

        Raises FencedError if the file has another version.
        """
        ...

    def sizes(self, folder: str) -> Mapping[str, int]:
        """Return the size in bytes of each file in a folder, by file name."""
        ...

    def has(self, file: str) -> bool: ...

    def delete(self, files: Collection[str]) -> None: ...

    # -- the whole state

    def prepare(self) -> None:
        """Create the folders. Raises StateError if this fails."""
        ...

    def lock(self) -> StorageLock:
        """Take the lock. Raises LockHeldError if another process holds it, or StateError."""
        ...

    def holder(self) -> str | None: ...

    def is_fresh(self) -> bool:
        """Return whether nothing is stored at the location."""
        ...

    def copy_from(self, origin: Storage, file: str) -> None:
        """Copy a file from another state. If it is missing, raise FileNotFoundError with its name as `filename`."""
        ...

    def put_aside(self, name: str) -> str:
        """Rename the state to an unused name, and return the new location. Requires the lock.

        Raises StateError if this fails.
        """
        ...

    def remove(self) -> None:
        """Delete the whole state. In a file system, errors are ignored."""
        ...


def open_file(storage: Storage, file: FileRef) -> pa.Table:
    """Open a file and check its number of rows against the commit. Raises StateError."""
    table = arrow_files.open_arrow(storage.local_path(file), storage.full_name(file.file))
    if table.num_rows != file.rows:
        raise StateError(
            f"state file {storage.full_name(file.file)} holds {plural(table.num_rows, 'row')}, but the commit says {file.rows or 0:,}; "
            "restore both from a copy of the state directory",
            Topic.STATE_DAMAGED,
        )
    return table


def verify_file(storage: Storage, file: FileRef) -> None:
    """Raise StateError if a file is missing, truncated or changed."""
    arrow_files.verify_file(storage.local_path(file), file.checksum, file.bytes, storage.full_name(file.file))
