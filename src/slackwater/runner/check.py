"""`check --connect`: is everything there that a pipeline needs? One line for each thing that is not; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable

from slackwater.config.connection import Connection, KafkaConnection, PostgresConnection, RabbitMQConnection
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.errors import SlackwaterError
from slackwater.sources import files
from slackwater.sources.kafka_broker import Broker


def problems(pipeline: Pipeline) -> list[str]:
    """What cannot be reached, or does not fit. Starts Spark only to learn the columns that a database table must have."""
    found: list[str] = []

    def attempt(look: Callable[[], object]) -> None:
        try:
            look()
        except SlackwaterError as error:
            found.extend(str(error).splitlines())

    for spec in pipeline.sources:
        connection = resolve(spec.connection, pipeline.connections)
        if connection is not None:
            attempt(lambda spec=spec, connection=connection: _source(spec, connection))  # type: ignore[misc]
    store = pipeline.state_store
    if store is not None and store.kind == "postgres":
        attempt(lambda: _database(str(store.url), "state store"))
    for place, target in (("target", pipeline.target), ("dead_letter", pipeline.dead_letter)):
        if target is not None:
            attempt(lambda place=place, target=target: _target(pipeline, place, target))  # type: ignore[misc]
    if not found and isinstance(resolve(pipeline.target.connection, pipeline.connections), PostgresConnection):
        attempt(lambda: found.extend(_table(pipeline)))
    return found


def notes(pipeline: Pipeline) -> list[str]:
    """What is worth knowing beside problems: files that changed after the state has read them."""
    from slackwater.runner.assemble import store_of
    from slackwater.sources import changed

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return []
    store = store_of(pipeline)
    found: list[str] = []
    try:
        with store.peek() as snapshot:
            for spec in pipeline.sources if snapshot is not None else ():
                record = snapshot.commit.sources.get(spec.name) if snapshot else None
                offsets = (record.offsets if record else None) or {}
                told = offsets.get("changed", {})
                names, count = list(told.get("last", [])), int(told.get("count", 0))
                if pipeline.state_store.kind == "files" and "segments" in offsets:
                    known = changed.ReadFiles()
                    known.add(files.recall(store, offsets))
                    new = known.changed(None)
                    names += [files.local_name(e.path) for e in new]
                    count += len(new)
                if count:
                    found.append(changed.text(spec.name, names[-files.CHANGES_SHOWN :], count))
    finally:
        store.close()
    return found


def _source(spec: Source, connection: Connection) -> None:
    if connection.kind == "files":
        files.check_exists(spec)
    elif isinstance(connection, KafkaConnection):
        Broker(connection).partitions(spec.query or "", f'source "{spec.name}"')
    elif isinstance(connection, RabbitMQConnection):
        from slackwater.sources import rabbitmq

        rabbitmq.check(str(connection.url), spec.query or "")


def _target(pipeline: Pipeline, place: str, spec: TargetSpec) -> None:
    connection = resolve(spec.connection, pipeline.connections)
    if isinstance(connection, KafkaConnection):
        Broker(connection).partitions(spec.topic or "", place)
    elif isinstance(connection, PostgresConnection):
        _database(str(connection.url), f"{place} {spec.table}")


def _database(url: str, what: str) -> None:
    from slackwater.state.postgres import client

    client.connect(url, what).close()


def _table(pipeline: Pipeline) -> list[str]:
    """How the target's table differs from the output."""
    from slackwater.runner.assemble import source_of, spark_settings, target_of
    from slackwater.runner.binding import bind_all
    from slackwater.sources.lookups import Lookups
    from slackwater.spark import session
    from slackwater.targets.postgres import PostgresTarget

    own = session.private(session.start(spark_settings(pipeline, lambda level, line: None)), 1)
    Lookups(own, pipeline.lookups, lambda line: None).load()
    sources = [source_of(own, pipeline, i, None) for i in range(len(pipeline.sources))]
    *_, results = bind_all(pipeline, own, sources).values()
    target = target_of(pipeline, results.operator)
    return target.problems() if isinstance(target, PostgresTarget) else []
