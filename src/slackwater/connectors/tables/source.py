"""Versioned tables as streams: the files that each version adds, in version order.

    version     10       11       12        13        14
                ├────────┼────────┼─────────┼─────────┼───▶
    first start ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓         │         │        reads the content of the table at version 12
    later                          ▒▒▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒▒▒         reads the files that each version adds, in a fixed order

An offset is a version and the number of its files that were read. A `TableLog` (`delta.log`, `iceberg.log`) lists
versions and files, and Spark reads the files. `tables.planner` plans the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.connectors import dead_letter_source_rows, spark_connect
from slackwater.connectors.files.source import SIZE_MODULUS, escape_pattern
from slackwater.connectors.source import Seekable, SourceBatch, spark_error_reason
from slackwater.core.column_names import quote_identifier
from slackwater.core.offsets import TableOffsets
from slackwater.errors import EpochError, NewColumnsError, SlackwaterError, StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NAMED = 3  # the maximum number of files to name for one fingerprint
_FILE = "__file_read"
_PLACE = "__place"  # hidden: the path of the file that a row was read from
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_MISSING_FILE_ERRORS = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException", "READ_CURRENT_FILE_NOT_FOUND")


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table.

    Args:
        path: The path as Spark expects it, without escapes.
        size: The size in bytes.
        values: The values of the partition columns as text. The file itself does not contain these columns.
    """

    path: str
    size: int
    values: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TableVersion:
    """The changes that one version makes to a table.

    Args:
        offsets: The offsets after the complete version.
        files: The files that it adds.
        rewrites: How the version removes or rewrites rows, as text for messages. None if it only adds rows.
        rows: The number of rows in `files` if the version removes or rewrites rows; else 0.
        columns: The columns of the table, if this version changed them.
    """

    offsets: TableOffsets
    files: Sequence[DataFile] = ()
    rewrites: str | None = None
    rows: int = 0
    columns: StructType | None = None


@dataclass(frozen=True)
class TableSnapshot:
    """The current state of a table.

    Args:
        offsets: The offsets after its newest version.
        columns: Its columns, with the ids that identify them in files, if any.
        partitions: The names of the partition columns, which its files do not contain.
    """

    offsets: TableOffsets
    columns: StructType
    partitions: Sequence[str] = ()


class VersionGoneError(Exception):
    """Raised when a version is needed but no longer exists. The message says why."""


class TableLog(Protocol):
    """The versions of a table. Implementations use the library of the table format.

    Its methods may raise VersionGoneError or SlackwaterError. Any other exception means that the table is unavailable.
    """

    @property
    def description(self) -> str:
        """The name of the table in messages."""
        ...

    @property
    def retention_advice(self) -> str:
        """Advice for messages on how to keep versions for longer."""
        ...

    def snapshot(self) -> TableSnapshot:
        """Return the current table. Raises StartError if it does not exist or Spark cannot read it correctly."""
        ...

    def list_files(self, offsets: TableOffsets) -> Sequence[DataFile]:
        """Return all files of a version, earliest added first, in a stable order."""
        ...

    def read_version(self, offsets: TableOffsets) -> TableVersion:
        """Return the changes of one version."""
        ...

    def versions_after(self, offsets: TableOffsets) -> Iterable[TableVersion]:
        """Return the versions after these offsets, in order."""
        ...

    def offsets_before(self, version: int) -> TableOffsets:
        """Return the offsets just before a version. Raises StartError if that version does not exist."""
        ...

    def error_reason(self, error: BaseException) -> str:
        """Return the library's error as one line, without secrets."""
        ...


