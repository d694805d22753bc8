"""Connections, sources and lookups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from pydantic import Field

from slackwater.config.spec import (
    Kind,
    MismatchError,
    Problem,
    Spec,
    Values,
    anything,
    choice,
    duration,
    nearest,
    reader_options,
    show,
    text,
    whole,
)
from slackwater.errors import ConfigError

FORMATS = ("json", "csv", "parquet", "text")
LATER_CONNECTIONS = ("kafka", "postgres", "delta", "rabbitmq", "kinesis", "pubsub")


class FilesConnection(Spec):
    """Files on a local disk or any path that Spark reads."""

    kind: Literal["files"] = "files"
    KINDS: ClassVar[Mapping[str, Kind]] = {"kind": choice("files")}


class ConsoleConnection(Spec):
    """Prints what it is given; a target only."""

    kind: Literal["console"] = "console"
    KINDS: ClassVar[Mapping[str, Kind]] = {"kind": choice("console")}


Connection = FilesConnection | ConsoleConnection
_CONNECTIONS: dict[str, type[FilesConnection] | type[ConsoleConnection]] = {
    "files": FilesConnection,
    "console": ConsoleConnection,
}


def connection(value: Any) -> Connection:
    """A connection from a table or an object. Raises MismatchError, or ConfigError for its keys."""
    if isinstance(value, FilesConnection | ConsoleConnection):
        return value
    if not isinstance(value, Mapping):
        raise MismatchError('a connection (kind = "files" or "console")')
    kind = value.get("kind")
    if kind in LATER_CONNECTIONS:
        raise ConfigError([f': kind: {show(kind)} is not available yet; expected "files" or "console"'])
    if kind not in _CONNECTIONS:
        found = "missing" if kind is None else f"found {show(kind)}"
        raise ConfigError([f": kind: {found}{nearest(str(kind), _CONNECTIONS)}"])
    problems: list[str] = []
    built = _CONNECTIONS[kind].build(value, "", "", problems)
    if built is None:
        raise ConfigError(problems)
    return built


def all_connections(value: Any) -> dict[str, Connection]:
    if not isinstance(value, Mapping):
        raise MismatchError("a table of connections ([connections.<name>])")
    found: dict[str, Connection] = {}
    problems: list[str] = []
    for name, given in value.items():
        try:
            found[name] = connection(given)
        except MismatchError as mismatch:
            problems.append(f": {name}: found {show(given)}, expected {mismatch}")
        except ConfigError as error:
            problems += [f": {name}.{line.split(': ', 1)[1]}" for line in error.problems]
    if problems:
        raise ConfigError(problems)
    return found


def _connection_or_name(value: Any) -> Any:
    if isinstance(value, FilesConnection | ConsoleConnection):
        return value
    if not isinstance(value, str) or not value:
        raise MismatchError("the name of a connection")
    return value


def declared_columns(ddl: str) -> list[str]:
    """The column names of a DDL string, split lightly: `a STRING, b MAP<STRING, INT>` -> [a, b]."""
    parts, depth, current = [], 0, ""
    for char in ddl:
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    words = [p.split() for p in [*parts, current]]
    return [w[0].strip("`:") for w in words if w]


class Source(Spec):
    """A stream of rows: files (`connection`, `query`, `format`), or any streaming DataFrame (`dataframe=`, Python only).

    `name` defaults to the query. `lateness_ms` overrides the window's for this source.
    """

    name: str = ""
    connection: str | Connection | None = None
    query: str | None = None
    format: str | None = None
    schema_: str | None = Field(default=None, alias="schema")
    options: Mapping[str, str] = Field(default_factory=dict)
    max_files_per_trigger: int | None = None
    lateness_ms: int | None = None
    dataframe: Any = Field(default=None, exclude=True)

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "name": text,
        "connection": _connection_or_name,
        "query": text,
        "format": choice(*FORMATS),
        "schema": text,
        "options": reader_options,
        "max_files_per_trigger": whole(1),
        "lateness_ms": duration(0),
        "dataframe": anything,
    }
    FIELDS: ClassVar[Mapping[str, str]] = {"schema": "schema_"}
    LATER: ClassVar[Mapping[str, str]] = {
        "payload_format": "",
        "starting_offsets": "",
        "on_data_loss": "",
        "max_offsets_per_trigger": "",
    }

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> Values:
        values = super().read(data, file, at, problems)
        if "name" not in values and "query" in values:
            values["name"] = values["query"]
        return values

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "dataframe" in values:
            if "name" not in values and "name" not in wrong:
                yield "name", "missing; a source over a DataFrame needs a name"
            for key in ("connection", "query", "format", "schema_", "options", "max_files_per_trigger"):
                if key in values:
                    yield key.rstrip("_"), "belongs to files, this source is a DataFrame; remove it"
            return
        for key, what in (
            ("connection", "name one of the [connections]"),
            ("query", 'a path or glob, as in "data/*.json"'),
            ("format", f"expected {' or '.join(show(f) for f in FORMATS)}"),
        ):
            if key not in values and key not in wrong:
                yield key, f"missing; {what}"
        if values.get("format") in ("json", "csv") and "schema_" in values:
            columns = declared_columns(values["schema_"])
            twice = sorted({c for c in columns if columns.count(c) > 1})
            if twice:
                yield "schema", f'column "{twice[0]}" is declared twice; declare it once'


class Lookup(Spec):
    """A table that the SQL may join by name; re-read every `refresh_interval_ms`. `format` defaults to the file's suffix."""

    connection: str | Connection
    query: str
    format: str
    schema_: str | None = Field(default=None, alias="schema")
    options: Mapping[str, str] = Field(default_factory=dict)
    refresh_interval_ms: int = 60_000

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "connection": _connection_or_name,
        "query": text,
        "format": choice(*FORMATS),
        "schema": text,
        "options": reader_options,
        "refresh_interval_ms": duration(1),
    }
    FIELDS: ClassVar[Mapping[str, str]] = {"schema": "schema_"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("connection", "query")

    @classmethod
    def wanted(cls, key: str) -> str:
        return "name one of the [connections]" if key == "connection" else 'a path or glob, as in "data/users.parquet"'

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> Values:
        data = dict(data)
        query = data.get("query")
        if "format" not in data and isinstance(query, str):
            suffixes = [s[1:] for s in PurePath(query).suffixes if s[1:] in (*FORMATS, "jsonl", "txt")]
            guess = {"jsonl": "json", "txt": "text"}.get(suffixes[-1], suffixes[-1]) if suffixes else None
            if guess is None:
                where = f"{file}: {at}." if at else f"{file}: "
                problems.append(
                    f'{where}format: missing, and "{query}" has no known suffix; expected {" or ".join(show(f) for f in FORMATS)}'
                )
            else:
                data["format"] = guess
        return super().read(data, file, at, problems)
