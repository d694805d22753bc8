"""Tables with versions as sources, whatever their format: their columns are those of the table, as it is when a run begins."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.core.offsets import TableRead
from slackwater.errors import SlackwaterError, StartError
from slackwater.runner.systems.base import C, System
from slackwater.sources.tables import TableLog, plain
from slackwater.sources.tables_columns import added, check_columns
from slackwater.sources.tables_planner import PlannedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WithTables(System[C]):
    """A system of such tables."""

    def log(self, spec: Source) -> TableLog:
        """What tells of the table that a source names."""
        raise NotImplementedError

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, known: str | None) -> PlannedTable:
        return table_source(self.log(spec), spec, known)

    def check_source(self, spec: Source) -> None:
        table_source(self.log(spec), spec, None)

    def place(self, spec: Source, wanted: str | int) -> TableRead:
        """Behind what the table holds now, which is its "latest"."""
        return table_source(self.log(spec), spec, None).now.at


def table_source(log: TableLog, spec: Source, known: str | None) -> PlannedTable:
    """A source over the table that is there. `known`: the columns it was first read with, as Spark writes schemas in JSON.

    Raises StartError if the table is not there, cannot be read, or has other columns, where the source does not take them.
    """
    where = f'source "{spec.name}"'
    try:
        now = log.now()
    except SlackwaterError as error:
        raise StartError(f"{where}: {error}") from None
    except Exception as error:  # what the libraries, stores and catalogs raise
        raise StartError(
            f"{where}: {log.what} cannot be read ({log.reason(error)}); check query and the connection's options"
        ) from None
    if known is None:
        return PlannedTable(spec, log, now)
    from pyspark.sql.types import StructType

    before = StructType.fromJson(json.loads(known))
    check_columns(
        f"{where}: {log.what}", before, plain(now.columns), spec.schema_changes, "versions since its first start"
    )
    if spec.schema_changes == "ignore" and added(before, now.columns):
        names = {f.name.casefold() for f in before.fields}
        kept = StructType([f for f in now.columns.fields if f.name.casefold() in names])
        now = replace(now, columns=kept)
    return PlannedTable(spec, log, now)
