"""File sources as streams. Each batch is a list of files, which the engine reads and the state stores.

`files.planner` or Spark plans the batches. If Spark does, its checkpoint records which files belong to which batch
(`offsets/<batch>`, `sources/<i>/<n>`). The engine reads exactly the planned files as a batch DataFrame, so columns are
pruned and each source is read once. The state store keeps the file names. `seek` writes these names to a new checkpoint
for Spark, so a source can resume even if its checkpoint is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from slackwater.config.relative_paths import restore_written_path
from slackwater.config.source import Source
from slackwater.connectors import dead_letter_restoration
from slackwater.connectors.files.directory_listing import escape_pattern
from slackwater.connectors.files.parquet_footers import ParquetFooters
from slackwater.connectors.files.parquet_rows import ParquetRows
from slackwater.connectors.source import (
    SourceBatch,
    SparkPlannedSource,
    checkpoint_line,
    declared_schema,
    spark_error_reason,
)
from slackwater.connectors.timestamp_parsing import UTC, TextTimestampSchema, find_time_zone
from slackwater.core.column_names import CORRUPT
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path
from slackwater.errors import EpochError, StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MERGE_AT = 64  # the number of file lists at which they are merged into one list
SIZE_MODULUS = 1 << 20  # a fingerprint contains the file size modulo this number
# reader options that make Spark skip files that it cannot read
_SKIPPING_OPTIONS = {"ignorecorruptfiles": "ignoreCorruptFiles", "ignoremissingfiles": "ignoreMissingFiles"}


class FileListReader(Protocol):
    """Reader of stored file lists, such as a state store or a read-only view of one."""

    @property
    def read_list(self) -> Callable[[str], list[str]]: ...


@dataclass(frozen=True)
class FileEntry:
    """The attributes of one file at the time it was read.

    Args:
        path: The URI of the file.
        timestamp: The modification time in milliseconds.
        size: The size in bytes. None if it is unknown.
    """

    path: str
    timestamp: int
    size: int | None = None

    @property
    def current(self) -> FileEntry | None:
        """The current attributes of the file. None if it no longer exists, or is not on a local disk."""
        if not self.path.startswith("file:"):
            return None
        try:
            status = Path(file_uri_to_path(self.path)).stat()
        except OSError:
            return None
        return FileEntry(self.path, status.st_mtime_ns // 1_000_000, status.st_size)

    def has_fingerprint(self, fingerprint: int) -> bool:
        """Return whether a fingerprint, which combines a modification time and a size, matches this file."""
        time, size = divmod(fingerprint, SIZE_MODULUS)
        return time == self.timestamp and (self.size is None or self.size % SIZE_MODULUS == size)

    def differs(self, now: FileEntry) -> bool:
        """Return whether the file has changed since this entry was recorded. `now`: the current entry of the file.

        Sizes are compared only if both are known, because early Slackwater versions did not store them.
        """
        return self.timestamp != now.timestamp or (
            self.size is not None and now.size is not None and self.size != now.size
        )


@dataclass(frozen=True)
class FilesSource(SparkPlannedSource):
    """File source with its schema, planned by Spark. The subclass `PlannedFilesSource` is planned by the run.

    `zone`: the time zone of timestamps that do not contain one, unless a reader option sets it.
    """

    schema: StructType
    zone: str = UTC
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # see `read`

    def plan(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.format(self.spec.format or "").schema(self.schema)
        # By default, Spark skips files that are a week older than the newest file. Slackwater must read all files.
        options: dict[str, Any] = {"maxFileAge": "36500d", **self.spec.options}
        if self.spec.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = self.spec.max_files_per_trigger
        return reader.options(**options).load(_as_glob(absolute_query(self.spec.query or "")))

    def signature(self) -> dict[str, Any]:
        return {"name": self.name, "query": restore_written_path(self.spec.query or ""), "format": self.spec.format}

    def seek(self, checkpoint: Path, index: int, store: StateStore, record: SourceRecord) -> str:
        """Write a new checkpoint whose batch 0 contains all files in the state. Return the offset line of batch 0."""
        log = checkpoint / "sources" / str(index)
        log.mkdir(parents=True)
        entries = load_file_list(store, FileOffsets.coerce(record.offsets))
        lines = [json.dumps({"path": e.path, "timestamp": e.timestamp, "batchId": 0}) for e in entries]
        (log / "0").write_text("\n".join(["v1", *lines]))
        return json.dumps({"logOffset": 0})

    def batch(
        self,
        session: SparkSession,
        checkpoint: Path,
        index: int,
        number: int,
        store: StateStore,
        epoch: int,
        record: SourceRecord,
    ) -> SourceBatch | None:
        entries = batch_files(checkpoint, index, number)
        if not entries:
            return None
        entries = [entry.current or entry for entry in entries]  # the attributes just before the files are read
        offsets = store_file_list(store, epoch, FileOffsets.coerce(record.offsets), entries)
        return self.batch_from_files(session, entries, offsets)

    def batch_from_files(self, session: SparkSession, files: Sequence[FileEntry], offsets: FileOffsets) -> SourceBatch:
        """Return the batch that consists of `files`. `offsets`: the offsets after these files."""
        footers = None
        if self._footers_are_complete(session, files):
            footers = ParquetFooters([Path(file_uri_to_path(f.path)) for f in files])
        return SourceBatch(
            self.read(session, files),
            offsets,
            len(files),
            name_files=make_file_namer(files),
            column_stats=footers.column_stats if footers else None,
            file_rows=ParquetRows(footers) if footers and not self.spec.options else None,
        )

    def _footers_are_complete(self, session: SparkSession, files: Sequence[FileEntry]) -> bool:
        """Return whether the Parquet footers describe exactly the rows that Spark reads.

        This requires local Parquet files and no option that makes Spark skip files.
        """
        if self.spec.format != "parquet" or not all(f.path.startswith("file:") for f in files):
            return False
        if any(name.lower() in _SKIPPING_OPTIONS for name in self.spec.options):
            return False
        if self._cache.get("asked") is not session:
            confs = (f"spark.sql.files.{name}" for name in _SKIPPING_OPTIONS.values())
            settings = [session.conf.get(conf, "false") for conf in confs]
            self._cache.update(asked=session, all_is_read=all(value == "false" for value in settings))
        return bool(self._cache["all_is_read"])

    def list_files(self, session: SparkSession) -> list[FileEntry]:
        """Return all current files in the order in which Spark's file stream reads them.

        Raises StartError if Spark cannot list them.
        """
        try:
            entries = session.read.format("binaryFile").load(absolute_query(self.spec.query or ""))
            time_ms = "CAST(unix_millis(modificationTime) AS BIGINT) AS at"
            rows = entries.selectExpr("_metadata.file_path AS path", time_ms).collect()
        except Exception as error:
            if "PATH_NOT_FOUND" in str(error):
                return []
            raise StartError(f'source "{self.name}": {spark_error_reason(error)}') from None
        return sorted((FileEntry(r["path"], r["at"]) for r in rows), key=lambda e: (e.timestamp, e.path))

    def read(self, session: SparkSession, files: Sequence[FileEntry]) -> DataFrame:
        """Return the rows of files. For JSON and CSV, the column `_corrupt_record` contains undecodable records.

        The reader and the columns are the same in every epoch, so they are created once per Spark session.
        """
        form, paths, cache = self.spec.format or "", [readable_path(f.path) for f in files], self._cache
        plain = form not in ("json", "csv")
        if cache.get("session") is not session:
            schema = self.schema if plain else self.text_schema.reader_schema
            cache |= {
                "session": session,
                "reader": _batch_reader(session, form, schema, self.spec.options),
                "text_schema": self.text_schema,
            }
            cache["schema"] = None
        frame: DataFrame = cache["reader"].load(paths)
        cache["schema"] = vars(frame)["schema"] = cache["schema"] or frame.schema  # PySpark's own cache of the schema
        return frame if plain else cache["text_schema"].convert(frame)

    def decode_dead_letter_rows(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        extra_columns = [f"file AS {file}", letter]
        if self.spec.format in ("json", "csv"):
            return dead_letter_restoration.restore_text_rows(letters, self.text_schema, extra_columns)
        return dead_letter_restoration.restore_decoded_rows(letters, self.schema, extra_columns)

    @property
    def text_schema(self) -> TextTimestampSchema:
        """The schema for JSON and CSV readers, in which times are read as text."""
        options = self.spec.options
        return TextTimestampSchema(self.schema, self.spec.format or "", find_time_zone(options, self.zone), options)


def absolute_query(query: str) -> str:
    """Convert a query to an absolute path, because Spark's process may have another working directory.

    The longest existing prefix of the path is taken literally. The rest may be a pattern.
    """
    if "://" in query or query.startswith("file:"):
        return query
    path = Path.cwd() / query
    existing = _existing_prefix(path)
    return str(Path(escape_pattern(str(existing)), *path.parts[len(existing.parts) :]))


def _existing_prefix(path: Path) -> Path:
    """Return the longest prefix of a path that exists and contains no star."""
    existing = Path(path.anchor)
    for part in path.parts[1:]:
        if "*" in part or not (existing / part).exists():
            break
        existing /= part
    return existing


def readable_path(uri: str) -> str:
    """Convert a URI from Spark's file list to a path for Spark's readers, which expect a pattern instead of a URI."""
    scheme, colon, rest = uri.partition(":")
    return f"{scheme}{colon}{escape_pattern(unquote(rest))}"


def _as_glob(query: str) -> str:
    """Convert the path of a file to a pattern that matches only this file. Any other query is returned unchanged.

    Spark's file stream accepts only directories and patterns.
    """
    if "://" in query or any(c in query for c in "*?[{") or not Path(query).is_file():
        return query
    return f"{query[:-1]}[{query[-1]}]"


def _batch_reader(session: SparkSession, form: str, schema: StructType | None, options: Mapping[str, str]) -> Any:
    """Return a batch reader. JSON and CSV records that do not match the schema go to the column `_corrupt_record`."""
    read = session.read.format(form).options(**options)
    if schema is None:
        return read
    if form in ("json", "csv"):
        from pyspark.sql.types import StringType, StructField, StructType

        schema = StructType([*schema.fields, StructField(CORRUPT, StringType())])
        read = read.options(mode="PERMISSIVE", columnNameOfCorruptRecord=CORRUPT)
    return read.schema(schema)


def resolve_schema(session: SparkSession, spec: Source, stored_schema: str | None) -> StructType:
    """Return the first available schema: the declared one, the one in the state, or one inferred from existing files.

    Args:
        session: The Spark session.
        spec: The source.
        stored_schema: The schema in the state, in Spark's JSON format. None on the first start.

    Raises:
        StartError: No schema can be inferred.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    where = f'source "{spec.name}"'
    if spec.format == "text" and spec.schema_ is None:
        return StructType([StructField("value", StringType())])
    if spec.schema_ is not None:
        return declared_schema(session, spec.name, spec.schema_)
    if stored_schema is not None:
        return StructType.fromJson(json.loads(stored_schema))
    try:
        schema = (
            _batch_reader(session, spec.format or "", None, spec.options).load(absolute_query(spec.query or "")).schema
        )
    except Exception as error:
        raise StartError(
            f'{where}: no schema is declared and none can be inferred from "{spec.query}" '
            f"({spark_error_reason(error)}); declare one",
            Topic.SOURCE_SCHEMA,
        ) from None
    if not schema.fields:
        raise StartError(
            f'{where}: no schema is declared and "{spec.query}" has no rows to infer one from; declare one',
            Topic.SOURCE_SCHEMA,
        )
    return StructType(schema.fields)


