"""Connections, sources and lookups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from pydantic import Field

from slackwater.config.spec import (
    Interpolated,
    Kind,
    MismatchError,
    NestedError,
    Problem,
    Spec,
    Unset,
    Values,
    anything,
    choice,
    duration,
    nearest,
    reader_options,
    show,
    show_key,
    text,
    whole,
)

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
    """A connection from a table or an object. Raises MismatchError, or NestedError (draft None) for its keys."""
    if isinstance(value, FilesConnection | ConsoleConnection):
        return value
    if not isinstance(value, Mapping):
        raise MismatchError('a connection (kind = "files" or "console")')
    kind = value.get("kind")
    if isinstance(kind, Unset):
        raise NestedError([], None)
    if kind in LATER_CONNECTIONS:
        raise NestedError([f': kind: {show(kind)} is not available yet; expected "files" or "console"'], None)
    if kind is None:
        raise NestedError([': kind: missing; expected "files" or "console"'], None)
    if not isinstance(kind, str) or kind not in _CONNECTIONS:
        advice = nearest(kind, _CONNECTIONS) if isinstance(kind, str) else ', expected "files" or "console"'
        raise NestedError([f": kind: found {show(kind)}{advice}"], None)
    problems: list[str] = []
    built = _CONNECTIONS[kind].build(value, "", "", problems)
    if built is None:
        raise NestedError(problems, None)
    return built


def all_connections(value: Any) -> dict[str, Connection]:
    """Connections by name. Raises NestedError, whose draft holds None for each that is wrong."""
    if not isinstance(value, Mapping):
        raise MismatchError("a table of connections ([connections.<name>])")
    found: dict[str, Connection | None] = {}
    problems: list[str] = []
    for name, given in value.items():
        try:
            found[name] = connection(given)
        except MismatchError as mismatch:
            found[name] = None
            problems.append(f": {show_key(name)}: found {show(given)}, expected {mismatch}")
        except NestedError as error:
            found[name] = None
            problems += [f": {show_key(name)}.{line.removeprefix(': ')}" for line in error.problems]
    if None in found.values():
        raise NestedError(problems, found)
    return {name: made for name, made in found.items() if made is not None}


def connection_or_name(value: Any) -> Any:
    if isinstance(value, FilesConnection | ConsoleConnection):
        return value
    if not isinstance(value, str) or not value:
        raise MismatchError("the name of a connection")
    return value


_QUOTED = re.compile(r"`[^`]*`|'[^']*'|[^`'<>(),]+|.", re.DOTALL)


def declared_columns(ddl: str) -> list[str]:
    """The column names of a DDL string, split lightly: `a STRING, b MAP<STRING, INT>` -> [a, b]."""
    depth, fields = 0, [""]
    for token in _QUOTED.findall(ddl):
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += token
    named = [re.match(r"\s*(?:`([^`]*)`|([^\s:`]+))", f) for f in fields]
    return [m[1] or m[2] or "" for m in named if m]


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
        "connection": connection_or_name,
        "query": text,
        "format": choice(*FORMATS),
        "schema": text,
        "options": reader_options,
        "max_files_per_trigger": whole(1),
        "lateness_ms": duration(0),
        "dataframe": anything,
    }
    FIELDS: ClassVar[Mapping[str, str]] = {"schema": "schema_"}
    PYTHON_ONLY: ClassVar[Mapping[str, str]] = {"dataframe": "give a connection, a query and a format"}
    LATER: ClassVar[Mapping[str, str]] = {
        "payload_format": "",
        "starting_offsets": "",
        "on_data_loss": "",
        "max_offsets_per_trigger": "",
    }

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> tuple[Values, set[str]]:
        values, wrong = super().read(data, file, at, problems)
        if "name" not in values and "query" in values:
            values["name"] = values["query"]
        return values, wrong

    def implied(self) -> Values:
        return {"name": self.query}

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
        if "schema_" in values:
            yield from _check_schema(values["schema_"])


def _check_schema(schema: str) -> Iterator[Problem]:
    columns = [c.casefold() for c in declared_columns(schema)]
    twice = next((c for c in columns if columns.count(c) > 1), None)
    if twice is not None:
        which = f"a column of {show(schema)}" if isinstance(schema, Interpolated) else f"column {show(twice)}"
        yield "schema", f"{which} is declared twice (Spark reads names without regard to case); declare it once"


class Lookup(Spec):
    """A table that the SQL may join by name; re-read every `refresh_interval_ms`. `format` defaults to the file's suffix."""

    connection: str | Connection
    query: str
    format: str
    schema_: str | None = Field(default=None, alias="schema")
    options: Mapping[str, str] = Field(default_factory=dict)
    refresh_interval_ms: int = 60_000

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "connection": connection_or_name,
        "query": text,
        "format": choice(*FORMATS),
        "schema": text,
        "options": reader_options,
        "refresh_interval_ms": duration(1),
    }
    FIELDS: ClassVar[Mapping[str, str]] = {"schema": "schema_"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("connection", "query")

    def implied(self) -> Values:
        return {"format": guess_format(self.query)}

    @classmethod
    def wanted(cls, key: str) -> str:
        return "name one of the [connections]" if key == "connection" else 'a path or glob, as in "data/users.parquet"'

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> tuple[Values, set[str]]:
        query = data.get("query")
        guess = guess_format(query) if isinstance(query, str) else None
        if data.get("format") is None and guess is not None:
            data = {**data, "format": guess}
        return super().read(data, file, at, problems)

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "format" not in values and "format" not in wrong and "query" in values:
            expected = " or ".join(show(f) for f in FORMATS)
            yield "format", f"missing, and {show(values['query'])} has no known suffix; expected {expected}"
        if "schema_" in values:
            yield from _check_schema(values["schema_"])


def guess_format(query: str) -> str | None:
    """The format that a file's suffix stands for: `data/users.jsonl.gz` -> `json`; None if it stands for none."""
    spelled = {**{f: f for f in FORMATS}, "jsonl": "json", "txt": "text"}
    known = [spelled[suffix[1:]] for suffix in PurePath(query).suffixes if suffix[1:] in spelled]
    return known[-1] if known else None
