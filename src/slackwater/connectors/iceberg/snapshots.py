"""Read the metadata of an Iceberg table: its snapshots since the last one that was read, and their files.

main ──▶ 9 ──▶ 8 ──▶ 7 ──▶ 6     each snapshot references its parent; expiry breaks the chain
         append      replace     the files of an append are read; those of a replace only rewrite existing rows

Columns are converted for Spark's Parquet reader. It matches columns by field id, so a renamed column still matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg import types as I  # noqa: N812

from slackwater.config.relative_paths import spark_address
from slackwater.connectors.lake_tables.table_log import DataFile, TableSnapshot, TableVersion, VersionGoneError
from slackwater.core.humanize import plural
from slackwater.core.offsets import LakeTableOffsets
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql.types import StructType


class IcebergLog:
    """Log of one Iceberg table, consisting of the table's snapshots.

    Args:
        name: The name of the table.
        load: A function that returns the current table, or None if it does not exist.
        reason: A function that formats a PyIceberg error as one line, without secrets.
    """

    retention_advice = "keep snapshots longer (history.expire.max-snapshot-age-ms)"

    def __init__(self, name: str, load: Callable[[], Table | None], reason: Callable[[BaseException], str]) -> None:
        self.description, self._load, self.error_reason = f"Iceberg table {name}", load, reason
        self._schema: int | None = None  # the schema id of the first snapshot that was read

    def snapshot(self) -> TableSnapshot:
        table = self._table()
        if self._schema is None:
            self._schema = table.schema().schema_id
        current = table.current_snapshot()
        none = LakeTableOffsets(
            str(table.metadata.table_uuid), sequence=getattr(table.metadata, "last_sequence_number", 0)
        )
        offsets = none if current is None else _offsets_of(table, current)
        return TableSnapshot(offsets, to_spark_schema(self.description, table.schema()))

    def list_files(self, offsets: LakeTableOffsets) -> Sequence[DataFile]:
        table = self._table()
        numbered_files: list[tuple[int, DataFile]] = []
        for manifest in self._snapshot(table, offsets).manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if _is_deletes(manifest):
                    raise StartError(
                        f"{self.description} has {_kind_of_deletes(entry)} at {offsets.fully_read}, but Spark's "
                        "Parquet reader ignores them; rewrite the table's files (rewrite_data_files), or set "
                        'starting_offsets = "latest" to read only new rows',
                        Topic.TABLE_READER,
                    )
                numbered_files.append((entry.sequence_number or 0, self._file(entry)))
        return [file for _, file in sorted(numbered_files, key=lambda one: (one[0], one[1].path))]

    def read_version(self, offsets: LakeTableOffsets) -> TableVersion:
        table = self._table()
        return self._version(table, self._snapshot(table, offsets))

    def versions_after(self, offsets: LakeTableOffsets) -> Iterator[TableVersion]:
        table = self._table()
        if str(table.metadata.table_uuid) != offsets.table:
            raise StartError(
                f"{self.description} was created again while it was being read (at {offsets}); to read the new table, "
                "start with a new state, or reset the source's offsets with `slackwater state reset`",
                Topic.TABLE_HISTORY,
            )
        return iter([self._version(table, snapshot) for snapshot in self._snapshots_after(table, offsets)])

    def offsets_before(self, version: int) -> LakeTableOffsets:
        table = self._table()
        for snapshot in self._snapshots_after(table, LakeTableOffsets(str(table.metadata.table_uuid)), until=version):
            if snapshot.snapshot_id == version:
                return _offsets_of(table, snapshot, files=0)
        raise StartError(
            f"{self.description} has no snapshot {version} in the history of its current snapshot; expected the ID "
            "of a snapshot in that history",
            Topic.TABLE_HISTORY,
        )

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _table(self) -> Table:
        if (table := self._load()) is None:
            raise StartError(
                f'{self.description} does not exist in the catalog; set "query" to an existing table (namespace.table)',
                Topic.INPUT_MISSING,
            )
        return table

    def _snapshot(self, table: Table, offsets: LakeTableOffsets) -> Snapshot:
        if (snapshot := table.metadata.snapshot_by_id(offsets.version)) is None:
            raise VersionGoneError(f"{offsets.fully_read} is needed, but it has expired")
        return snapshot

    def _snapshots_after(self, table: Table, offsets: LakeTableOffsets, until: int | None = None) -> list[Snapshot]:
        """Return the snapshots after `offsets`, oldest first.

        The search goes back from the current snapshot. With `until`, it stops at the snapshot with this id, or at a
        snapshot whose parent is unknown.

        Raises:
            StartError: The table was rolled back or replaced, so the offsets are not on its main branch.
            VersionGoneError: Snapshots after the offsets have expired.
        """
        snapshots: list[Snapshot] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != offsets.version:
            snapshots.append(snapshot)
            if snapshot.parent_snapshot_id == offsets.version or snapshot.snapshot_id == until:
                return snapshots[::-1]
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
        if snapshot is not None or until is not None or (not snapshots and offsets.version < 0):
            return snapshots[::-1]
        if offsets.version >= 0 and table.metadata.snapshot_by_id(offsets.version) is not None:
            raise StartError(
                f"the current snapshot of {self.description} does not descend from {offsets.fully_read}, which was "
                "read last: the table was rolled back or replaced; restore the table, or reset the source's offsets "
                "with `slackwater state reset`",
                Topic.TABLE_HISTORY,
            )
        if snapshots and _is_successor(snapshots[-1], offsets):
            return snapshots[::-1]
        since = f" and snapshot {snapshots[-1].snapshot_id}" if snapshots else " and now"
        raise VersionGoneError(f"snapshots between {offsets}{since} are needed, but have expired")

    def _version(self, table: Table, snapshot: Snapshot) -> TableVersion:
        operation = "append" if snapshot.summary is None else str(snapshot.summary.operation.value)
        offsets = _offsets_of(table, snapshot)
        files: list[DataFile] = []
        deleted_files, deletes, rows = 0, "", 0
        for manifest in snapshot.manifests(table.io) if operation != "replace" else ():
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.snapshot_id not in (None, snapshot.snapshot_id) or _status(entry) == "EXISTING":
                    continue
                if _is_deletes(manifest):
                    deletes = deletes or _kind_of_deletes(entry)
                elif _status(entry) == "DELETED":
                    deleted_files += 1
                else:
                    files.append(self._file(entry))
                    rows += entry.data_file.record_count
        removal = deletes or (f"{plural(deleted_files, 'file')} removed" if deleted_files else "")
        rewrites = f"has the operation {operation}, which removes or rewrites rows ({removal})" if removal else None
        return TableVersion(
            offsets,
            sorted(files, key=lambda f: f.path),
            rewrites,
            rows if rewrites else 0,
            self._columns(table, snapshot),
        )

    def _columns(self, table: Table, snapshot: Snapshot) -> Any:
        """Return the columns of a snapshot. None if its schema is not newer than that of the first snapshot read."""
        if snapshot.schema_id is None or self._schema is None or snapshot.schema_id <= self._schema:
            return None
        schema = table.schemas().get(snapshot.schema_id)
        return None if schema is None else to_spark_schema(self.description, schema)

    def _file(self, entry: ManifestEntry) -> DataFile:
        data = entry.data_file
        kind = str(data.file_format.value).lower()
        if kind != "parquet":
            raise StartError(
                f"{self.description} has files in the format {kind} ({data.file_path}); expected parquet; "
                "rewrite these files",
                Topic.TABLE_READER,
            )
        return DataFile(spark_address(data.file_path), data.file_size_in_bytes)


def _offsets_of(table: Table, snapshot: Snapshot, files: int | None = None) -> LakeTableOffsets:
    return LakeTableOffsets(str(table.metadata.table_uuid), snapshot.snapshot_id, snapshot.sequence_number or 0, files)


def _is_successor(snapshot: Snapshot, offsets: LakeTableOffsets) -> bool:
    """Return whether the sequence number of a snapshot directly follows `offsets`.

    PyIceberg drops the reference to an expired parent, so the parent cannot always identify a successor. In tables of
    format version 1, all sequence numbers are 0.
    """
    if offsets.version < 0 and not snapshot.sequence_number:
        return snapshot.parent_snapshot_id is None
    return offsets.sequence is not None and snapshot.sequence_number == offsets.sequence + 1


def _status(entry: ManifestEntry) -> str:
    return str(entry.status.name)


def _is_deletes(manifest: ManifestFile) -> bool:
    return str(manifest.content.name) == "DELETES"


def _kind_of_deletes(entry: ManifestEntry) -> str:
    return "equality deletes" if entry.data_file.content.name == "EQUALITY_DELETES" else "position deletes"


_PLAIN: dict[Any, str] = {
    I.BooleanType: "BooleanType",
    I.IntegerType: "IntegerType",
    I.LongType: "LongType",
    I.FloatType: "FloatType",
    I.DoubleType: "DoubleType",
    I.DateType: "DateType",
    I.TimestampType: "TimestampNTZType",
    I.TimestamptzType: "TimestampType",
    I.StringType: "StringType",
    I.BinaryType: "BinaryType",
    I.FixedType: "BinaryType",
}


def to_spark_schema(table: str, schema: Schema) -> StructType:
    """Convert an Iceberg schema to a Spark schema with field ids. `table`: the name of the table, for messages.

    Raises StartError if Spark's Parquet reader cannot read a column as the table defines it.
    """
    try:
        columns: StructType = _spark(schema.as_struct())
    except _UnreadError as error:
        raise StartError(f"{table}: {error}", Topic.TABLE_READER) from None
    return columns


class _UnreadError(Exception):
    pass


def _spark(kind: Any) -> Any:
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, I.StructType):
        return T.StructType([_field(field) for field in kind.fields])
    if isinstance(kind, I.ListType):
        return T.ArrayType(_spark(kind.element_type), True)
    if isinstance(kind, I.MapType):
        return T.MapType(_spark(kind.key_type), _spark(kind.value_type), True)
    if isinstance(kind, I.DecimalType):
        return T.DecimalType(kind.precision, kind.scale)
    if type(kind) not in _PLAIN:
        raise _UnreadError(f"of type {kind}, which Spark's Parquet reader does not support; expected another type")
    return getattr(T, _PLAIN[type(kind)])()


def _field(field: I.NestedField) -> Any:
    from pyspark.sql import types as T  # noqa: N812

    if field.initial_default is not None:
        raise _UnreadError(
            f'column "{field.name}" has a default for rows written before it was added, which Spark\'s Parquet reader '
            "does not apply; expected NULL there"
        )
    try:
        data_type = _spark(field.field_type)
    except _UnreadError as error:
        raise (
            error if str(error).startswith("column ") else _UnreadError(f'column "{field.name}" is {error}')
        ) from None
    return T.StructField(field.name, data_type, True, {"parquet.field.id": field.field_id})
