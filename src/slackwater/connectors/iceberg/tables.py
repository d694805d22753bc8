"""Load, create and read the Iceberg tables in a catalog, and compare their columns with those of a pipeline.

connection ──▶ IcebergTables ──▶ load, create      REST, SQL, Glue, Hive: every catalog that PyIceberg supports
                     table ──▶ read_files: rows of the current snapshot, file by file

A bug in PyIceberg 0.12 is patched for the entire process (see `patch_visitor`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from slackwater.config.connection import IcebergConnection
from slackwater.connectors.target import compare_column_types
from slackwater.core.schema import Field, to_arrow_schema
from slackwater.secret_masking import mask_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table


_TRIES, _PAUSE_S = 3, 0.1
_SECONDS = 60.0  # the timeout of a request to the catalog
_SPARK_NAMES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
_PROPERTIES = {  # properties of new tables, which limit the metadata that a commit per epoch accumulates
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}


@dataclass
class IcebergTables:
    """Access to the tables of a catalog.

    Args:
        kind: The kind of catalog: "rest", "sql", "glue" or "hive".
        name: The name of the catalog.
        options: The properties of the catalog.
    """

    kind: str
    name: str
    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        patch_visitor()
        catalog = load_catalog(self.name, **{"type": self.kind, **self.options})
        session = getattr(catalog, "_session", None)
        if session is not None:  # a REST catalog, which by default waits forever for a lost response
            for scheme in ("http://", "https://"):
                session.mount(scheme, _timeout_adapter())
        return catalog

    def load(self, table: str) -> Table | None:
        """Return the current table, or None if it does not exist. Failed requests are retried."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        for remaining in reversed(range(_TRIES)):
            try:
                return self.catalog.load_table(table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except OSError:  # includes errors of the HTTP client
                if not remaining:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def create(self, table: str, fields: Sequence[Field], day_of: str | None) -> None:
        """Create a table and its namespace if they do not exist.

        Args:
            table: The name of the table, with its namespace.
            fields: The columns.
            day_of: The time column to partition the table by, at day granularity. None for an unpartitioned table.
        """
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
        from pyiceberg.transforms import DayTransform

        schema = schema_of(fields)
        spec = UNPARTITIONED_PARTITION_SPEC
        if day_of is not None:
            field_names, name = {f.name for f in fields}, f"{day_of}_day"
            while name in field_names:
                name += "_"
            spec = PartitionSpec(PartitionField(schema.find_field(day_of).field_id, 1000, DayTransform(), name))
        namespace = table.rpartition(".")[0]
        if not self.catalog.namespace_exists(namespace):
            self.catalog.create_namespace_if_not_exists(namespace)
        self.catalog.create_table_if_not_exists(table, schema, partition_spec=spec, properties=_PROPERTIES)


def open_catalog(connection: IcebergConnection) -> IcebergTables:
    return IcebergTables(connection.catalog, connection.catalog_name, connection.options)


def _timeout_adapter() -> Any:
    from requests.adapters import HTTPAdapter

    class TimeoutAdapter(HTTPAdapter):
        """HTTP adapter that sends each request once, with a timeout.

        It does not retry, because a commit without a response may have succeeded.
        """

        def send(self, *arguments: Any, **more: Any) -> Any:
            return super().send(*arguments, **{**more, "timeout": more.get("timeout") or _SECONDS})

    return TimeoutAdapter(max_retries=0)


# -- columns -----------------------------------------------------------------------------------------------------------


def schema_of(fields: Sequence[Field]) -> Schema:
    """Convert columns to an Iceberg schema. Small integers become 32 bits wide, the minimum in Iceberg."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(to_arrow_schema(list(fields))))


def add_columns(fields: Sequence[Field], table: Table) -> None:
    """Add columns to a table in one metadata commit. The commit fails if the table has changed since it was loaded."""
    with table.update_schema() as change:
        change.union_by_name(schema_of(fields))


def column_differences(fields: Sequence[Field], table: Table) -> Iterator[str]:
    """Yield a message for each difference between `fields` and a table that prevents the table from storing results."""
    expected = {f.name: _spark_type(f.field_type) for f in schema_of(fields).fields}
    actual = {f.name: _spark_type(f.field_type) for f in table.schema().fields}
    yield from compare_column_types(expected, actual)
    for f in table.schema().fields:
        if f.required and actual[f.name] == expected.get(f.name):
            yield f'column "{f.name}" is required, expected an optional one'


def _spark_type(kind: Any) -> str:
    """Return an Iceberg type in Spark's spelling."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, ListType):
        return f"array<{_spark_type(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_spark_type(kind.key_type)},{_spark_type(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{f.name}:{_spark_type(f.field_type)}' for f in kind.fields)}>"
    plain = re.sub(r",\s+", ",", str(kind))
    return _SPARK_NAMES.get(plain, plain)


def to_table_types(rows: pl.DataFrame, fields: Sequence[Field], table: Table) -> pa.Table:
    """Cast rows to a table's types, and put the columns in the table's order."""
    schema = table.schema()
    wide = pa.schema(pa.field(f.name, f.type) for f in schema.as_arrow())
    return rows.to_arrow().cast(to_arrow_schema(list(fields))).select(wide.names).cast(wide)


def time_between(column: str, low_us: int, high_us: int) -> BooleanExpression:
    """Return a filter on a time column. Both limits are inclusive, in microseconds UTC."""
    from pyiceberg import expressions

    are: Any = expressions  # the annotations of its classes are too narrow
    between: BooleanExpression = are.And(are.GreaterThanOrEqual(column, low_us), are.LessThanOrEqual(column, high_us))
    return between


# -- rows --------------------------------------------------------------------------------------------------------------


def read_files(
    table: Table, columns: Sequence[str] | None = None, where: BooleanExpression | None = None
) -> Iterator[tuple[FileScanTask, pl.DataFrame]]:
    """Yield the rows of the current snapshot, file by file.

    Args:
        table: The table.
        columns: The columns to return. None means all columns.
        where: A filter that rows must match. None means all rows.
    """
    from pyiceberg.expressions import AlwaysTrue

    for task in table.scan(where or AlwaysTrue()).plan_files():
        yield task, read_file_rows(table, task, columns, where)


def read_file_rows(
    table: Table, task: FileScanTask, columns: Sequence[str] | None = None, where: BooleanExpression | None = None
) -> pl.DataFrame:
    """Return the rows of a file, except deleted rows.

    Args:
        table: The table.
        task: The file.
        columns: The columns to return. None means all columns.
        where: A filter that rows must match. None means all rows.
    """
    rows = pl.from_arrow(_scan(table, columns, where).to_table([task]))
    assert isinstance(rows, pl.DataFrame)
    return rows


def _scan(table: Table, columns: Sequence[str] | None, where: BooleanExpression | None) -> ArrowScan:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.schema import Schema

    schema = table.schema()
    projection = schema if columns is None else Schema(*(f for f in schema.fields if f.name in columns))
    return ArrowScan(table.metadata, table.io, projection, where or AlwaysTrue(), True)


def read_all(table: Table) -> pl.DataFrame:
    """Return all rows of the current snapshot."""
    frames = [frame for _, frame in read_files(table)]
    empty = pl.from_arrow(table.schema().as_arrow().empty_table())
    assert isinstance(empty, pl.DataFrame)
    return pl.concat([empty, *(f.cast(empty.schema) for f in frames)])


def iceberg_error_reason(error: BaseException) -> str:
    """Format a PyIceberg error as one line, without the connection's secrets."""
    while inner := next((a for a in reversed(error.args) if isinstance(a, BaseException)), None):
        error = inner  # HTTP clients nest errors
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = mask_secrets(lines[0] if lines else type(error).__name__)
    return text if len(text) <= 300 else f"{text[:300]}…"


_PATCHED = "_slackwater_keeps_nulls"


def patch_visitor() -> None:
    """Patch PyIceberg 0.12, in which a NULL list or map becomes empty if its type contains structs.

    PyIceberg's `ArrowProjectionVisitor` rebuilds the Arrow arrays of these columns from their offsets, without the
    validity bitmap. The patch restores the bitmap.
    """
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    visitor: Any = ArrowProjectionVisitor
    if not getattr(visitor, _PATCHED, False):
        visitor.list, visitor.map = _restoring_nulls(visitor.list), _restoring_nulls(visitor.map)
        setattr(visitor, _PATCHED, True)


def _restoring_nulls(projected: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(projected)
    def wrapper(self: Any, kind: Any, original: Any, *parts: Any) -> Any:
        return _with_nulls(projected(self, kind, original, *parts), original)

    return wrapper


def _with_nulls(projected: Any, original: Any) -> Any:
    if projected is None or projected.null_count == original.null_count:
        return projected
    offsets = pa.array(projected.offsets.to_numpy(), projected.offsets.type)  # a slice of offsets takes no mask
    mask = original.is_null()
    if isinstance(projected, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, projected.keys, projected.items, projected.type, mask=mask)
    return type(projected).from_arrays(offsets, projected.values, projected.type, mask=mask)
