"""The protocol through which the files store accesses its files, in a directory or in an object store.

                   directory (`local.py`)               prefix of an object store (`object_store.py`)
immutable file     written, synced, memory-mapped       put; mapped from a copy in a local cache
commit             hard link: fails if it exists        put if absent
marker             replaced by a rename                 put if unchanged since it was read
lock               flock (`local.py`)                   lease (`object_store_lease.py`)
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

NAMED = ("segments", "outputs", "offsets")  # folders with the files that commits reference by name


class FileRef(NamedTuple):
    """A reference to an immutable file from a commit. `bytes` and `rows` are None if the commit does not record them."""

    file: str
    checksum: str
    bytes: int | None = None
    rows: int | None = None


class VersionedContent(NamedTuple):
    """The content of a small file and its version. Only object stores have versions; on disk, the version is empty."""

    content: bytes
    version: str = ""


class StorageLock(Protocol):
    """The lock of a runner. `token` identifies the runner in its commits; it is empty on disk, which needs none."""

    @property
    def token(self) -> str: ...

    def confirm(self, doing: str) -> None:
        """Raise FencedError if this runner has lost the lock. `doing`: the action to prevent, named in the message."""

    def close(self) -> None: ...


class Storage(Protocol):
    """The files of one state, under relative names such as "segments/x.arrow". Instances can be pickled for workers.

    Methods raise OSError or SlackwaterError if reading or writing fails, and FileNotFoundError for a missing file.
    """

    @property
    def root(self) -> str:
        """Return the location of the state: an absolute path or a URL."""

    @property
    def name(self) -> str:
        """Return the name of the pipeline."""

    @property
    def is_remote(self) -> bool:
        """Return whether the files are in an object store, where each access costs a request."""

    def full_name(self, file: str) -> str:
        """Return the absolute path or URL of a file, for messages."""

    def sibling(self, name: str) -> Storage:
        """Return the storage of another pipeline in the same location."""

    def names(self) -> list[str]:
        """Return the names of the pipelines that have a state in the same location."""

    # -- immutable files with unique names

    def write(self, file: str, frame: pl.DataFrame) -> tuple[int, str]:
        """Write a frame as an Arrow file, and return its size in bytes and its checksum. Raises EpochError."""

    def put(self, file: str, content: bytes) -> None:
        """Write a file. Raises EpochError if this fails."""

    def local_path(self, file: FileRef) -> Path:
        """Return the path of a local copy of a file, fetching the file if necessary.

        An open copy stays readable after it is deleted. Raises StateError if the stored object is missing or damaged.
        """

    def fetch(self, files: Sequence[FileRef]) -> None:
        """Fetch files from an object store to this machine, in parallel. On disk, do nothing."""

    def find_damage(self, file: FileRef) -> str:
        """Return a phrase for the damage to a file, such as "is missing"; "" if the file is intact."""

    def check(self, files: Sequence[FileRef]) -> None:
        """Raise StateError if a file is missing or damaged. In an object store, only sizes are compared."""

    # -- commits and markers

    def read(self, file: str) -> VersionedContent:
        """Read a small file and its version."""

    def create(self, file: str, content: bytes) -> bool:
        """Write a file durably if it does not exist, and return whether it was written."""

    def replace(self, file: str, content: bytes, version: str | None) -> str:
        """Replace a file, and return its new version. Files on disk are replaced without a check.

        Raises FencedError if the version in an object store is not `version` (None if there is no file yet).
        """

    def sizes(self, folder: str) -> Mapping[str, int]:
        """Return the size in bytes of each file in a folder, by file name."""

    def has(self, file: str) -> bool:
        """Return whether a file exists."""

    def delete(self, files: Collection[str]) -> None:
        """Delete files, ignoring missing ones."""

    # -- the whole state

    def prepare(self) -> None:
        """Create the folders. Raises StateError if this fails."""

    def lock(self) -> StorageLock:
        """Take the lock. Raises LockHeldError if another process holds it, and StateError for other problems."""

    def holder(self) -> str | None:
        """Return the name of the process that holds the lock, or None if it is free."""

    def is_fresh(self) -> bool:
        """Return whether nothing is stored for this pipeline."""

    def copy_from(self, origin: Storage, file: str) -> None:
        """Copy a file from another state. If it is missing, raises FileNotFoundError with its name as `filename`."""

    def put_aside(self, name: str) -> str:
        """Rename the state to an unused name, and return its new location. The caller must hold the lock.

        Raises StateError if renaming fails.
        """

    def remove(self) -> None:
        """Delete the whole state. On disk, errors are ignored."""


def open_file(storage: Storage, file: FileRef) -> pa.Table:
    """Open an Arrow file. Raises StateError if it is unreadable or its row count differs from that in the reference."""
    name = storage.full_name(file.file)
    table = arrow_files.open_arrow(storage.local_path(file), name)
    if table.num_rows != file.rows:
        raise StateError(
            f"state file {name} has {plural(table.num_rows, 'row')}, but the commit says "
            f"{plural(file.rows or 0, 'row')}; restore both the file and the commit from a copy of the state directory",
            Topic.STATE_DAMAGED,
        )
    return table


def verify_file(storage: Storage, file: FileRef) -> None:
    """Raise StateError if a file is missing, truncated or changed."""
    arrow_files.verify_file(storage.local_path(file), file.checksum, file.bytes, storage.full_name(file.file))
