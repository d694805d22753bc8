"""Connector for files in local directories and object stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector, Question, source_time_zone
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.output_directory import open_directory
from slackwater.connectors.files.planner import PlannedFilesSource, check_readable, count_unread_files
from slackwater.connectors.files.reader import FilesResultReader
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import LetterFilter
from slackwater.core.paths import OUTPUT_FOLDER, is_local
from slackwater.errors import StartError, Topic

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

    def question(self, spec: Source) -> Question | None:
        return None if not spec.query or "://" in spec.query else partial(count_unread_files, spec)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> FilesTarget:
        return self.existing_target(spec, table)

    def existing_target(self, spec: TargetSpec, table: TargetTable) -> FilesTarget:
        return FilesTarget(spec.path or "", spec.format or "parquet", table, self.connection.options)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> FilesTarget:
        return self.existing_target(spec, table)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        if not is_local(spec.path or ""):
            open_directory(spec.path or "", self.connection.options).read(OUTPUT_FOLDER)

    def result_reader(self, pipeline: Pipeline) -> FilesResultReader:
        target = pipeline.target
        folder = open_directory(target.path or "", self.connection.options)
        return FilesResultReader(folder, target.format or "parquet", pipeline.writers)

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        ending = {"json": "jsonl"}.get(spec.format or "parquet", spec.format or "parquet")
        home = open_directory(spec.path or "", self.connection.options).local_copy()
        for path in sorted(home.glob(f"{pipeline}-letters-*.{ending}")):
            try:
                if ending == "parquet":
                    yield pl.read_parquet(path)
                elif ending == "csv":
                    yield pl.read_csv(path, infer_schema=False)
                else:
                    yield pl.read_ndjson(path, infer_schema_length=None)
            except (pl.exceptions.PolarsError, OSError) as error:
                raise StartError(
                    f"{path} cannot be read as dead letters ({str(error).splitlines()[0]}); move it away, or restore it",
                    Topic.DEAD_LETTERS,
                ) from None
