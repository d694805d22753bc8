"""Connector for Postgres tables with results and dead letters, and the reader of these tables.

The reader first reads all rows, then the rows of transactions committed since the last read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import psycopg
from psycopg import sql

from slackwater.config.connection import PostgresConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector
from slackwater.connectors.target import LabeledRows, ResultReader, RowCount, TargetTable, empty_to_none
from slackwater.core.dead_letter_columns import CHUNK, NEWEST, SCHEMA, DeadLetterFilter
from slackwater.errors import StartError, Topic
from slackwater.state.postgres import client

if TYPE_CHECKING:
    from slackwater.connectors.postgres.target import PostgresTarget


MAX_COUNTED = 100_000  # rows are counted up to this number, because Postgres reads each row that it counts
_TYPES: Mapping[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "smallint": pl.Int16(),
    "integer": pl.Int32(),
    "bigint": pl.Int64(),
    "real": pl.Float32(),
    "double precision": pl.Float64(),
    "bytea": pl.Binary(),
    "date": pl.Date(),
    "timestamp with time zone": pl.Datetime("us", "UTC"),
    "timestamp without time zone": pl.Datetime("us"),
}

# `xmin` has only 32 bits. The full transaction id of a row is the nearest id with these bits that is not in the future.
_TOP = '"slackwater top"'
_XID = f"""(xmin::text::bigint + ({_TOP} >> 32 << 32)
    - CASE WHEN xmin::text::bigint > {_TOP} & 4294967295 THEN 4294967296 ELSE 0 END)"""


def _visible_in(snapshot: str) -> str:
    """Return SQL that is true if a row is visible in a snapshot."""
    return f"pg_visible_in_snapshot(greatest({_XID}, 3)::text::xid8, '{snapshot}'::pg_snapshot)"


@dataclass
class PostgresResultReader(ResultReader):
    """Result reader for a Postgres table.

    Args:
        url: The URL of the database.
        table: The name of the table, with or without a schema.
        order: The column by which rows are ordered from old to new. If None, the rows written last are the newest.
    """

    url: str
    table: str
    order: str | None = None
    _snapshot: str | None = None

    @property
    def location(self) -> str:
        return f"table {self.table} in Postgres at {client.server_address(self.url)}"

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        """Return the newest rows. With `where`, the server filters them, and the call does not affect `poll`."""
        snapshot = self._current_snapshot()
        by = f"{client.quote_name(self.order)} DESC NULLS LAST" if self.order else f"{_XID} DESC"
        conditions = "" if where is None else "".join(f" AND {_equals(c, v)}" for c, v in where.items())
        if where is None:
            self._snapshot = snapshot
        most = "" if limit is None else f" LIMIT {limit + 1}"
        rows = self._read_rows(f"{_snapshot_clause(snapshot)}{conditions} ORDER BY {by}{most}")
        return None if rows is None else empty_to_none(rows.reverse())

    def count(self, rows_read: int) -> RowCount:
        assert self._snapshot is not None, "call `read` first"
        counted = f"SELECT FROM {self._sql_name}{_snapshot_clause(self._snapshot)} LIMIT {MAX_COUNTED + 1}"
        row_count = int(self._query_value(f"SELECT count(*) FROM ({counted}) AS counted"))
        return RowCount(min(row_count, MAX_COUNTED), row_count > MAX_COUNTED)

    def poll(self) -> pl.DataFrame | None:
        previous, current = self._snapshot, self._current_snapshot()
        if previous is None or current == previous:
            return None
        self._snapshot = current
        rows = self._read_rows(f"{_snapshot_clause(current)} AND NOT {_visible_in(previous)}")
        return None if rows is None else empty_to_none(rows)

    def read_all(self) -> LabeledRows:
        rows = self._read_rows("")
        if rows is None:
            raise StartError(
                f"{self._label}: there is no such table; expected postgresql://…/database#schema.table",
                Topic.OUTPUT_UNREADABLE,
            )
        return LabeledRows(self._label, rows)

    def read_dead_letters(self, pipeline: str, letter_filter: DeadLetterFilter) -> Iterator[pl.DataFrame]:
        """Yield the dead letters in chunks. The server applies the filter, except for the condition on `group_keys`."""
        with client.open_connection(self.url, f"dead_letter {self.table}") as db:
            existing_columns = client.columns_of(db, self._sql_name)
            columns = [n for n in letter_filter.columns_to_read if n in existing_columns]
            if not columns:
                return  # no run has created the table yet
            conditions = {"pipeline": pipeline, "reason": letter_filter.reason, "source": letter_filter.source}
            filters = {n: v for n, v in conditions.items() if v is not None}
            query = (
                f"SELECT {client.quote_names(columns)} FROM {self._sql_name}"
                f" WHERE {' AND '.join(f'{client.quote_name(n)} = %s' for n in filters)}"
                f" ORDER BY {', '.join(f'{client.quote_name(n)} DESC NULLS LAST' for n in NEWEST)}"
                + (f" LIMIT {letter_filter.limit}" if letter_filter.limit is not None else "")
            )
            try:
                with db.transaction(), db.cursor(name="slackwater_letters") as cursor:
                    cursor.execute(query, list(filters.values()))
                    while rows := cursor.fetchmany(CHUNK):
                        yield pl.DataFrame(rows, schema={n: SCHEMA[n] for n in columns}, orient="row")
            except psycopg.Error as error:
                reason = client.error_reason(error)
                raise StartError(
                    f"table {self.table} cannot be read as dead letters ({reason}); check the table and the connection "
                    "in [dead_letter]",
                    Topic.DEAD_LETTERS,
                ) from None

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, str]:
        schema, _, name = self.table.rpartition(".")
        return schema or "public", name

    @property
    def _label(self) -> str:
        return f"table {'.'.join(self._names)} in Postgres at {client.server_address(self.url)}"

    @property
    def _sql_name(self) -> str:
        return ".".join(map(client.quote_name, self._names))

    def _read_error(self, error: Exception) -> StartError:
        return StartError(
            f"{self._label} cannot be read ({client.error_reason(error)}); check the connection and the permissions of "
            "its user",
            Topic.OUTPUT_UNREADABLE,
        )

    def _current_snapshot(self) -> str:
        return str(self._query_value("SELECT pg_current_snapshot()::text"))

    def _query_value(self, query: str) -> Any:
        """Return the result of a query with one row and one column. Raises StartError if it fails."""
        try:
            with client.open_connection(self.url, self._label) as db:
                row = db.execute(query).fetchone()
        except psycopg.Error as error:
            raise self._read_error(error) from None
        assert row is not None
        return row[0]

    def _read_rows(self, tail: str) -> pl.DataFrame | None:
        """Return rows of the table, or None if it does not exist. Raises StartError if it cannot be read.

        `tail`: SQL to append to the table name in the query.
        """
        try:
            with client.open_connection(self.url, self._label) as db:
                columns = client.types_of(db, self._sql_name)
            if not columns:
                return None
            types = {column: _polars_type(type_text) for column, type_text in columns.items()}
            selected = (
                client.quote_name(c) if t is not None else f"{client.quote_name(c)}::text" for c, t in types.items()
            )
            with client.arrow_cursor(self.url) as cursor:
                query = f"SELECT {', '.join(selected)} FROM {self._sql_name}{tail}"
                return client.fetch_frame(cursor, query, {c: t or pl.String() for c, t in types.items()})
        except (psycopg.Error, ConnectionError) as error:
            raise self._read_error(error) from None


def _snapshot_clause(snapshot: str) -> str:
    """Return SQL that, appended to a table name, selects the rows that are visible in a snapshot."""
    top = f"(SELECT pg_snapshot_xmax('{snapshot}'::pg_snapshot)::text::bigint AS {_TOP}) AS s"
    return f", {top} WHERE {_visible_in(snapshot)}"


def _equals(column: str, value: str | None) -> str:
    """Return SQL that is true if a column has the given value. None means NULL."""
    return f"{client.quote_name(column)} " + ("IS NULL" if value is None else f"= {sql.quote(value)}")


def _polars_type(type_text: str) -> pl.DataType | None:
    """Return the Polars type for a Postgres type. None if the column is read as text."""
    if type_text in ("text", "character varying"):
        return pl.String()
    if match := re.fullmatch(r"numeric\((\d+),(\d+)\)", type_text):
        return pl.Decimal(int(match[1]), int(match[2]))
    if type_text.endswith("[]"):
        inner = _polars_type(type_text.removesuffix("[]"))
        return None if inner is None else pl.List(inner)
    return _TYPES.get(type_text)


class PostgresConnector(Connector[PostgresConnection]):
    """Connector for Postgres tables as targets and for dead letters."""

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> PostgresTarget:
        return self.target_with_marker(spec, table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> PostgresTarget:
        from slackwater.connectors.postgres.target import PostgresTarget

        return PostgresTarget(self.connection.url, spec.table or "", table)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        client.open_connection(self.connection.url, f"{key} {spec.table}").close()

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> PostgresResultReader:
        window = pipeline.target_stage.transform.window
        order = None if window is None else window.window_start_column
        return PostgresResultReader(str(self.connection.url), spec.table or "", order)
