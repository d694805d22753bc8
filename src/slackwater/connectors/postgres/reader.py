"""Reads the results in a Postgres table: first its rows, then the rows of transactions invisible to the last read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from slackwater.connectors.result_reader import LabeledRows, ResultReader, RowCount, none_if_empty
from slackwater.errors import StartError, Topic

COUNTED = 100_000  # rows of a table are counted up to this number, because counting reads them
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

# xmin has 32 bits: the full transaction id of a row is the nearest one that is not in the future
_TOP = '"slackwater top"'
_XID = f"""(xmin::text::bigint + ({_TOP} >> 32 << 32)
    - CASE WHEN xmin::text::bigint > {_TOP} & 4294967295 THEN 4294967296 ELSE 0 END)"""


def _visible_in(snapshot: str) -> str:
    """Return the SQL condition that a row is visible in a snapshot."""
    return f"pg_visible_in_snapshot(greatest({_XID}, 3)::text::xid8, '{snapshot}'::pg_snapshot)"


@dataclass
class PostgresResultReader(ResultReader):
    """The result reader for a Postgres table.

    `order`: the column whose highest values are in the newest rows. None: the newest rows are those written last.
    """

    url: str
    table: str
    order: str | None
    _snapshot: str | None = None

    @property
    def location(self) -> str:
        from slackwater.state.postgres import client

        return f"table {self.table} in Postgres at {client.server_address(self.url)}"

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        """Return the newest rows. With `where`, the server filters them, and the call does not affect `poll`."""
        from slackwater.state.postgres import client

        snapshot = self._current_snapshot()
        by = f"{client.quote_name(self.order)} DESC NULLS LAST" if self.order else f"{_XID} DESC"
        conditions = "" if where is None else "".join(f" AND {_equals(c, v)}" for c, v in where.items())
        if where is None:
            self._snapshot = snapshot
        most = "" if limit is None else f" LIMIT {limit + 1}"
        rows = self._read(snapshot, f"{conditions} ORDER BY {by}{most}")
        return None if rows is None else rows.reverse()

    def count(self, rows_read: int) -> RowCount:
        assert self._snapshot is not None, "call `read` first"
        row_count = count_rows(self.url, self.table, self._snapshot_clause(self._snapshot), COUNTED + 1)
        return RowCount(min(row_count, COUNTED), row_count > COUNTED)

    def poll(self) -> pl.DataFrame | None:
        previous, current = self._snapshot, self._current_snapshot()
        if previous is None or current == previous:
            return None
        self._snapshot = current
        return self._read(current, f" AND NOT {_visible_in(previous)}")

    def _read(self, snapshot: str, tail: str) -> pl.DataFrame | None:
        """Return the rows visible in a snapshot. `tail`: further conditions and the order, as SQL."""
        rows = read_table(self.url, self.table, f"{self._snapshot_clause(snapshot)}{tail}")
        return None if rows is None else none_if_empty(rows)

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
            raise StartError(
                f"{self.location}: cannot be read ({client.error_reason(error)})", Topic.OUTPUT_UNREADABLE
            ) from None
        assert row is not None
        return str(row[0])

    def read_all(self) -> LabeledRows:
        return read_postgres(self.url, self.table)


def _equals(column: str, value: str | None) -> str:
    """Return the SQL condition that a column has a value; None means NULL."""
    from psycopg import sql

    from slackwater.state.postgres import client

    return f"{client.quote_name(column)} " + ("IS NULL" if value is None else f"= {sql.quote(value)}")


def server_address(url: str) -> str:
    """Return the address of a server for messages, without the password."""
    from slackwater.state.postgres import client

    return client.server_address(url)


def read_postgres(url: str, table: str) -> LabeledRows:
    """Read all rows of a table. Raises StartError, for example if the table does not exist."""
    schema, _, name = table.rpartition(".")
    label = f"table {schema or 'public'}.{name} in Postgres at {server_address(url)}"
    rows = read_table(url, table)
    if rows is None:
        raise StartError(
            f"{label}: there is no such table; expected postgresql://…/database#schema.table", Topic.OUTPUT_UNREADABLE
        )
    return LabeledRows(label, rows)


def read_table(url: str, table: str, tail: str = "") -> pl.DataFrame | None:
    """Read the rows of a table; None if it does not exist. Raises StartError if it cannot be read.

    `tail`: the SQL after the table name.
    """
    import psycopg

    from slackwater.state.postgres import client

    label, place = _label_and_sql_name(url, table)
    try:
        with client.open_connection(url, label) as db:
            columns = db.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                (place,),
            ).fetchall()
        if not columns:
            return None
        types = {column: _polars_type(type_text) for column, type_text in columns}
        selected = (
            client.quote_name(c) if t is not None else f"{client.quote_name(c)}::text" for c, t in types.items()
        )
        with client.arrow_cursor(url) as cursor:
            return client.fetch_frame(
                cursor,
                f"SELECT {', '.join(selected)} FROM {place}{tail}",
                {c: t or pl.String() for c, t in types.items()},
            )
    except (psycopg.Error, ConnectionError) as error:
        raise StartError(f"{label}: cannot be read ({client.error_reason(error)})", Topic.OUTPUT_UNREADABLE) from None


def count_rows(url: str, table: str, tail: str, most: int) -> int:
    """Count the rows of a table, up to `most`. Raises StartError if the table cannot be read.

    `tail`: the SQL after the table name.
    """
    import psycopg

    from slackwater.state.postgres import client

    label, place = _label_and_sql_name(url, table)
    try:
        with client.open_connection(url, label) as db:
            row = db.execute(f"SELECT count(*) FROM (SELECT FROM {place}{tail} LIMIT {most}) AS counted").fetchone()
    except psycopg.Error as error:
        raise StartError(f"{label}: cannot be read ({client.error_reason(error)})", Topic.OUTPUT_UNREADABLE) from None
    assert row is not None
    return int(row[0])


def _label_and_sql_name(url: str, table: str) -> tuple[str, str]:
    """Return the label of a table for messages, and its quoted name for SQL."""
    from slackwater.state.postgres import client

    schema, _, name = table.rpartition(".")
    schema = schema or "public"
    return (
        f"table {schema}.{name} in Postgres at {client.server_address(url)}",
        f"{client.quote_name(schema)}.{client.quote_name(name)}",
    )


def _polars_type(type_text: str) -> pl.DataType | None:
    """Return the Polars type for a column type; None if the column is read as text."""
    if type_text in ("text", "character varying"):
        return pl.String()
    if match := re.fullmatch(r"numeric\((\d+),(\d+)\)", type_text):
        return pl.Decimal(int(match[1]), int(match[2]))
    if type_text.endswith("[]"):
        inner = _polars_type(type_text.removesuffix("[]"))
        return None if inner is None else pl.List(inner)
    return _TYPES.get(type_text)
