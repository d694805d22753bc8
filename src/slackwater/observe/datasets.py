"""What OpenLineage calls the places that a pipeline reads and writes: a namespace and a name, as its naming rules say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

from slackwater.config.connection import (
    Connection,
    KafkaConnection,
    KinesisConnection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
)
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Lookup, Source
from slackwater.config.target import Target
from slackwater.secrets import masked

Place = tuple[str, str]  # namespace, name

_WILD = re.compile(r"[*?\[{]")


def of_source(pipeline: Pipeline, source: Source | Lookup) -> list[Place]:
    """Where a source reads, several topics one by one; nothing for a DataFrame, of which nobody knows."""
    connection = resolve(source.connection, pipeline.connections)
    if connection is None or source.query is None:
        return []
    return [_safe(place) for place in _read(connection, source.query)]


def of_target(pipeline: Pipeline, target: Target | None) -> Place | None:
    """Where a target writes; None for the console."""
    connection = None if target is None else resolve(target.connection, pipeline.connections)
    if target is None or connection is None:
        return None
    if isinstance(connection, PostgresConnection) and target.table:
        return _safe(_table(connection.url, target.table))
    if isinstance(connection, KafkaConnection) and target.topic:
        return _safe((_brokers(connection), target.topic))
    return None if target.path is None else _safe(_path(target.path))


def _read(connection: Connection, query: str) -> Iterator[Place]:
    if isinstance(connection, KafkaConnection):
        one_by_one = [query] if query.startswith("pattern:") else [t.strip() for t in query.split(",")]
        yield from ((_brokers(connection), topic) for topic in one_by_one if topic)
    elif isinstance(connection, RabbitMQConnection):
        at = urlsplit(connection.url)
        yield f"amqp://{at.hostname}:{at.port or 5672}", f"{at.path.lstrip('/') or '/'}.{query}"
    elif isinstance(connection, KinesisConnection):
        yield f"kinesis://{connection.region}", query
    elif isinstance(connection, PubSubConnection):
        yield "pubsub", f"subscription:{connection.project}:{query}"
    else:
        yield _path(query)


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
    return masked(place[0]), masked(place[1])