@dataclass(frozen=True)
class TableSource(Seekable):
    """A table as a source, planned by `tables.planner`.

    `snapshot`: the table at the start of the run. All rows have its columns.
    """

    log: TableLog
    snapshot: TableSnapshot
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def where(self) -> str:
        return f'source "{self.name}": {self.log.description}'

    @property
    def schema(self) -> StructType:
        return _without_ids(self.snapshot.columns)

    # -- start offsets -------------------------------------------------------------------------------------------------

    def latest(self) -> TableOffsets:
        """Return the offsets just past everything that the table now contains."""
        return self._query_log(self.log.snapshot).offsets

    def configured_start(self) -> TableOffsets:
        """Return the offsets at which the config says to start. For "latest", call `latest` instead."""
        if self.spec.starting_version is not None:
            version = self.spec.starting_version
            return self._query_log(lambda: self.log.offsets_before(version))
        return self._before_all_content()

    def _before_all_content(self) -> TableOffsets:
        """Return the offsets just before the table's current content."""
        offsets = self._query_log(self.log.snapshot).offsets
        return (
            offsets
            if offsets.version < 0
            else TableOffsets(offsets.table, offsets.version, offsets.sequence, files=0, content=True)
        )

    def start_offsets(self, record: SourceRecord) -> TableOffsets:
        """Return the offsets in the state, or those that the config specifies if nothing has been read.

        Raises StartError if this is not the table that was read before.
        """
        read = record.offsets
        if isinstance(read, TableOffsets) and read.is_unread:
            return self._before_all_content()
        if not isinstance(read, TableOffsets):
            return self.latest() if self.spec.starting_offsets == "latest" else self.configured_start()
        if read.table != (now := self.snapshot.offsets).table:
            raise StartError(
                f"{self.where} is not the table that was read up to {read}, because it was created again; nothing was "
                "read; start at the first row of the new table with `slackwater state reset … --offsets "
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
        """Return an error of the log, prefixed with the name of the source."""
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
        return EpochError(
            f"{self.where}: {problem}; this epoch was not committed, because rows would be lost: restore what is missing, or skip "
            f"to new rows with `slackwater state reset … --offsets {self.name}=latest`, and {self.log.retention_advice}",
            Topic.TABLE_HISTORY,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def read(self, session: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of these files with all columns of the table, even those that a file lacks.

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
                raise self.version_gone_error(f"a file of it is gone ({spark_error_reason(error)})") from None
            raise EpochError(f"{self.where}: {spark_error_reason(error)}") from None
        return frame

    def _reader(self, session: SparkSession) -> Any:
        """Return the reader that all epochs share. Options that never change are set once per Spark session."""
        if self._cache.get("session") is not session:
            from pyspark.sql.types import StructType

            if any("parquet.field.id" in f.metadata for f in self.snapshot.columns.fields):
                session.conf.set(_BY_ID, "true")
            in_files = StructType([f for f in self.snapshot.columns.fields if f.name not in self.snapshot.partitions])
            reader = session.read.format("parquet").options(**self.spec.options).schema(in_files)
            self._cache.update(session=session, reader=reader)
        return self._cache["reader"]

    def _with_values(self, session: SparkSession, rows: DataFrame, files: Sequence[DataFile]) -> DataFrame:
        """Add the partition values of each file to its rows, and order the columns as in the table."""
        names = [f.name for f in self.snapshot.columns.fields]
        if not self.snapshot.partitions:
            return rows.select(*map(quote_identifier, names))
        F = spark_connect.sql_functions(rows)  # noqa: N806
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
            # as a regular column, because Spark 4.0 cannot join on a metadata column
            rows = rows.withColumn(_PLACE, row_path).join(
                F.broadcast(file_values), F.col(_PLACE) == F.col(f"__values.{_FILE}"), "left"
            )
            missing = F.raise_error(F.concat(F.lit("a file that was not planned: "), F.col(_PLACE)))
            planned = F.col(f"__values.{_FILE}").isNotNull()
            values = {n: F.when(planned, v).otherwise(missing.cast("string")) for n, v in values.items()}
        selected = [values[n].cast(kinds[n]).alias(n) if n in values else F.col(quote_identifier(n)) for n in names]
        return rows.select(*selected)

    def rows_of_letters(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        return dead_letter_source_rows.decoded_letter_rows(letters, self.schema, [f"file AS {file}", letter])


@dataclass(frozen=True)
class TableFileBatch:
    """The files of one epoch and the offsets after them. `lost`: the number of rows in skipped versions."""

    source: TableSource
    files: Sequence[DataFile]
    offsets_after: TableOffsets
    lost: int = 0

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        rows, offsets = self.source.read(session, self.files), self.offsets_after
        return SourceBatch(rows, offsets, files=len(self.files), lost=self.lost, name_files=make_file_namer(self.files))


def make_file_namer(files: Sequence[DataFile]) -> Callable[[int], str | None]:
    """Return a function that returns, for messages, the names of the files that match a file fingerprint.

    Only the sizes in the fingerprint are compared.
    """

    def name_files(fingerprint: int) -> str | None:
        paths = [f.path for f in files if f.size % SIZE_MODULUS == fingerprint % SIZE_MODULUS]
        return " or ".join(paths) if 0 < len(paths) <= _NAMED else None

    return name_files


def _without_ids(columns: StructType) -> StructType:
    """Return the columns without the field ids."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType) for f in columns.fields])


def _path_without_scheme(path: str) -> str:
    """Return a path without its scheme, to compare it with a path from Spark: schemes have several spellings."""
    scheme, colon, rest = path.partition(":")
    return (rest if colon and "/" not in scheme else path).lstrip("/")


def find_added_columns(earlier: StructType, now: StructType) -> list[str]:
    """Return the new columns with their types. Names are compared ignoring case, as in Spark."""
    names = {f.name.casefold() for f in earlier.fields}
    return [f'"{f.name}" ({f.dataType.simpleString()})' for f in now.fields if f.name.casefold() not in names]


def _changed_columns(earlier: StructType, now: StructType) -> list[str]:
    """Describe the columns that are missing or have a different type."""
    types = {f.name.casefold(): f.dataType.simpleString() for f in now.fields}
    return [
        f'"{f.name}" is now {types.get(f.name.casefold(), "missing")} (was {f.dataType.simpleString()})'
        for f in earlier.fields
        if types.get(f.name.casefold()) != f.dataType.simpleString()
    ]


def check_column_changes(
    where: str, earlier: StructType, now: StructType, choice: str | None, since: str, running: bool = False
) -> None:
    """Raise StartError if the columns changed in a way that the source does not accept.

    Args:
        where: The prefix of messages.
        earlier: The expected columns.
        now: The current columns.
        choice: The setting `schema_changes`.
        since: The versions in which the columns changed, for messages.
        running: Whether a run is in progress, whose SQL, state and target are bound to the earlier columns. New
            columns then end the run with NewColumnsError, and the next start accepts them.
    """
    if wrong := _changed_columns(earlier, now):
        raise StartError(
            f"{where}: its columns changed in {since}: {'; '.join(wrong)}; restore them, or start over under another "
            "name",
            Topic.TABLE_COLUMNS,
        )
    new = ", ".join(find_added_columns(earlier, now))
    if new and choice in (None, "fail"):
        raise StartError(
            f'{where}: new columns in {since}: {new}; set schema_changes to add them ("add") or to leave them out '
            '("ignore")',
            Topic.TABLE_COLUMNS,
        )
    if new and choice == "add" and running:
        raise NewColumnsError(
            f"{where}: new columns in {since}: {new}; all earlier rows are committed, and the next start adds the "
            "columns"
        )
