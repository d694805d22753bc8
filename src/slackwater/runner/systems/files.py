"""Files, in directories."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import FilesConnection
from slackwater.config.paths import local
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.errors import StartError
from slackwater.runner.letters import Wanted
from slackwater.runner.systems.base import System, zone_of
from slackwater.sources import files, waiting
from slackwater.sources.files_planner import PlannedFiles
from slackwater.sources.waiting import Question
from slackwater.targets.base import Table
from slackwater.targets.files import FilesTarget
from slackwater.targets.folder import OWN, folder_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(System[FilesConnection]):
    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, known: str | None) -> PlannedFiles:
        files.check_exists(spec)
        return PlannedFiles(spec, files.schema_of(session, spec, known), zone_of(pipeline, spec))

    def check_source(self, spec: Source) -> None:
        files.check_exists(spec)

    def question(self, spec: Source) -> Question | None:
        return None if not spec.query or "://" in spec.query else partial(waiting.files, spec)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: Table) -> FilesTarget:
        return self.former(spec, table)

    def former(self, spec: TargetSpec, table: Table) -> FilesTarget:
        return FilesTarget(spec.path or "", spec.format or "parquet", table, self.connection.options)

    def marked(self, spec: TargetSpec, table: Table) -> FilesTarget:
        return self.former(spec, table)

    def check_target(self, spec: TargetSpec, place: str) -> None:
        if not local(spec.path or ""):
            folder_at(spec.path or "", self.connection.options).read(OWN)

    def letters(self, spec: TargetSpec, pipeline: str, wanted: Wanted) -> Iterator[pl.DataFrame]:
        ending = {"json": "jsonl"}.get(spec.format or "parquet", spec.format or "parquet")
        home = folder_at(spec.path or "", self.connection.options).here()
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
                    f"{path} cannot be read as letters ({str(error).splitlines()[0]}); move it away, or restore it"
                ) from None
