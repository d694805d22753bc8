"""Iceberg tables for tests: a SQL catalog in a directory or a REST catalog, and the content of a table."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from pyiceberg.table import Table as IcebergTable

from slackwater.connectors.iceberg.tables import IcebergTables, read_all
from slackwater.connectors.iceberg.target import IcebergTarget
from slackwater.connectors.target import TargetTable


def sql_catalog_options(home: Path) -> dict[str, str]:
    """Return the options of a catalog whose database and tables are in the directory `home`."""
    (home / "warehouse").mkdir(exist_ok=True)
    return {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}


def sql_catalog_connection(home: Path) -> str:
    """Return the body of the config table that connects to the catalog in `home`."""
    catalog_options = ", ".join(f'{name} = "{value}"' for name, value in sql_catalog_options(home).items())
    return f'kind = "iceberg"\ncatalog = "sql"\noptions = {{ {catalog_options} }}'


def sql_catalog_table(home: Path, name: str | None = None) -> IcebergCatalogTable:
    return IcebergCatalogTable("sql", sql_catalog_options(home), name)


class IcebergCatalogTable:
    """Table of a catalog. Every call of `open_client` creates a separate client."""

    def __init__(self, kind: str, options: dict[str, str], name: str | None = None) -> None:
        self.kind, self.options = kind, options
        self.name = name or f"n{uuid.uuid4().hex}.t"

    def open_client(self, **more: str) -> IcebergTables:
        return IcebergTables(self.kind, "default", {**self.options, **more})

    def create_target(
        self, table: TargetTable, mode: str = "merge", day_of: str | None = None, **more: str
    ) -> IcebergTarget:
        return IcebergTarget(self.open_client(**more), self.name, mode, table, day_of)

    def open_target(
        self, table: TargetTable, mode: str = "merge", day_of: str | None = None, **more: str
    ) -> IcebergTarget:
        target = self.create_target(table, mode, day_of, **more)
        target.open()
        return target

    def load_table(self) -> IcebergTable:
        lake_table = self.open_client().load(self.name)
        assert lake_table is not None
        return lake_table

    def read_rows(self) -> pl.DataFrame:
        return read_all(self.load_table())

    def read_rows_with_duckdb(self, columns: str = "*") -> list[tuple[Any, ...]]:
        """Read the data files of the current table version with DuckDB, as an independent reader."""
        files = [
            task.file.file_path.removeprefix("file://").removeprefix("file:")
            for task in self.load_table().scan().plan_files()
        ]
        with duckdb.connect() as db:
            db.execute("SET TimeZone = 'UTC'")
            return db.read_parquet(files).select(columns).order("ALL").fetchall() if files else []

    def expire_old_snapshots(self) -> None:
        """Expire all snapshots except the current one."""
        table = self.load_table()
        current = table.current_snapshot()
        ids = [s.snapshot_id for s in table.snapshots() if current is None or s.snapshot_id != current.snapshot_id]
        if ids:
            table.maintenance.expire_snapshots().by_ids(ids).commit()

    def count_snapshots(self) -> int:
        return len(self.load_table().metadata.snapshots)
