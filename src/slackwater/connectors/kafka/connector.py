"""Connector for Kafka: topics with input rows, results and dead letters, and their unread records."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.connection import KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Answer, Backlog, Connector, Question, source_time_zone
from slackwater.connectors.kafka.broker import KafkaBroker, client_settings, make_client, named_topics
from slackwater.connectors.kafka.planner import PlannedKafkaSource
from slackwater.connectors.kafka.reader import KafkaResultReader
from slackwater.connectors.kafka.rows import LETTER_HEADERS
from slackwater.connectors.kafka.source import sample_records
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import CHUNK, LETTER, SCHEMA, LetterFilter
from slackwater.core.humanize import plural
from slackwater.core.offsets import KafkaOffsets, group_by_topic
from slackwater.errors import StartError, Topic
from slackwater.state.protocol import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.connectors.kafka.target import KafkaTarget

_SECONDS = 30.0  # how long to wait for the next message


class KafkaConnector(Connector[KafkaConnection]):
    """Connector for Kafka topics as sources, as targets and for dead letters."""

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> PlannedKafkaSource:
        broker, query = KafkaBroker(self.connection), spec.query or ""
        broker.partitions(query, f'source "{spec.name}"')
        records = RawRecords(
            session,
            spec,
            address=self.connection.schema_registry,
            topics=named_topics(query),
            stored_schema=schema_json,
            sample=lambda: sample_records(session, spec, self.connection),
            zone=source_time_zone(pipeline, spec),
        )
        used = pipeline.dead_letter is not None or any(
            not (texts := stage_pipeline.sql_chain(path)) or any("_headers" in sql for _, sql in texts)
            for stage_pipeline in pipeline.stage_pipelines.values()
            for path in stage_pipeline.input_paths_from(spec.name)
        )
        source = PlannedKafkaSource(
            spec, broker, create_payload(records), f"slackwater-{pipeline.name}-{spec.name}", used
        )
        source.check_connector(session)
        return source

    def check_source(self, spec: Source) -> None:
        KafkaBroker(self.connection).partitions(spec.query or "", f'source "{spec.name}"')

    def resolve_position(self, spec: Source, position: str | int) -> KafkaOffsets:
        broker = KafkaBroker(self.connection)
        topics = broker.partitions(spec.query or "", f'source "{spec.name}"')
        partitions = [(t, p) for t, parts in topics.items() for p in parts]
        if isinstance(position, int):
            offsets = broker.offsets_at_us(partitions, position)
        else:
            offsets = {
                p: bounds[("earliest", "latest").index(position)]
                for p, bounds in broker.offset_ranges(partitions).items()
            }
        return KafkaOffsets(group_by_topic(offsets), broker.topic_ids(topics))

    def question(self, spec: Source) -> Question:
        return partial(unread_records, KafkaBroker(self.connection), spec)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> KafkaTarget | None:
        """Return the target if it delivers exactly once; else None, because the target then has no marker."""
        from slackwater.connectors.kafka.target import KafkaTarget

        if spec.delivery != "exactly_once":
            return None
        return KafkaTarget(self._settings, spec.topic or "", table, delivery=spec.delivery)

    @property
    def _settings(self) -> dict[str, str]:
        return client_settings(self.connection)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> KafkaTarget:
        from slackwater.connectors.kafka.target import KafkaTarget, TopicCreation

        window = None if spec is pipeline.dead_letter else pipeline.target_stage.transform.window
        upserts = spec.upserts("kafka", pipeline.target_stage.transform.window)
        compact = upserts and window is not None and (window.late_data == "reopen" or window.emit == "updates")
        return KafkaTarget(
            self._settings,
            spec.topic or "",
            table,
            value_format=spec.value_format or "json",
            delivery=spec.delivery or "at_least_once",
            key_columns=None if spec.key_columns is None else list(spec.key_columns),
            upserts=upserts,
            creation=None if spec.create is False else TopicCreation(spec.partitions, compact),
        )

    def result_reader(self, pipeline: Pipeline) -> KafkaResultReader:
        return KafkaResultReader(pipeline, self.connection)

    def create_target(self, spec: TargetSpec, pipeline: Pipeline) -> None:
        self.target(spec, pipeline, TargetTable(pipeline.writer, LETTER, None)).create_topic()

    def check_target(self, spec: TargetSpec, key: str) -> None:
        if not self._exists(spec, key) and spec.create is False:
            raise StartError(
                f'{key}.topic: "{spec.topic}" does not exist at {self.connection.bootstrap_servers}, and create = '
                "false; create the topic, or remove create = false",
                Topic.INPUT_MISSING,
            )

    def will_create(self, spec: TargetSpec, key: str) -> str | None:
        if self._exists(spec, key):
            return None
        partitions_text = "the default number of partitions of the broker"
        partitions_text = partitions_text if spec.partitions is None else plural(spec.partitions, "partition")
        return f'{key}.topic: "{spec.topic}" does not exist; a start will create it, with {partitions_text}'

    def _exists(self, spec: TargetSpec, key: str) -> bool:
        return bool(KafkaBroker(self.connection).partitions(f"pattern:{re.escape(spec.topic or '')}", key))

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        """Yield all committed dead letters of the topic in chunks, up to the current end of each partition.

        `letter_filter` is not applied.
        """
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        topic = spec.topic or ""
        broker = KafkaBroker(self.connection)
        partition_ids = broker.partitions(topic, "dead_letter")[topic]
        settings = {"group.id": f"slackwater-{pipeline}-dlq", "enable.auto.commit": False, "enable.partition.eof": True}
        settings |= {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer: Any = make_client(Consumer, {**broker.settings(), **settings})
        ended: set[int] = set()
        rows: list[dict[str, Any]] = []
        try:
            consumer.assign([TopicPartition(topic, p, 0) for p in partition_ids])
            end = time.monotonic() + _SECONDS
            while len(ended) < len(partition_ids):
                for message in consumer.consume(CHUNK, timeout=0.5):
                    end = time.monotonic() + _SECONDS
                    if message.error() is None:
                        rows.append(_letter_from_message(message.key(), message.value(), message.headers() or []))
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                if time.monotonic() > end:
                    raise StartError(
                        f'dead_letter: topic "{topic}" at {self.connection.bootstrap_servers} returned nothing for '
                        f"{_SECONDS:g} s ({broker.errors[-1] if broker.errors else 'no answer'}); check that the "
                        "brokers are running",
                        Topic.SERVICE_UNREACHABLE,
                    )
                if len(rows) >= CHUNK:
                    yield pl.DataFrame(rows, schema=SCHEMA)
                    rows = []
        finally:
            consumer.close()
        yield pl.DataFrame(rows, schema=SCHEMA)


def _letter_from_message(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> dict[str, Any]:
    """Convert a Kafka message written by `connectors.kafka.rows.LetterRows` to a dead letter.

    The headers of the original record come first, then those of the letter.
    """
    ours = max((n for n, (name, _) in enumerate(headers) if name == LETTER_HEADERS["reason"]), default=len(headers))
    letter_headers = {name: (content or b"").decode(errors="replace") for name, content in headers[ours:]}
    record_headers = [
        {"key": k, "value": None if v is None else base64.b64encode(v).decode()} for k, v in headers[:ours]
    ]
    fields = {f.name: f for f in LETTER}
    row = {n: _parsed(letter_headers[h], fields[n].type) for n, h in LETTER_HEADERS.items() if h in letter_headers}
    writer = letter_headers.get("slackwater-pipeline", "").removesuffix("-letters-aside")
    row["pipeline"] = writer.removesuffix("-letters") or None
    row["epoch"] = int(letter_headers["slackwater-epoch"]) if "slackwater-epoch" in letter_headers else None
    return {**row, "key": key, "value": value, "headers": json.dumps(record_headers) if record_headers else None}


def _parsed(text: str, kind: str) -> Any:
    if kind in ("int", "bigint"):
        return int(text)
    return dt.datetime.fromisoformat(text) if kind == "timestamp" else text


def unread_records(broker: KafkaBroker, source: Source) -> Answer:
    """Request the range of offsets of each partition, and return a function that counts the unread records."""
    partitions = broker.partitions(source.query or "", f'source "{source.name}"')
    bounds = broker.offset_ranges([(t, p) for t, parts in partitions.items() for p in parts])

    def answer(snapshot: Snapshot) -> Backlog:
        record = snapshot.commit.sources.get(source.name)
        read = KafkaOffsets.coerce(None if record is None else record.offsets)
        # Without a committed offset, a partition counts from its start. Records may expire before they are read.
        count = sum(max(end - max(read.next_offset(*part) or low, low), 0) for part, (low, end) in bounds.items())
        return Backlog(source.name, "records", count, count)

    return answer
