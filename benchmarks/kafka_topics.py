"""Topics with the rows of a stream as JSON, epoch by epoch, distributed evenly over the partitions of a local Kafka broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from benchmarks.benchmark_cases import EventStream
from benchmarks.event_files import START, generate_epoch_frames

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from slackwater.testing.services import Kafka

PARTITIONS = 12
_LAST_S = 3600  # how much later than the stream the rows are that close its windows


@dataclass(frozen=True)
class EventTopic:
    """Topic with `rows` per epoch over all partitions. Each partition ends with one more row, which closes all windows."""

    address: str
    name: str
    rows: int
    epochs: int

    def epoch_offsets(self, epoch: int) -> dict[str, dict[str, int]]:
        """Return the offsets at which an epoch begins, in Spark's format."""
        return {self.name: {str(p): epoch * self.rows // PARTITIONS for p in range(PARTITIONS)}}

    def is_whole_epoch(self, rows: int) -> bool:
        """Return whether this number of rows is a complete epoch, and not the rows after the last one."""
        return 2 * rows >= self.rows


def fill_topic(kafka: Kafka, stream: EventStream, name: str = "events") -> EventTopic:
    """Create a topic with all rows of the stream. Their number must be divisible by the number of partitions."""
    if stream.rows % PARTITIONS:
        raise ValueError(f"{stream.rows} rows cannot be divided evenly among {PARTITIONS} partitions")
    from confluent_kafka import Producer

    kafka.create(name, PARTITIONS)
    settings = {"bootstrap.servers": kafka.address, "linger.ms": 50, "compression.type": "lz4", "log_level": 0}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    for frame in generate_epoch_frames(stream):
        _send_records(producer, name, encode_json_records(frame))
    last = START + pl.duration(seconds=stream.epochs * stream.step_s + _LAST_S)
    _send_records(
        producer, name, encode_json_records(pl.select(k=pl.lit("last").repeat_by(PARTITIONS).explode(), ts=last, v=0.0))
    )
    return EventTopic(kafka.address, name, stream.rows, stream.epochs)


def encode_json_records(frame: pl.DataFrame) -> Iterable[str]:
    """Return a JSON object per row."""
    timestamp = pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    return frame.select(pl.struct("k", ts=timestamp, v="v").struct.json_encode()).to_series()


def _send_records(producer: Producer, topic: str, values: Iterable[str]) -> None:
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if unsent := producer.flush(60):
        raise TimeoutError(f"Kafka did not accept {unsent} records within a minute")
