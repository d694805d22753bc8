"""Connector for Iceberg tables in a catalog, and the reader of results in them.

The reader first reads the current snapshot of the table, then the rows that later snapshots add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.connection import IcebergConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.iceberg import tables as iceberg
from slackwater.connectors.lake_tables.connector import LakeTableConnector
from slackwater.connectors.target import LabeledRows, ResultReader, TargetTable, subtract_rows
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from slackwater.connectors.iceberg.snapshots import IcebergLog
    from slackwater.connectors.iceberg.target import IcebergTarget


@dataclass
class IcebergResultReader(ResultReader):
    """Result reader for an Iceberg table."""

    connection: IcebergConnection
    name: str
    _files: dict[str, FileScanTask] | None = None

    @property
    def location(self) -> str:
        return f"Iceberg table {self.name}"

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        table, current_files = self._load_files()
        self._files = current_files
        return None if table is None else self._read_rows(table, current_files.values())

    def poll(self) -> pl.DataFrame | None:
        """Return the rows of added files, except those that a merge copied from removed files."""
        former_files = self._files or {}
        table, current_files = self._load_files()
        self._files = current_files
        if table is None or current_files.keys() <= former_files.keys():
            return None
        added = self._read_rows(table, (current_files[f] for f in current_files.keys() - former_files.keys()))
        removed = self._read_rows(table, (former_files[f] for f in former_files.keys() - current_files.keys()))
        new_rows = None if added is None else subtract_rows(added, removed)
        return None if new_rows is None or new_rows.is_empty() else new_rows

    def _load_files(self) -> tuple[Any, dict[str, FileScanTask]]:
        try:
            table = iceberg.open_catalog(self.connection).load(self.name)
            return table, {} if table is None else {t.file.file_path: t for t in table.scan().plan_files()}
        except Exception as error:  # catalog clients raise all kinds of exceptions
            raise self._read_error(error) from None

    def _read_rows(self, table: Any, tasks: Iterable[FileScanTask]) -> pl.DataFrame | None:
        try:
            frames = [iceberg.read_file_rows(table, task) for task in tasks]
        except Exception as error:
            raise self._read_error(error) from None
        rows = pl.concat(frames) if frames else None
        return None if rows is None or rows.is_empty() else rows

    def _read_error(self, error: Exception) -> StartError:
        return StartError(
            f"{self.location} cannot be read ({iceberg.iceberg_error_reason(error)}); check the catalog and its options",
            Topic.OUTPUT_UNREADABLE,
        )

    def read_all(self) -> LabeledRows:
        try:
            table = iceberg.open_catalog(self.connection).load(self.name)
            rows = None if table is None else iceberg.read_all(table)
        except Exception as error:  # catalog clients raise all kinds of exceptions
            raise self._read_error(error) from None
        if rows is None:
            raise StartError(f"{self.location}: there is no such table in its catalog", Topic.OUTPUT_UNREADABLE)
        return LabeledRows(self.location, rows)


class IcebergConnector(LakeTableConnector[IcebergConnection]):
    """Connector for Iceberg tables as sources, as targets and for dead letters."""

    def log(self, spec: Source) -> IcebergLog:
        from slackwater.connectors.iceberg.snapshots import IcebergLog
        from slackwater.connectors.iceberg.tables import iceberg_error_reason, open_catalog

        tables, name = open_catalog(self.connection), spec.query or ""
        return IcebergLog(name, lambda: tables.load(name), iceberg_error_reason)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> IcebergTarget:
        """Return the target. New tables for windows are partitioned by the day of the window start.

        Dead letters and joined pairs have no window start, so their tables are not partitioned.
        """
        window = pipeline.target_stage.transform.window
        start = None if window is None else window.window_start_column
        day_of = start if (start, "timestamp") in {(f.name, f.type) for f in table.fields} else None
        return self._target(spec, "append" if table.identity is None else spec.mode or "merge", table, day_of)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> IcebergTarget:
        return self._target(spec, "append", table, None)

    def _target(self, spec: TargetSpec, mode: str, table: TargetTable, day_of: str | None) -> IcebergTarget:
        from slackwater.connectors.iceberg.tables import open_catalog
        from slackwater.connectors.iceberg.target import IcebergTarget

        return IcebergTarget(open_catalog(self.connection), spec.table or "", mode, table, day_of)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        self.target_with_marker(spec, TargetTable("", (), None)).describe_previous_output()

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> IcebergResultReader:
        return IcebergResultReader(self.connection, spec.table or "")
