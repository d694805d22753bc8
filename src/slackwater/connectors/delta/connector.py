"""Connector for Delta Lake tables, which are read through their log, and the reader of results in them.

The reader first reads the latest version of the table, then the rows that later versions add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
from deltalake import DeltaTable

from slackwater.config.connection import DeltaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.delta.log import delta_error_reason
from slackwater.connectors.lake_tables.connector import LakeTableConnector
from slackwater.connectors.target import LabeledRows, ResultReader, TargetTable, empty_to_none, subtract_rows
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from slackwater.connectors.delta.log import DeltaLog
    from slackwater.connectors.delta.target import DeltaTarget


@dataclass
class DeltaResultReader(ResultReader):
    """Result reader for a Delta table."""

    path: str
    options: dict[str, str]
    _files: frozenset[str] | None = None

    @property
    def location(self) -> str:
        return f"Delta table {self.path}"

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        table = self._table()
        if table is None:
            return None
        self._files = frozenset(table.file_uris())
        return empty_to_none(self._rows(table))

    def poll(self) -> pl.DataFrame | None:
        """Return the rows of added files, except those that a merge copied from removed files."""
        table = self._table()
        if table is None:
            return None
        files, before = frozenset(table.file_uris()), self._files or frozenset()
        self._files = files
        if files == before:
            return None
        added = self._read(sorted(files - before))
        return None if added is None else empty_to_none(subtract_rows(added, self._read(sorted(before - files))))

    def _table(self) -> DeltaTable | None:
        try:
            if not DeltaTable.is_deltatable(self.path, self.options):
                return None
            return DeltaTable(self.path, storage_options=self.options)
        except Exception as error:  # deltalake has no common base class
            raise self._read_error(error) from None

    def _rows(self, table: DeltaTable) -> pl.DataFrame:
        try:
            rows = pl.from_arrow(table.to_pyarrow_table())
        except Exception as error:
            raise self._read_error(error) from None
        assert isinstance(rows, pl.DataFrame)
        return rows

    def _read(self, files: Sequence[str]) -> pl.DataFrame | None:
        if not files:
            return None
        try:
            frames = [pl.read_parquet(f, storage_options=self.options or None, hive_partitioning=False) for f in files]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._read_error(error) from None
        return pl.concat(frames, how="diagonal_relaxed")

    def _read_error(self, error: Exception) -> StartError:
        return StartError(
            f"{self.location} cannot be read ({delta_error_reason(error, self.options)}); check the path",
            Topic.OUTPUT_UNREADABLE,
        )

    def read_all(self) -> LabeledRows:
        try:
            rows = pl.from_arrow(DeltaTable(self.path, storage_options=self.options).to_pyarrow_table())
        except Exception as error:  # deltalake has no common base class
            raise StartError(
                f"{self.path}: cannot be read as a Delta table ({str(error).splitlines()[0]}); check the path",
                Topic.OUTPUT_UNREADABLE,
            ) from None
        assert isinstance(rows, pl.DataFrame)
        return LabeledRows(self.location, rows)


class DeltaConnector(LakeTableConnector[DeltaConnection]):
    """Connector for Delta tables as sources, as targets and for dead letters."""

    def log(self, spec: Source) -> DeltaLog:
        from slackwater.connectors.delta.log import DeltaLog

        return DeltaLog(spec.query or "", self.connection.options)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> DeltaTarget:
        return self._target(spec, "append" if table.identity is None else spec.mode or "merge", table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> DeltaTarget:
        return self._target(spec, "append", table)

    def _target(self, spec: TargetSpec, mode: str, table: TargetTable) -> DeltaTarget:
        from slackwater.connectors.delta.target import DeltaTarget

        return DeltaTarget(spec.path or "", mode, table, self.connection.options)

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> DeltaResultReader:
        return DeltaResultReader(spec.path or "", dict(self.connection.options))
