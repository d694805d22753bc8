"""Read and decode Kafka records in Python workers, without Spark's Kafka client.

    driver   offset ranges of an epoch ──▶ one share per task
    worker   share ──▶ librdkafka ──▶ Arrow batch of records ──▶ payload decoder ──▶ Spark

Spark's client creates several objects per record, and Spark then sends each record to a worker. This is slow, especially
before the JVM has compiled the code. Here, Python calls about five methods of librdkafka per record, which takes less CPU
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.config.connection import KafkaConnection
from slackwater.connectors import spark_connect_support
from slackwater.connectors.kafka.broker import client_settings, make_client
from slackwater.connectors.payloads.arrow_json_decoder import DECODED
from slackwater.connectors.spark_worker_socket import send_acknowledgments
from slackwater.errors import EpochError, Topic
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.connectors.payloads.base import WorkerDecoder

Int64s = np.ndarray[Any, Any]
RangesByPartition = Mapping[tuple[str, int], tuple[int, int]]  # the first offset and the end offset of each partition
_PER_CALL, _PER_CALL_S = 20_000, 0.02  # a call returns after this number of records, or after this time (seconds)
_QUIET_S = 120.0  # how long to wait for the next record, as Spark's client does
_QUEUED = 20_000  # records in the client's queue; those beyond the end of a range are fetched in vain
_DEFAULTS = {
    "fetch.max.bytes": 1 << 20,  # the heaps of the client's threads keep the memory of larger responses
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 5,  # by default, a full queue stops the client for a second
    "queued.max.messages.kbytes": 8_192,
    "log_level": 0,
}
_REQUIRED = {"enable.auto.commit": False, "enable.partition.eof": True}


@dataclass(frozen=True)
class OffsetRange:
    """The records of a partition from offset `since` up to but not including offset `until`."""

    topic: str
    partition: int
    since: int
    until: int


@dataclass(frozen=True)
class RecordReader:
    """Reads the records of offset ranges into Arrow batches. Instances are pickled for workers.

    Args:
        settings: The settings of the librdkafka consumer.
        columns: The columns to return, named as in Spark's Kafka reader. They include "value".
        decoder: Decodes the values. It has a method `decode`, which returns NULL for records that Spark must decode.
            None if Spark decodes all records.
        skips_lost: Whether to continue at the next record if records no longer exist.
    """

    settings: Mapping[str, Any]
    columns: Sequence[str]
    decoder: Any
    skips_lost: bool

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges. Raises EpochError if records no longer exist or do not arrive in time."""
        consumer = self.connect(len(ranges))
        try:
            yield from self.read_with(consumer, ranges)
        finally:
            consumer.close()

    def connect(self, partitions: int) -> Any:
        """Return a consumer. `partitions`: the expected number of partitions, which share its queue."""
        from confluent_kafka import Consumer

        per_partition = {"queued.min.messages": max(_QUEUED // max(partitions, 1), 1000)}
        required = _REQUIRED | {"auto.offset.reset": "earliest" if self.skips_lost else "error"}
        return make_client(Consumer, {**_DEFAULTS, **per_partition, **self.settings, **required})

    def read_with(self, consumer: Any, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges like `read`, with a given consumer."""
        import pyarrow as pa

        for records in RangeConsumer(consumer, ranges):
            columns = {name: records.column(name) for name in self.columns}
            if self.decoder is not None:
                columns[DECODED] = self.decoder.decode(columns["value"])
            yield pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True)
class Records:
    """Records of offset ranges. `numbers`: for each record, the position of its range in `ranges`."""

    messages: Sequence[Any]
    ranges: Sequence[OffsetRange]
    numbers: Int64s
    offsets: Int64s

    def column(self, name: str) -> pa.Array:
        """Return a column of Spark's Kafka reader, with the same name and type."""
        import pyarrow as pa

        if name in ("key", "value"):
            return pa.array([getattr(m, name)() for m in self.messages], pa.binary())
        if name == "headers":
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            headers = (m.headers() for m in self.messages)
            return pa.array([[{"key": k, "value": v} for k, v in h] if h else None for h in headers], kind)
        if name == "topic":
            return pa.array([r.topic for r in self.ranges], pa.string()).take(pa.array(self.numbers))
        if name == "partition":
            return pa.array(np.array([r.partition for r in self.ranges], np.int32)[self.numbers])
        if name == "timestamp":
            ms = np.fromiter((m.timestamp()[1] for m in self.messages), np.int64, len(self.messages))
            return pa.array(ms * 1000).cast(pa.timestamp("us", tz="UTC"))
        assert name == "offset"
        return pa.array(self.offsets)


class RangeConsumer:
    """Consumes offset ranges, and yields each record exactly once.

    Args:
        consumer: The librdkafka consumer, without an assignment.
        ranges: The ranges. A partition occurs at most once.
    """

    def __init__(self, consumer: Any, ranges: Sequence[OffsetRange]) -> None:
        self._consumer, self._ranges = consumer, ranges
        self._has_one_topic = len({r.topic for r in ranges}) == 1
        self._numbers: dict[Any, int] = {
            r.partition if self._has_one_topic else (r.topic, r.partition): n for n, r in enumerate(ranges)
        }
        self._waiting = set(range(len(ranges)))  # the ranges that were not read to their end
        self._until = np.array([r.until for r in ranges], np.int64)
        self._expected = np.array([r.since for r in ranges], np.int64)  # the lowest offset that may arrive

    def __iter__(self) -> Iterator[Records]:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(r.topic, r.partition, r.since) for r in self._ranges])
        quiet_since = time.monotonic()
        while self._waiting:
            expected = sum(int(self._until[n] - self._expected[n]) for n in self._waiting)
            received = self._consumer.consume(min(expected, _PER_CALL), timeout=_PER_CALL_S)
            messages = [m for m in received if m.error() is None]
            if len(messages) < len(received):
                self._end_ranges(self._end_of(m) for m in received if m.error() is not None)
            if messages:
                records = self._take_records(messages)
                if records.messages:
                    yield records
                quiet_since = time.monotonic()  # the caller may take long
            elif self._waiting and time.monotonic() - quiet_since > _QUIET_S:
                late = self._ranges[min(self._waiting)]
                raise EpochError(
                    f"{late.topic}-{late.partition}: no record arrived for {_QUIET_S:g} s, expected records up to offset "
                    f"{late.until - 1}; check that the brokers are running",
                    Topic.SERVICE_UNREACHABLE,
                )

    def _take_records(self, messages: list[Any]) -> Records:
        """Return the messages that belong to the ranges, and end the ranges that they complete.

        Raises EpochError if a partition went back to an earlier offset, because it was truncated or recreated.
        """
        places: Iterable[Any] = (m.partition() for m in messages)
        if not self._has_one_topic:
            places = zip((m.topic() for m in messages), places, strict=True)
        numbers = np.fromiter((self._numbers[place] for place in places), np.int64, len(messages))
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        order = np.argsort(numbers, kind="stable")
        is_same_range = np.diff(numbers[order]) == 0
        if (offsets < self._expected[numbers]).any() or (np.diff(offsets[order])[is_same_range] <= 0).any():
            names = ", ".join(f"{r.topic}-{r.partition}" for r in self._ranges)
            raise EpochError(
                f"records of {names} were received twice, because a partition was truncated or recreated while it was "
                "read; start again"
            )
        np.maximum.at(self._expected, numbers, offsets + 1)
        self._end_ranges(n for n in tuple(self._waiting) if self._expected[n] >= self._until[n])
        is_in_range = offsets < self._until[numbers]
        if not is_in_range.all():
            messages, numbers, offsets = (
                list(compress(messages, is_in_range)),
                numbers[is_in_range],
                offsets[is_in_range],
            )
        return Records(messages, self._ranges, numbers, offsets)

    def _end_of(self, event: Any) -> int | None:
        """Return the range that ends according to an event, or None. Raises EpochError if the event is an error.

        The end of a partition is reported after its last record. The last offsets of a range may belong to markers of
        transactions or to records that were compacted, so a range can end without a record at its last offset.
        """
        from confluent_kafka import KafkaError

        error, name = event.error(), f"{event.topic()}-{event.partition()}"
        if error.code() == KafkaError._PARTITION_EOF:
            number = self._numbers[event.partition() if self._has_one_topic else (event.topic(), event.partition())]
            return number if event.offset() >= self._until[number] else None
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise EpochError(
                f"{name}: records no longer exist ({error.str()}); keep records longer in Kafka (retention.ms), or set "
                'on_data_loss = "skip" to count them as lost and continue',
                Topic.RECORDS_DELETED,
            )
        if error.fatal() or not error.retriable():
            raise EpochError(f"{name}: records cannot be read ({error.str()})", Topic.SERVICE_UNREACHABLE)
        return None

    def _end_ranges(self, numbers: Iterable[int | None]) -> None:
        """Stop fetching the records of ranges that were read completely."""
        from confluent_kafka import TopicPartition

        ended = {n for n in numbers if n is not None} & self._waiting
        self._waiting -= ended
        if ended and self._waiting:
            places = [TopicPartition(self._ranges[n].topic, self._ranges[n].partition) for n in ended]
            self._consumer.incremental_unassign(places)


def split_ranges(ranges: RangesByPartition, tasks: int) -> list[list[OffsetRange]]:
    """Split offset ranges into shares with equal numbers of offsets. There are at most `tasks` shares, none is empty."""
    total, position = sum(until - since for since, until in ranges.values()), 0
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for (topic, partition), (since, until) in sorted(ranges.items()):
        while since < until:
            share = position * tasks // total
            end = min(until, since - position + -(-(share + 1) * total // tasks))
            shares[share].append(OffsetRange(topic, partition, since, end))
            position, since = position + end - since, end
    return [share for share in shares if share]


def can_read_in_workers(session: SparkSession) -> bool:
    """Return whether workers may read Kafka themselves: they must run on this machine, as the driver's client does."""
    return is_enabled("kafka_workers") and spark_connect_support.is_local_spark(session)


def consumer_settings(connection: KafkaConnection, group: str, isolation: str) -> dict[str, Any]:
    """Return the settings of a consumer. `group`: the consumer group. `isolation`: the isolation level of reads."""
    return client_settings(connection) | {"group.id": group, "isolation.level": isolation}


def read_records(
    session: SparkSession,
    ranges: RangesByPartition,
    client: Mapping[str, Any],
    decoder: WorkerDecoder,
    with_headers: bool,
    skips_lost: bool,
) -> DataFrame:
    """Return records in the format of Spark's Kafka reader, with the additional column `_decoded`.

    Args:
        session: The Spark session.
        ranges: The offsets to read.
        client: The settings of the librdkafka consumer.
        decoder: The decoder of the values.
        with_headers: Whether to return the column `headers`.
        skips_lost: Whether to continue at the next record if records no longer exist.
    """
    from pyspark.sql.types import StructField, StructType

    columns = record_columns(with_headers)
    schema = StructType([*columns.fields, StructField(DECODED, decoder.spark_type)])
    reader = RecordReader(client, columns.names, decoder.decoder, skips_lost)
    shares = split_ranges(ranges, spark_connect_support.count_task_slots(session))
    return session.range(0, len(shares), 1, len(shares)).mapInArrow(partial(_read_shares, reader, shares), schema)


def record_columns(with_headers: bool) -> StructType:
    """Return the columns of Spark's Kafka reader."""
    from pyspark.sql import types as T  # noqa: N812

    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    types: dict[str, T.DataType] = {
        "key": T.BinaryType(),
        "value": T.BinaryType(),
        "topic": T.StringType(),
        "partition": T.IntegerType(),
        "offset": T.LongType(),
        "timestamp": T.TimestampType(),
    } | ({"headers": T.ArrayType(header)} if with_headers else {})
    return T.StructType([T.StructField(name, type_) for name, type_ in types.items()])


def _read_shares(
    reader: RecordReader, shares: Sequence[Sequence[OffsetRange]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    send_acknowledgments()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reader.read(shares[number])
