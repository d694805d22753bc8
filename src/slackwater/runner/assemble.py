"""From a config to its parts: sources, the state store, the target, the place of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import (
    Connection,
    DeltaConnection,
    KafkaConnection,
    KinesisConnection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
)
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.core.dead_letter import LETTER
from slackwater.errors import StartError
from slackwater.operators.base import Operator
from slackwater.sources import files
from slackwater.sources.base import reason
from slackwater.sources.cloud import CloudReader, kinesis_options, pubsub_options
from slackwater.sources.kafka import KafkaSource, sample
from slackwater.sources.kafka_broker import Broker, named
from slackwater.sources.payload import avro_payload, json_payload, raw_payload
from slackwater.sources.streams import AnySource, FrameSource
from slackwater.sources.times import UTC
from slackwater.spark import packages
from slackwater.state.files.store import FilesStore, InMemoryStore
from slackwater.state.protocol import StateStore
from slackwater.targets.base import Table, Target
from slackwater.targets.console import ConsoleTarget
from slackwater.targets.files import FilesTarget
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def source_of(session: SparkSession, pipeline: Pipeline, index: int, known: str | None) -> AnySource:
    """A source a config names. `known`: the schema it was first read with, as Spark writes schemas in JSON.

    Raises StartError if what it reads is not there.
    """
    spec = pipeline.sources[index]
    connection = resolve(spec.connection, pipeline.connections)
    if spec.dataframe is not None or connection is None:
        return FrameSource(spec.name, spec.dataframe)
    if connection.kind == "files":
        files.check_exists(spec)
        return files.FilesSource(spec, files.schema_of(session, spec, known), _zone(pipeline, spec))
    if isinstance(connection, KafkaConnection):
        return _kafka(session, pipeline, spec, connection, known)
    return _connector(session, pipeline, spec, connection, known)


def _kafka(
    session: SparkSession, pipeline: Pipeline, spec: Source, connection: KafkaConnection, known: str | None
) -> KafkaSource:
    broker, query = Broker(connection), spec.query or ""
    broker.partitions(query, f'source "{spec.name}"')
    if spec.payload_format == "raw":
        payload = raw_payload()
    elif spec.payload_format == "avro":
        payload = avro_payload(session, spec, connection.schema_registry, named(query))
    else:
        payload = json_payload(session, spec, known, lambda: sample(session, spec, connection))
        payload = replace(payload, zone=_zone(pipeline, spec))
    used = pipeline.dead_letter is not None or any(
        not (texts := own.texts(way)) or any("_headers" in sql for _, sql in texts)
        for own in pipeline.alone.values()
        for way in own.ways_from(spec.name)
    )
    return KafkaSource(spec, broker, payload, f"slackwater-{pipeline.name}-{spec.name}", used)


def _connector(
    session: SparkSession, pipeline: Pipeline, spec: Source, connection: Connection, known: str | None
) -> FrameSource:
    """A source through a connector for Spark that cannot seek."""
    most: dict[str, Any] = {}
    if isinstance(connection, RabbitMQConnection):
        from slackwater.sources import rabbitmq

        if spec.max_messages_per_trigger is not None:
            most["max_messages_per_trigger"] = spec.max_messages_per_trigger
        frame = rabbitmq.stream(session, str(connection.url), spec.query or "", **{**spec.options, **most})
        body, meta = "body", [f"{c} AS _{c}" for c in ("routing_key", "exchange", "message_id", "headers", "received")]
    else:
        reader = _cloud(spec, connection)
        try:
            frame = (
                session.readStream.format(reader.format)
                .options(**{**reader.options, **_options(connection), **spec.options})
                .load()
            )
        except Exception as error:
            raise reader.missing(error) or StartError(f'source "{spec.name}": {reason(error)}') from None
        time = quote(reader.event_time_column)
        body, meta = (
            reader.payload_column,
            [f"{f'timestamp_millis({time})' if reader.event_time_unit else time} AS _event_ts"],
        )
    if spec.payload_format == "raw":
        payload = raw_payload(body)
    else:
        payload = replace(json_payload(session, spec, known, list), body=body, zone=_zone(pipeline, spec))
    return FrameSource(spec.name, frame, lambda rows: payload.decode(rows, [*meta, f"{quote(body)} AS _value"]))


def _zone(pipeline: Pipeline, spec: Source) -> str:
    """Of clock readings without one, as the first step has it that reads the source."""
    readers = (own for own in pipeline.alone.values() if own.ways_from(spec.name))
    return next((own.transform.step.event_time_zone for own in readers), None) or UTC


def _options(connection: Connection) -> dict[str, str]:
    return dict(connection.options) if isinstance(connection, KinesisConnection | PubSubConnection) else {}


def _cloud(spec: Source, connection: Connection) -> CloudReader:
    name = spec.query or ""
    if isinstance(connection, KinesisConnection):
        start = spec.starting_offsets if isinstance(spec.starting_offsets, str) else "latest"
        return kinesis_options(
            name,
            connection.region,
            starting_position=start,
            endpoint=connection.endpoint,
            max_records_per_shard=spec.max_messages_per_trigger,
        )
    assert isinstance(connection, PubSubConnection)
    return pubsub_options(
        name,
        project=connection.project,
        location=connection.location,
        max_records_per_batch=spec.max_messages_per_trigger,
    )


def spark_settings(pipeline: Pipeline, notice: Callable[[str, str], None]) -> dict[str, str]:
    """Settings of a Spark session of our own, with the jars that the sources need."""
    import pyspark

    given = {k: str(v) for k, v in pipeline.spark.items()}
    kinds = {c.kind for s in pipeline.sources if (c := resolve(s.connection, pipeline.connections))}
    if "kafka" not in kinds or {"spark.jars", "spark.jars.packages"} & set(given):
        return given
    installed = str(pyspark.__version__)
    jars, version = packages.kafka_connector(installed)
    if version != installed:
        notice("info", f"Spark {installed} reads Kafka with the connector of Spark {version}")
    if any(s.payload_format == "avro" for s in pipeline.sources):
        jars = [*jars, *packages.avro(installed)]
    return {**given, "spark.jars": ",".join(map(str, jars))}


def store_of(pipeline: Pipeline) -> StateStore:
    """The state store a config names; in memory where it names none."""
    store = pipeline.state_store
    if store is None or store.kind == "in_memory":
        return InMemoryStore(pipeline.name)
    if store.kind == "postgres":
        from slackwater.state.postgres.store import PostgresStore

        return PostgresStore(store.url or "", store.schema_, pipeline.name, store.path)
    return FilesStore(store.path or "", pipeline.name)


def target_of(pipeline: Pipeline, logic: Operator, state_id: str = "") -> Target:
    """The target a config names, for the epochs of a state."""
    return _target(pipeline.target, pipeline, Table(pipeline.name, tuple(logic.output), logic.identity, state_id))


def letters_of(pipeline: Pipeline, state_id: str = "") -> Target | None:
    """Where a config sends dead letters; None where it does not."""
    if pipeline.dead_letter is None:
        return None
    return _target(pipeline.dead_letter, pipeline, Table(f"{pipeline.name}-letters", LETTER, None, state_id))


def aside_of(pipeline: Pipeline, state_id: str = "") -> Target | None:
    """Where rows go that are set aside: to the dead letters, with a marker of their own."""
    if pipeline.dead_letter is None:
        return None
    return _target(pipeline.dead_letter, pipeline, Table(f"{pipeline.name}-letters-aside", LETTER, None, state_id))


def _target(spec: TargetSpec, pipeline: Pipeline, table: Table) -> Target:
    connection = resolve(spec.connection, pipeline.connections)
    if isinstance(connection, PostgresConnection):
        from slackwater.targets.postgres import PostgresTarget

        return PostgresTarget(connection.url, spec.table or "", table)
    if isinstance(connection, DeltaConnection):
        from slackwater.targets.delta import DeltaTarget

        mode = "append" if table.identity is None else spec.mode or "merge"
        return DeltaTarget(spec.path or "", mode, table, connection.options)
    if isinstance(connection, KafkaConnection):
        from slackwater.targets.kafka import KafkaTarget

        settings = {**connection.options, "bootstrap.servers": str(connection.bootstrap_servers)}
        return KafkaTarget(
            settings,
            spec.topic or "",
            table,
            value_format=spec.value_format or "json",
            delivery=spec.delivery or "at_least_once",
            key_columns=_listed(spec.key_columns),
            upserts=spec.upserts("kafka", pipeline.last.transform.step),
        )
    if spec.path is not None:
        return FilesTarget(Path(spec.path), spec.format or "parquet", table)
    return ConsoleTarget()


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
