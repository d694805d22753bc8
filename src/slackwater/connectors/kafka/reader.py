"""Read the results in a Kafka topic, or its dead letters.

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
from typing import Any

import polars as pl

from slackwater.config.connection import KafkaConnection
from slackwater.connectors.kafka.broker import KafkaBroker, make_client
from slackwater.connectors.kafka.rows import LETTER_HEADERS
from slackwater.connectors.result_reader import LabeledRows, ResultReader, RowCount
from slackwater.core.dead_letter_schema import LETTER, SCHEMA, LetterFilter
from slackwater.errors import StartError, Topic

MOST = 2**31 - 1
TAIL = 10_000  # the number of offsets before the end of a partition at which reading starts
_SECONDS = 30.0


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

    def read_letters(self, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
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
    """Convert a Kafka message written by `connectors.kafka.rows.LetterRows` back to a dead letter.

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
