"""Delta Lake tables, by their log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import DeltaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.errors import StartError
from slackwater.runner.letters import Wanted
from slackwater.runner.systems.tables import WithTables
from slackwater.targets.base import Table

if TYPE_CHECKING:
    from slackwater.sources.delta_log import DeltaLog
    from slackwater.targets.delta import DeltaTarget


class Delta(WithTables[DeltaConnection]):
    def log(self, spec: Source) -> DeltaLog:
        from slackwater.sources.delta_log import DeltaLog

        return DeltaLog(spec.query or "", self.connection.options)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: Table) -> DeltaTarget:
        return self._target(spec, "append" if table.identity is None else spec.mode or "merge", table)

    def former(self, spec: TargetSpec, table: Table) -> DeltaTarget:
        return self._target(spec, "append", table)

    def marked(self, spec: TargetSpec, table: Table) -> DeltaTarget:
        return self.former(spec, table)

    def _target(self, spec: TargetSpec, mode: str, table: Table) -> DeltaTarget:
        from slackwater.targets.delta import DeltaTarget

        return DeltaTarget(spec.path or "", mode, table, self.connection.options)

    def letters(self, spec: TargetSpec, pipeline: str, wanted: Wanted) -> Iterator[pl.DataFrame]:
        from deltalake import DeltaTable

        from slackwater.sources.delta_log import reason

        path, options = spec.path or "", dict(self.connection.options)
        try:
            if not DeltaTable.is_deltatable(path, options):
                return
            frame = pl.from_arrow(DeltaTable(path, storage_options=options).to_pyarrow_table())
        except Exception as error:  # the library has no base class
            raise StartError(f"Delta table {path} cannot be read ({reason(error, options)}); check the path") from None
        assert isinstance(frame, pl.DataFrame)
        yield frame
