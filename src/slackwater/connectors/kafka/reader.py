"""Reads the results in a Kafka topic: first the latest record of each key among the last records, then new ones."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.connection import KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.connectors.kafka.broker import KafkaBroker, make_client
from slackwater.connectors.result_reader import LabeledRows, ResultReader, RowCount
from slackwater.errors import StartError, Topic

MOST = 2**31 - 1
TAIL = 10_000  # how many records are read from the end of each partition
_SECONDS = 30.0


@dataclass
class KafkaResultReader(ResultReader):
    """The result reader for a Kafka topic. It reads only committed records of its pipeline. See `ResultReader`."""

    pipeline: Pipeline
    connection: KafkaConnection
    _consumer: Any = None
    _broker: KafkaBroker = field(init=False)
    _parts: set[int] = field(default_factory=set)
    _ended: bool = False  # whether all partitions have been read to their end
    _cut: bool = False  # whether there are records before those that are read

    def __post_init__(self) -> None:
        if self.pipeline.target.value_format == "avro":
            raise StartError(
                f'{self.pipeline.name}: its target is a topic with value_format = "avro", which cannot be shown yet; read it '
                "with a consumer that supports Avro",
                Topic.OUTPUT_UNREADABLE,
            )
        self._broker = KafkaBroker(self.connection)

    @property
    def topic(self) -> str:
        return self.pipeline.target.topic or ""

    @property
    def location(self) -> str:
        return f'topic "{self.topic}" at {self.connection.bootstrap_servers}'

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        if not self._open_consumer(MOST if limit is None else max(limit, TAIL)):
            return None
        window = self.pipeline.target_stage.transform.window
        latest: dict[Any, bytes | None] = {}
        records = self._read_to_end()
        if window is None or not self.pipeline.target.upserts(self.connection.kind, window):
            return _parse_rows([value for _, value in records if value is not None])
        for key, value in records:
            latest.pop(key, None)
            latest[key] = value  # a tombstone deletes the row
        return _parse_rows([value for value in latest.values() if value is not None])

    def count(self, rows_read: int) -> RowCount | None:
        return None if self._cut else RowCount(rows_read)

    def poll(self) -> pl.DataFrame | None:
        if not self._open_consumer(TAIL):
            return None
        return _parse_rows([value for _, value in self._read_to_end() if value is not None])

    def read_all(self) -> LabeledRows | None:
        return None  # records may have expired

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _open_consumer(self, tail: int) -> bool:
        """Open a consumer at `tail` offsets before the end of each partition. Return whether the topic exists."""
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is not None:
            return True
        parts = self._broker.partitions(f"pattern:{re.escape(self.topic)}", "target").get(self.topic)
        if not parts:
            return False
        settings = {"group.id": f"slackwater-{self.pipeline.name}-show", "enable.auto.commit": False}
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

    def _read_to_end(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return the keys and values of the records up to the current end of each partition."""
        from confluent_kafka import KafkaError

        records: list[tuple[int, bytes | None, bytes | None]] = []
        ended: set[int] = set()
        end = time.monotonic() + _SECONDS
        while ended != self._parts:
            messages = self._consumer.consume(TAIL, timeout=0.5)
            for message in messages:
                end = time.monotonic() + _SECONDS
                if message.error() is None:
                    headers = dict(message.headers() or [])
                    if headers.get("slackwater-pipeline", b"").decode() in self.pipeline.writers:
                        records.append((message.timestamp()[1], message.key(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            if not messages and self._ended:  # Kafka reports the end of a partition once, until more records arrive
                break
            if time.monotonic() > end:
                raise StartError(
                    f"{self.location} returned nothing for {_SECONDS:g} s "
                    f"({self._broker.errors[-1] if self._broker.errors else 'no answer'}); check that the brokers "
                    "are running",
                    Topic.SERVICE_UNREACHABLE,
                )
        self._ended = True
        return [(key, value) for _, key, value in sorted(records, key=lambda record: record[0])]


def _parse_rows(values: list[bytes]) -> pl.DataFrame | None:
    return pl.read_ndjson(io.BytesIO(b"\n".join(values)), infer_schema_length=None) if values else None
