"""Read statistics from Parquet footers: the number of rows, and the minimum and maximum of a column.

file   [row group][row group]…[footer: rows, minimum, maximum and number of NULLs, per row group and column]
                               ╰─▶ ColumnStats, without reading any row
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slackwater.connectors.source import ColumnStats

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnSchema, FileMetaData

# Early Spark versions wrote some old times in the Julian calendar. Spark may convert times before 1901 when reading.
_ONE_CALENDAR_US = -2_177_452_800_000_000
_AT_ONCE = 8  # files read in parallel, chosen for slow disks
_UNITS = {"milliseconds": 1000, "microseconds": 1}


class FileVersion(NamedTuple):
    """A file with its size and modification time, which differ if it is replaced."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def read(cls, path: Path | str) -> FileVersion:
        """Return the current version of a file. Raises OSError if it does not exist."""
        status = Path(path).stat()
        return cls(str(path), status.st_size, status.st_mtime_ns)


class ParquetFooters:
    """The footers of Parquet files, which are read on first use. `files`: the files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.versions: tuple[FileVersion, ...] = ()  # as of just before the footers were read
        self._stats: dict[str, ColumnStats | None] = {}
        self._nulls: dict[str, int | None] = {}

    @cached_property
    def metadata(self) -> Sequence[FileMetaData] | None:
        """The footer of each file. None without files, or if a file cannot be read.

        A read error is reported later, when the rows of the file are read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.files:
            return None
        pool = ThreadPoolExecutor(min(len(self.files), _AT_ONCE))
        try:
            self.versions = tuple(map(FileVersion.read, self.files))
            return list(pool.map(pq.read_metadata, self.files))
        except (pa.ArrowException, OSError):
            return None
        finally:
            pool.shutdown(cancel_futures=True)

    def column_stats(self, column: str) -> ColumnStats | None:
        """Return the statistics of a column of times or integers. None if a footer does not contain them."""
        if column not in self._stats:
            self._stats[column] = self._combined_stats(column)
        return self._stats[column]

    def count_nulls(self, column: str) -> int | None:
        """Return the number of rows in which a column is NULL. None if a footer does not contain it."""
        if column not in self._nulls:
            counts = [_count_nulls(footer, number) for _, footer, number in self._find_column(column)]
            total = sum(count for count in counts if count is not None)
            self._nulls[column] = None if self.metadata is None or None in counts else total
        return self._nulls[column]

    def _find_column(self, column: str) -> Iterator[tuple[Path, FileMetaData, int | None]]:
        """Yield each file with its footer and the index of a top-level column among the leaves of the schema.

        Names are compared ignoring case. The index is None if no column or more than one column has this name.
        """
        for file, footer, leaves in zip(self.files, self.metadata or (), self._leaves, strict=False):
            yield file, footer, None if "." in column else leaves.get(column.casefold())

    @cached_property
    def _leaves(self) -> list[dict[str, int | None]]:
        """For each file, the index of each leaf of the schema by its path, ignoring case. None if it is ambiguous."""
        indexes: list[dict[str, int | None]] = []
        for footer in self.metadata or ():
            paths = [footer.schema.column(number).path.casefold() for number in range(footer.num_columns)]
            counts = Counter(paths)
            indexes.append({path: number if counts[path] == 1 else None for number, path in enumerate(paths)})
        return indexes

    def _combined_stats(self, column: str) -> ColumnStats | None:
        parts = list[ColumnStats]()
        for file, footer, number in self._find_column(column):
            part = None if number is None else _file_stats(file, footer, number)
            if part is None or part.unit_us != (parts or [part])[0].unit_us:
                return None
            parts.append(part)
        return _combine(parts) if parts else None


def _count_nulls(footer: FileMetaData, number: int | None) -> int | None:
    if number is None or footer.schema.column(number).max_repetition_level:
        return None
    statistics = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
    if any(part is None or not part.has_null_count for part in statistics):
        return None
    return sum(part.null_count for part in statistics)


def _file_stats(file: Path, footer: FileMetaData, number: int) -> ColumnStats | None:
    unit = _unit_us(footer.schema.column(number))
    if unit is None:
        return None
    groups: list[ColumnStats] = []
    for group in range(footer.num_row_groups):
        part, rows = footer.row_group(group).column(number).statistics, footer.row_group(group).num_rows
        if rows == 0:
            continue
        if part is None or not part.has_null_count:
            return None
        if part.has_min_max:
            groups.append(ColumnStats(rows, part.null_count, unit, part.min_raw, part.max_raw, str(file)))
        elif part.null_count == rows:
            groups.append(ColumnStats(rows, rows, unit))
        else:
            return None
    combined = _combine(groups or [ColumnStats(0, 0, unit)])
    if unit and combined.least is not None and combined.least * unit < _ONE_CALENDAR_US:
        return None
    return combined


def _unit_us(column: ColumnSchema) -> int | None:
    """Return the unit of a time column in microseconds. 0 for an integer column, and None for any other type."""
    if column.max_repetition_level or column.physical_type not in ("INT32", "INT64"):
        return None
    kind = json.loads(column.logical_type.to_json())
    if kind["Type"] == "Timestamp":
        return _UNITS.get(kind["timeUnit"])
    plain = kind["Type"] == "None" or (kind["Type"] == "Int" and kind["isSigned"])
    return 0 if plain else None


def _combine(parts: Sequence[ColumnStats]) -> ColumnStats:
    newest = max(parts, key=lambda part: float("-inf") if part.greatest is None else part.greatest)
    least = min((part.least for part in parts if part.least is not None), default=None)
    rows, nulls = sum(part.rows for part in parts), sum(part.nulls for part in parts)
    return ColumnStats(rows, nulls, newest.unit_us, least, newest.greatest, newest.newest_file)
