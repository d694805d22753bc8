"""A client for Postgres, used by the store and the target: connections, identifiers, types, and transfer of frames.

Workers send frames in Arrow format through ADBC. The driver sends frames as CSV through psycopg's COPY, so that they
are written in the transaction of a commit.
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

from slackwater.core.row_format import is_nested, value_to_json
from slackwater.core.schema import Field
from slackwater.errors import StartError, StateError, Topic
from slackwater.storage.arrow_files import frame_of, rebuild_empty_lists

if TYPE_CHECKING:
    import psycopg

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAME_BYTES = 63  # largest length of an identifier; Postgres truncates longer ones
INDEX_BYTES = 2704  # largest entry of a B-tree index
# with keepalives, the server soon closes the connection of a dead runner, and thus releases its lock
_SESSION = (
    r"-c timezone=UTC -c client_min_messages=warning -c default_transaction_isolation=read\ committed -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5"
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
    """Return the Postgres type of a column as `format_type` spells it. Nested types other than arrays become jsonb."""
    if field.element is not None and field.element.is_scalar:
        return f"{sql_type(field.element)}[]"
    if not field.is_scalar:
        return "jsonb"
    if field.base == "decimal":
        precision, scale = field.decimal
        return f"numeric({precision},{scale})"
    return _TYPES[field.type]


def sql_type_of(dtype: pl.DataType) -> str:
    """Return the Postgres type for a Polars column type."""
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
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_names(names: Sequence[str]) -> str:
    return ", ".join(map(quote_name, names))


def check_names(names: Sequence[str], where: str) -> None:
    """Raise StartError if a column name is too long for Postgres or contains U+0000. `where`: prefix of the message."""
    for name in names:
        if len(name.encode()) > NAME_BYTES or "\0" in name:
            raise StartError(
                f'{where}: column "{name}" has a name of {len(name.encode())} bytes, but Postgres allows at most '
                f"{NAME_BYTES}; choose a shorter name",
                Topic.TARGET_UNSUITABLE,
            )


def to_datetime(us: int | None) -> dt.datetime | None:
    """Convert a time in µs since 1970 to a datetime in UTC. Return None if it is None or outside the range of Python's datetime."""
    try:
        return None if us is None else _EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return None


def time_literal(us: int) -> str:
    """Return a time in µs since 1970 as an SQL literal. Times outside the range of Python's datetime become infinity or -infinity."""
    moment = to_datetime(us)
    if moment is None:
        return f"'{'-' if us < 0 else ''}infinity'::timestamptz"
    return f"'{moment.isoformat()}'::timestamptz"


def _parse_url(url: str) -> dict[str, Any] | None:
    """Parse a URL or connection string. Return None if it is not valid or has unescaped special characters."""
    from psycopg import conninfo

    try:
        parameters = conninfo.conninfo_to_dict(url)
    except Exception:
        return None
    plain = all("@" not in str(parameters.get(part, "")) for part in ("host", "port", "dbname"))
    return parameters if plain and re.fullmatch(r"[\d,]*", str(parameters.get("port", ""))) else None


def server_address(url: str) -> str:
    """Return the address in a URL without user and password, such as `127.0.0.1:5432/shop`."""
    parameters = _parse_url(url)
    if parameters is None:
        return "an address that is not valid"
    database = parameters.get("dbname", parameters.get("user", ""))
    return f"{parameters.get('host', 'localhost')}:{parameters.get('port', 5432)}/{database}"


def role_and_database(url: str) -> tuple[object, ...]:
    """Return the role, server and database in a URL. Two URLs with equal results can share a transaction."""
    parameters = _parse_url(url) or {}
    return tuple(parameters.get(k) for k in ("user", "host", "hostaddr", "port", "dbname", "service"))


def columns_of(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Return the names of the columns of a table (quoted SQL name), in order."""
    return list(types_of(connection, table))


def types_of(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    """Map the columns of a table (quoted SQL name) to their types, in order."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        (table,),
    )
    return dict(rows.fetchall())


def table_exists(connection: psycopg.Connection[Any], table: str) -> bool:
    """Return whether a table or view (quoted SQL name) exists."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return bool(row and row[0])


def error_reason(error: BaseException) -> str:
    """Return the first line of an error raised by Postgres or its client."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.replace("[libpq] ", "").removesuffix(". Vendor code: 0").strip()


