"""Connector for Delta Lake tables, which are read through their log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import DeltaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.delta.reader import DeltaResultReader
from slackwater.connectors.tables.connector import TableConnector
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import LetterFilter
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from slackwater.connectors.delta.log import DeltaLog
    from slackwater.connectors.delta.target import DeltaTarget


class DeltaConnector(TableConnector[DeltaConnection]):
    """Connector for Delta tables as sources, as targets and for dead letters."""

    def log(self, spec: Source) -> DeltaLog:
        from slackwater.connectors.delta.log import DeltaLog

        return DeltaLog(spec.query or "", self.connection.options)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> DeltaTarget:
        return self._target(spec, "append" if table.identity is None else spec.mode or "merge", table)

    def existing_target(self, spec: TargetSpec, table: TargetTable) -> DeltaTarget:
        return self._target(spec, "append", table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> DeltaTarget:
        return self.existing_target(spec, table)

    def _target(self, spec: TargetSpec, mode: str, table: TargetTable) -> DeltaTarget:
        from slackwater.connectors.delta.target import DeltaTarget

        return DeltaTarget(spec.path or "", mode, table, self.connection.options)

    def result_reader(self, pipeline: Pipeline) -> DeltaResultReader:
        return DeltaResultReader(pipeline.target.path or "", dict(self.connection.options))

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        from deltalake import DeltaTable

        from slackwater.connectors.delta.log import delta_error_reason

        path, options = spec.path or "", dict(self.connection.options)
        try:
            if not DeltaTable.is_deltatable(path, options):
                return
            frame = pl.from_arrow(DeltaTable(path, storage_options=options).to_pyarrow_table())
        except Exception as error:  # the library has no common base class
            raise StartError(
                f"Delta table {path} cannot be read ({delta_error_reason(error, options)}); check the path",
                Topic.OUTPUT_UNREADABLE,
            ) from None
        assert isinstance(frame, pl.DataFrame)
        yield frame
