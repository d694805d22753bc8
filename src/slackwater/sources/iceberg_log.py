"""What the metadata of an Iceberg table tells: its snapshots, from the current one back to the one that was read, and their files.

main ──▶ 9 ──▶ 8 ──▶ 7 ──▶ 6        each names its parent; one that was expired breaks the way back
         append      replace        only what a snapshot added is read; a replace holds the rows that were there
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.paths import spark_address
from slackwater.core.humanize import plural
from slackwater.core.offsets import TableOffsets
from slackwater.errors import StartError
from slackwater.sources.iceberg_columns import columns_of
from slackwater.sources.tables import DataFile, TableSnapshot, TableVersion, VersionGoneError

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


class IcebergLog:
    """`load`: the table as its catalog has it now, None if it is not there; `reason`: what PyIceberg says, without secrets."""

    keep = "keep snapshots longer (history.expire.max-snapshot-age-ms)"

    def __init__(self, name: str, load: Callable[[], Table | None], reason: Callable[[BaseException], str]) -> None:
        self.what, self._load, self.reason = f"Iceberg table {name}", load, reason
        self._schema: int | None = None  # by its id: the columns that were told first

    def now(self) -> TableSnapshot:
        table = self._table()
        if self._schema is None:
            self._schema = table.schema().schema_id
        current = table.current_snapshot()
        none = TableOffsets(str(table.metadata.table_uuid), sequence=getattr(table.metadata, "last_sequence_number", 0))
        at = none if current is None else _place(table, current)
        return TableSnapshot(at, columns_of(self.what, table.schema()))

    def content(self, at: TableOffsets) -> Sequence[DataFile]:
        table = self._table()
        found: list[tuple[int, DataFile]] = []
        for manifest in self._snapshot(table, at).manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if _is_deletes(manifest):
                    raise StartError(
                        f"{self.what} holds {_deletes(entry)} at {at.whole}, which Spark's reader of Parquet does not apply; write its files "
                        'anew (rewrite_data_files), or begin with what comes next: starting_offsets = "latest"'
                    )
                found.append((entry.sequence_number or 0, self._file(entry)))
        return [file for _, file in sorted(found, key=lambda one: (one[0], one[1].path))]

    def of(self, at: TableOffsets) -> TableVersion:
        table = self._table()
        return self._version(table, self._snapshot(table, at))

    def after(self, at: TableOffsets) -> Iterator[TableVersion]:
        table = self._table()
        if str(table.metadata.table_uuid) != at.table:
            raise StartError(
                f"{self.what} was made anew while it was read, at {at}: what it holds now is another table; begin with it in a "
                "new state, or reset the source's place: `slackwater state reset`"
            )
        return iter([self._version(table, snapshot) for snapshot in self._way_from(table, at)])

    def before(self, version: int) -> TableOffsets:
        table = self._table()
        for snapshot in self._way_from(table, TableOffsets(str(table.metadata.table_uuid)), until=version):
            if snapshot.snapshot_id == version:
                return _place(table, snapshot, files=0)
        raise StartError(
            f"{self.what} has no snapshot {version} on its way to the current one; expected the id of one of its snapshots"
        )

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _table(self) -> Table:
        if (table := self._load()) is None:
            raise StartError(f"{self.what} is not in the catalog; expected namespace.table (query)")
        return table

    def _snapshot(self, table: Table, at: TableOffsets) -> Snapshot:
        if (found := table.metadata.snapshot_by_id(at.version)) is None:
            raise VersionGoneError(f"{at.whole} is needed, and it was expired")
        return found

    def _way_from(self, table: Table, at: TableOffsets, until: int | None = None) -> list[Snapshot]:
        """The snapshots after a place, the oldest first; `until`: no further back than this one, as far as they are there."""
        found: list[Snapshot] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != at.version:
            found.append(snapshot)
            if snapshot.parent_snapshot_id == at.version or snapshot.snapshot_id == until:
                return found[::-1]
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
        if snapshot is not None or until is not None or (not found and at.version < 0):
            return found[::-1]
        if at.version >= 0 and table.metadata.snapshot_by_id(at.version) is not None:
            raise StartError(
                f"{self.what} does not lead back to {at}, which was read: it was rolled back or replaced; restore it, or reset the "
                "source's place: `slackwater state reset`"
            )
        if found and _follows(found[-1], at):
            return found[::-1]
        since = f" and snapshot {found[-1].snapshot_id}" if found else " and now"
        raise VersionGoneError(f"snapshots between {at}{since} are needed, and were expired")

    def _version(self, table: Table, snapshot: Snapshot) -> TableVersion:
        operation = "append" if snapshot.summary is None else str(snapshot.summary.operation.value)
        at = _place(table, snapshot)
        files: list[DataFile] = []
        gone, deletes, rows = 0, "", 0
        for manifest in snapshot.manifests(table.io) if operation != "replace" else ():
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.snapshot_id not in (None, snapshot.snapshot_id) or _status(entry) == "EXISTING":
                    continue
                if _is_deletes(manifest):
                    deletes = deletes or _deletes(entry)
                elif _status(entry) == "DELETED":
                    gone += 1
                else:
                    files.append(self._file(entry))
                    rows += entry.data_file.record_count
        taken = deletes or (f"{plural(gone, 'file')} taken away" if gone else "")
        rewrites = f"is of the operation {operation} and removes or rewrites rows ({taken})" if taken else None
        return TableVersion(
            at, sorted(files, key=lambda f: f.path), rewrites, rows if rewrites else 0, self._columns(table, snapshot)
        )

    def _columns(self, table: Table, snapshot: Snapshot) -> Any:
        """The columns of a snapshot that has newer ones than were told; None else."""
        if snapshot.schema_id is None or self._schema is None or snapshot.schema_id <= self._schema:
            return None
        schema = table.schemas().get(snapshot.schema_id)
        return None if schema is None else columns_of(self.what, schema)

    def _file(self, entry: ManifestEntry) -> DataFile:
        data = entry.data_file
        kind = str(data.file_format.value).lower()
        if kind != "parquet":
            raise StartError(f"{self.what} holds files of the format {kind} ({data.file_path}); expected parquet")
        return DataFile(spark_address(data.file_path), data.file_size_in_bytes)


def _place(table: Table, snapshot: Snapshot, files: int | None = None) -> TableOffsets:
    return TableOffsets(str(table.metadata.table_uuid), snapshot.snapshot_id, snapshot.sequence_number or 0, files)


def _follows(snapshot: Snapshot, at: TableOffsets) -> bool:
    """Whether nothing came between a place and a snapshot whose parent is not known any more: commits are numbered.

    PyIceberg forgets parents that it expires. In tables of format version 1 all have the number 0.
    """
    if at.version < 0 and not snapshot.sequence_number:
        return snapshot.parent_snapshot_id is None
    return at.sequence is not None and snapshot.sequence_number == at.sequence + 1


def _status(entry: ManifestEntry) -> str:
    return str(entry.status.name)


def _is_deletes(manifest: ManifestFile) -> bool:
    return str(manifest.content.name) == "DELETES"


def _deletes(entry: ManifestEntry) -> str:
    return "equality deletes" if entry.data_file.content.name == "EQUALITY_DELETES" else "position deletes"
