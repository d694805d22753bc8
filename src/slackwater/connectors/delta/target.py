"""Delta table target, which writes the rows and the marker of each epoch in one commit.

    table/_delta_log/00000000000000000012.json
      {"txn": {"appId": "slackwater/user-sessions", "version": 12}}     the marker (writer, epoch)
      {"add": …}  {"remove": …}                                         the rows

The "merge" mode replaces rows with an equal identity (NULL equals NULL, NaN equals NaN) and deletes superseded rows.
The "append" mode only adds rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import ArrayType, StructType

from slackwater.connectors.delta.log import delta_error_reason
from slackwater.connectors.target import TargetTable, compare_column_types, rows_in_ranges
from slackwater.core.schema import YEARS, ValueLimits, to_arrow_schema
from slackwater.errors import PublishError, StartError, Topic
from slackwater.state.commit import TargetMarker

_DELETE_FLAG = "__gone"
_RECENT_COMMITS = 100  # the number of commits to search for those of this writer; a table may have other writers
_SPARK_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_DATAFUSION = {  # DataFusion's names of the types for which the log has the minimum and maximum of every file
    "tinyint": "Int8",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "date": "Date32",
    "timestamp": 'Timestamp(Microsecond, Some("UTC"))',
    "timestamp_ntz": "Timestamp(Microsecond, None)",
}


class DeltaTarget:
    """Target that writes each epoch exactly once. Epochs up to the one in the table's marker are ignored."""

    guarantee = "exactly once"

    def __init__(
        self, path: str, mode: str, table: TargetTable, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the target without accessing the table.

        Args:
            path: The path or URL of the table.
            mode: "merge" (needs an identity) or "append".
            table: The columns and the writer.
            storage_options: Options of the object store, passed through unchanged.
        """
        if mode == "merge" and not table.identity:
            raise StartError(
                f'Delta table {path}: mode "merge" needs columns that identify a row, but there are none; use mode = '
                '"append"',
                Topic.TARGET_UNSUITABLE,
            )
        self._path, self._mode, self._table = path, mode, table
        self.upserts = mode == "merge"
        self._options = dict(storage_options or {})
        self._app = f"slackwater/{table.writer}" + (f"/{table.state}" if table.state else "")
        self._arrow = to_arrow_schema(list(table.fields))
        self._delta: DeltaTable | None = None
        self.description = f"Delta table {path}"

    @property
    def capacity(self) -> ValueLimits:
        """The value limits: times must be in the range of years that Spark can write and read."""
        return ValueLimits(time_range=YEARS)

    def open(self) -> None:
        """Create the table, or add new columns to it and check its other columns. Raises StartError on failure."""
        try:
            if not DeltaTable.is_deltatable(self._path, self._options):
                DeltaTable.create(self._path, self._arrow, mode="ignore", storage_options=self._options)
            self._delta = delta = DeltaTable(self._path, storage_options=self._options)
            missing = [f.name for f in self._table.missing([f.name for f in delta.schema().fields])]
            expected = {n: kind for n, kind in _types(Schema.from_arrow(self._arrow)).items() if n not in missing}
            differences = "; ".join(compare_column_types(expected, _types(delta.schema())))
            if missing and not differences:  # only changes the log; no data file is written
                delta.alter.add_columns([f for f in Schema.from_arrow(self._arrow).fields if f.name in missing])
        except Exception as error:  # deltalake has no base class for errors; some are plain Exceptions
            raise StartError(
                f"Delta table {self._path} cannot be opened ({self._reason(error)}); expected a Delta table or a path "
                "where one can be created; check the path and the storage options",
                Topic.TARGET_UNSUITABLE,
            ) from error
        if differences:
            raise StartError(
                f"the columns of Delta table {self._path} differ from those of the pipeline: {differences}; "
                "change the table or the pipeline, or choose another path",
                Topic.TARGET_UNSUITABLE,
            )

    def close(self) -> None:
        self._delta = None

    @contextmanager
    def _start_errors(self, opens: bool = False) -> Iterator[None]:
        """Convert any deltalake error to StartError. `opens`: whether the table is being opened, for the message."""
        try:
            yield
        except Exception as error:  # deltalake has no base class for errors
            if opens:
                raise StartError(
                    f"{self.description} cannot be opened ({self._reason(error)}); check the path and the storage options",
                    Topic.TARGET_UNSUITABLE,
                ) from error
            raise StartError(
                f"{self.description} cannot be read ({self._reason(error)}); check the path and the storage options",
                Topic.OUTPUT_UNREADABLE,
            ) from error

    def _recent_commits(self) -> list[dict[str, Any]]:
        """Return the recent commits of all Slackwater writers, newest first. Empty if the table does not exist."""
        if not DeltaTable.is_deltatable(self._path, self._options):
            return []
        commits = DeltaTable(self._path, storage_options=self._options).history(_RECENT_COMMITS)
        return [c for c in commits if c.get("slackwater_writer")]

    def describe_previous_output(self) -> str | None:
        """Describe the rows that this writer wrote to the table with another state.

        Return None if there are no such rows. Commits of early Slackwater versions are not recognized, because they do
        not name their writer.
        """
        with self._start_errors(opens=True):
            own_commits = [c for c in self._recent_commits() if c["slackwater_writer"] == self._table.writer]
        if not own_commits or own_commits[0].get("slackwater_state") == self._table.state:
            return None
        epoch = own_commits[0].get("slackwater_epoch")
        return f'rows of another state of "{self._table.writer}" in {self.description}, up to epoch {epoch}'

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        """Return the last marker of this writer.

        The table's transactions contain only hashes of the state and of the commit id. They are compared with the
        hashes of the `expected` markers.
        """
        with self._start_errors():
            if not DeltaTable.is_deltatable(self._path, self._options):
                return None
            delta = DeltaTable(self._path, storage_options=self._options)
            if not delta.file_uris():
                return None
            last = tuple(delta.transaction_version(app) for app in self._apps)
            recognised = next((m for m in expected if last == (_number(m.state), _number(m.commit))), None)
            return recognised or self._last_marker(delta, state)

    def writers(self) -> list[str]:
        """Return the writers of recent commits."""
        with self._start_errors():
            return sorted({c["slackwater_writer"] for c in self._recent_commits()})

    def _last_marker(self, delta: DeltaTable, state: str) -> TargetMarker | None:
        """Return this writer's last marker in the recent commits, or else the last marker of `state`."""
        writer = self._table.writer
        own_commits = (c for c in delta.history(_RECENT_COMMITS) if c.get("slackwater_writer") == writer)
        if (commit := next(own_commits, None)) is not None:
            marker = {key: commit.get(f"slackwater_{key}", "") for key in ("state", "epoch", "commit")}
            return TargetMarker(state=marker["state"], epoch=int(marker["epoch"]), commit=marker["commit"])
        epoch = delta.transaction_version(f"slackwater/{writer}/{state}")
        return None if epoch is None else TargetMarker(state=state, epoch=epoch)

    @property
    def _apps(self) -> tuple[str, str]:
        """The application ids of two transactions, which store hashes of the last state and of the last commit id."""
        return f"slackwater/{self._table.writer}#state", f"slackwater/{self._table.writer}#commit"

    def last_epoch(self) -> int:
        """Return the last epoch that this state published, or -1 if it has not published any."""
        delta = self._current()
        epoch = delta.transaction_version(self._app)
        return -1 if epoch is None else epoch

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        try:
            delta = self._current()
            if epoch <= self.last_epoch():
                return
            metadata = {"writer": self._table.writer, "state": self._table.state, "epoch": str(epoch), "commit": commit}
            numbers = zip(self._apps, map(_number, (self._table.state, commit)), strict=True)
            marker = CommitProperties(
                app_transactions=[Transaction(self._app, epoch), *(Transaction(app, n) for app, n in numbers)],
                custom_metadata={f"slackwater_{k}": v for k, v in metadata.items()},
            )
            if self._mode == "append":
                write_deltalake(delta, self._cast(rows, delta), mode="append", commit_properties=marker)
                return
            if superseded is not None and not superseded.is_empty():
                self._merge(delta, rows, superseded.select(self._table.identity or ()), marker)
            elif not rows.is_empty():
                self._merge(delta, rows, None, marker)
            if rows.is_empty() and self.last_epoch() < epoch:  # a merge that changes nothing does not commit the marker
                write_deltalake(delta, self._cast(rows.clear(), delta), mode="append", commit_properties=marker)
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            self._delta = None
            raise PublishError(
                f"{self.description} did not accept epoch {epoch} ({self._reason(error)}); the epoch is committed "
                "and will be published at the next start"
            ) from error

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return the rows that match a row of `ranges`; see `connectors.target.ReadableTarget`."""
        kind = pa.timestamp("us", tz="UTC")
        low, high = (pa.scalar(v, kind) for v in (ranges["__low"].min(), ranges["__high"].max()))
        try:
            time = pc.field(column)
            table = self._current().to_pyarrow_dataset().to_table(filter=(time >= low) & (time <= high))
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise StartError(
                f"{self.description} cannot be read ({self._reason(error)}); nothing was replayed; fix the cause, and "
                "repeat the command",
                Topic.OUTPUT_UNREADABLE,
            ) from error
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return rows_in_ranges(frame, ranges, self._table.fields, self._table.identity or (), column)

    def _current(self) -> DeltaTable:
        """Return the newest version of the table."""
        if self._delta is None:
            self._delta = DeltaTable(self._path, storage_options=self._options)
        else:
            self._delta.update_incremental()
        return self._delta

    def _merge(
        self, delta: DeltaTable, rows: pl.DataFrame, superseded: pl.DataFrame | None, marker: CommitProperties
    ) -> None:
        """Upsert `rows` and delete `superseded` in one commit.

        The merge reads both from one frame, in which an additional column marks the rows to delete.
        """
        columns = {_quote_name(f.name): f"s.{_quote_name(f.name)}" for f in self._table.fields}
        both = rows if superseded is None else pl.concat([rows, superseded], how="diagonal")
        source = self._cast(both, delta)
        if superseded is not None:
            flags = pa.array([False] * rows.height + [True] * superseded.height, pa.bool_())
            source = source.append_column(self._delete_flag, flags)
        merge = delta.merge(source, self._predicate(both), source_alias="s", target_alias="t", commit_properties=marker)
        if superseded is None:
            merge.when_matched_update(columns).when_not_matched_insert(columns).execute()
            return
        is_superseded = f"s.{_quote_name(self._delete_flag)}"
        (
            merge.when_matched_delete(is_superseded)
            .when_matched_update(columns)
            .when_not_matched_insert(columns, f"NOT {is_superseded}")
            .execute()
        )

    @property
    def _delete_flag(self) -> str:
        """The name of a temporary column that marks rows to delete. No column of the table has this name."""
        names = {f.name for f in self._table.fields}
        return next(name for n in range(len(names) + 1) if (name := f"{_DELETE_FLAG}{n or ''}") not in names)

    def _predicate(self, rows: pl.DataFrame) -> str:
        identity = [_quote_name(name) for name in self._table.identity or ()]
        return " AND ".join([*(f"(t.{c} IS NOT DISTINCT FROM s.{c})" for c in identity), *self._ranges(rows)])

    def _ranges(self, rows: pl.DataFrame) -> Iterator[str]:
        """Yield SQL conditions for the value ranges of the identity columns, so that files outside them are skipped."""
        kinds = {f.name: _DATAFUSION.get(f.type) for f in self._table.fields}
        for name in self._table.identity or ():
            column, kind = rows[name].to_physical(), kinds[name]
            if kind and not column.null_count():
                slack = 1000 if kind.startswith("Timestamp") else 0  # Spark truncates stored bounds to milliseconds
                low, high = max(column.min() - slack, -(2**63)), column.max()  # type: ignore[operator]
                yield f"(t.{_quote_name(name)} BETWEEN {_literal(low, kind)} AND {_literal(high, kind)})"

    def _cast(self, rows: pl.DataFrame, delta: DeltaTable) -> pa.Table:
        """Cast the rows to the pipeline's types, and put the columns in the table's order."""
        table: pa.Table = rows.to_arrow().cast(self._arrow)
        return table.select([f.name for f in delta.schema().fields])

    def _reason(self, error: Exception) -> str:
        return delta_error_reason(error, self._options)


def _number(text: str) -> int:
    """Hash a string to a number that fits into a transaction's version field."""
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1


def _types(schema: Schema) -> dict[str, str]:
    """Return the type of each column in Spark's spelling, by column name."""
    return {f.name: _spark_type(f.type) for f in schema.fields}


def _spark_type(kind: Any) -> str:
    if isinstance(kind, ArrayType):
        return f"array<{_spark_type(kind.element_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{f.name}:{_spark_type(f.type)}' for f in kind.fields)}>"
    plain = str(getattr(kind, "type", kind))
    return _SPARK_NAMES.get(plain, plain)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Any, kind: str) -> str:
    return f"arrow_cast(arrow_cast('{value}', 'Int64'), '{kind}')"
