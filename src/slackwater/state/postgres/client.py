"""Postgres, for the store and the target: connections, identifiers, column types, and frames in and out.

Frames travel in Arrow through ADBC where nothing else must share the transaction (workers), and by COPY of CSV through
psycopg where something does (the driver's commit).
"""

from __future__ import annotations

import atexit
import datetime as dt
import io
import os
import re
import socket
import threading
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.core.json_text import is_nested, json_text
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.state.files.arrow import solid_frame

if TYPE_CHECKING:
    import psycopg

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAME_BYTES = 63  # Postgres cuts longer identifiers, and two could become one
INDEX_BYTES = 2704  # the most that an entry of a B-tree can take
# UTC; and a server that notices soon when this process or its machine is gone: the lock goes with the connection
_SESSION = (
    "-c timezone=UTC -c client_min_messages=warning -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5"
    " -c tcp_keepalives_count=3 -c client_connection_check_interval=1000"
)
_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}


def sql_type(field: Field) -> str:
    """The Postgres type of a column, as `format_type` spells it; what holds a struct is jsonb."""
    if field.element is not None and field.element.is_scalar:
        return f"{sql_type(field.element)}[]"
    if not field.is_scalar:
        return "jsonb"
    if field.base == "decimal":
        precision, scale = field.decimal
        return f"numeric({precision},{scale})"
    return _TYPES[field.type]


def sql_type_of(dtype: pl.DataType) -> str:
    """The Postgres type that holds a Polars column."""
    if isinstance(dtype, pl.List):
        return f"{sql_type_of(dtype.inner)}[]"  # type: ignore[arg-type]
    if isinstance(dtype, pl.Decimal):
        return f"numeric({dtype.precision},{dtype.scale})"
    if isinstance(dtype, pl.Datetime):
        return "timestamp with time zone" if dtype.time_zone else "timestamp without time zone"
    return {
        pl.Boolean: "boolean",
        pl.Int8: "smallint",
        pl.Int16: "smallint",
        pl.Int32: "integer",
        pl.Int64: "bigint",
        pl.Float32: "real",
        pl.Float64: "double precision",
        pl.String: "text",
        pl.Binary: "bytea",
        pl.Date: "date",
    }[type(dtype)]


