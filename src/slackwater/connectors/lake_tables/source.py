"""Versioned tables as streams of the files that each version adds, in version order.

    version     10       11       12        13        14
                ├────────┼────────┼─────────┼─────────┼───▶
    first start ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓         │         │        reads the content of the table at version 12
    later                          ▒▒▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒▒▒         reads the files that each version adds, in a fixed order

An offset consists of a version and the number of its files that were read. A `TableLog` (`delta.log`, `iceberg.snapshots`)
lists versions and files, and Spark reads the files. `LakeTablePlanner` plans the epochs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slackwater.connectors import dead_letter_restoration, spark_connect_support
from slackwater.connectors.files.directory_listing import escape_pattern
from slackwater.connectors.files.source import SIZE_MODULUS
from slackwater.connectors.lake_tables.table_log import (
    DataFile,
    TableLog,
    TableSnapshot,
    TableVersion,
    VersionGoneError,
    check_column_changes,
)
from slackwater.connectors.source import SelfPlannedSource, SourceBatch, SourceUnavailableError, spark_error_reason
from slackwater.core.column_names import quote_identifier
from slackwater.core.humanize import plural
from slackwater.core.offsets import LakeTableOffsets
from slackwater.errors import EpochError, SlackwaterError, StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("slackwater")

_NAMED = 3  # the maximum number of files that are named for one fingerprint
_FILE = "__file_read"  # hidden column: the path of a file in the list of partition values
_PATH = "__place"  # hidden column: the path of the file that a row was read from
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_MISSING_FILE_ERRORS = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException", "READ_CURRENT_FILE_NOT_FOUND")


@dataclass(frozen=True)
class LakeTableSource(SelfPlannedSource):
    """Source that reads a table.

    `log`: the log of the table. `snapshot`: the table at the start of the run. All rows have the snapshot's columns.
    """

    log: TableLog
    snapshot: TableSnapshot
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    kind = "table"

    @property
    def where(self) -> str:
        return f'source "{self.name}": {self.log.description}'

    @property
    def schema(self) -> StructType:
        return _without_ids(self.snapshot.columns)

    def check_connect(self, pipeline: str) -> None:
        raise StartError(
            f'{pipeline}: source "{self.name}" is a table, which Slackwater does not read over Spark Connect yet; run '
            "the pipeline in a classic Spark session (SPARK_MASTER instead of SPARK_REMOTE)",
            Topic.SPARK_CONNECT,
        )

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> LakeTablePlanner:
        return LakeTablePlanner(self, record)

    # -- start offsets -------------------------------------------------------------------------------------------------

    def latest(self) -> LakeTableOffsets:
        """Return the offsets after the current content of the table."""
        return self._query_log(self.log.snapshot).offsets

    def configured_start(self) -> LakeTableOffsets:
        """Return the offsets at which the config says to start. For "latest", call `latest` instead."""
        if self.spec.starting_version is not None:
            version = self.spec.starting_version
            return self._query_log(lambda: self.log.offsets_before(version))
        return self._before_all_content()

    def _before_all_content(self) -> LakeTableOffsets:
        """Return the offsets before the current content of the table."""
        offsets = self._query_log(self.log.snapshot).offsets
        return (
            offsets
            if offsets.version < 0
            else LakeTableOffsets(offsets.table, offsets.version, offsets.sequence, files=0, content=True)
        )

    def start_offsets(self, record: SourceRecord) -> LakeTableOffsets:
        """Return the offsets in the state. If nothing has been read, return the offsets that the config specifies.

        Raises StartError if this is not the table that was read before.
        """
        read = record.offsets
        if isinstance(read, LakeTableOffsets) and read.is_unread:
            return self._before_all_content()
        if not isinstance(read, LakeTableOffsets):
            return self.latest() if self.spec.starting_offsets == "latest" else self.configured_start()
        if read.table != (now := self.snapshot.offsets).table:
            raise StartError(
                f"{self.where} was created again after it had been read up to {read}; nothing was read from the new "
                "table; start at its first row with `slackwater state reset … --offsets "
                f"{self.name}=earliest`",
                Topic.OFFSETS,
            )
        if read.sequence is None and now.version < read.version:
            raise StartError(
                f"{self.where} ends at version {now.version}, before {read}, the version last read: the log of the "
                "table was changed; restore it, or continue at the end of the table with `slackwater state reset … "
                f"--offsets {self.name}=latest`",
                Topic.OFFSETS,
            )
        return read

    def with_source_name(self, error: SlackwaterError) -> SlackwaterError:
        """Prefix an error from the log with the name of the source."""
        return error if str(error).startswith("source ") else type(error)(f'source "{self.name}": {error}', error.topic)

    def _query_log(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except SlackwaterError as error:
            raise self.with_source_name(error) from None
        except VersionGoneError as error:
            raise self.version_gone_error(str(error)) from None
        except Exception as error:
            raise StartError(
                f"{self.where} cannot be read ({self.log.error_reason(error)}); check the query and the options of the connection",
                Topic.OUTPUT_UNREADABLE,
            ) from None

    def version_gone_error(self, problem: str) -> EpochError:
        """Return the error for a version that no longer exists. `problem`: the first sentence of the message."""
        return EpochError(
            f"{self.where}: {problem}; this epoch was not committed because rows would have been lost; restore what is missing, or skip "
            f"to new rows with `slackwater state reset … --offsets {self.name}=latest`, and {self.log.retention_advice}",
            Topic.TABLE_HISTORY,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def read(self, session: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of files with all columns of the table. Columns that a file lacks are NULL.

        Raises EpochError if a file no longer exists or cannot be read.
        """
        if not files:
            return session.createDataFrame([], self.schema)
        try:
            rows = self._reader(session).load([escape_pattern(f.path) for f in files])
            frame = self._with_values(session, rows, files)
            assert frame.schema is not None
        except Exception as error:
            if any(sign in str(error) for sign in _MISSING_FILE_ERRORS):
                raise self.version_gone_error(f"one of its files is gone ({spark_error_reason(error)})") from None
            raise EpochError(f"{self.where}: {spark_error_reason(error)}") from None
        return frame

    def _reader(self, session: SparkSession) -> Any:
        """Return the reader that all epochs share. Its constant options are set once per Spark session."""
        if self._cache.get("session") is not session:
            from pyspark.sql.types import StructType

            if any("parquet.field.id" in f.metadata for f in self.snapshot.columns.fields):
                session.conf.set(_BY_ID, "true")
            in_files = StructType([f for f in self.snapshot.columns.fields if f.name not in self.snapshot.partitions])
            reader = session.read.format("parquet").options(**self.spec.options).schema(in_files)
            self._cache.update(session=session, reader=reader)
        return self._cache["reader"]

    def _with_values(self, session: SparkSession, rows: DataFrame, files: Sequence[DataFile]) -> DataFrame:
        """Add each file's partition values to its rows, and reorder the columns to match the table."""
        names = [f.name for f in self.snapshot.columns.fields]
        if not self.snapshot.partitions:
            return rows.select(*map(quote_identifier, names))
        F = spark_connect_support.sql_functions(rows)  # noqa: N806
        kinds = {f.name: f.dataType for f in self.snapshot.columns.fields}
        if all(f.values == files[0].values for f in files):
            values = {n: F.lit(files[0].values.get(n)) for n in self.snapshot.partitions}
        else:
            values = {n: F.col(f"__values.v{i}") for i, n in enumerate(self.snapshot.partitions)}
            listed = [
                (_path_without_scheme(f.path), *(f.values.get(n) for n in self.snapshot.partitions)) for f in files
            ]
            columns = ", ".join(f"v{i} STRING" for i in range(len(self.snapshot.partitions)))
            file_values = session.createDataFrame(listed, f"{_FILE} STRING, {columns}").alias("__values")
            row_path = F.expr(
                r"url_decode(replace(regexp_replace(_metadata.file_path, '^[A-Za-z][A-Za-z0-9+.-]*:/*', ''), '+', '%2B'))"
            )
            # The path is a regular column, because Spark 4.0 cannot join on a metadata column.
            rows = rows.withColumn(_PATH, row_path).join(
                F.broadcast(file_values), F.col(_PATH) == F.col(f"__values.{_FILE}"), "left"
            )
            missing = F.raise_error(F.concat(F.lit("a file that was not planned: "), F.col(_PATH)))
            planned = F.col(f"__values.{_FILE}").isNotNull()
            values = {n: F.when(planned, v).otherwise(missing.cast("string")) for n, v in values.items()}
        selected = [values[n].cast(kinds[n]).alias(n) if n in values else F.col(quote_identifier(n)) for n in names]
        return rows.select(*selected)

    def decode_dead_letter_rows(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        return dead_letter_restoration.restore_decoded_rows(letters, self.schema, [f"file AS {file}", letter])


@dataclass(frozen=True)
class LakeTableBatch:
    """The files of one epoch, and the offsets after them. `lost`: the number of rows in skipped versions."""

    source: LakeTableSource
    files: Sequence[DataFile]
    offsets_after: LakeTableOffsets
    lost: int = 0

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        rows, offsets = self.source.read(session, self.files), self.offsets_after
        return SourceBatch(rows, offsets, files=len(self.files), lost=self.lost, name_files=make_file_namer(self.files))


def make_file_namer(files: Sequence[DataFile]) -> Callable[[int], str | None]:
    """Return a function that formats the names of the files that match a fingerprint, for a message.

    Only the size in the fingerprint is compared, because the modification time of a table file is unknown.
    """

    def name_files(fingerprint: int) -> str | None:
        paths = [f.path for f in files if f.size % SIZE_MODULUS == fingerprint % SIZE_MODULUS]
        return " or ".join(paths) if 0 < len(paths) <= _NAMED else None

    return name_files


def _without_ids(columns: StructType) -> StructType:
    """Return a copy of `columns` without field ids."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType) for f in columns.fields])


def _path_without_scheme(path: str) -> str:
    """Return a path without its URL scheme. Paths are compared in this form, because schemes have several spellings."""
    scheme, colon, rest = path.partition(":")
    return (rest if colon and "/" not in scheme else path).lstrip("/")


@dataclass(frozen=True)
class _PendingFile:
    """A file to read, and the offsets after it. For a skipped version, `file` is None and `lost` counts its rows."""

    file: DataFile | None
    offsets_after: LakeTableOffsets
    lost: int = 0


class LakeTablePlanner:
    """Planner for a table. It resumes from the offsets in `record`.

    Raises SlackwaterError if this is not the table that was read before.
    """

    def __init__(self, source: LakeTableSource, record: SourceRecord) -> None:
        self._source, self._max_files = source, source.spec.max_files_per_trigger
        self._position = source.start_offsets(record)  # all input up to this position is pending or planned
        self._pending: deque[_PendingFile] = deque()
        self._is_inside_version = self._position.files is not None  # only a part of the version was read
        self._problem: SlackwaterError | None = None
        self._ended = False

    @property
    def unplanned_files(self) -> int:
        return len(self._pending)

    def stop_at_current_end(self) -> None:
        try:
            self._find_versions()
        except SourceUnavailableError as error:
            raise error.cause from None
        self._ended = True

    def next(self) -> LakeTableBatch | None:
        if not self._ended and self._problem is None and len(self._pending) < (self._max_files or 1):
            self._find_versions()
        if not self._pending:
            if self._problem is not None:
                raise self._problem
            return None
        selected = [
            self._pending.popleft() for _ in range(min(self._max_files or len(self._pending), len(self._pending)))
        ]
        files = [w.file for w in selected if w.file is not None]
        return LakeTableBatch(self._source, files, selected[-1].offsets_after, sum(w.lost for w in selected))

    def _find_versions(self) -> None:
        """Append the files of new table versions to the pending files.

        Raises SourceUnavailableError if the table does not respond.
        """
        source = self._source
        try:
            if self._is_inside_version:
                self._add_remaining_files()
            for version in source.log.versions_after(self._position):
                self._add_version(version)
        except VersionGoneError as error:
            self._problem = source.version_gone_error(str(error))
        except SlackwaterError as error:
            self._problem = source.with_source_name(error)
        except Exception as error:
            raise SourceUnavailableError(
                EpochError(
                    f"{source.where} does not answer ({source.log.error_reason(error)}); check that it can be reached"
                )
            ) from None

    def _add_remaining_files(self) -> None:
        """Append the unread files of a version that was only partly read."""
        offsets, done = self._position, self._position.files or 0
        end = offsets.fully_read
        if offsets.content:
            files = self._source.log.list_files(offsets)
        else:
            version = self._source.log.read_version(offsets)
            self._check(version)
            files = version.files
        if done > len(files):
            raise VersionGoneError(
                f"{offsets.fully_read} has {plural(len(files), 'file')}, but {done:,} of them were read"
            )
        self._add_files(files[done:], offsets, done, end)
        self._position, self._is_inside_version = end, False

    def _add_version(self, version: TableVersion) -> None:
        if version.rewrites is not None and self._source.spec.on_rewrite == "skip":
            log.warning(
                "%s: %s %s; it is skipped, along with the %s of its files (on_rewrite)",
                self._source.where,
                version.offsets,
                version.rewrites,
                plural(version.rows, "row"),
            )
            self._pending.append(_PendingFile(None, version.offsets, version.rows))
        else:
            self._check(version)
            self._add_files(version.files, version.offsets, 0, version.offsets)
        self._position = version.offsets

    def _check(self, version: TableVersion) -> None:
        source = self._source
        if version.rewrites is not None:
            raise EpochError(
                f"{source.where}: {version.offsets} {version.rewrites}, but rows that were already read cannot be "
                'retracted; read an append-only table, or set on_rewrite = "skip" to skip such versions',
                Topic.TABLE_HISTORY,
            )
        if version.columns is not None:
            choice = source.spec.schema_changes
            check_column_changes(
                source.where, source.schema, version.columns, choice, str(version.offsets), running=True
            )

    def _add_files(
        self, files: Sequence[DataFile], offsets: LakeTableOffsets, done: int, end: LakeTableOffsets
    ) -> None:
        for n, file in enumerate(files, done + 1):
            self._pending.append(_PendingFile(file, end if n == done + len(files) else replace(offsets, files=n)))
        if not files and self._pending:  # the version is empty, so the epoch with the previous file covers it
            self._pending[-1] = replace(self._pending[-1], offsets_after=end)
