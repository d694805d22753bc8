"""Reads the published results of a pipeline from its target, then new ones. It needs neither Spark nor a lock.

target     read at first                               new rows
files      the files that this pipeline wrote          files that did not exist before
Delta      the table's latest version                  rows of added files that no removed file had
Iceberg    the table's current snapshot                likewise (see `connectors.iceberg.reader`)
Postgres   the table                                   rows whose transaction the last read did not see
Kafka      the end of the topic, latest per key        the records after it (see `connectors.kafka.reader`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Protocol

import polars as pl

from slackwater.config.connection import (
    Connection,
    ConsoleConnection,
    DeltaConnection,
    FilesConnection,
    IcebergConnection,
    KafkaConnection,
    PostgresConnection,
)
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.files.output_directory import OutputDirectory, open_directory
from slackwater.connectors.result_rows import RowCount, subtract_rows
from slackwater.errors import StartError, raise_unregistered
from slackwater.query import location_reader

TIMES = ("window_start", "window_end")
MOST = 2**31 - 1  # a limit that reads all rows
COUNTED = 100_000  # rows of a database table are counted up to this number, because counting reads them


class ResultReader(Protocol):
    """Reads the results of a pipeline. Call `latest` first, then `poll` as often as needed."""

    @property
    def location(self) -> str:
        """Return the name of what is read, for messages."""
        ...

    def latest(self, limit: int) -> pl.DataFrame | None:
        """Return the newest rows in any order; None if nothing has been published.

        If there are more than `limit` rows, the result also has more than `limit` rows.
        """
        ...

    def count(self, rows_read: int) -> RowCount | None:
        """Return the number of published rows; None if all rows would have to be read.

        `rows_read`: the number of rows that `latest` returned.
        """
        ...

    def poll(self) -> pl.DataFrame | None:
        """Return the rows published since the last call; None if there are none."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...


def result_reader(pipeline: Pipeline) -> ResultReader:
    """Return a reader for the target of a pipeline, or for the first of several (see `Pipeline.per_target`).

    Raises StartError for a target that does not store anything.
    """
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    assert connection is not None, "the config was checked"
    return _reader_for(connection, pipeline)


def read_all_results(pipeline: Pipeline, target: str | None = None) -> pl.DataFrame:
    """Return all rows of a target in the order of their windows. Before the first publish, the frame has no columns.

    Raises StartError for a target that does not store anything.
    """
    window = pipeline.target_stage.transform.window
    results = result_reader(pipeline.one_target(target))
    try:
        rows = results.latest(MOST)
    finally:
        results.close()
    return (
        pl.DataFrame() if rows is None else sort_by_start(rows, None if window is None else window.window_start_column)
    )


@singledispatch
def _reader_for(connection: Connection, pipeline: Pipeline) -> ResultReader:
    raise_unregistered(connection, "slackwater.query.result_readers.result_reader")


@_reader_for.register
def _(connection: FilesConnection, pipeline: Pipeline) -> ResultReader:
    target = pipeline.target
    folder = open_directory(target.path or "", connection.options)
    return _FileResultReader(folder, target.format or "parquet", pipeline.writers)


@_reader_for.register
def _(connection: DeltaConnection, pipeline: Pipeline) -> ResultReader:
    return _DeltaResultReader(pipeline.target.path or "", dict(connection.options))


@_reader_for.register
def _(connection: IcebergConnection, pipeline: Pipeline) -> ResultReader:
    from slackwater.connectors.iceberg.reader import IcebergResultReader

    return IcebergResultReader(connection, pipeline.target.table or "")


@_reader_for.register
def _(connection: PostgresConnection, pipeline: Pipeline) -> ResultReader:
    target, window = pipeline.target, pipeline.target_stage.transform.window
    order = None if window is None else window.window_start_column
    return PostgresResultReader(str(connection.url), target.table or "", order)


@_reader_for.register
def _(connection: KafkaConnection, pipeline: Pipeline) -> ResultReader:
    from slackwater.connectors.kafka.reader import KafkaResultReader

    return KafkaResultReader(pipeline, connection)


