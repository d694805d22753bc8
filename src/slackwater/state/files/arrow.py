"""Frames as Arrow files: written down to the disk with a checksum, read memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa
import xxhash

from slackwater.errors import EpochError, ExhaustedError, StateError, is_forbidden, unreadable


def write_arrow(path: Path, frame: pl.DataFrame) -> tuple[int, str]:
    """Write a frame as one uncompressed record batch, flushed to the disk; returns its size in bytes and its checksum.

    Raises EpochError if it cannot be written.
    """
    with _synced(path) as file:
        counted = _CountingWriter(file)
        with pa.PythonFile(counted, mode="w") as sink:
            _encode(frame, sink)
        return counted.size, counted.digest.hexdigest()


def encode_frame(frame: pl.DataFrame) -> Any:
    """A frame as the bytes of an Arrow file, a buffer."""
    sink = pa.BufferOutputStream()
    _encode(frame, sink)
    return sink.getvalue()


def _encode(frame: pl.DataFrame, sink: Any) -> None:
    table = solid_frame(frame).to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)


class _CountingWriter:
    """A file, with the size and the checksum of what was written to it: columns go there from where they lie."""

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
        """It is closed by whoever opened it."""


def solid_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows, with fresh columns for lists that are all empty.

    Polars hands these out as a slice of nothing that begins behind the end of its buffer, and Arrow then writes the columns
    that follow at wrong places.
    """
    lists = [c for c, t in frame.schema.items() if isinstance(t, pl.List) and not frame[c].list.len().sum()]
    fresh = (_fresh(frame[c]) for c in lists)
    return frame.with_columns(*fresh) if lists else frame


def _fresh(lists: pl.Series) -> pl.Series:
    """The same column of lists that are empty or NULL, on buffers of its own."""
    if lists.null_count() == len(lists):
        return pl.Series(lists.name, [None], dtype=lists.dtype).new_from_index(0, len(lists))
    return pl.Series(lists.name, lists.to_list(), dtype=lists.dtype)


def write_synced(path: Path, content: Any) -> None:
    """Write a file down to the disk. Raises EpochError if that is not possible."""
    with _synced(path) as file:
        file.write(content)


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file, down on the disk at the end; nothing is left of one that fails. Raises EpochError if that is not possible."""
    created = False
    try:
        # never through a symbolic link that lies in its place
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
            created = True
            yield file
            file.flush()
            os.fsync(file.fileno())
        created = False
    except OSError as error:
        remedy = "let this user write there" if is_forbidden(error) else "make room"
        raise ExhaustedError.from_error(error) or EpochError(
            f"state file {path} cannot be written ({error.strerror}); the epoch was not committed: {remedy} and start again"
        ) from None
    finally:
        if created:
            with suppress(OSError):
                path.unlink()


def file_checksum(content: Any) -> str:
    """Of a file's bytes: xxh3, in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(content)


def verify_file(path: Path, expected: str, size: int | None = None, shown: str = "") -> None:
    """Raise StateError if a file is missing, was cut, or holds other bytes than were written. `shown`: what it is called."""
    if wrong := find_damage(path, expected, size):
        try:
            path.open("rb").close()
        except OSError as error:
            if forbidden := unreadable(f"state file {shown or path}", error):
                raise forbidden from None
        raise StateError(
            f"state file {shown or path} {wrong}; restore it from a copy of the state directory; nothing was changed"
        )


def find_damage(path: Path, expected: str, size: int | None = None) -> str:
    """What is wrong with a file: missing, cut, other bytes than were written; empty if nothing is."""
    try:
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
            if size is not None and content.size != size:
                return "is truncated" if content.size < size else "is longer than what was written"
            return "" if file_checksum(content) == expected else "does not hold what was written"
    except (OSError, pa.ArrowException) as error:
        if exhausted := ExhaustedError.from_error(error):
            raise exhausted from None
        return "is missing" if not path.exists() else f"cannot be read ({type(error).__name__})"


def read_arrow(path: Path, expected: str, shown: str = "") -> pl.DataFrame:
    """A file written by `write_arrow`, with its checksum. Raises StateError if it is not as it was written."""
    try:  # mapped once: of many shards there are many small files
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
        if file_checksum(content) == expected:
            return frame_of(pa.ipc.open_file(content).read_all())
    except (OSError, pa.ArrowException):
        pass
    verify_file(path, expected, shown=shown)
    return frame_of(open_arrow(path, shown))


def open_arrow(path: Path, shown: str = "") -> pa.Table:
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise (
            ExhaustedError.from_error(error)
            or unreadable(f"state file {shown or path}", error)
            or StateError(
                f"state file {shown or path} cannot be read ({type(error).__name__}); restore it from a copy of the state directory"
            )
        ) from error


def frame_of(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
