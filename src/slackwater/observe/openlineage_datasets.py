"""OpenLineage datasets for a pipeline's sources and targets: namespace and name, by OpenLineage's naming rules."""

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
from slackwater.errors import raise_unregistered
from slackwater.secrets import mask_secrets

Dataset = tuple[str, str]  # namespace, name

_WILD = re.compile(r"[*?\[{]")


def source_datasets(pipeline: Pipeline, source: Source | Lookup) -> list[Dataset]:
    """Return the datasets that a source reads, one per topic; none for a DataFrame."""
    connection = resolve_connection(source.connection, pipeline.connections)
    if connection is None or source.query is None:
        return []
    return [_safe(dataset) for dataset in _read(connection, source.query)]


def target_dataset(pipeline: Pipeline, target: Target | None) -> Dataset | None:
    """Return the dataset that a target writes; None for the console."""
    connection = None if target is None else resolve_connection(target.connection, pipeline.connections)
    if target is None or connection is None:
        return None
    dataset = _written(connection, target)
    return None if dataset is None else _safe(dataset)


@singledispatch
def _read(connection: Connection, query: str) -> Iterable[Dataset]:
    raise_unregistered(connection, "slackwater.observe.openlineage_datasets.source_datasets")


@_read.register
def _(connection: FilesConnection | DeltaConnection, query: str) -> Iterable[Dataset]:
    return [_path(query)]


@_read.register
def _(connection: IcebergConnection, query: str) -> Iterable[Dataset]:
    return [_in_catalog(connection, query)]


@_read.register
def _(connection: KafkaConnection, query: str) -> Iterable[Dataset]:
    one_by_one = [query] if query.startswith("pattern:") else [t.strip() for t in query.split(",")]
    return [(_brokers(connection), topic) for topic in one_by_one if topic]


@_read.register
def _(connection: RabbitMQConnection, query: str) -> Iterable[Dataset]:
    address = urlsplit(connection.url)
    return [(f"amqp://{address.hostname}:{address.port or 5672}", f"{address.path.lstrip('/') or '/'}.{query}")]


@_read.register
def _(connection: KinesisConnection, query: str) -> Iterable[Dataset]:
    return [(f"kinesis://{connection.region}", query)]


@_read.register
def _(connection: PubSubConnection, query: str) -> Iterable[Dataset]:
    return [("pubsub", f"subscription:{connection.project}:{query}")]


@singledispatch
def _written(connection: Connection, target: Target) -> Dataset | None:
    raise_unregistered(connection, "slackwater.observe.openlineage_datasets.target_dataset")


@_written.register
def _(connection: ConsoleConnection, target: Target) -> Dataset | None:
    return None  # the console is not a dataset


@_written.register
def _(connection: FilesConnection | DeltaConnection, target: Target) -> Dataset | None:
    return _path(target.path or "")


@_written.register
def _(connection: IcebergConnection, target: Target) -> Dataset | None:
    return _in_catalog(connection, target.table or "")


def _in_catalog(connection: IcebergConnection, name: str) -> Dataset:
    """Return the dataset of a table in a catalog.

    The namespace is the catalog's address, as in OpenLineage's Spark listener; a catalog without an address uses its
    kind.
    """
    address = connection.options.get("uri") or connection.options.get("warehouse") or connection.catalog
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else address, name


@_written.register
def _(connection: PostgresConnection, target: Target) -> Dataset | None:
    return _table(connection.url, target.table or "")


@_written.register
def _(connection: KafkaConnection, target: Target) -> Dataset | None:
    return _brokers(connection), target.topic or ""


def _brokers(connection: KafkaConnection) -> str:
    return f"kafka://{connection.bootstrap_servers.split(',')[0].strip()}"


def _table(url: str, table: str) -> Dataset:
    conninfo = conninfo_to_dict(url)
    schema, _, name = table.rpartition(".")
    return (
        f"postgres://{conninfo.get('host') or 'localhost'}:{conninfo.get('port') or 5432}",
        f"{conninfo.get('dbname') or conninfo.get('user') or 'postgres'}.{schema or 'public'}.{name}",
    )


def _path(path: str) -> Dataset:
    """Return the dataset of a file or directory; for a glob, the directory above it."""
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    path = "/".join(parts[:fixed])
    if "://" not in path or path.startswith("file:"):
        return "file", str(Path(re.sub("^file:(//)?", "", path) or ".").absolute())
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    bucket = bucket.rpartition("@")[2] if scheme not in ("abfs", "abfss", "wasb", "wasbs") else bucket
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{bucket}", key.strip("/") or "/"


def _safe(dataset: Dataset) -> Dataset:
    return mask_secrets(dataset[0]), mask_secrets(dataset[1])
