"""Connector for Iceberg tables in a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.connection import IcebergConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.tables.connector import TableConnector
from slackwater.connectors.target import TargetTable

if TYPE_CHECKING:
    from slackwater.connectors.iceberg.log import IcebergLog
    from slackwater.connectors.iceberg.reader import IcebergResultReader
    from slackwater.connectors.iceberg.target import IcebergTarget


class IcebergConnector(TableConnector[IcebergConnection]):
    """Connector for Iceberg tables as sources, as targets and for dead letters."""

    def log(self, spec: Source) -> IcebergLog:
        from slackwater.connectors.iceberg.log import IcebergLog
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
        from slackwater.connectors.iceberg.reader import IcebergResultReader

        return IcebergResultReader(self.connection, spec.table or "")
