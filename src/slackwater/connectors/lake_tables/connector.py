"""Base class for the connectors to versioned tables (Delta, Iceberg).

During a run, a source keeps the columns that its table had at the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.state_comparison import COMPATIBLE, KeyChange
from slackwater.connectors.connector import C, Connector
from slackwater.connectors.lake_tables.source import LakeTableSource
from slackwater.connectors.lake_tables.table_log import TableLog, check_column_changes, find_added_columns
from slackwater.connectors.source import SourceUnavailableError
from slackwater.core.humanize import plural
from slackwater.core.offsets import LakeTableOffsets
from slackwater.errors import SlackwaterError, StartError, Topic
from slackwater.state.commit import SourceRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class LakeTableConnector(Connector[C]):
    """Base class for the connector to one format of versioned tables."""

    has_versions = True

    def log(self, spec: Source) -> TableLog:
        """Return the log of the table that a source reads."""
        raise NotImplementedError

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> LakeTableSource:
        return _table_source(self.log(spec), spec, schema_json)

    def check_source(self, spec: Source) -> None:
        _table_source(self.log(spec), spec, None)

    def resolve_position(self, spec: Source, position: str | int) -> LakeTableOffsets:
        """Return the offsets after the current version of the table. Tables support only the position "latest"."""
        return _table_source(self.log(spec), spec, None).snapshot.offsets

    def changes(self, spec: Source, record: SourceRecord) -> tuple[Sequence[KeyChange], Mapping[str, str]]:
        log, label = self.log(spec), f'source "{spec.name}"'
        try:
            snapshot = log.snapshot()
        except SlackwaterError as error:
            raise StartError(f"{label}: {error}", error.topic) from None
        except Exception as error:
            problem = f"{label}: {log.description} cannot be read ({log.error_reason(error)}); could not determine what changed"
            raise SourceUnavailableError(StartError(problem)) from None
        source = _with_accepted_columns(LakeTableSource(spec, log, snapshot), record.columns)
        if isinstance(record.offsets, LakeTableOffsets) and not record.offsets.is_unread:
            source.start_offsets(record)
        types = {f.name: f.dataType.simpleString() for f in source.schema.fields}
        if record.columns is None or spec.schema_changes != "add":
            return (), types
        stored = _columns(record.columns)
        if not (new := find_added_columns(stored, source.schema)):
            return (), types
        pronoun = "it" if len(new) == 1 else "them"
        explanation = f"the next start adds {pronoun}, with NULL in earlier rows; SQL can name {pronoun}, and SELECT * includes {pronoun}"
        old_text, new_text = (
            plural(len(stored.fields), "column"),
            f"{plural(len(snapshot.columns.fields), 'column')}, new: {', '.join(new)}",
        )
        return [
            KeyChange(f"{label}, columns", old_text, new_text, COMPATIBLE, explanation, location="the table")
        ], types


def _table_source(log: TableLog, spec: Source, schema_json: str | None) -> LakeTableSource:
    """Return a source for the current version of a table.

    Args:
        log: The log of the table.
        spec: The config of the source.
        schema_json: The columns with which the source was first read, in Spark's JSON format. None on the first start.

    Raises:
        StartError: The table does not exist, cannot be read, or has columns that the source does not accept.
    """
    label = f'source "{spec.name}"'
    try:
        snapshot = log.snapshot()
    except SlackwaterError as error:
        raise StartError(f"{label}: {error}", error.topic) from None
    except Exception as error:  # libraries, stores and catalogs raise many classes
        raise StartError(
            f"{label}: {log.description} cannot be read ({log.error_reason(error)}); check the query and the options of the connection",
            Topic.OUTPUT_UNREADABLE,
        ) from None
    return _with_accepted_columns(LakeTableSource(spec, log, snapshot), schema_json)


def _columns(schema_json: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema_json))


def _with_accepted_columns(source: LakeTableSource, schema_json: str | None) -> LakeTableSource:
    """Return the source with the columns that the run reads. Raises StartError if columns do not match the state.

    `schema_json`: the columns in the state, in Spark's JSON format. None on the first start.
    """
    if schema_json is None:
        return source
    from pyspark.sql.types import StructType

    spec, snapshot, stored = source.spec, source.snapshot, _columns(schema_json)
    since = "the versions since the first start"
    check_column_changes(source.where, stored, source.schema, spec.schema_changes, since)
    if spec.schema_changes == "ignore" and find_added_columns(stored, snapshot.columns):
        names = {f.name.casefold() for f in stored.fields}
        first_columns = StructType([f for f in snapshot.columns.fields if f.name.casefold() in names])
        return LakeTableSource(spec, source.log, replace(snapshot, columns=first_columns))
    return source