def check_directory_exists(spec: Source) -> None:
    """Raise StartError if the directory of a local source does not exist. A pattern need not match any files yet."""
    query = spec.query or ""
    if "://" in query:
        return
    existing = _existing_prefix(Path.cwd() / query)
    remaining_parts = (Path.cwd() / query).relative_to(existing).parts
    plain = existing / Path(*takewhile(lambda part: not any(c in part for c in "*?[{"), remaining_parts))
    if not plain.exists():
        raise StartError(
            f'source "{spec.name}": "{plain}" does not exist; create it, or correct query = "{query}"',
            Topic.INPUT_MISSING,
        )


# -- Spark's checkpoint: the files of a batch ---------------------------------------------------------------------


def batch_files(checkpoint: Path, source: int, batch: int) -> list[FileEntry]:
    """Return the files of one batch that Spark planned.

    Args:
        checkpoint: The directory of Spark's checkpoint.
        source: The index of the source in the checkpoint.
        batch: The number of the batch.

    Raises:
        EpochError: The checkpoint does not contain the batch.
    """
    until, since = _log_offset(checkpoint, source, batch), _log_offset(checkpoint, source, batch - 1)
    return [
        entry for n in range(since + 1, until + 1) for entry in _log_entries(checkpoint / "sources" / str(source), n)
    ]


