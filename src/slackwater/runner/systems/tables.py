"""Tables with versions as sources, whatever their format: their columns are those of the table, as it is when a run begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.core.offsets import TableRead
from slackwater.core.words import plural
from slackwater.errors import SlackwaterError, StartError
from slackwater.evolution.change import COMPATIBLE, Change
from slackwater.runner.systems.base import C, System
from slackwater.sources.base import NoAnswerError
from slackwater.sources.tables import TableLog
from slackwater.sources.tables_columns import added, check_columns
from slackwater.sources.tables_planner import PlannedTable
from slackwater.state.commit import SourceRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class WithTables(System[C]):
    """A system of such tables."""

    has_versions = True

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

    def changes(self, spec: Source, record: SourceRecord) -> tuple[Sequence[Change], Mapping[str, str]]:
        log, where = self.log(spec), f'source "{spec.name}"'
        try:
            now = log.now()
        except SlackwaterError as error:
            raise StartError(f"{where}: {error}") from None
        except Exception as error:
            why = f"{where}: {log.what} cannot be read ({log.reason(error)}); what changed in it is not known"
            raise NoAnswerError(StartError(why)) from None
        source = _checked(PlannedTable(spec, log, now), record.columns)
        if isinstance(record.offsets, TableRead) and not record.offsets.never:
            source.begins(record)
        types = {f.name: f.dataType.simpleString() for f in source.schema.fields}
        if record.columns is None or spec.schema_changes != "add":
            return (), types
        before = _columns(record.columns)
        if not (new := added(before, source.schema)):
            return (), types
        it = "it" if len(new) == 1 else "them"
        how = f"the next start takes {it}, with NULL in rows of before; SQL that names {it} finds {it}, SELECT * takes {it} along"
        had, has = (
            plural(len(before.fields), "column"),
            f"{plural(len(now.columns.fields), 'column')}, new: {', '.join(new)}",
        )
        return [Change(f"{where}, columns", had, has, COMPATIBLE, how, place="the table")], types


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
    return _checked(PlannedTable(spec, log, now), known)


def _columns(known: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(known))


def _checked(source: PlannedTable, known: str | None) -> PlannedTable:
    """A source with the columns that a run takes of it. Raises StartError for others than it goes on with."""
    if known is None:
        return source
    from pyspark.sql.types import StructType

    spec, now, before = source.spec, source.now, _columns(known)
    check_columns(source.where, before, source.schema, spec.schema_changes, "versions since its first start")
    if spec.schema_changes == "ignore" and added(before, now.columns):
        names = {f.name.casefold() for f in before.fields}
        kept = StructType([f for f in now.columns.fields if f.name.casefold() in names])
        return PlannedTable(spec, source.log, replace(now, columns=kept))
    return source
