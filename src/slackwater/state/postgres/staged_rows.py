"""The staged rows of a shard, which replace older versions and rows of the state table.

  [token c]   newest      the rows of each token are sorted by hash
 [token b]                they are read from a local copy, or else from the staged table
[token a]
═══════════ state table

The machine that staged rows has a copy of them. The commit records the token and the checksum of the copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from slackwater.core.humanize import plural
from slackwater.errors import EpochError, SlackwaterError
from slackwater.state.commit import SegmentMetadata
from slackwater.state.files.segments import Segment, SegmentReader
from slackwater.storage.arrow_files import open_arrow, rebuild_empty_lists
from slackwater.storage.file_cache import FileCache
from slackwater.windows.state_layout import Int64s

# a function that fetches staged rows, and returns them by token; with hashes, only rows with these hashes
Fetch = Callable[[Sequence[SegmentMetadata], Int64s | None], Mapping[str, pl.DataFrame]]
FEW = 1_000  # below this number of hashes, only their rows are fetched
MOST_BYTES = 256 << 20  # total size of the tables that a process keeps open
_open: OrderedDict[str, pa.Table] = OrderedDict()  # by token; the most recently used table is last
_mine: dict[tuple[str, str, int], set[str]] = {}  # by database, table and shard: tokens that this process has staged
_lock = Lock()  # the driver emits in several threads


class _StagedVersion(Segment):
    """The staged rows of one token, as a segment."""

    def __init__(self, meta: SegmentMetadata, table: pa.Table) -> None:
        self.meta, self.table = meta, table


class StagedRows:
    """The staged rows of one shard.

    Args:
        metas: All segments of the shard, oldest first.
        schema: The columns of state rows.
        fetch: A function that fetches staged rows from the database.
        is_local: Whether to use local copies.
    """

    def __init__(
        self, metas: Sequence[SegmentMetadata], schema: dict[str, pl.DataType], fetch: Fetch, is_local: bool = True
    ) -> None:
        self._metas = [m for m in metas if m.file]
        self._schema, self._fetch, self._is_local = schema, fetch, is_local
        self._whole: SegmentReader | None = None

    def __bool__(self) -> bool:
        return bool(self._metas)

    def units(self, hashes: Int64s) -> tuple[pl.DataFrame, Int64s]:
        """Return the newest staged rows with these hashes (sorted, unique), and the hashes without staged rows."""
        if not self._metas:
            return SegmentReader([], self._schema).units_and_missing(hashes)
        reader = self._reader_for(hashes) if len(hashes) < FEW else self.all()
        return reader.units_and_missing(hashes)

    def select_unstaged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return those `rows` of the state table for which no newer version is staged."""
        if not self._metas or rows.is_empty():
            return rows
        hashes = rows["__h"].to_numpy()
        reader = self._reader_for(np.unique(hashes)) if len(hashes) < FEW else self.all()
        is_covered = _covered(reader, hashes)
        return rows.filter(pl.Series(~is_covered)) if is_covered.any() else rows

    def all(self) -> SegmentReader:
        """Return a reader of all staged rows. Raises EpochError if rows are missing."""
        if self._whole is None:
            tables_by_token = {m.file: self._find_copy(m) for m in self._metas}
            missing = [m for m in self._metas if tables_by_token[m.file] is None]
            if missing:
                fetched = self._fetch(missing, None)
                for meta in missing:
                    tables_by_token[meta.file] = self._verify_frame(meta, fetched.get(meta.file))
            self._whole = self._reader(tables_by_token)
        return self._whole

    def _reader_for(self, hashes: Int64s) -> SegmentReader:
        """Return a reader of at least the rows with these hashes. Without a local copy, only these rows are fetched."""
        if self._whole is not None:
            return self._whole
        tables_by_token = {m.file: self._find_copy(m) for m in self._metas}
        missing = [m for m in self._metas if tables_by_token[m.file] is None]
        if not missing:
            return self.all()
        fetched = self._fetch(missing, hashes)
        for meta in missing:
            frame = fetched.get(meta.file)
            tables_by_token[meta.file] = None if frame is None else _table(frame)
        return self._reader(tables_by_token)

    def _find_copy(self, meta: SegmentMetadata) -> pa.Table | None:
        return find_local_copy(meta) if self._is_local else None

    def _verify_frame(self, meta: SegmentMetadata, frame: pl.DataFrame | None) -> pa.Table:
        """Return fetched rows as a table. Raises EpochError if their number differs from what the commit recorded."""
        count = 0 if frame is None else frame.height
        if frame is None or count != meta.rows:
            raise EpochError(
                f"state could not be read: found {plural(count, 'row')} with the token {meta.file}, but the commit "
                f"says {meta.rows:,}; restore the database from a backup"
            )
        table = _table(frame)
        return cache_open_table(meta.file, table) if self._is_local else table

    def _reader(self, tables_by_token: Mapping[str, pa.Table | None]) -> SegmentReader:
        versions = [_StagedVersion(m, table) for m in self._metas if (table := tables_by_token[m.file]) is not None]
        return SegmentReader(versions, self._schema)


def _table(frame: pl.DataFrame) -> pa.Table:
    return rebuild_empty_lists(frame).to_arrow(compat_level=pl.CompatLevel.oldest())


def _covered(reader: SegmentReader, hashes: Int64s) -> NDArray[np.bool_]:
    """Return a mask of the hashes that occur in a segment of the reader."""
    covered = np.zeros(len(hashes), dtype=bool)
    for part in reader.segments:
        begin, end = part.find(hashes)
        covered |= end > begin
    return covered


# -- copies on this machine --------------------------------------------------------------------------------------------


def _file(token: str) -> str:
    return f"{token}.arrow"


def store_local_copy(token: str, content: Any, owner: tuple[str, str, int], in_use: Collection[str]) -> None:
    """Store a local copy of staged rows, and delete unused copies of the shard.

    Errors are ignored, because readers can fetch the rows from the database.

    Args:
        token: The token of the rows.
        content: The rows, in the Arrow file format.
        owner: The URL of the database, the name of the table, and the number of the shard.
        in_use: The other tokens of the shard that are in use. Copies of all others were merged or never committed.
    """
    with _lock:
        before = _mine.get(owner, set())
        _mine[owner] = before & set(in_use) | {token}
    delete_local_copies(before - _mine[owner])
    with suppress(SlackwaterError):
        FileCache("postgres").add(_file(token), content)


def find_local_copy(meta: SegmentMetadata) -> pa.Table | None:
    """Return the rows of a token, sorted by `__h`, or None if this machine has no copy."""
    with _lock:
        if (table := _open.get(meta.file)) is not None:
            _open.move_to_end(meta.file)
            return table
    if not meta.checksum:
        return None
    with suppress(SlackwaterError):
        cache = FileCache("postgres")
        if cache.has_copy(_file(meta.file), meta.checksum):
            return cache_open_table(meta.file, open_arrow(cache.path(_file(meta.file))))
    return None


def cache_open_table(token: str, table: pa.Table) -> pa.Table:
    """Keep the table of a token open for later use in this process, and return it."""
    with _lock:
        _open[token] = table
        while len(_open) > 1 and sum(t.nbytes for t in _open.values()) > MOST_BYTES:
            _open.popitem(last=False)
    return table


def delete_local_copies(tokens: Collection[str]) -> None:
    """Delete the local copies of the rows with these tokens, ignoring errors."""
    with _lock:
        for token in tokens:
            _open.pop(token, None)
    with suppress(SlackwaterError, OSError):
        if tokens:
            FileCache("postgres").discard(map(_file, tokens))