def _log_offset(checkpoint: Path, source: int, batch: int) -> int:
    line = checkpoint_line(checkpoint, source, batch) if batch >= 0 else None
    return -1 if line is None else int(json.loads(line)["logOffset"])


def _log_entries(log: Path, n: int) -> list[FileEntry]:
    plain, compact = log / str(n), log / f"{n}.compact"
    path = plain if plain.exists() else compact
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    except (OSError, ValueError) as error:
        raise EpochError(
            f"checkpoint file {path} is missing or damaged; delete the directory {log.parents[1]} and start again",
            Topic.CHECKPOINT_DAMAGED,
        ) from error
    return [FileEntry(e["path"], e["timestamp"]) for e in entries if e["batchId"] == n]


# -- the list of files in the state store ------------------------------------------------------------------------------


def store_file_list(store: StateStore, epoch: int, before: FileOffsets, files: Sequence[FileEntry]) -> FileOffsets:
    """Store the list of an epoch's files in the state store, and return the offsets after these files.

    The offsets reference the stored lists, which together contain every file read so far.

    Args:
        store: The state store.
        epoch: The epoch that reads the files.
        before: The offsets before the files.
        files: The files.
    """
    lists, entries = before.lists, list(files)
    if len(lists) >= MERGE_AT:
        lists, entries = (), [*load_file_list(store, before), *entries]
    name = store.write_list(epoch, [json.dumps([e.path, e.timestamp, e.size]) for e in entries])
    return replace(before, lists=(*lists, name), count=before.count + len(files))


def make_file_namer(files: Sequence[FileEntry]) -> Callable[[int], str | None]:
    """Return a function that formats the names of the files that match a fingerprint, for a message."""

    def name_files(fingerprint: int) -> str | None:
        return " or ".join(file_uri_to_path(f.path) for f in files if f.has_fingerprint(fingerprint)) or None

    return name_files


def load_file_list(store: FileListReader, offsets: FileOffsets) -> list[FileEntry]:
    """Return the latest entry of every file in the stored lists to which `offsets` refers."""
    lines = [line for name in offsets.lists for line in store.read_list(name)]
    entries = (FileEntry(*json.loads(line)) for line in lines)
    return list({e.path: e for e in entries}.values())  # a changed file is listed again, and its later entry counts
