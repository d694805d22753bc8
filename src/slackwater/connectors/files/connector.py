"""Connector for files in local directories and object stores, and the reader of results in them.

The reader first reads all files that the pipeline has written, then the files that it adds later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector, InputLister, source_time_zone
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.output_directory import OutputDirectory, open_directory
from slackwater.connectors.files.planner import PlannedFilesSource, check_readable, count_backlog
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import LabeledRows, ResultReader, TargetTable
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.paths import OUTPUT_FOLDER, is_local
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SUFFIXES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


@dataclass
class FilesResultReader(ResultReader):
    """Result reader for files. It reads only the files of `writers`."""

    folder: OutputDirectory
    form: str
    writers: Sequence[str]
    _seen: set[str] = field(default_factory=set)

    @property
    def location(self) -> str:
        return self.folder.full_name

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        return self.poll()

    def poll(self) -> pl.DataFrame | None:
        new_paths = [p for p in self._written_files() if p.name not in self._seen]
        self._seen |= {p.name for p in new_paths}
        frames = [f for f in (read_file(p, self.form) for p in new_paths) if f.height]
        return pl.concat(frames, how="diagonal_relaxed") if frames else None

    def _written_files(self) -> list[Path]:
        """Return the files that `writers` wrote, oldest first."""
        ending = {"json": "jsonl"}.get(self.form, self.form)
        writers = "|".join(map(re.escape, self.writers))
        pattern = re.compile(rf"(?:{writers})-(?:[0-9a-f]{{8}}-)?[0-9]{{9,}}\.{ending}")
        try:
            return sorted(
                (p for p in self.folder.local_copy().iterdir() if pattern.fullmatch(p.name)),
                key=lambda p: p.stat().st_mtime_ns,
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StartError(
                f"{self.location} cannot be accessed ({error.strerror}); check its permissions", Topic.PERMISSION
            ) from None

    def read_dead_letters(self, pipeline: str, letter_filter: DeadLetterFilter) -> Iterator[pl.DataFrame]:
        for path in self._written_files():
            try:
                yield _parse_file(path, self.form)
            except (pl.exceptions.PolarsError, OSError) as error:
                reason = str(error).splitlines()[0]
                raise StartError(
                    f"{path} cannot be read as dead letters ({reason}); move it away, or restore it", Topic.DEAD_LETTERS
                ) from None

    def read_all(self) -> LabeledRows:
        return replace(read_path(str(self.folder.local_copy())), label=self.location)


def read_path(where: str) -> LabeledRows:
    """Read a file, or all files in a directory. Raises StartError if there is no file, or if file formats differ."""
    path = Path(where)
    if not path.exists():
        raise StartError(
            f"{where}: there is no such file or directory; expected files, a Delta table, a postgresql:// URL, a TOML file, or "
            "state:WHERE",
            Topic.OUTPUT_UNREADABLE,
        )
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file() and p.name[0] not in "._")
    kinds = {_SUFFIXES.get(p.suffix) for p in files} - ({None} if path.is_dir() else set())
    if len(kinds) != 1 or None in kinds:
        kinds_text = (
            f"found {' and '.join(sorted(map(str, kinds)))}" if len(kinds) > 1 else "found no file with a known suffix"
        )
        raise StartError(
            f"{where}: {kinds_text}, expected files of one kind: {', '.join(_SUFFIXES)}", Topic.OUTPUT_UNREADABLE
        )
    (kind,) = kinds
    frames = [read_file(p, str(kind)) for p in files if _SUFFIXES.get(p.suffix) == kind]
    return LabeledRows(where, pl.concat([f for f in frames if f.width] or frames, how="diagonal_relaxed"))


def read_file(path: Path, kind: str) -> pl.DataFrame:
    """Read the rows of a file. `kind`: parquet, csv or json. Raises StartError if the file cannot be read."""
    try:
        return _parse_file(path, kind)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise StartError(
            f"{path}: cannot be read as {kind} ({str(error).splitlines()[0]}); check the file and its permissions",
            Topic.OUTPUT_UNREADABLE,
        ) from None


def _parse_file(path: Path, kind: str) -> pl.DataFrame:
    if kind == "parquet":
        return pl.read_parquet(path)
    if path.stat().st_size == 0:
        return pl.DataFrame()
    if kind == "csv":
        return pl.read_csv(path, infer_schema=False)
    with path.open("rb") as file:
        is_array = file.read(1) == b"["
    read = pl.read_json if is_array else pl.read_ndjson
    return read(path, infer_schema_length=None)


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
        return None if not spec.query or "://" in spec.query else partial(count_backlog, spec)

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
