"""Delta and Iceberg tables for tests of sources, each written by its library, with the same content."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.support.iceberg_tables import IcebergCatalogTable, sql_catalog_options

import slackwater as sw

COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("x", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("seen", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("day", pa.string()),
    ]
)
START = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)


def build_numbered_row(n: int, day: str | None = "a b", **more: Any) -> dict[str, Any]:
    """Return a row determined by its number. Every third row has no x."""
    instant = START + dt.timedelta(seconds=n, microseconds=n)
    columns = {"user": f"u{n % 3}", "x": None if n % 3 == 2 else n, "price": n / 4, "at": instant}
    return {**columns, "seen": instant.replace(tzinfo=None), "tags": [f"t{n}", None], "day": day, **more}


def to_arrow_table(rows: Sequence[dict[str, Any]], columns: pa.Schema = COLUMNS) -> pa.Table:
    decimal_rows = [{**r, "price": None if r.get("price") is None else _to_decimal(r["price"])} for r in rows]
    return pa.Table.from_pylist(decimal_rows, columns)


def _to_decimal(value: Any) -> Any:
    from decimal import Decimal

    return Decimal(str(value)).quantize(Decimal("0.01"))


@dataclass
class DeltaSourceTable:
    home: Path
    kind: str = "delta"
    word: str = "version"

    @property
    def path(self) -> str:
        return str(self.home / "a table")

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def append_rows(self, rows: Sequence[dict[str, Any]], columns: pa.Schema = COLUMNS) -> None:
        """Append rows as one version, with one file per day."""
        write_deltalake(self.path, to_arrow_table(rows, columns), mode="append", partition_by=["day"])

    def delete_rows(self, where: str) -> None:
        self.table.delete(where)

    def compact_files(self) -> None:
        self.table.optimize.compact()

    def add_column(self, name: str) -> None:
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        self.table.alter.add_columns([Field(name, PrimitiveType("long"), nullable=True)])

    def source(self, **more: Any) -> Any:
        return sw.Source(name="events", connection=sw.DeltaConnection(), query=self.path, **more)

    @property
    def connection_config(self) -> str:
        return 'kind = "delta"'

    @property
    def query(self) -> str:
        return self.path

    def read_newest_version(self) -> int:
        return self.table.version()

    def expire_old_versions(self) -> None:
        """Write a checkpoint, then delete all older versions of the log and all unreferenced files."""
        self.table.create_checkpoint()
        for path in sorted((self.home / "a table" / "_delta_log").glob("0*.json"))[:-1]:
            path.unlink()
        self.table.vacuum(0, enforce_retention_duration=False, dry_run=False)


@dataclass
class IcebergSourceTable:
    home: Path
    kind: str = "iceberg"
    word: str = "snapshot"
    lake: IcebergCatalogTable = field(init=False)

    def __post_init__(self) -> None:
        self.lake = IcebergCatalogTable("sql", sql_catalog_options(self.home), "shop.events")

    @property
    def table(self) -> Any:
        return self.lake.load_table()

    def append_rows(self, rows: Sequence[dict[str, Any]], columns: pa.Schema = COLUMNS) -> None:
        """Append rows as one snapshot, with one file per day."""
        catalog = self.lake.open_client().catalog
        if not catalog.table_exists("shop.events"):
            catalog.create_namespace_if_not_exists("shop")
            table = catalog.create_table("shop.events", columns)
            with table.update_spec() as spec:
                spec.add_identity("day")
        self.table.append(to_arrow_table(rows, columns))

    def delete_rows(self, where: str) -> None:
        self.table.delete(where)

    def compact_files(self) -> None:
        """Rewrite the rows to other files, as other engines do, in a snapshot with the operation replace."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files
        from pyiceberg.table.snapshots import Operation, Summary

        table = self.table
        with table.transaction() as change:
            producer = change.update_snapshot().overwrite()
            for task in table.scan().plan_files():
                producer.delete_data_file(task.file)
            for file in _dataframe_to_data_files(change.table_metadata, table.scan().to_arrow(), table.io):
                producer.append_data_file(file)
            producer._summary = lambda *arguments: Summary(Operation.REPLACE)
            producer.commit()

    def add_delete_file(self, content: str) -> None:
        """Add a delete file ("POSITION_DELETES" or "EQUALITY_DELETES"), as merge-on-read engines write it."""
        from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestWriterV2

        class Deletes(ManifestWriterV2):
            def content(self) -> Any:
                return ManifestContent.DELETES

            @property
            def _meta(self) -> dict[str, str]:
                return {**super()._meta, "content": "deletes"}

        table = self.table
        task = next(iter(table.scan().plan_files()))
        task.file._data[0] = DataFileContent[content]
        with table.transaction() as change:
            producer = change.update_snapshot().fast_append()
            producer.new_manifest_writer = lambda spec: Deletes(
                spec, producer.schema(), producer.new_manifest_output(), producer.snapshot_id, producer._compression
            )
            producer.append_data_file(task.file)
            producer.commit()

    def add_column(self, name: str) -> None:
        from pyiceberg.types import LongType

        with self.table.update_schema() as change:
            change.add_column(name, LongType())

    def source(self, **more: Any) -> Any:
        connection = sw.IcebergConnection(catalog="sql", options=sql_catalog_options(self.home))
        return sw.Source(name="events", connection=connection, query="shop.events", **more)

    @property
    def connection_config(self) -> str:
        from tests.support.iceberg_tables import sql_catalog_connection

        return sql_catalog_connection(self.home)

    @property
    def query(self) -> str:
        return "shop.events"

    def expire_old_versions(self) -> None:
        """Expire all snapshots except the current one."""
        self.lake.expire_old_snapshots()

    def read_newest_version(self) -> int:
        return int(self.table.current_snapshot().snapshot_id)


FORMATS = {"delta": DeltaSourceTable, "iceberg": IcebergSourceTable}
