"""Connector for files in local directories and object stores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector, InputLister, source_time_zone
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.output_directory import open_directory
from slackwater.connectors.files.planner import PlannedFilesSource, check_readable, list_backlog
from slackwater.connectors.files.reader import FilesResultReader
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.paths import OUTPUT_FOLDER, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FilesConnector(Connector[FilesConnection]):
    """Connector for files as sources, as targets and for dead letters."""

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> PlannedFilesSource:
        files_source.check_directory_exists(spec)
        return PlannedFilesSource(
            spec, files_source.resolve_schema(session, spec, schema_json), source_time_zone(pipeline, spec)
        )

    def check_source(self, spec: Source) -> None:
        files_source.check_directory_exists(spec)
        check_readable(spec)

    def input_lister(self, spec: Source) -> InputLister | None:
        return None if not spec.query or "://" in spec.query else partial(list_backlog, spec)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> FilesTarget:
        return self.target_with_marker(spec, table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> FilesTarget:
        return FilesTarget(spec.path or "", spec.format or "parquet", table, self.connection.options)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        if not is_local(spec.path or ""):
            open_directory(spec.path or "", self.connection.options).read(OUTPUT_FOLDER)

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> FilesResultReader:
        folder = open_directory(spec.path or "", self.connection.options)
        return FilesResultReader(folder, spec.format or "parquet", writers)
