"""Rows of local Parquet files, read with PyArrow in a Python worker instead of with Spark.

Spark's reader converts columns whose type in the file differs from the declared type. PyArrow reads columns as they are in
the file, so both readers return the same rows only if these types are equal (`ParquetRows.has_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.connectors.files.parquet_footers import ParquetFooters
from slackwater.core.schema import FLOATS, INTEGERS, Field
from slackwater.errors import NeedsSparkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

_TYPES = (*INTEGERS, *FLOATS, "boolean")
_ROWS_PER_TABLE = 250_000  # small files are combined up to this number of rows


@dataclass(frozen=True)
class ParquetRows:
    """Rows of local Parquet files. `footers`: the footers of the files, which the driver reads."""

    footers: ParquetFooters

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(map(str, self.footers.files))

    def has_columns(self, fields: Sequence[Field], time: Field) -> bool:
        """Return whether PyArrow reads the same values of these columns as Spark.

        Args:
            fields: The columns with their declared types.
            time: The event-time column, for which the footers have statistics.
        """
        footers = self.footers.metadata
        return footers is not None and all(_has_columns(footer, fields, time) for footer in footers)

    def count_nulls(self, column: str) -> int | None:
        """Return the number of rows in which a column is NULL. None if a footer does not contain it."""
        return self.footers.count_nulls(column)

    def count_bytes(self) -> int:
        """Return the uncompressed size of all columns, encoded as in the files."""
        footers = self.footers.metadata or ()
        return sum(f.row_group(group).total_byte_size for f in footers for group in range(f.num_row_groups))


def _has_columns(footer: FileMetaData, fields: Sequence[Field], time: Field) -> bool:
    names = [footer.schema.column(n).path for n in range(footer.num_columns)]
    if len({name.casefold() for name in names}) < len(names):
        return False  # Spark does not distinguish such names
    types = {column.name: column.type for column in footer.schema.to_arrow_schema() if "." not in column.name}
    others = [field for field in fields if field.name != time.name]
    return _is_time(types.get(time.name), time) and all(_is_same_type(types.get(f.name), f) for f in others)


def _is_time(type_: pa.DataType | None, time: Field) -> bool:
    import pyarrow as pa

    if time.type == "timestamp":
        return type_ in (pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC"))
    return time.type in ("int", "bigint") and type_ == time.arrow


def _is_same_type(type_: pa.DataType | None, field: Field) -> bool:
    import pyarrow as pa

    if field.type == "string":
        return type_ in (pa.string(), pa.large_string())
    return (field.type in _TYPES or field.base == "decimal") and type_ == field.arrow


def read_tables(paths: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield these columns of the files in tables of one chunk. Strings are valid UTF-8.

    Raises NeedsSparkError if a file cannot be read, or contains an invalid string.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    waiting, count = list[pa.Table](), 0
    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=list(columns), use_threads=False)
                    waiting.append(_with_types_of(waiting[0], table) if waiting else table)
                    count += table.num_rows
                    if count >= _ROWS_PER_TABLE:
                        yield _combine(waiting)
                        waiting, count = [], 0
        if count:
            yield _combine(waiting)
    except (pa.ArrowException, OSError) as error:
        raise NeedsSparkError(f"{Path(path).name} cannot be read by a worker: {error}") from error


def _with_types_of(first: pa.Table, table: pa.Table) -> pa.Table:
    """Return a table with the types of another one. Files may have strings with 32-bit or 64-bit offsets."""
    return table.select(first.column_names).cast(first.schema) if table.schema != first.schema else table


def _combine(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    table = pa.concat_tables(tables).combine_chunks()
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column.validate(full=True)
    return table
