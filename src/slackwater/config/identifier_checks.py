"""Checks of column, table and topic names against the rules of each system, without connecting to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import Connection
from slackwater.config.error_text import describe_value_mismatch, format_value
from slackwater.config.spec_base import Problem, Values

if TYPE_CHECKING:
    from slackwater.config.target import StateStore, Target
    from slackwater.config.window import Window

POSTGRES_BYTES = 63  # Postgres truncates longer identifiers, so that two names may become equal
_RESERVED = re.compile(r"slackwater_(state|staged|windows)_.*|slackwater_(pipelines|offsets|outputs|lists|targets)")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_AVRO = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DELTA = set(" ,;{}()\n\t=")


def check_state_identifiers(values: Values) -> Iterator[Problem]:
    """Yield a problem for each name that the state store does not accept."""
    stages = values.get("stages") or [values["transform"]] if values.get("transform") is not None else []
    store: StateStore | None = values.get("state_store")
    if store is not None and store.kind == "postgres":
        if "schema" not in store._wrong and store.schema_:
            yield from _postgres_problems("state_store.schema", "schema", store.schema_)
        for stage in stages:
            if stage.window is not None:
                yield from _postgres_column_problems(stage.window, "the state is in Postgres", state=True)


def check_target_identifiers(values: Values, connections: Mapping[str, Any], path: str = "target") -> Iterator[Problem]:
    """Yield a problem for each name that a target does not accept, truncates or reserves.

    Args:
        values: The attributes of the pipeline, with the target as `target`.
        connections: The connections by name.
        path: The config key of the target.
    """
    window: Window | None = values["transform"].window if values.get("transform") is not None else None
    target: Target | None = values.get("target")
    if target is None or target.connection is None:
        return
    connection = (
        target.connection if isinstance(target.connection, Connection) else connections.get(str(target.connection))
    )
    if connection is None:
        return
    if connection.kind == "postgres" and target.table and "table" not in target._wrong:
        schema, _, name = target.table.rpartition(".")
        for part, identifier in ((schema, "schema"), (name, "table")):
            if part or part is name:
                yield from _postgres_problems(f"{path}.table", identifier, part)
        if _RESERVED.fullmatch(name):
            yield (
                f"{path}.table",
                f"found {format_value(target.table)}, which is a table name that Slackwater reserves; choose another "
                "name",
            )
    if (
        connection.kind == "kafka"
        and target.topic
        and "topic" not in target._wrong
        and (not _TOPIC.fullmatch(target.topic) or target.topic in (".", ".."))
    ):
        yield (
            f"{path}.topic",
            describe_value_mismatch(target.topic, 'a name of at most 249 letters, digits, ".", "_" and "-"'),
        )
    if connection.kind == "iceberg" and target.table and "table" not in target._wrong:
        parts = target.table.split(".")
        if len(parts) < 2 or not all(parts):
            yield (
                f"{path}.table",
                describe_value_mismatch(target.table, 'a table in a namespace, as in "shop.sessions"'),
            )
    if target.path and "\0" in target.path:
        yield (
            f"{path}.path",
            "contains the character U+0000, which is not allowed in a file name; remove this character",
        )
    if window is not None:
        yield from _column_problems(window, connection.kind, target)


def _column_problems(window: Window, kind: str, target: Target) -> Iterator[Problem]:
    if kind == "postgres":
        yield from _postgres_column_problems(window, "the target is a Postgres table", state=False)
    for key, name in _column_names(window):
        if kind == "delta" and (odd := sorted(_DELTA & set(name))):
            shown = ", ".join(format_value(c) for c in odd)
            yield key, f"found {format_value(name)}; a column name in Delta cannot contain {shown}; choose another name"
        if kind == "kafka" and target.value_format == "avro" and not _AVRO.fullmatch(name):
            yield (
                key,
                f"found {format_value(name)}; an Avro field name consists of letters, digits and _, and must not begin with a digit; choose another name",
            )


def _column_names(window: Window) -> Iterator[tuple[str, str]]:
    """Yield the names of the result columns as (config key, name)."""
    if not {"group_by", "kind"} & window._wrong:
        yield from ((f"{window.CONFIG_PATH}.group_by", k) for k in window.group_by)
    for n, agg in enumerate(window.aggregations if "aggregations" not in window._wrong else ()):
        if isinstance(agg.as_, str):
            yield f"{window.CONFIG_PATH}.aggregations[{n}].as", agg.as_


def _postgres_column_problems(window: Window, why: str, state: bool) -> Iterator[Problem]:
    for key, name in _column_names(window):
        most = POSTGRES_BYTES - (2 if state and key.endswith(".as") else 0)  # accumulators append a dot and a letter
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > most:
            yield (
                key,
                f"found {format_value(name)}, which has {size} bytes, expected a column name of at most {most} bytes, "
                f"because {why}; choose a shorter name",
            )
        elif not name:
            yield key, f"found {format_value(name)}, expected a non-empty column name, because {why}; choose a name"


def _postgres_problems(key: str, identifier: str, name: str) -> Iterator[Problem]:
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > POSTGRES_BYTES:
        yield (
            key,
            f"the {identifier} name {format_value(name)} has {size} bytes, but Postgres allows at most "
            f"{POSTGRES_BYTES}; choose a shorter name",
        )
    elif not name or "\0" in name:
        yield (
            key,
            f"the {identifier} name is {format_value(name)}, but a Postgres name must not be empty or contain U+0000; "
            "choose another name",
        )
    elif identifier == "schema" and name.startswith("pg_"):
        yield (
            key,
            f'the schema name {format_value(name)} begins with "pg_", which Postgres reserves; choose another name',
        )
