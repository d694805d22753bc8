"""Read the log of a Delta table: its versions, and the files that each version adds and removes.

    _delta_log/00000000000000000012.json     the changes that version 12 makes
      {"add": {"path", "partitionValues", "dataChange"}}     a file that it adds
      {"remove": …}                                          a file that it removes
      {"metaData": …}                                        the columns of the table, if it changes them

To look for a new version, a run requests the next file of the log instead of listing the log.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from slackwater.config.connector_description import absolute_path
from slackwater.config.relative_paths import spark_address
from slackwater.connectors.lake_tables.table_log import DataFile, TableSnapshot, TableVersion, VersionGoneError
from slackwater.core.humanize import plural
from slackwater.core.offsets import LakeTableOffsets
from slackwater.errors import StartError, Topic
from slackwater.secret_masking import mask_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_SUPPORTED_FEATURES = {  # reader features; any other feature may change how files or the log are interpreted
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "deletionVectors",
    "typeWidening",
    "typeWidening-preview",
}


class DeltaLog:
    """Log of one Delta table. `path`: the table's path in the config. `options`: the options of its object store."""

    retention_advice = (
        "keep the log of the table longer (delta.logRetentionDuration, delta.deletedFileRetentionDuration)"
    )

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self.description = f"Delta table {path}"
        self._path, self._options = path, dict(options)
        self._id = ""
        self._first_version: int | None = None  # the first version that was read
        self._newest_stamp: tuple[int, object] | None = None  # the newest version read, and the stamp of its log file

    def snapshot(self) -> TableSnapshot:
        table = self._table()
        protocol, metadata = table.protocol(), table.metadata()
        unknown = sorted(set(protocol.reader_features or ()) - _SUPPORTED_FEATURES)
        mapping = metadata.configuration.get("delta.columnMapping.mode", "none")
        if unknown or mapping != "none":
            feature = f"column mapping by {mapping}" if mapping != "none" else ", ".join(unknown)
            raise StartError(
                f"{self.description} uses features that Slackwater does not support ({feature}); expected a table "
                "without these features",
                Topic.TABLE_READER,
            )
        columns = _columns(table.schema().to_json())
        for field in columns.fields:
            if field.name in metadata.partition_columns and field.dataType.simpleString() == "binary":
                raise StartError(
                    f'{self.description} is partitioned by "{field.name}", which is a binary column; expected a '
                    "partition column of another type",
                    Topic.TABLE_READER,
                )
        self._id = str(metadata.id)
        self._first_version = table.version() if self._first_version is None else self._first_version
        return TableSnapshot(LakeTableOffsets(self._id, table.version()), columns, tuple(metadata.partition_columns))

    def list_files(self, offsets: LakeTableOffsets) -> Sequence[DataFile]:
        import pyarrow as pa

        table = self._table(offsets.version)
        if table.deletion_vectors().read_all().num_rows:
            raise StartError(
                f"{self.description} has files with deletion vectors at {offsets.fully_read}, but Spark's Parquet "
                "reader ignores deletion vectors; rewrite the files (REORG TABLE … APPLY (PURGE)), or set "
                'starting_offsets = "latest" to read only new rows',
                Topic.TABLE_READER,
            )
        adds = pa.table(table.get_add_actions()).to_pylist()
        files = sorted(adds, key=lambda add: (add["modification_time"], add["path"]))
        return [self._file(add["path"], add["size_bytes"], add.get("partition") or {}) for add in files]

    def read_version(self, offsets: LakeTableOffsets) -> TableVersion:
        version = self._version(offsets.version)
        if version is None:
            raise VersionGoneError(f"version {offsets.version} is needed, but its log is gone")
        return version

    def versions_after(self, offsets: LakeTableOffsets) -> Iterator[TableVersion]:
        version = offsets.version
        while (table_version := self._version(version + 1)) is not None:
            yield table_version
            version += 1
        if self._newest_stamp is None or self._newest_stamp != (version, self._stamp(version)):
            self._check_newest(version)

    def offsets_before(self, version: int) -> LakeTableOffsets:
        newest = self._table().version()
        if version > newest + 1:
            raise StartError(
                f"{self.description} has no version {version}; expected a version up to {newest}, the newest one",
                Topic.TABLE_HISTORY,
            )
        return LakeTableOffsets(self._id, version - 1)

    def error_reason(self, error: BaseException) -> str:
        return delta_error_reason(error, self._options)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _table(self, version: int | None = None) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._path, version=version, storage_options=self._options)
        except TableNotFoundError:
            if version is None:
                raise StartError(
                    f'{self.description} does not exist; set "query" to the path of an existing Delta table',
                    Topic.INPUT_MISSING,
                ) from None
            self._table()
            raise VersionGoneError(f"version {version} is needed, but its log is gone") from None
        except Exception as error:
            if version is None or self._table().version() < version:
                raise
            raise VersionGoneError(
                f"version {version} is needed, but its data is gone ({self.error_reason(error)})"
            ) from None

    def _check_newest(self, version: int) -> None:
        """Check that the log file of the next version is missing only because `version` is the newest version.

        Raises StartError if the table was replaced, and VersionGoneError if the next version's log file is gone.
        """
        newest = self._table()
        if str(newest.metadata().id) != self._id or newest.version() < version:
            raise StartError(
                f"{self.description} was created again while it was being read (at version {version}); to read the new "
                "table, start with a new state, or reset the source's offsets with `slackwater state reset`",
                Topic.TABLE_HISTORY,
            )
        if newest.version() > version and self._text(version + 1) is None:
            raise VersionGoneError(
                f"version {version + 1} is needed next, but its log is gone; the newest is {newest.version()}"
            )
        self._newest_stamp = (version, self._stamp(version))

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._path, self._options))

    def _stamp(self, version: int) -> object:
        """Return a value that changes when the log file of a version is replaced."""
        info = self._files().get_file_info(_name(version))
        return (info.size, info.mtime_ns)

    def _text(self, version: int) -> str | None:
        try:
            with self._files().open_input_file(_name(version)) as file:
                return str(file.read().decode())
        except FileNotFoundError:
            return None

    def _version(self, version: int) -> TableVersion | None:
        if version < 0 or (text := self._text(version)) is None:
            return None
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        adds = [a["add"] for a in actions if a.get("add") and a["add"].get("dataChange", True)]
        removes = [a["remove"] for a in actions if a.get("remove") and a["remove"].get("dataChange", True)]
        metadata = next((a["metaData"] for a in actions if a.get("metaData")), None)
        if metadata is not None and self._id and metadata["id"] != self._id:
            raise StartError(
                f"{self.description} was replaced by another table at version {version}; to read the new table, start "
                "with a new state",
                Topic.TABLE_HISTORY,
            )
        info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if a.get("commitInfo")), {})
        rewrites, vectors = None, sum(1 for a in adds if a.get("deletionVector"))
        if removes or vectors:
            removal = "deletion vectors" if vectors else f"{plural(len(removes), 'file')} removed"
            rewrites = f"is a {info.get('operation') or 'change'} that removes or rewrites rows ({removal})"
        files = [
            self._file(a["path"], a["size"], a.get("partitionValues") or {})
            for a in sorted(adds, key=lambda a: a["path"])
        ]
        return TableVersion(
            LakeTableOffsets(self._id, version),
            files,
            rewrites,
            sum(_rows(a) for a in adds) if rewrites else 0,
            None if metadata is None or version <= (self._first_version or 0) else _columns(metadata["schemaString"]),
        )

    def _file(self, path: str, size: int, values: Mapping[str, Any]) -> DataFile:
        raw = unquote(path)
        if "://" not in raw and not raw.startswith(("file:", "/")):
            raw = f"{absolute_path(self._path).rstrip('/')}/{raw}"
        return DataFile(spark_address(raw), size, {name: _text(value) for name, value in values.items()})


def delta_error_reason(error: BaseException, options: Mapping[str, str]) -> str:
    """Format an error from the deltalake library as one line, without the values of secret storage options."""
    text = mask_secrets(" ".join(str(error).split()) or type(error).__name__)
    for name, value in options.items():
        if value and any(part in name.lower() for part in ("key", "secret", "token", "password", "credential")):
            text = text.replace(value, "***")
    return text if len(text) <= 300 else f"{text[:300]}…"


def _name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _columns(schema: str) -> StructType:
    """Parse a table schema. Delta writes schemas in Spark's JSON format."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema))


def _rows(add: Mapping[str, Any]) -> int:
    try:
        return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))
    except ValueError:
        return 0


def _text(value: Any) -> str | None:
    """Format a partition value as in the log, where NULL may be an empty string. Return None for NULL."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "Z"
        return f"{value.astimezone(dt.UTC) if zone else value:%Y-%m-%dT%H:%M:%S.%f}{zone}"
    return str(value)
