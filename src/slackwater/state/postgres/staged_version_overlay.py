"""The staged versions of a shard's rows, which hide older versions and rows of the state table.

  [token c]   newest      each sorted by hash, from a copy on the machine that staged it,
 [token b]               or fetched from the staged table
[token a]
═══════════ state table

The commit records the token of a copy, which locates it, and its checksum, which verifies it.
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
from slackwater.state.commit import SegmentMeta
from slackwater.state.files.segments import Segment, SegmentReader
from slackwater.storage.arrow_files import open_arrow, rebuild_empty_lists
from slackwater.storage.file_cache import FileCache
from slackwater.windows.state_rows import Int64s

# returns rows by token, of all units or of these hashes
Fetch = Callable[[Sequence[SegmentMeta], Int64s | None], Mapping[str, pl.DataFrame]]
FEW = 1_000  # below this number of units, only their rows are fetched
MOST_BYTES = 256 << 20  # limit for the tables that a process keeps open, whether mapped or fetched
_open: OrderedDict[str, pa.Table] = OrderedDict()
_mine: dict[tuple[str, str, int], set[str]] = {}  # tokens of the copies that this process wrote, by shard
_lock = Lock()  # the driver emits in several threads


class _StagedVersion(Segment):
    """The staged rows of one token."""

    def __init__(self, meta: SegmentMeta, table: pa.Table) -> None:
        self.meta, self.table = meta, table


class StagedVersionOverlay:
    """The staged versions of one shard.

    Args:
        metas: All segments of the shard, newest last.
        fetch: A function that reads rows from the database.
        is_local: Whether to use the local copies of staged rows.
    """

    def __init__(
        self, metas: Sequence[SegmentMeta], schema: dict[str, pl.DataType], fetch: Fetch, is_local: bool = True
    ) -> None:
        self._metas = [m for m in metas if m.file]
        self._schema, self._fetch, self._is_local = schema, fetch, is_local
        self._whole: SegmentReader | None = None

    def __bool__(self) -> bool:
        return bool(self._metas)

    def units(self, hashes: Int64s) -> tuple[pl.DataFrame, Int64s]:
        """Return the newest staged rows with these hashes (sorted, unique), and the hashes without staged rows."""
        if not self._metas:
            return SegmentReader([], self._schema).units(hashes), hashes
        reader = self._reader_for(hashes) if len(hashes) < FEW else self.all()
        return reader.units(hashes), hashes[~_covered(reader, hashes)]

    def select_unstaged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the state table for which there is no newer staged version."""
        if not self._metas or rows.is_empty():
            return rows
        hashes = rows["__h"].to_numpy()
        reader = self._reader_for(np.unique(hashes)) if len(hashes) < FEW else self.all()
        is_covered = _covered(reader, hashes)
        return rows.filter(pl.Series(~is_covered)) if is_covered.any() else rows

    def all(self) -> SegmentReader:
        """Return a reader of all staged versions. Raises EpochError if rows are missing."""
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
        """Return a reader for rows with these few hashes. If a token has no local copy, it fetches only these rows."""
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

    def _find_copy(self, meta: SegmentMeta) -> pa.Table | None:
        return find_copy(meta) if self._is_local else None

    def _verify_frame(self, meta: SegmentMeta, frame: pl.DataFrame | None) -> pa.Table:
        count = 0 if frame is None else frame.height
        if frame is None or count != meta.rows:
            raise EpochError(
                f"state could not be read: found {plural(count, 'staged row')} under {meta.file}, but the commit says {meta.rows:,}; "
                "restore the database from a backup"
            )
        table = _table(frame)
        return keep_table_open(meta.file, table) if self._is_local else table

    def _reader(self, tables_by_token: Mapping[str, pa.Table | None]) -> SegmentReader:
        versions = [_StagedVersion(m, table) for m in self._metas if (table := tables_by_token[m.file]) is not None]
        return SegmentReader(versions, self._schema)


def _table(frame: pl.DataFrame) -> pa.Table:
    return rebuild_empty_lists(frame).to_arrow(compat_level=pl.CompatLevel.oldest())


def _covered(reader: SegmentReader, hashes: Int64s) -> NDArray[np.bool_]:
    """Return a mask of these hashes: true for those that occur in one of the segments."""
    covered = np.zeros(len(hashes), dtype=bool)
    for part in reader.segments:
        begin, end = part.find(hashes)
        covered |= end > begin
    return covered


# -- copies on this machine --------------------------------------------------------------------------------------------


def _file(token: str) -> str:
    return f"{token}.arrow"


def store_copy(token: str, content: Any, owner: tuple[str, str, int], in_use: Collection[str]) -> None:
    """Store a copy of staged rows. If that fails, readers fetch the rows from the database.

    Earlier copies of the shard that are no longer in use are deleted: their rows were merged, or their epoch was not
    committed.

    Args:
        owner: The database, the table and the number of the shard.
        in_use: The other tokens of the shard that are still in use.
    """
    with _lock:
        before = _mine.get(owner, set())
        _mine[owner] = before & set(in_use) | {token}
    forget_copies(before - _mine[owner])
    with suppress(SlackwaterError):
        FileCache("postgres").add(_file(token), content)


def find_copy(meta: SegmentMeta) -> pa.Table | None:
    """Return the rows of a token, sorted by `__h`; None if this machine has no copy."""
    with _lock:
        if (table := _open.get(meta.file)) is not None:
            _open.move_to_end(meta.file)
            return table
    if not meta.checksum:
        return None
    with suppress(SlackwaterError):
        cache = FileCache("postgres")
        if cache.has_copy(_file(meta.file), meta.checksum):
            return keep_table_open(meta.file, open_arrow(cache.path(_file(meta.file))))
    return None


def keep_table_open(token: str, table: pa.Table) -> pa.Table:
    """Keep the open table of a token for later use in this process, and return the table."""
    with _lock:
        _open[token] = table
        while len(_open) > 1 and sum(t.nbytes for t in _open.values()) > MOST_BYTES:
            _open.popitem(last=False)
    return table


def forget_copies(tokens: Collection[str]) -> None:
    """Delete the copies of the rows with these tokens."""
    with _lock:
        for token in tokens:
            _open.pop(token, None)
    with suppress(SlackwaterError, OSError):
        if tokens:
            FileCache("postgres").discard(map(_file, tokens))