@_reader_for.register
def _(connection: ConsoleConnection, pipeline: Pipeline) -> ResultReader:
    raise StartError(
        f"{pipeline.name}: its target is the console, which does not store rows; name another connection in [{'targets' if pipeline.targets else 'target'}]"
    )


def sort_by_start(frame: pl.DataFrame, start: str | None) -> pl.DataFrame:
    """Sort rows by their window start, if they have one. Times stored as text are parsed."""
    texts = [c for c in {start, *TIMES} if c in frame.columns and frame.schema[c] == pl.String]
    frame = frame.with_columns(
        pl.col(c).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC", strict=False) for c in texts
    )
    by = [c for c in (start, *frame.columns) if c is not None and c in frame.columns]
    sortable = [c for c in dict.fromkeys(by) if not frame.schema[c].is_nested()]
    if start is None or start not in frame.columns:
        return frame
    return frame.sort(sortable, nulls_last=False, maintain_order=True)


# -- files -----------------------------------------------------------------------------------------------------------


@dataclass
class _FileResultReader:
    folder: OutputDirectory
    form: str
    writers: tuple[str, ...]
    _seen: set[str] = field(default_factory=set)

    @property
    def location(self) -> str:
        return self.folder.full_name

    def latest(self, limit: int) -> pl.DataFrame | None:
        return self.poll()

    def count(self, rows_read: int) -> RowCount:
        return RowCount(rows_read)

    def poll(self) -> pl.DataFrame | None:
        ending = {"json": "jsonl"}.get(self.form, self.form)
        writers = "|".join(map(re.escape, self.writers))
        pattern = re.compile(rf"(?:{writers})-(?:[0-9a-f]{{8}}-)?[0-9]{{9,}}\.{ending}")
        try:
            paths = sorted(
                (p for p in self.folder.local_copy().iterdir() if pattern.fullmatch(p.name)),
                key=lambda p: p.stat().st_mtime_ns,
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StartError(f"{self.location} cannot be accessed ({error.strerror}); check its permissions") from None
        new_paths = [p for p in paths if p.name not in self._seen]
        self._seen |= {p.name for p in new_paths}
        frames = [f for f in (location_reader.read_file(p, self.form) for p in new_paths) if f.height]
        return pl.concat(frames, how="diagonal_relaxed") if frames else None

    def close(self) -> None:
        return


# -- Delta -----------------------------------------------------------------------------------------------------------


@dataclass
class _DeltaResultReader:
    path: str
    options: dict[str, str]
    _files: frozenset[str] | None = None

    @property
    def location(self) -> str:
        return f"Delta table {self.path}"

    def latest(self, limit: int) -> pl.DataFrame | None:
        table = self._table()
        if table is None:
            return None
        self._files = frozenset(table.file_uris())
        return _none_if_empty(self._rows(table))

    def count(self, rows_read: int) -> RowCount:
        return RowCount(rows_read)

    def poll(self) -> pl.DataFrame | None:
        """Return the rows of added files minus those of removed files, because a merge rewrites whole files."""
        table = self._table()
        if table is None:
            return None
        files, before = frozenset(table.file_uris()), self._files or frozenset()
        self._files = files
        if files == before:
            return None
        added = self._read(sorted(files - before))
        return None if added is None else _none_if_empty(subtract_rows(added, self._read(sorted(before - files))))

    def _table(self) -> Any:
        from deltalake import DeltaTable

        try:
            if not DeltaTable.is_deltatable(self.path, self.options):
                return None
            return DeltaTable(self.path, storage_options=self.options)
        except Exception as error:  # deltalake has no common base class
            raise self._read_error(error) from None

    def _rows(self, table: Any) -> pl.DataFrame:
        try:
            rows = pl.from_arrow(table.to_pyarrow_table())
        except Exception as error:
            raise self._read_error(error) from None
        assert isinstance(rows, pl.DataFrame)
        return rows

    def _read(self, files: Sequence[str]) -> pl.DataFrame | None:
        if not files:
            return None
        try:
            frames = [pl.read_parquet(f, storage_options=self.options or None, hive_partitioning=False) for f in files]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._read_error(error) from None
        return pl.concat(frames, how="diagonal_relaxed")

    def _read_error(self, error: Exception) -> StartError:
        return StartError(f"{self.location} cannot be read ({str(error).splitlines()[0]}); check the path")

    def close(self) -> None:
        return


def _none_if_empty(rows: pl.DataFrame) -> pl.DataFrame | None:
    return rows if rows.height else None


# -- Postgres --------------------------------------------------------------------------------------------------------

# xmin has 32 bits: the full transaction id of a row is the nearest one that is not in the future
_TOP = '"slackwater top"'
_XID = f"""(xmin::text::bigint + ({_TOP} >> 32 << 32)
    - CASE WHEN xmin::text::bigint > {_TOP} & 4294967295 THEN 4294967296 ELSE 0 END)"""


def _visible_in(snapshot: str) -> str:
    """Return the SQL condition that a row is visible in a snapshot."""
    return f"pg_visible_in_snapshot(greatest({_XID}, 3)::text::xid8, '{snapshot}'::pg_snapshot)"


@dataclass
class PostgresResultReader:
    """The result reader for a Postgres table.

    `order`: the column with the highest values in the newest rows; None if the time of writing determines the newest
    rows.
    """

    url: str
    table: str
    order: str | None
    _snapshot: str | None = None

    @property
    def location(self) -> str:
        from slackwater.state.postgres import client

        return f"table {self.table} in Postgres at {client.server_address(self.url)}"

    def latest(self, limit: int) -> pl.DataFrame | None:
        from slackwater.state.postgres import client

        self._snapshot = self._current_snapshot()
        by = f"{client.quote_name(self.order)} DESC NULLS LAST" if self.order else f"{_XID} DESC"
        rows = self._read(self._snapshot, f" ORDER BY {by} LIMIT {limit + 1}")
        return None if rows is None else rows.reverse()

    def latest_of_key(self, key: Mapping[str, str | None], limit: int) -> pl.DataFrame | None:
        """Return the newest rows of a key. `key`: values as strings, by column; None means NULL."""
        from psycopg import sql

        from slackwater.state.postgres import client

        conditions = [
            f"{client.quote_name(c)} IS NULL" if v is None else f"{client.quote_name(c)} = {sql.quote(v)}"
            for c, v in key.items()
        ]
        by = f"{client.quote_name(self.order)} DESC NULLS LAST" if self.order else f"{_XID} DESC"
        where = " AND ".join(conditions) or "true"
        rows = self._read(self._current_snapshot(), f" AND {where} ORDER BY {by} LIMIT {limit}")
        return None if rows is None else rows.reverse()

    def count(self, rows_read: int) -> RowCount:
        assert self._snapshot is not None, "newest was asked"
        row_count = location_reader.count_rows(self.url, self.table, self._snapshot_clause(self._snapshot), COUNTED + 1)
        return RowCount(min(row_count, COUNTED), row_count > COUNTED)

    def poll(self) -> pl.DataFrame | None:
        previous, current = self._snapshot, self._current_snapshot()
        if previous is None or current == previous:
            return None
        self._snapshot = current
        return self._read(current, f" AND NOT {_visible_in(previous)}")

    def _read(self, snapshot: str, tail: str) -> pl.DataFrame | None:
        """Return the rows of this snapshot. Rows written later belong to the next snapshot."""
        rows = location_reader.read_table(self.url, self.table, f"{self._snapshot_clause(snapshot)}{tail}")
        return None if rows is None else _none_if_empty(rows)

    @staticmethod
    def _snapshot_clause(snapshot: str) -> str:
        top = f"(SELECT pg_snapshot_xmax('{snapshot}'::pg_snapshot)::text::bigint AS {_TOP}) AS s"
        return f", {top} WHERE {_visible_in(snapshot)}"

    def _current_snapshot(self) -> str:
        import psycopg

        from slackwater.state.postgres import client

        try:
            with client.open_connection(self.url, self.location) as db:
                row = db.execute("SELECT pg_current_snapshot()::text").fetchone()
        except psycopg.Error as error:
            raise StartError(f"{self.location}: cannot be read ({client.error_reason(error)})") from None
        assert row is not None
        return str(row[0])

    def close(self) -> None:
        return