def quote_name(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_names(names: Sequence[str]) -> str:
    return ", ".join(map(quote_name, names))


def check_names(names: Sequence[str], where: str) -> None:
    """Raise StartError for a name that Postgres cannot hold."""
    for name in names:
        if len(name.encode()) > NAME_BYTES or "\0" in name:
            raise StartError(
                f'{where}: column "{name}" has a name of {len(name.encode())} bytes, Postgres holds {NAME_BYTES}; '
                "choose a shorter name"
            )


def to_datetime(us: int | None) -> dt.datetime | None:
    """A time in µs for psycopg; None where there is none, or none in Python's calendar."""
    try:
        return None if us is None else _EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return None


def time_literal(us: int) -> str:
    """A time in µs as SQL; beyond the calendar it is infinite."""
    moment = to_datetime(us)
    if moment is None:
        return f"'{'-' if us < 0 else ''}infinity'::timestamptz"
    return f"'{moment.isoformat()}'::timestamptz"


def _parse_url(url: str) -> dict[str, Any] | None:
    """The parts of a URL or connection string; None if it is none, or was taken apart in the wrong place."""
    from psycopg import conninfo

    try:
        parameters = conninfo.conninfo_to_dict(url)
    except Exception:
        return None
    plain = all("@" not in str(parameters.get(part, "")) for part in ("host", "port", "dbname"))
    return parameters if plain and re.fullmatch(r"[\d,]*", str(parameters.get("port", ""))) else None


def server_address(url: str) -> str:
    """Where a URL leads, without user and password: `127.0.0.1:5432/shop`."""
    parameters = _parse_url(url)
    if parameters is None:
        return "an address that is not valid"
    return f"{parameters.get('host', 'localhost')}:{parameters.get('port', 5432)}/{parameters.get('dbname', parameters.get('user', ''))}"


def role_and_database(url: str) -> tuple[object, ...]:
    """Who connects to which database: what must be equal for two URLs to share a transaction."""
    parameters = _parse_url(url) or {}
    return tuple(parameters.get(k) for k in ("user", "host", "hostaddr", "port", "dbname", "service"))


def columns_of(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """The columns of a table (given as SQL), in order."""
    return list(types_of(connection, table))


def types_of(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    """The same with their types."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        (table,),
    )
    return dict(rows.fetchall())


def error_reason(error: BaseException) -> str:
    """The first line of an error of Postgres or its client."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.replace("[libpq] ", "").removesuffix(". Vendor code: 0").strip()


def open_connection(url: str, label: str, seconds: int = 10) -> psycopg.Connection[Any]:
    """A connection in autocommit mode, in UTC. Raises StartError, one line without secrets; `label` names its use."""
    import psycopg

    from slackwater.state.postgres.cursor import Cursor, NamedCursor

    if _parse_url(url) is None:
        raise StartError(
            f"{label}: the url is not valid; expected postgresql://user:password@host:5432/database, with characters such as "
            "/ and @ in a password written as %2F and %40"
        )
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            cursor_factory=Cursor,
            connect_timeout=seconds,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            application_name=f"slackwater process {os.getpid()} on {socket.gethostname()}"[:NAME_BYTES],
            options=_SESSION,
        )
    except psycopg.Error as error:
        raise StartError(
            f"{label}: Postgres at {server_address(url)} cannot be reached ({error_reason(error)}); check the url and that it runs"
        ) from None
    connection.server_cursor_factory = NamedCursor
    return connection


def copy_frame(connection: psycopg.Connection[Any], table: str, frame: pl.DataFrame) -> None:
    """Append a frame to a table (given as SQL) within the connection's transaction."""
    lines = io.BytesIO()
    frame.with_columns(_literal(pl.col(c), t).alias(c) for c, t in frame.schema.items()).write_csv(
        lines, include_header=False, quote_style="non_numeric", null_value=""
    )
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({quote_names(frame.columns)}) FROM STDIN WITH (FORMAT csv)") as copy,
    ):
        copy.write(lines.getbuffer())


def _literal(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """A value as Postgres reads it from text: `{"a","b"}` for an array of scalars, JSON for what holds a struct."""
    if not is_nested(kind):
        return _scalar(value, kind)
    if not isinstance(kind, pl.List) or is_nested(kind.inner):  # type: ignore[arg-type]
        return pl.when(value.is_not_null()).then(json_text(value, kind))
    text = _scalar(pl.element(), kind.inner).cast(pl.String)  # type: ignore[arg-type]
    escaped = text.str.replace_all("\\", "\\\\", literal=True).str.replace_all('"', '\\"', literal=True)
    element = pl.when(text.is_null()).then(pl.lit("NULL")).otherwise(pl.concat_str(pl.lit('"'), escaped, pl.lit('"')))
    return pl.concat_str(pl.lit("{"), value.list.eval(element).list.join(","), pl.lit("}"))


def _scalar(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Binary:
        return pl.concat_str(pl.lit("\\x"), value.bin.encode("hex"))
    return value.dt.strftime("%Y-%m-%d %H:%M:%S%.6f") if isinstance(kind, pl.Datetime) else value


@contextmanager
def arrow_cursor(url: str, snapshot: str | None = None) -> Iterator[Any]:
    """An ADBC cursor in autocommit mode. Errors of the database come out as ConnectionError, in one line.

    `snapshot`: one that an open transaction exported; the cursor then reads the database as that transaction sees it.
    """
    import adbc_driver_postgresql.dbapi as adbc

    kind = "autocommit" if snapshot is None else "snapshot"
    connection = None
    try:
        connection = _take_idle(url, kind, adbc.Error)
        if connection is None:
            connection = adbc.connect(url, autocommit=snapshot is None)
        with connection.cursor() as cursor:
            if snapshot is not None:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield cursor
        if snapshot is not None:
            connection.rollback()
        connection = _return_idle(url, kind, connection)
    except adbc.Error as error:
        raise ConnectionError(f"Postgres at {server_address(url)}: {error_reason(error)}") from None
    finally:
        if connection is not None:
            connection.close()


@contextmanager
def borrow_connection(url: str, label: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection as `connect` makes it, that waits for its next use; the caller leaves no transaction open."""
    import psycopg

    connection = _take_idle(url, "plain", psycopg.Error) or open_connection(url, label)
    given_back = False
    try:
        yield connection
        given_back = not connection.closed
    finally:
        if given_back:
            connection = _return_idle(url, "plain", connection)
        if connection is not None:
            connection.close()


# Connections wait in their process for their next use: to connect takes ADBC 50 ms of CPU, a shard connects several times in an
# epoch, and a driver emits in a thread for each shard. What waited for long is not trusted: a firewall may have dropped it
# without a word.
MAX_IDLE_S = 20.0
MAX_IDLE = 8  # connections of a process, whatever it connects to
_idle: list[tuple[tuple[int, str, str], float, Any]] = []  # process, address and kind; the last to come goes first
_lock = threading.Lock()


def _take_idle(url: str, kind: str, broken: type[Exception]) -> Any | None:
    """A connection that waits for this address, if it is still good."""
    with _lock:
        key = (os.getpid(), url, kind)
        place = next((n for n in reversed(range(len(_idle))) if _idle[n][0] == key), None)
        if place is None:
            return None
        _, since, connection = _idle.pop(place)
    try:
        if clock.monotonic() - since < MAX_IDLE_S:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
            if kind == "snapshot":
                connection.rollback()
            return connection
    except broken:
        pass  # the server was restarted, say: a new connection finds out
    connection.close()
    return None


def _return_idle(url: str, kind: str, connection: Any) -> Any | None:
    """Let a connection wait; returns the one that is to be closed for it: where there are too many, the one that waited longest."""
    with _lock:
        _idle.append(((os.getpid(), url, kind), clock.monotonic(), connection))
        own_process = [
            n for n, (key, *_) in enumerate(_idle) if key[0] == os.getpid()
        ]  # those of a parent stay: they are its own
        return _idle.pop(own_process[0])[2] if len(own_process) > MAX_IDLE else None


@atexit.register
def close_idle() -> None:
    """Close the connections of this process that wait."""
    with _lock:
        connections, _idle[:] = list(_idle), []
    for key, _, connection in connections:
        if key[0] == os.getpid():
            connection.close()


def append_frame(cursor: Any, schema: str, table: str, frame: pl.DataFrame) -> None:
    """COPY a frame into a table."""
    arrow = solid_frame(frame).to_arrow(compat_level=pl.CompatLevel.oldest())
    cursor.adbc_ingest(table, arrow, mode="append", db_schema_name=schema)


def fetch_frame(cursor: Any, query: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """The rows of a query as a frame of these columns."""
    import pyarrow as pa

    cursor.execute(query)
    table = cursor.fetch_arrow_table()
    # numerics come as text in an extension type
    plain = pa.table([_plain(column) for column in table.columns], names=table.column_names)
    frame = pl.from_arrow(plain)
    assert isinstance(frame, pl.DataFrame)
    return frame.rename(dict(zip(frame.columns, schema, strict=True))).cast(schema)  # type: ignore[arg-type]


def _plain(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return column.cast(kind.storage_type)
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        return column.cast(pa.list_(kind.value_type.storage_type))
    return column
