"""Connector that opens journals for runs and for commands that read results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from journal_connector.description import JournalConnection, JournalTargetKeys
from journal_connector.offsets import JournalOffsets
from journal_connector.reader import JournalReader
from journal_connector.source import JournalSource, read_lines
from journal_connector.target import JournalTarget
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target
from slackwater.connectors.connector import Connector
from slackwater.connectors.source import declared_schema
from slackwater.connectors.target import TargetTable
from slackwater.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JournalConnector(Connector[JournalConnection]):
    """Journals as sources, as targets and for dead letters."""

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None) -> JournalSource:
        if spec.schema_ is None:
            raise StartError(f'source "{spec.name}": a journal does not know its columns; set schema')
        schema = declared_schema(session, spec.name, spec.schema_)
        return JournalSource(spec, Path(spec.query or ""), self.connection.encoding, schema)

    def check_source(self, spec: Source) -> None:
        read_lines(Path(spec.query or ""), self.connection.encoding)

    def resolve_position(self, spec: Source, position: str | int) -> JournalOffsets:
        end = len(read_lines(Path(spec.query or ""), self.connection.encoding))
        return JournalOffsets(end if position == "latest" else 0)

    def target(self, spec: Target, pipeline: Pipeline, table: TargetTable) -> JournalTarget:
        return self.target_with_marker(spec, table)

    def target_with_marker(self, spec: Target, table: TargetTable) -> JournalTarget:
        return JournalTarget(Path(spec.path or ""), table, JournalTargetKeys.from_spec(spec).sync)

    def result_reader(self, spec: Target, pipeline: Pipeline, writers: Sequence[str]) -> JournalReader:
        return JournalReader(Path(spec.path or ""), writers)
