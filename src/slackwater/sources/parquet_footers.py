"""What Parquet files say of their rows in their footers: how many there are, and from when to when the times of a column are.

file   [row group][row group]…[footer: of each row group and column  rows, least, greatest, how many are NULL]
                               ╰─▶ Known        none of the rows is read
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnSchema, FileMetaData

# before 1901 Spark may read another time than a file's number says: former Sparks wrote some by the calendar of that time
_ONE_CALENDAR_US = -2_177_452_800_000_000
_AT_ONCE = 8  # files, chosen: they may lie on a disk that answers slowly
_UNITS = {"milliseconds": 1000, "microseconds": 1}


class ColumnStats(NamedTuple):
    """Of the rows of some files, and of one column: its least and greatest value, and the file that has the greatest.

    `unit_us`: how many microseconds a step of it is; 0: it is a plain number. `least`: None where no row has a value.
    """

    rows: int
    nulls: int
    unit_us: int
    least: int | None = None
    greatest: int | None = None
    newest_file: str | None = None


def column_stats(files: Sequence[Path], column: str) -> ColumnStats | None:
    """What the footers say of a column, which is one of times or of whole numbers; None unless all of them say all of it.

    A file that cannot be read says nothing here: who reads its rows tells why.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not files:
        return None
    parts, pool = list[ColumnStats](), ThreadPoolExecutor(min(len(files), _AT_ONCE))
    try:
        for file, footer in zip(files, pool.map(pq.read_metadata, files), strict=True):
            part = _file_stats(file, footer, column)
            if part is None or part.unit_us != (parts or [part])[0].unit_us:
                return None
            parts.append(part)
    except (pa.ArrowException, OSError):
        return None
    finally:
        pool.shutdown(cancel_futures=True)
    return _combine(parts)


def _file_stats(file: Path, footer: FileMetaData, column: str) -> ColumnStats | None:
    number = _leaf_index(footer, column)
    if number is None:
        return None
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


def _leaf_index(footer: FileMetaData, column: str) -> int | None:
    """Which leaf of the schema a column is, whose name Spark does not tell from others by its case; None where it is not one, or several."""
    names = [footer.schema.column(n).path.casefold() for n in range(footer.num_columns)]
    matches = [n for n, name in enumerate(names) if name == column.casefold()]
    return matches[0] if len(matches) == 1 and "." not in column else None


def _unit_us(column: ColumnSchema) -> int | None:
    """Microseconds of a step of its times; 0: a plain number; None: another kind of column."""
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
