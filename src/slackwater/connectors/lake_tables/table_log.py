"""The interface to a versioned table's log of versions and files, and checks for changed columns.

`delta.log` and `iceberg.snapshots` implement the interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slackwater.core.offsets import LakeTableOffsets
from slackwater.errors import NewColumnsError, StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table.

    Args:
        path: The path in the form that Spark expects, without escapes.
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
        rows: The number of rows in `files` if the version removes or rewrites rows, otherwise 0.
        columns: The columns of the table, if this version changed them.
    """

    offsets: LakeTableOffsets
    files: Sequence[DataFile] = ()
    rewrites: str | None = None
    rows: int = 0
    columns: StructType | None = None


@dataclass(frozen=True)
class TableSnapshot:
    """The current state of a table.

    Args:
        offsets: The offsets after the newest version.
        columns: The columns. If the files identify columns by id, the field metadata contains the ids.
        partitions: The names of the partition columns. The files do not contain these columns.
    """

    offsets: LakeTableOffsets
    columns: StructType
    partitions: Sequence[str] = ()


class VersionGoneError(Exception):
    """Raised when a version is needed but no longer exists. The message says why."""


class TableLog(Protocol):
    """Log of a versioned table. Implementations use the library of the table format.

    Methods may raise VersionGoneError or SlackwaterError. Any other exception means that the table is unavailable.
    """

    @property
    def description(self) -> str:
        """The name of the table in messages."""
        ...

    @property
    def retention_advice(self) -> str:
        """Advice on how to keep versions longer, for messages."""
        ...

    def snapshot(self) -> TableSnapshot:
        """Return the current state of the table. Raises StartError if it does not exist or Spark cannot read it."""
        ...

    def list_files(self, offsets: LakeTableOffsets) -> Sequence[DataFile]:
        """Return all files of the table at a version, in a stable order that begins with the file added first."""
        ...

    def read_version(self, offsets: LakeTableOffsets) -> TableVersion:
        """Return the changes of one version."""
        ...

    def versions_after(self, offsets: LakeTableOffsets) -> Iterable[TableVersion]:
        """Return the versions after `offsets`, oldest first."""
        ...

    def offsets_before(self, version: int) -> LakeTableOffsets:
        """Return the offsets just before a version. Raises StartError if that version does not exist."""
        ...

    def error_reason(self, error: BaseException) -> str:
        """Format an error from the table format's library as one line, without secrets."""
        ...


def find_added_columns(earlier: StructType, now: StructType) -> list[str]:
    """Return the columns of `now` that are not in `earlier`, as text. Names are compared ignoring case."""
    names = {f.name.casefold() for f in earlier.fields}
    return [f'"{f.name}" ({f.dataType.simpleString()})' for f in now.fields if f.name.casefold() not in names]


def _changed_columns(earlier: StructType, now: StructType) -> list[str]:
    """Describe each column of `earlier` that is missing from `now` or has a different type there."""
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
            columns then end the run with NewColumnsError, and are accepted at the next start.
    """
    if wrong := _changed_columns(earlier, now):
        raise StartError(
            f"{where}: columns changed in {since}: {'; '.join(wrong)}; restore these columns, or give the pipeline "
            "another name to start over",
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
