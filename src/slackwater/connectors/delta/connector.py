"""Connector for Delta Lake tables, which are read through their log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.connection import DeltaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.tables.connector import TableConnector
from slackwater.connectors.target import TargetTable

if TYPE_CHECKING:
    from slackwater.connectors.delta.log import DeltaLog
    from slackwater.connectors.delta.reader import DeltaResultReader
    from slackwater.connectors.delta.target import DeltaTarget


class DeltaConnector(TableConnector[DeltaConnection]):
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
        from slackwater.connectors.delta.reader import DeltaResultReader

        return DeltaResultReader(spec.path or "", dict(self.connection.options))
