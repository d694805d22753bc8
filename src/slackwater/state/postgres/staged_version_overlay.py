"""The staged versions of a shard's rows, which hide older versions and rows of the state table.

  [token c]   newest      each sorted by hash, from a copy on this machine (`staged_row_cache.py`),
 [token b]               or fetched from the staged table
[token a]
═══════════ state table
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from slackwater.core.humanize import plural
from slackwater.errors import EpochError
from slackwater.state.commit import SegmentMeta
from slackwater.state.files.segments import Segment, SegmentReader
from slackwater.state.postgres import staged_row_cache
from slackwater.storage.arrow_files import rebuild_empty_lists
from slackwater.windows.state_rows import DueRowFilter, Int64s

Fetch = Callable[
    [Sequence[SegmentMeta], Int64s | None], Mapping[str, pl.DataFrame]
]  # returns rows by token, of all units or of these hashes
FEW = 1_000  # below this number of units, only their rows are fetched


class _StagedVersion(Segment):
    """The staged rows of one token."""

    def __init__(self, meta: SegmentMeta, table: pa.Table) -> None:
        self.meta, self.table = meta, table


class _StagedVersionList(SegmentReader):
    def __init__(self, parts: Sequence[_StagedVersion], schema: dict[str, pl.DataType]) -> None:
        self.schema, self.segments = schema, list(parts)


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
            return self._reader([]).units(hashes), hashes
        reader = self._reader_for(hashes) if len(hashes) < FEW else self._all()
        return reader.units(hashes), hashes[~_covered(reader, hashes)]

    def due(self, when: DueRowFilter) -> pl.DataFrame:
        return self._all().due(when)

    def scan(self) -> pl.DataFrame:
        return self._all().scan()

    def outline(self) -> pl.DataFrame:
        return self._all().outline()

    def select_unstaged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the state table for which there is no newer staged version."""
        if not self._metas or rows.is_empty():
            return rows
        hashes = rows["__h"].to_numpy()
        reader = self._reader_for(np.unique(hashes)) if len(hashes) < FEW else self._all()
        is_covered = _covered(reader, hashes)
        return rows.filter(pl.Series(~is_covered)) if is_covered.any() else rows

    def _all(self) -> SegmentReader:
        if self._whole is None:
            tables_by_token = {m.file: self._find_copy(m) for m in self._metas}
            missing = [m for m in self._metas if tables_by_token[m.file] is None]
            if missing:
                fetched = self._fetch(missing, None)
                for meta in missing:
                    tables_by_token[meta.file] = self._verify_frame(meta, fetched.get(meta.file))
            self._whole = self._reader([_StagedVersion(m, tables_by_token[m.file]) for m in self._metas])
        return self._whole

    def _reader_for(self, hashes: Int64s) -> SegmentReader:
        """Return a reader for rows with these few hashes. If a token has no local copy, it fetches only these rows."""
        if self._whole is not None:
            return self._whole
        tables_by_token = {m.file: self._find_copy(m) for m in self._metas}
        missing = [m for m in self._metas if tables_by_token[m.file] is None]
        if not missing:
            return self._all()
        fetched = self._fetch(missing, hashes)
        for meta in missing:
            frame = fetched.get(meta.file)
            tables_by_token[meta.file] = None if frame is None else _table(frame)
        return self._reader(
            [_StagedVersion(m, tables_by_token[m.file]) for m in self._metas if tables_by_token[m.file] is not None]
        )

    def _find_copy(self, meta: SegmentMeta) -> pa.Table | None:
        return staged_row_cache.find_copy(meta) if self._is_local else None

    def _verify_frame(self, meta: SegmentMeta, frame: pl.DataFrame | None) -> pa.Table:
        count = 0 if frame is None else frame.height
        if frame is None or count != meta.rows:
            raise EpochError(
                f"state could not be read: found {plural(count, 'staged row')} under {meta.file}, but the commit says {meta.rows:,}; "
                "restore the database from a backup"
            )
        table = _table(frame)
        return staged_row_cache.keep_table_open(meta.file, table) if self._is_local else table

    def _reader(self, parts: Sequence[_StagedVersion]) -> SegmentReader:
        return _StagedVersionList(parts, self._schema)


def _table(frame: pl.DataFrame) -> pa.Table:
    return rebuild_empty_lists(frame).to_arrow(compat_level=pl.CompatLevel.oldest())


def _covered(reader: SegmentReader, hashes: Int64s) -> NDArray[np.bool_]:
    """Return a mask of these hashes: true for those that occur in one of the segments."""
    covered = np.zeros(len(hashes), dtype=bool)
    for part in reader.segments:
        begin, end = part.find(hashes)
        covered |= end > begin
    return covered
