"""Rows of local Parquet files, read with PyArrow in a Python worker instead of with Spark.

Spark's reader converts columns whose type in the file differs from the declared type. PyArrow reads columns as they are in
the file, so both readers return the same rows only if these types are equal (`ParquetRows.reads_like_spark`). Files that Spark
rejects are not read with PyArrow either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.connectors.files.parquet_footers import FileVersion, ParquetFooters
from slackwater.core.schema import FLOATS, INTEGERS, Field
from slackwater.errors import NeedsSparkError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

_TYPES = (*INTEGERS, *FLOATS, "boolean")
_CODECS = frozenset(["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4"])  # those that Spark reads without other libraries
# batches are combined until a table has this many rows or bytes
_ROWS_PER_TABLE, _BYTES_PER_TABLE = 250_000, 64 << 20
_ROWS_PER_BATCH = 50_000  # that are decoded at a time
_MOST_BYTES = 1 << 30  # decoded; repeated strings may be encoded in a few bytes


@dataclass(frozen=True)
class ParquetRows:
    """Rows of local Parquet files. `footers`: the footers of the files, which the driver reads."""

    footers: ParquetFooters

    def reads_like_spark(self, fields: Sequence[Field], time: Field) -> bool:
        """Return whether PyArrow reads the same values of these columns as Spark.

        Args:
            fields: The columns with their declared types.
            time: The event-time column, for which the footers have statistics.
        """
        footers = self.footers.metadata
        if footers is None or any(_is_special(path) for path in self.footers.files):
            return False
        others = [field for field in fields if field.name != time.name]
        if time.type not in ("timestamp", *INTEGERS) or any(field.type == "timestamp" for field in others):
            return False  # other times may be in another calendar
        return all(_matches_schema(footer, [*others, time]) for footer in footers)

    def count_bytes(self) -> int:
        """Return the uncompressed size of all columns, encoded as in the files."""
        footers = self.footers.metadata or ()
        return sum(f.row_group(group).total_byte_size for f in footers for group in range(f.num_row_groups))


def _is_special(path: Path) -> bool:
    """Return whether Spark treats a file differently: it verifies a checksum file, or rejects the name."""
    return ":" in path.name or path.with_name(f".{path.name}.crc").exists()


def _matches_schema(footer: FileMetaData, fields: Sequence[Field]) -> bool:
    schema = footer.schema.to_arrow_schema()
    if len({name.casefold() for name in schema.names}) < len(schema.names):
        return False  # Spark does not distinguish such names
    leaves = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    if not all("." not in f.name and f.name in leaves and matches_type(schema.field(f.name).type, f) for f in fields):
        return False
    numbers = [leaves[field.name] for field in fields]
    if any(f.base == "decimal" and footer.schema.column(leaves[f.name]).physical_type == "BYTE_ARRAY" for f in fields):
        return False  # Spark does not read such decimals
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return all(group.column(number).compression in _CODECS for group in groups for number in numbers)


def matches_type(type_: pa.DataType, field: Field) -> bool:
    """Return whether a column of this Arrow type has the values that Spark reads for the declared type."""
    import pyarrow as pa

    if field.type == "string":
        return type_ in (pa.string(), pa.large_string())
    if field.type == "timestamp":
        return type_ in (pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC"))
    return (field.type in _TYPES or field.base == "decimal") and bool(type_ == field.arrow)


def read_tables(files: Sequence[FileVersion], fields: Sequence[Field]) -> Iterator[pa.Table]:
    """Yield these columns of the files in tables of one chunk. Strings are valid UTF-8, with 64-bit offsets.

    Raises:
        NeedsSparkError: A file was replaced, or its columns have other types. Or the columns have more than `_MOST_BYTES`.
        pyarrow.ArrowException, OSError: A file cannot be read, or a string is invalid.
    """
    waiting: list[pa.Table] = []
    rows = size = total = 0
    for table in (table for file in files for table in _read_file(file, fields)):
        waiting.append(table)
        rows, size, total = rows + table.num_rows, size + table.nbytes, total + table.nbytes
        if total > _MOST_BYTES:
            raise NeedsSparkError(f"the columns have more than {_MOST_BYTES >> 20} MiB")
        if rows >= _ROWS_PER_TABLE or size >= _BYTES_PER_TABLE:
            yield _combine_tables(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _combine_tables(waiting)


def _read_file(file: FileVersion, fields: Sequence[Field]) -> Iterator[pa.Table]:
    """Yield small tables, so that repeated strings, which are encoded in a few bytes, do not fill the memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [field.name for field in fields]
    _check_version(file)
    with pq.ParquetFile(file.path) as reader:
        for batch in reader.iter_batches(_ROWS_PER_BATCH, columns=names, use_threads=False):
            yield _normalize_types(pa.Table.from_batches([batch]), fields)
    _check_version(file)


def _check_version(file: FileVersion) -> None:
    if FileVersion.read(file.path) != file:
        raise NeedsSparkError(f"{file.path} was replaced")


def _normalize_types(table: pa.Table, fields: Sequence[Field]) -> pa.Table:
    """Return a table whose columns have equal types in all files: nullable, times in µs, and strings with 64-bit offsets."""
    import pyarrow as pa

    columns = []
    for field in fields:
        column = table.column(field.name)
        if not matches_type(column.type, field):
            raise NeedsSparkError(f"{field.name} is {column.type}, expected {field.type}")
        if field.type == "string":
            column = column.cast(pa.large_string())
        elif field.type == "timestamp":
            column = column.cast(field.arrow)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=[f.name for f in fields])


def _combine_tables(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    table = pa.concat_tables(tables).combine_chunks()
    for column in table.columns:
        if pa.types.is_large_string(column.type):
            column.validate(full=True)
    return table
