"""Connector for Kafka topics with input, results and dead letters, and the reader of results. It also counts unread records.

Results are read from near the end of each partition: first the latest record of each key, then new records. Dead
letters are read from the first record onward.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.connection import KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Backlog, BacklogCounter, Connector, InputLister, source_time_zone
from slackwater.connectors.kafka.broker import KafkaBroker, client_settings, make_client, named_topics
from slackwater.connectors.kafka.message_encoding import LETTER_HEADERS
from slackwater.connectors.kafka.planner import PlannedKafkaSource
from slackwater.connectors.kafka.source import sample_records
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.target import LabeledRows, ResultReader, RowCount, TargetTable
from slackwater.core.dead_letter_columns import LETTER, SCHEMA, DeadLetterFilter
from slackwater.core.humanize import plural
from slackwater.core.offsets import KafkaOffsets, group_by_topic
from slackwater.errors import StartError, Topic
from slackwater.state.protocol import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.connectors.kafka.target import KafkaTarget


MOST = 2**31 - 1
TAIL = 10_000  # the number of offsets before the end of a partition at which reading starts
_SECONDS = 30.0
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)
_UNNAMED = re.compile(r"\*|\|>|\btable\b", re.IGNORECASE)


@dataclass
class KafkaResultReader(ResultReader):
    """Result reader for a Kafka topic. It reads only committed records.

    Args:
        connection: The connection to the cluster.
        topic: The name of the topic.
        group: The consumer group.
        writers: The names of the writers whose results are read.
        upserts: Whether a record replaces earlier records with the same key.
    """

    connection: KafkaConnection
    topic: str
    group: str
    writers: Sequence[str]
    upserts: bool
    _consumer: Any = None
    _broker: KafkaBroker = field(init=False)
    _parts: set[int] = field(default_factory=set)
    _ended: bool = False  # whether all partitions have been read to their end
    _cut: bool = False  # whether older records exist that are not read

    def __post_init__(self) -> None:
        self._broker = KafkaBroker(self.connection)

    @property
    def location(self) -> str:
        return f'topic "{self.topic}" at {self.connection.bootstrap_servers}'

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        if not self._open_consumer(MOST if limit is None else max(limit, TAIL)):
            return None
        records = self._read_results()
        if not self.upserts:
            return _parse_rows([value for _, value in records if value is not None])
        latest: dict[Any, bytes | None] = {}
        for key, value in records:
            latest.pop(key, None)
            latest[key] = value  # a tombstone deletes the row
        return _parse_rows([value for value in latest.values() if value is not None])

    def count(self, rows_read: int) -> RowCount | None:
        return None if self._cut else RowCount(rows_read)

    def poll(self) -> pl.DataFrame | None:
        if not self._open_consumer(TAIL):
            return None
        return _parse_rows([value for _, value in self._read_results() if value is not None])

    def read_all(self) -> LabeledRows | None:
        return None  # records may have expired

    def read_dead_letters(self, pipeline: str, letter_filter: DeadLetterFilter) -> Iterator[pl.DataFrame]:
        """Yield all committed dead letters of the topic, up to the current end of each partition."""
        self._broker.partitions(self.topic, "dead_letter")  # raises an error if the topic does not exist
        self._open_consumer(MOST)
        for messages in self._read_to_end("dead_letter: "):
            rows = [_letter_from_message(m.key(), m.value(), m.headers() or []) for m in messages]
            yield pl.DataFrame(rows, schema=SCHEMA)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _open_consumer(self, tail: int) -> bool:
        """Open a consumer that starts `tail` offsets before each partition's end. Return False if there is no topic."""
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is not None:
            return True
        parts = self._broker.partitions(f"pattern:{re.escape(self.topic)}", "target").get(self.topic)
        if not parts:
            return False
        settings = {"group.id": self.group, "enable.auto.commit": False}
        settings |= {"enable.partition.eof": True, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer: Any = make_client(Consumer, {**self._broker.settings(), **settings})
        places = []
        for part in parts:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, part), timeout=_SECONDS)
            places.append(TopicPartition(self.topic, part, max(low, high - tail)))
            self._cut = self._cut or low < high - tail
        consumer.assign(places)
        self._consumer, self._parts = consumer, set(parts)
        return True

    def _read_results(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return the key and the value of each record of `writers`, oldest first."""
        records: list[tuple[int, bytes | None, bytes | None]] = []
        for messages in self._read_to_end():
            for message in messages:
                if dict(message.headers() or []).get("slackwater-pipeline", b"").decode() in self.writers:
                    records.append((message.timestamp()[1], message.key(), message.value()))
        return [(key, value) for _, key, value in sorted(records, key=lambda record: record[0])]

    def _read_to_end(self, prefix: str = "") -> Iterator[list[Any]]:
        """Yield lists of records up to the current end of each partition. `prefix`: the start of an error message."""
        from confluent_kafka import KafkaError

        ended: set[int] = set()
        end = time.monotonic() + _SECONDS
        while ended != self._parts:
            messages = self._consumer.consume(TAIL, timeout=0.5)
            errors = [(m, m.error()) for m in messages]
            ended |= {m.partition() for m, e in errors if e is not None and e.code() == KafkaError._PARTITION_EOF}
            if records := [m for m, e in errors if e is None]:
                yield records
            if messages:
                end = time.monotonic() + _SECONDS
            elif self._ended:  # Kafka reports the end of a partition once, until more records arrive
                break
            if time.monotonic() > end:
                raise StartError(
                    f"{prefix}{self.location} returned nothing for {_SECONDS:g} s "
                    f"({self._broker.errors[-1] if self._broker.errors else 'no answer'}); check that the brokers "
                    "are running",
                    Topic.SERVICE_UNREACHABLE,
                )
        self._ended = True


def _letter_from_message(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> dict[str, Any]:
    """Convert a Kafka message written by `connectors.kafka.message_encoding.DeadLetterMessageEncoder` back to a dead letter.

    In the message, the headers of the original record precede the headers that describe the dead letter.
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


def _parse_rows(values: list[bytes]) -> pl.DataFrame | None:
    return pl.read_ndjson(io.BytesIO(b"\n".join(values)), infer_schema_length=None) if values else None


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
        source = PlannedKafkaSource(
            spec,
            broker,
            create_payload(records),
            f"slackwater-{pipeline.name}-{spec.name}",
            may_use_headers(pipeline, spec),
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
            offsets = broker.offsets_at_ms(partitions, -(-position // 1000))
        else:
            offsets = {
                p: bounds[("earliest", "latest").index(position)]
                for p, bounds in broker.offset_ranges(partitions).items()
            }
        return KafkaOffsets(group_by_topic(offsets), broker.topic_ids(topics))

    def input_lister(self, spec: Source) -> InputLister:
        return partial(count_backlog, KafkaBroker(self.connection), spec)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> KafkaTarget | None:
        """Return the target if it delivers exactly once. Otherwise return None, because it has no marker."""
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

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> KafkaResultReader:
        is_dead_letter = spec is pipeline.dead_letter
        if spec.value_format == "avro" and not is_dead_letter:
            raise StartError(
                f"{pipeline.name}: its results cannot be shown yet, because the target has "
                'value_format = "avro"; read the topic with a consumer that supports Avro',
                Topic.OUTPUT_UNREADABLE,
            )
        window = pipeline.target_stage.transform.window
        upserts = window is not None and spec.upserts(self.connection.kind, window)
        group = f"slackwater-{pipeline.name}-{'dlq' if is_dead_letter else 'show'}"
        return KafkaResultReader(self.connection, spec.topic or "", group, writers, upserts)

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


def may_use_headers(pipeline: Pipeline, spec: Source) -> bool:
    """Return whether a pipeline may use the column `_headers` of Kafka records, judging by the text of its SQL.

    Dead letters contain the headers. A step without SQL that is not a window may emit all columns. So may SQL that
    returns columns without naming them: with `*` other than in `count(*)`, with `TABLE`, with pipes (`|>`), or without SELECT.
    """
    if pipeline.dead_letter is not None:
        return True
    for stage_pipeline in pipeline.stage_pipelines.values():
        for path in stage_pipeline.input_paths_from(spec.name):
            queries = [_COUNT.sub("", sql) for _, sql in stage_pipeline.sql_chain(path)]
            if not queries and stage_pipeline.transform.window is None:
                return True
            text = " ".join([*queries, repr(stage_pipeline.transform.step)])
            if "_headers" in text.lower() or not all(_SELECT.search(q) and not _UNNAMED.search(q) for q in queries):
                return True
    return False


def count_backlog(broker: KafkaBroker, source: Source) -> BacklogCounter:
    """Request the offset range of each partition, and return a function that counts the unread records."""
    partitions = broker.partitions(source.query or "", f'source "{source.name}"')
    bounds = broker.offset_ranges([(t, p) for t, parts in partitions.items() for p in parts])

    def count(snapshot: Snapshot) -> Backlog:
        record = snapshot.commit.sources.get(source.name)
        read = KafkaOffsets.coerce(None if record is None else record.offsets)
        # Without a committed offset, a partition is counted from its start. Records may expire before they are read.
        unread = sum(max(end - max(read.next_offset(*part) or low, low), 0) for part, (low, end) in bounds.items())
        return Backlog(source.name, "records", unread, unread)

    return count
