"""What OpenLineage calls the places that a pipeline reads and writes: a namespace and a name, as its naming rules say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import singledispatch
from pathlib import Path
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

from slackwater.config.connection import (
    Connection,
    ConsoleConnection,
    DeltaConnection,
    FilesConnection,
    IcebergConnection,
    KafkaConnection,
    KinesisConnection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
)
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Lookup, Source
from slackwater.config.target import Target
from slackwater.core.dispatch import unregistered
from slackwater.secrets import mask_secrets

Place = tuple[str, str]  # namespace, name

_WILD = re.compile(r"[*?\[{]")


def of_source(pipeline: Pipeline, source: Source | Lookup) -> list[Place]:
    """Where a source reads, several topics one by one; nothing for a DataFrame, of which nobody knows."""
    connection = resolve_connection(source.connection, pipeline.connections)
    if connection is None or source.query is None:
        return []
    return [_safe(place) for place in _read(connection, source.query)]


def of_target(pipeline: Pipeline, target: Target | None) -> Place | None:
    """Where a target writes; None for the console."""
    connection = None if target is None else resolve_connection(target.connection, pipeline.connections)
    if target is None or connection is None:
        return None
    found = _written(connection, target)
    return None if found is None else _safe(found)


@singledispatch
def _read(connection: Connection, query: str) -> Iterable[Place]:
    unregistered(connection, "slackwater.observe.datasets.of_source")


@_read.register
def _(connection: FilesConnection | DeltaConnection, query: str) -> Iterable[Place]:
    return [_path(query)]


@_read.register
def _(connection: IcebergConnection, query: str) -> Iterable[Place]:
    return [_in_catalog(connection, query)]


@_read.register
def _(connection: KafkaConnection, query: str) -> Iterable[Place]:
    one_by_one = [query] if query.startswith("pattern:") else [t.strip() for t in query.split(",")]
    return [(_brokers(connection), topic) for topic in one_by_one if topic]


@_read.register
def _(connection: RabbitMQConnection, query: str) -> Iterable[Place]:
    at = urlsplit(connection.url)
    return [(f"amqp://{at.hostname}:{at.port or 5672}", f"{at.path.lstrip('/') or '/'}.{query}")]


@_read.register
def _(connection: KinesisConnection, query: str) -> Iterable[Place]:
    return [(f"kinesis://{connection.region}", query)]


@_read.register
def _(connection: PubSubConnection, query: str) -> Iterable[Place]:
    return [("pubsub", f"subscription:{connection.project}:{query}")]


@singledispatch
def _written(connection: Connection, target: Target) -> Place | None:
    unregistered(connection, "slackwater.observe.datasets.of_target")


@_written.register
def _(connection: ConsoleConnection, target: Target) -> Place | None:
    return None  # it is no place


@_written.register
def _(connection: FilesConnection | DeltaConnection, target: Target) -> Place | None:
    return _path(target.path or "")


@_written.register
def _(connection: IcebergConnection, target: Target) -> Place | None:
    return _in_catalog(connection, target.table or "")


def _in_catalog(connection: IcebergConnection, name: str) -> Place:
    """By its catalog, as Spark's own listener names them; where that is unknown, by its kind."""
    at = connection.options.get("uri") or connection.options.get("warehouse") or connection.catalog
    scheme, _, rest = at.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else at, name


@_written.register
def _(connection: PostgresConnection, target: Target) -> Place | None:
    return _table(connection.url, target.table or "")


@_written.register
def _(connection: KafkaConnection, target: Target) -> Place | None:
    return _brokers(connection), target.topic or ""


def _brokers(connection: KafkaConnection) -> str:
    return f"kafka://{connection.bootstrap_servers.split(',')[0].strip()}"


def _table(url: str, table: str) -> Place:
    at = conninfo_to_dict(url)
    schema, _, name = table.rpartition(".")
    return (
        f"postgres://{at.get('host') or 'localhost'}:{at.get('port') or 5432}",
        f"{at.get('dbname') or at.get('user') or 'postgres'}.{schema or 'public'}.{name}",
    )


def _path(path: str) -> Place:
    """A file or directory; of a glob the directory above it."""
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    path = "/".join(parts[:fixed])
    if "://" not in path or path.startswith("file:"):
        return "file", str(Path(re.sub("^file:(//)?", "", path) or ".").absolute())
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    bucket = bucket.rpartition("@")[2] if scheme not in ("abfs", "abfss", "wasb", "wasbs") else bucket
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{bucket}", key.strip("/") or "/"


def _safe(place: Place) -> Place:
    return mask_secrets(place[0]), mask_secrets(place[1])