@contextmanager
def report_errors(location: str) -> Iterator[None]:
    """Convert database errors in the block into StateError. `location`: the location of the store, for the message."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise StateError(f"state store {location}: {error_reason(error)}") from None


def open_connection(url: str, label: str, seconds: int = 10) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode, with UTC as the time zone. Raises StartError, without secrets in it.

    Args:
        url: The URL of the database.
        label: The purpose of the connection. Messages begin with it.
        seconds: The timeout in seconds.
    """
    import psycopg

    from slackwater.state.postgres.cursor import Cursor, NamedCursor

    if _parse_url(url) is None:
        raise StartError(
            f"{label}: the url is not valid; expected postgresql://user:password@host:5432/database, with characters such as "
            "/ and @ in a password written as %2F and %40",
            Topic.SERVICE_UNREACHABLE,
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
            f"{label}: Postgres at {server_address(url)} cannot be reached ({error_reason(error)}); check the url, "
            "and that the server is running",
            Topic.SERVICE_UNREACHABLE,
        ) from None
    connection.server_cursor_factory = NamedCursor
    return connection


def copy_frame(connection: psycopg.Connection[Any], table: str, frame: pl.DataFrame) -> None:
    """Append a frame to a table (quoted SQL name) in the open transaction of the connection."""
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
    """Format values for COPY: as `{"a","b"}` for an array of scalars, and as JSON for other nested types."""
    if not is_nested(kind):
        return _scalar(value, kind)
    if not isinstance(kind, pl.List) or is_nested(kind.inner):  # type: ignore[arg-type]
        return pl.when(value.is_not_null()).then(value_to_json(value, kind))
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
    """Open an ADBC cursor. Raises ConnectionError instead of database errors.

    `snapshot`: the id of the snapshot to read from, which an open transaction has exported; None for autocommit mode.
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
    """Borrow an idle connection, or open a new one. The caller must not leave a transaction open.

    `label`: the purpose of the connection; messages begin with it. Raises StartError.
    """
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


# Idle connections are reused, because ADBC needs 50 ms of CPU to connect, and a shard connects several times per epoch.
# A connection that has been idle for long is closed instead, because a firewall may have dropped it silently.
MAX_IDLE_S = 20.0
MAX_IDLE = 8  # largest number of idle connections of a process
# (process, URL, kind), time of return and connection; the one that was returned last is taken first
_idle: list[tuple[tuple[int, str, str], float, Any]] = []
_lock = threading.Lock()


def _take_idle(url: str, kind: str, broken: type[Exception]) -> Any | None:
    """Take an idle connection that still works, or return None.

    Args:
        url: The URL of the database.
        kind: "plain" for psycopg; "autocommit" or "snapshot" for ADBC.
        broken: The exception that a broken connection raises.
    """
    with _lock:
        key = (os.getpid(), url, kind)
        position = next((n for n in reversed(range(len(_idle))) if _idle[n][0] == key), None)
        if position is None:
            return None
        _, since, connection = _idle.pop(position)
    try:
        if clock.monotonic() - since < MAX_IDLE_S:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
            if kind == "snapshot":
                connection.rollback()
            return connection
    except broken:
        pass  # the server may have been restarted; if it is down, a new connection raises an error
    connection.close()
    return None


def _return_idle(url: str, kind: str, connection: Any) -> Any | None:
    """Keep a connection for reuse. If there are too many, return the one that has been idle longest, to be closed."""
    with _lock:
        _idle.append(((os.getpid(), url, kind), clock.monotonic(), connection))
        # a forked process must not close its parent's connections
        own_process = [n for n, (key, *_) in enumerate(_idle) if key[0] == os.getpid()]
        return _idle.pop(own_process[0])[2] if len(own_process) > MAX_IDLE else None


@atexit.register
def close_idle() -> None:
    """Close the idle connections of this process."""
    with _lock:
        connections, _idle[:] = list(_idle), []
    for key, _, connection in connections:
        if key[0] == os.getpid():
            connection.close()


def append_frame(cursor: Any, schema: str, table: str, frame: pl.DataFrame) -> None:
    """Append a frame to the table `schema`.`table` with COPY."""
    arrow = rebuild_empty_lists(frame).to_arrow(compat_level=pl.CompatLevel.oldest())
    cursor.adbc_ingest(table, arrow, mode="append", db_schema_name=schema)


def fetch_frame(cursor: Any, query: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Run a query, and return its rows as a frame. `schema`: the names and types of the columns, in order."""
    import pyarrow as pa

    cursor.execute(query)
    table = cursor.fetch_arrow_table()
    frame = frame_of(pa.table([_plain(column) for column in table.columns], names=table.column_names))
    return frame.rename(dict(zip(frame.columns, schema, strict=True))).cast(schema)  # type: ignore[arg-type]


def _plain(column: Any) -> Any:
    """Convert a column of an extension type to its storage type: ADBC returns numerics as text in such a type."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return column.cast(kind.storage_type)
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        return column.cast(pa.list_(kind.value_type.storage_type))
    return column
