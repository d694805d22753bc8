"""Iceberg table target, which writes the rows and the marker of each epoch in one catalog commit.

    commit of epoch 12
      add-snapshot …                                            the rows; for a correction also the rewritten files
      set-properties {"slackwater/user-sessions/…": "12"}       the marker; a property, because snapshots expire
      assert-ref-snapshot-id main = …                           fails the commit if the table has changed

The "append" mode only adds rows. The "merge" mode replaces rows with an equal identity (NULL equals NULL, NaN equals
NaN) and deletes superseded rows. To do so, it rewrites the files that contain these rows. Before a failed commit is
retried, the table is reloaded, because the commit may have succeeded although the response was lost.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from slackwater.connectors.iceberg import tables as iceberg
from slackwater.connectors.iceberg.tables import IcebergTables
from slackwater.connectors.target import TargetTable as Columns
from slackwater.connectors.target import rows_in_ranges
from slackwater.core.humanize import plural
from slackwater.core.schema import YEARS, ValueLimits
from slackwater.errors import PublishError, StartError, Topic
from slackwater.state.commit import TargetMarker

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

log = logging.getLogger("slackwater")

_TRIES, _PAUSE_S = 6, 0.1  # the pause doubles with each attempt
_BUFFERED_ROWS = 1_000_000  # the number of rows of rewritten files to keep in memory
_DAYS = 32  # the maximum number of days that are filtered individually; more days are filtered as one range
_DAY_US = 86_400_000_000
_MAIN = "main"


class IcebergTarget:
    """Target that writes each epoch exactly once. Epochs up to the one in the table's marker are ignored."""

    guarantee = "exactly once"

    def __init__(self, tables: IcebergTables, name: str, mode: str, table: Columns, day_of: str | None = None) -> None:
        """Prepare the target without accessing the catalog.

        Args:
            tables: The catalog.
            name: The name of the table, with its namespace.
            mode: "merge" (needs an identity) or "append".
            table: The columns and the writer.
            day_of: The time column to partition a new table by, at day granularity. None for an unpartitioned table.
        """
        if mode == "merge" and not table.identity:
            raise StartError(
                f'Iceberg table {name}: mode "merge" needs columns that identify a row, but there are none; use mode '
                '= "append"',
                Topic.TARGET_UNSUITABLE,
            )
        self._tables, self._name, self._mode, self._columns, self._day_of = tables, name, mode, table, day_of
        self.upserts = mode == "merge"
        self._writer = f"slackwater/{table.writer}"
        self._marker = f"{self._writer}/{table.state}" if table.state else self._writer
        self._last, self._commit = f"{self._writer}#last", f"{self._writer}#commit"
        self._table: Table | None = None
        self.description = f"Iceberg table {name}"

    @property
    def capacity(self) -> ValueLimits:
        """The value limits: times must be in the range of years that Spark can write and read."""
        return ValueLimits(time_range=YEARS)

    def open(self) -> None:
        """Create the table, or add new columns to it and check its other columns. Raises StartError on failure."""
        try:
            table = self._tables.load(self._name)
            if table is None:
                self._tables.create(self._name, self._columns.fields, self._day_of)
                table = self._tables.load(self._name)
            assert table is not None, "`create` has just created it"
            missing = self._columns.missing([f.name for f in table.schema().fields])
            existing = [f for f in self._columns.fields if f not in missing]
            different = "; ".join(iceberg.column_differences(existing, table))
            if missing and not different:
                iceberg.add_columns(missing, table)
                table = self._tables.load(self._name)
        except Exception as error:  # catalogs raise the exceptions of their clients
            raise self._open_error(error) from error
        if different:
            raise StartError(
                f"the columns of {self.description} differ from those of the pipeline: {different}; "
                "change the table or the pipeline, or choose another table",
                Topic.TARGET_UNSUITABLE,
            )
        self._table = table

    def close(self) -> None:
        self._table = None

    def _load(self) -> Table | None:
        """Return the current table, or None if it does not exist. Raises StartError if the catalog does not respond."""
        try:
            return self._tables.load(self._name)
        except Exception as error:  # catalogs raise the exceptions of their clients
            raise self._open_error(error) from error

    def describe_previous_output(self) -> str | None:
        """Describe the rows that this writer wrote to the table with another state.

        Return None if there are no such rows.
        """
        table = self._load()
        state, _, epoch = ("" if table is None else table.properties.get(self._last, "")).rpartition(" ")
        if not epoch or (state == self._columns.state and state):
            return None
        return f'rows of another state of "{self._columns.writer}" in {self.description}, up to epoch {epoch}'

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        table = self._load()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None or snapshot.summary is None or snapshot.summary["total-records"] == "0":
            return None
        wrote, _, epoch = table.properties.get(self._last, "").rpartition(" ")
        if not epoch:
            return None
        return TargetMarker(state=wrote, epoch=int(epoch), commit=table.properties.get(self._commit, ""))

    def writers(self) -> list[str]:
        table = self._load()
        names = () if table is None else table.properties
        return sorted(n.removeprefix("slackwater/").removesuffix("#last") for n in names if n.endswith("#last"))

    def last_epoch(self) -> int:
        """Return the last epoch that this state published, or -1 if it has not published any."""
        return self._marked_epoch(self._current())

    def _marked_epoch(self, table: Table) -> int:
        return int(table.properties.get(self._marker, -1))

    def _current(self) -> Table:
        if self._table is None:
            self._table = self._tables.load(self._name)
        if self._table is None:
            raise FileNotFoundError("the table no longer exists")
        return self._table

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        """Publish an epoch; see `connectors.target.TargetWriter`.

        The first attempt uses the table version that was last loaded. If this version is outdated, the catalog
        rejects the commit. Each further attempt reloads the table first.
        """
        failed: Exception | None = None
        for tries in range(_TRIES + 1):
            try:
                if self._marked_epoch(table := self._current()) >= epoch:
                    return
                if tries < _TRIES:
                    self._commit_once(table, epoch, rows, superseded, commit)
                    return
            except Exception as error:  # the reloaded table shows whether the commit was rejected
                failed, self._table = error, None
                if isinstance(error, ValueError | TypeError | pa.ArrowException) and not isinstance(error, OSError):
                    break
                log.debug("%s: epoch %s: %s", self.description, epoch, iceberg.iceberg_error_reason(error))
                if tries < _TRIES:
                    time.sleep(_PAUSE_S * 2**tries)
        raise PublishError(
            f"{self.description} did not accept epoch {epoch} "
            f"({iceberg.iceberg_error_reason(failed or TimeoutError())}); the epoch is committed and will be "
            "published at the next start"
        ) from failed

    def _commit_once(
        self, table: Table, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None, commit: str
    ) -> None:
        """Send one commit without retries, and keep the data files if it fails.

        PyIceberg's own commit method retries, and deletes the data files if a retry is rejected. However, these files
        belong to the table if the first attempt succeeded.
        """
        from pyiceberg.table import Transaction
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

        transaction = Transaction(table)
        last = {self._last: f"{self._columns.state} {epoch}", self._commit: commit}
        transaction.set_properties({self._marker: str(epoch), **last})
        properties = {"slackwater.writer": self._columns.writer, "slackwater.epoch": str(epoch)}
        merged = self._mode == "merge" and self._merge(transaction, table, rows, superseded, properties)
        if not merged and not rows.is_empty():
            transaction.append(iceberg.to_table_types(rows, self._columns.fields, table), properties)
        ref = table.metadata.refs.get(_MAIN)
        needed: list[Any] = [r for r in transaction._requirements if not isinstance(r, AssertRefSnapshotId)]
        # Without rows there is no snapshot. A delayed old marker could then overwrite a newer one.
        needed += [AssertTableUUID(uuid=table.metadata.table_uuid)]
        snapshot: dict[str, Any] = {"snapshot-id": None if ref is None else ref.snapshot_id}
        needed += [AssertRefSnapshotId(ref=_MAIN, **snapshot)]
        table._do_commit(updates=transaction._updates, requirements=tuple(needed))

    # -- merging ---------------------------------------------------------------------------------------------------------

    def _merge(
        self,
        transaction: Transaction,
        table: Table,
        rows: pl.DataFrame,
        superseded: pl.DataFrame | None,
        properties: Mapping[str, str],
    ) -> bool:
        """Rewrite the files that contain rows with the identities of `rows` or `superseded`, and add `rows`.

        Return False, without writing, if no file needs to be rewritten.

        Args:
            transaction: The transaction to which to add the changes.
            table: The current table.
            rows: The rows of the epoch.
            superseded: The identities of superseded rows.
            properties: The properties of the new snapshot.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        identity, fields = list(self._columns.identity or ()), self._columns.fields
        keys = rows.select(identity)
        if superseded is not None:
            keys = pl.concat([keys, superseded.select(identity)])
        if keys.is_empty():
            return False
        where, kinds = self._day_filter(keys), {f.name: f.polars for f in fields}
        hit = [
            task
            for task, frame in iceberg.read_files(table, identity, where)
            if not frame.cast({c: kinds[c] for c in identity})
            .join(keys, on=identity, how="semi", nulls_equal=True)
            .is_empty()
        ]
        if not hit:
            return False
        write_id, counter = uuid.uuid4(), itertools.count()
        kept_rows = 0
        with transaction.update_snapshot(snapshot_properties=dict(properties)).overwrite() as snapshot:
            snapshot.commit_uuid = write_id

            def write(frames: list[pl.DataFrame]) -> None:
                data = iceberg.to_table_types(pl.concat(frames), fields, table)
                for file in _dataframe_to_data_files(table.metadata, data, table.io, write_id, counter):
                    snapshot.append_data_file(file)

            buffered = [rows.select(list(kinds))]
            for task in hit:
                frame = iceberg.read_file_rows(table, task).select(pl.col(n).cast(t) for n, t in kinds.items())
                buffered.append(frame.join(keys, on=identity, how="anti", nulls_equal=True))
                kept_rows += buffered[-1].height
                snapshot.delete_data_file(task.file)
                if sum(f.height for f in buffered) >= _BUFFERED_ROWS:
                    write(buffered)
                    buffered = []
            if any(f.height for f in buffered):
                write(buffered)
        log.info(
            "%s: epoch %s replaces rows: %s rewritten, with %s unchanged%s",
            self.description,
            properties["slackwater.epoch"],
            plural(len(hit), "file"),
            plural(kept_rows, "row"),
            self._days_text(keys),
        )
        return True

    @property
    def _time(self) -> str | None:
        """The time column of the identity, which is used to skip files. None if the identity has no time column."""
        times = [
            f.name for f in self._columns.fields if f.type == "timestamp" and f.name in (self._columns.identity or ())
        ]
        return self._day_of if self._day_of in times else next(iter(times), None)

    def _days(self, keys: pl.DataFrame) -> list[dt.date] | None:
        """Return the days that contain the times of `keys`, sorted. None if a key has no time."""
        if self._time is None or keys[self._time].null_count():
            return None
        return keys[self._time].dt.date().unique().sort().to_list()

    def _days_text(self, keys: pl.DataFrame) -> str:
        days = self._days(keys)
        if not days:
            return ""
        return f", of {days[0]}" if len(days) == 1 else f", of {len(days):,} days from {days[0]} to {days[-1]}"

    def _day_filter(self, keys: pl.DataFrame) -> BooleanExpression | None:
        """Return a filter that skips files without rows on the days of `keys`. None if no file can be skipped."""
        from pyiceberg.expressions import Or

        column, days = self._time, self._days(keys)
        if column is None or "." in column or days is None:
            return None
        times: Any = keys[column].dt.timestamp("us")
        if len(days) > _DAYS:
            return iceberg.time_between(column, int(times.min()), int(times.max()))
        filters = [
            iceberg.time_between(column, d * _DAY_US, (d + 1) * _DAY_US - 1)
            for d in sorted(set((times // _DAY_US).to_list()))
        ]
        return filters[0] if len(filters) == 1 else Or(*filters)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return the rows that match a row of `ranges`; see `connectors.target.ReadableTarget`."""
        kinds = {f.name: f.polars for f in self._columns.fields}
        frames = [pl.DataFrame(schema=kinds)]
        if ranges.is_empty():
            return frames[0]
        low, high = (int(v) for v in (ranges["__low"].min(), ranges["__high"].max()))  # type: ignore[arg-type]
        self._table = None
        try:
            where = iceberg.time_between(column, low, high) if "." not in column else None
            for _, file_rows in iceberg.read_files(self._current(), None, where):
                frames.append(file_rows.select(pl.col(n).cast(t) for n, t in kinds.items()))
        except Exception as error:
            raise StartError(
                f"{self.description} cannot be read ({iceberg.iceberg_error_reason(error)}); nothing was replayed; fix "
                "the cause, and repeat the command",
                Topic.OUTPUT_UNREADABLE,
            ) from error
        return rows_in_ranges(pl.concat(frames), ranges, self._columns.fields, self._columns.identity or (), column)

    def _open_error(self, error: Exception) -> StartError:
        return StartError(
            f"{self.description} cannot be opened ({iceberg.iceberg_error_reason(error)}); check the options of the "
            f'{self._tables.kind} catalog "{self._tables.name}"',
            Topic.TARGET_UNSUITABLE,
        )
