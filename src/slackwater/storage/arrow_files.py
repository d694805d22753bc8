"""Write frames to Arrow files with checksums, and read such files by mapping them into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa
import xxhash

from slackwater.errors import EpochError, ResourceExhaustedError, StateError, Topic, is_forbidden, permission_error


def write_arrow(path: Path, frame: pl.DataFrame) -> tuple[int, str]:
    """Write a frame as one uncompressed record batch, and sync it to disk.

    Return the size of the file in bytes and its checksum. Raises EpochError if it cannot be written.
    """
    with _open_synced(path) as file:
        counted = _CountingWriter(file)
        with pa.PythonFile(counted, mode="w") as sink:
            _encode(frame, sink)
        return counted.size, counted.digest.hexdigest()


def encode_frame(frame: pl.DataFrame) -> Any:
    """Encode a frame in the Arrow file format, and return the PyArrow buffer."""
    sink = pa.BufferOutputStream()
    _encode(frame, sink)
    return sink.getvalue()


def _encode(frame: pl.DataFrame, sink: Any) -> None:
    table = rebuild_empty_lists(frame).to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)


class _CountingWriter:
    """A file wrapper that counts the bytes written and updates their checksum, without copying column buffers."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.digest = file, 0, xxhash.xxh3_64()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self.size += len(content)
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Do nothing: the owner of the file closes it."""


def rebuild_empty_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with new buffers for each list column in which all lists are empty.

    In Polars, the values of such a column may be a slice that begins after the end of its buffer. Arrow would then
    write the following columns at the wrong positions.
    """
    lists = [c for c, t in frame.schema.items() if isinstance(t, pl.List) and not frame[c].list.len().sum()]
    return frame.with_columns(*(_rebuild_empty(frame[c]) for c in lists)) if lists else frame


def _rebuild_empty(lists: pl.Series) -> pl.Series:
    """Return an equal column with new buffers. All lists in the column must be empty or NULL."""
    if lists.null_count() == len(lists):
        return pl.Series(lists.name, [None], dtype=lists.dtype).new_from_index(0, len(lists))
    return pl.Series(lists.name, lists.to_list(), dtype=lists.dtype)


def write_synced(path: Path, content: Any) -> None:
    """Write a file, and sync it to disk. Raises EpochError if this fails."""
    with _open_synced(path) as file:
        file.write(content)


@contextmanager
def _open_synced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, and sync it to disk at the end of the block.

    If an error occurs, delete the file. Raises EpochError instead of OSError.
    """
    created = False
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW  # never write through a symbolic link
        with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
            created = True
            yield file
            file.flush()
            os.fsync(file.fileno())
        created = False
    except OSError as error:
        remedy = "give this user write access" if is_forbidden(error) else "free some space"
        raise ResourceExhaustedError.from_error(error) or EpochError(
            f"state file {path} cannot be written ({error.strerror}); the epoch was not committed; {remedy}, and start "
            "again"
        ) from None
    finally:
        if created:
            with suppress(OSError):
                path.unlink()


def file_checksum(content: Any) -> str:
    """Return the 64-bit xxh3 checksum of these bytes as hexadecimal text."""
    return xxhash.xxh3_64_hexdigest(content)


def verify_file(path: Path, expected: str, size: int | None = None, shown: str = "") -> None:
    """Raise StateError if a file is missing, unreadable, truncated or changed.

    Args:
        path: The path of the local file.
        expected: Its expected checksum.
        size: Its expected size in bytes; None to skip this check.
        shown: The name of the file in messages; by default, its path.
    """
    if damage := find_damage(path, expected, size):
        try:
            path.open("rb").close()
        except OSError as error:
            if forbidden := permission_error(f"state file {shown or path}", error):
                raise forbidden from None
        raise StateError(
            f"state file {shown or path} {damage}; restore it from a copy of the state directory; nothing was changed",
            Topic.STATE_DAMAGED,
        )


def find_damage(path: Path, expected: str, size: int | None = None) -> str:
    """Return a phrase for the damage to a file, such as "is missing"; "" if the file is intact.

    Args:
        path: The path of the local file.
        expected: Its expected checksum.
        size: Its expected size in bytes; None to skip this check.
    """
    try:
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
            if size is not None and content.size != size:
                return "is truncated" if content.size < size else "is longer than expected"
            return "" if file_checksum(content) == expected else "does not match its checksum"
    except (OSError, pa.ArrowException) as error:
        if exhausted := ResourceExhaustedError.from_error(error):
            raise exhausted from None
        return "is missing" if not path.exists() else f"cannot be read ({type(error).__name__})"


def read_arrow(path: Path, expected: str, shown: str = "") -> pl.DataFrame:
    """Read an Arrow file, and verify its checksum. Raises StateError if the file is damaged.

    Args:
        path: The path of the local file.
        expected: Its expected checksum.
        shown: The name of the file in messages; by default, its path.
    """
    try:  # map the file only once, because states can have many small files
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
        if file_checksum(content) == expected:
            return frame_of(pa.ipc.open_file(content).read_all())
    except (OSError, pa.ArrowException):
        pass
    verify_file(path, expected, shown=shown)
    return frame_of(open_arrow(path, shown))


def open_arrow(path: Path, shown: str = "") -> pa.Table:
    """Map an Arrow file into memory, and return its table. Raises StateError if the file cannot be read.

    `shown`: the name of the file in messages; by default, its path.
    """
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise (
            ResourceExhaustedError.from_error(error)
            or permission_error(f"state file {shown or path}", error)
            or StateError(
                f"state file {shown or path} cannot be read ({type(error).__name__}); "
                "restore it from a copy of the state directory",
                Topic.STATE_DAMAGED,
            )
        ) from error


def frame_of(table: pa.Table) -> pl.DataFrame:
    """Convert a PyArrow table to a frame without copying it."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
