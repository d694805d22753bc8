"""Reads the results or the state of a pipeline as one frame, from any system, without Spark.

out/sessions, x.parquet, x.jsonl, x.csv      files, or a directory of them
lake/sessions                                a Delta table, by its log
postgresql://host/db#schema.table            a table
sessions.toml, sessions.toml#hours           the target of a pipeline, by name if there are several
state:sessions.toml, state:DIR, state:URL    the open and retained windows of a state
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path

import polars as pl

from slackwater.config import toml
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
from slackwater.config.target import Target
from slackwater.connectors.files.output_directory import open_directory
from slackwater.core.paths import is_local
from slackwater.errors import StartError, raise_unregistered
from slackwater.evolution.operator_from_state import restore_window
from slackwater.query.locate_state import locate_store
from slackwater.query.state_view import StateView

_URL = re.compile(r"postgres(ql)?://")
_SUFFIXES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
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


@dataclass(frozen=True)
class LabeledRows:
    """Rows with a label for messages. `identity`: the columns that identify a row, if known."""

    label: str
    rows: pl.DataFrame
    identity: tuple[str, ...] | None = None


def read_rows_at_location(where: str) -> LabeledRows:
    """Read the rows at a location (see the module docstring). Raises StartError, StateError or ConfigError."""
    if where.startswith("state:"):
        return _read_state(where.removeprefix("state:"))
    if _URL.match(where):
        url, _, table = where.partition("#")
        if not table:
            raise StartError(
                f"{_server_address(url)}: the URL does not name a table; append it, as in postgresql://…/database#schema.table"
            )
        return _read_postgres(url, table)
    path = Path(where)
    if path.suffix == ".toml" and not path.is_dir():
        return _read_pipeline_target(toml.load(path).one_target())
    file, _, name = where.rpartition("#")
    if file.endswith(".toml") and not path.exists():
        return _read_pipeline_target(toml.load(Path(file)).one_target(name))
    return _read_path(where)


def _read_state(where: str) -> LabeledRows:
    place, _, name = where.partition("#")
    store = locate_store(place, name or None)
    with closing(store), StateView(store) as view:
        rows, commit = view.scan(), view.manifest()
    identity = restore_window(commit, -1).identity
    label = f"state of {commit.pipeline} in epoch {commit.epoch}"
    return LabeledRows(label, rows.select(c for c in rows.columns if not c.startswith("_")), identity)


def _read_pipeline_target(pipeline: Pipeline) -> LabeledRows:
    target, window = pipeline.target, pipeline.target_stage.transform.window
    connection = resolve_connection(target.connection, pipeline.connections)
    identity = None if window is None else (*window.group_by, window.window_start_column)
    assert connection is not None, "the config was checked"
    output = _read_target(connection, target)
    if output is None:
        kind = "the console" if connection.kind == "console" else connection.kind
        raise StartError(
            f"{pipeline.name}: its target is {kind}, which cannot be read; name files, a table or state:FILE"
        )
    label = f"{pipeline.name}, target {target.name}" if pipeline.targets else pipeline.name
    return LabeledRows(f"{label}: {output.label}", output.rows, identity)


@singledispatch
def _read_target(connection: Connection, target: Target) -> LabeledRows | None:
    """Read all rows of a target. Return None if the target cannot be read, or cannot be read completely."""
    raise_unregistered(connection, "slackwater.query.location_reader")


@_read_target.register
def _(connection: ConsoleConnection | KafkaConnection, target: Target) -> LabeledRows | None:
    return None


@_read_target.register
def _(connection: FilesConnection, target: Target) -> LabeledRows | None:
    path = target.path or ""
    if is_local(path):
        return _read_path(path)
    return replace(_read_path(str(open_directory(path, connection.options).local_copy())), label=path)


@_read_target.register
def _(connection: DeltaConnection, target: Target) -> LabeledRows | None:
    return _read_delta(target.path or "", connection.options)


@_read_target.register
def _(connection: IcebergConnection, target: Target) -> LabeledRows | None:
    from slackwater.connectors.iceberg import tables as iceberg

    label = f"Iceberg table {target.table}"
    try:
        table = iceberg.open_catalog(connection).load(target.table or "")
        rows = None if table is None else iceberg.read_all(table)
    except Exception as error:  # catalog clients raise all kinds of exceptions
        raise StartError(f"{label}: cannot be read ({iceberg.iceberg_error_reason(error)})") from None
    if rows is None:
        raise StartError(f"{label}: there is no such table in its catalog")
    return LabeledRows(label, rows)


@_read_target.register
def _(connection: PostgresConnection, target: Target) -> LabeledRows | None:
    return _read_postgres(str(connection.url), target.table or "")


# -- files -----------------------------------------------------------------------------------------------------------


def _read_path(where: str) -> LabeledRows:
    path = Path(where)
    if "://" in where or (path / "_delta_log").is_dir():
        return _read_delta(where, {})
    if not path.exists():
        raise StartError(
            f"{where}: there is no such file or directory; expected files, a Delta table, a postgresql:// URL, a TOML file, or "
            "state:WHERE"
        )
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file() and p.name[0] not in "._")
    kinds = {_SUFFIXES.get(p.suffix) for p in files} - ({None} if path.is_dir() else set())
    if len(kinds) != 1 or None in kinds:
        kinds_text = f"found {' and '.join(sorted(map(str, kinds)))}" if len(kinds) > 1 else "found none"
        raise StartError(f"{where}: {kinds_text}, expected files of one kind: {', '.join(_SUFFIXES)}")
    (kind,) = kinds
    frames = [read_file(p, str(kind)) for p in files if _SUFFIXES.get(p.suffix) == kind]
    return LabeledRows(where, pl.concat([f for f in frames if f.width] or frames, how="diagonal_relaxed"))


def read_file(path: Path, kind: str) -> pl.DataFrame:
    """Read the rows of a file. `kind`: parquet, csv or json. Raises StartError."""
    try:
        if kind == "parquet":
            return pl.read_parquet(path)
        if path.stat().st_size == 0:
            return pl.DataFrame()
        if kind == "csv":
            return pl.read_csv(path, infer_schema=False)
        with path.open("rb") as file:
            is_array = file.read(1) == b"["
        read = pl.read_json if is_array else pl.read_ndjson
        return read(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise StartError(f"{path}: cannot be read as {kind} ({str(error).splitlines()[0]})") from None


def _read_delta(path: str, options: Mapping[str, str]) -> LabeledRows:
    from deltalake import DeltaTable

    try:
        rows = pl.from_arrow(DeltaTable(path, storage_options=dict(options)).to_pyarrow_table())
    except Exception as error:  # deltalake has no common base class
        raise StartError(f"{path}: cannot be read as a Delta table ({str(error).splitlines()[0]})") from None
    assert isinstance(rows, pl.DataFrame)
    return LabeledRows(f"Delta table {path}", rows)


# -- Postgres --------------------------------------------------------------------------------------------------------


def _server_address(url: str) -> str:
    from slackwater.state.postgres import client

    return client.server_address(url)


def _read_postgres(url: str, table: str) -> LabeledRows:
    schema, _, name = table.rpartition(".")
    label = f"table {schema or 'public'}.{name} in Postgres at {_server_address(url)}"
    rows = read_table(url, table)
    if rows is None:
        raise StartError(f"{label}: there is no such table; expected postgresql://…/database#schema.table")
    return LabeledRows(label, rows)


def read_table(url: str, table: str, tail: str = "") -> pl.DataFrame | None:
    """Read the rows of a table; None if it does not exist. `tail`: the SQL after the table name. Raises StartError."""
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
        raise StartError(f"{label}: cannot be read ({client.error_reason(error)})") from None


def count_rows(url: str, table: str, tail: str, most: int) -> int:
    """Count the rows of a table, up to `most`. `tail`: the SQL after the table name. Raises StartError."""
    import psycopg

    from slackwater.state.postgres import client

    label, place = _label_and_sql_name(url, table)
    try:
        with client.open_connection(url, label) as db:
            row = db.execute(f"SELECT count(*) FROM (SELECT FROM {place}{tail} LIMIT {most}) AS counted").fetchone()
    except psycopg.Error as error:
        raise StartError(f"{label}: cannot be read ({client.error_reason(error)})") from None
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
