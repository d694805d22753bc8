"""Read the records of an epoch, in one of three ways.

small epochs    one worker reads all records, and Spark decodes them      one DataFrame for all of these epochs
large epochs    each task reads a share, and decodes it                   if workers can decode the payload
otherwise       Spark's Kafka client reads, and Spark decodes             also on a cluster, or with options of its reader
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.kafka import worker_reader
from slackwater.connectors.kafka.worker_reader import OffsetRange, RangesByPartition, RecordReader
from slackwater.connectors.payloads.base import Payload
from slackwater.connectors.source import MAX_COLLECTED_ROWS, MOST_BYTES_PROPERTY, TooManyBytesError
from slackwater.connectors.spark_worker_socket import send_acknowledgments
from slackwater.core.offsets import group_by_topic
from slackwater.errors import EpochError
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_MAX_POOLED = 16  # unused consumers of a worker


@dataclass(frozen=True)
class EpochReader:
    """Reads and decodes the records of one source.

    Args:
        client: The settings of a librdkafka consumer.
        spark_options: The options of Spark's Kafka reader.
        has_spark_options: Whether the config sets options of Spark's reader, so that only Spark may read.
        skips_lost: Whether to continue at the next record if records no longer exist.
        with_headers: Whether to read the headers of the records. If false, `_headers` is NULL.
        payload: The decoder of the records.
        decode: A function that decodes records in the format of Spark's Kafka reader. Its second argument is the number of
            records, if known.
    """

    client: Mapping[str, Any]
    spark_options: Mapping[str, str]
    has_spark_options: bool
    skips_lost: bool
    with_headers: bool
    payload: Payload
    decode: Callable[[DataFrame, int | None], DataFrame]
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def read(self, session: SparkSession, ranges: RangesByPartition) -> tuple[DataFrame, bool]:
        """Return the records of offset ranges, and whether several epochs share the DataFrame.

        Jobs that this thread starts read these ranges from a shared DataFrame, until the thread calls this method again.

        Args:
            session: The Spark session.
            ranges: The range of each partition of the source. Ranges may be empty. All partitions are listed, because a
                consumer is kept for the same partitions.
        """
        non_empty = {partition: bounds for partition, bounds in ranges.items() if bounds[1] > bounds[0]}
        count = sum(until - since for since, until in non_empty.values())
        in_workers = not self.has_spark_options and worker_reader.can_read_in_workers(session)
        can_reuse = in_workers and spark_connect_support.has_job_properties(session) and is_enabled("query_reuse")
        if can_reuse and count <= MAX_COLLECTED_ROWS:
            return self._shared_frame(session, ranges), True
        decoder = self.payload.worker_decoder(count) if in_workers else None
        records = (
            self._read_with_spark(session, non_empty)
            if decoder is None
            else worker_reader.read_records(
                session, non_empty, self.client, decoder, self.with_headers, self.skips_lost
            )
        )
        return self._decode(records, count), False

    def _shared_frame(self, session: SparkSession, ranges: RangesByPartition) -> DataFrame:
        """Make the DataFrame that all small epochs share read these offset ranges, and return it."""
        if self._cache.get("frame_session") is not session:
            columns = worker_reader.record_columns(self.with_headers)
            reader = RecordReader(self.client, columns.names, None, self.skips_lost)
            records = SharedRecordFrame(session, reader, columns)
            self._cache.update(frame_session=session, records=records, frame=self._decode(records.frame, None))
        self._cache["records"].set_ranges(ranges)
        frame: DataFrame = self._cache["frame"]
        return frame

    def _decode(self, records: Any, count: int | None) -> DataFrame:
        if not self.with_headers:
            records = records.selectExpr("*", "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers")
        return self.decode(records, count)

    def _read_with_spark(self, session: SparkSession, ranges: RangesByPartition) -> Any:
        start, end = (group_by_topic({p: bounds[i] for p, bounds in ranges.items()}) for i in (0, 1))
        assigned = {topic: [int(part) for part in parts] for topic, parts in start.items()}
        read = self._spark_reader(session).option("assign", json.dumps(assigned))
        return read.option("startingOffsets", json.dumps(start)).option("endingOffsets", json.dumps(end)).load()

    def _spark_reader(self, session: SparkSession) -> Any:
        """Return the reader that all epochs share. Its constant options are set once per Spark session."""
        if self._cache.get("session") is not session:
            read = session.read.format("kafka").options(**self.spark_options)
            read = read.option("kafka.group.id", self.client["group.id"])
            read = read.option("failOnDataLoss", str(not self.skips_lost).lower())
            self._cache.update(session=session, reader=read)
        return self._cache["reader"]


# -- records of small epochs -------------------------------------------------------------------------------------------


class SharedRecordFrame:
    """A DataFrame of records whose offset ranges change with each epoch, so that a query over it can run again.

    The ranges are a local property of the thread that starts the Spark job. Spark sends such properties with each task. One
    task reads all ranges, with a consumer that its worker keeps for later epochs.

    Args:
        session: The Spark session, which must run on this machine.
        reader: The reader of the records.
        columns: The columns that the reader returns.
    """

    def __init__(self, session: SparkSession, reader: RecordReader, columns: StructType) -> None:
        self._context, self._property = session.sparkContext, f"slackwater.offset_ranges.{uuid.uuid4().hex}"
        self.frame = session.range(0, 1, 1, 1).mapInArrow(
            partial(_read_current_ranges, reader, self._property), columns
        )

    def set_ranges(self, ranges: RangesByPartition) -> None:
        """Set the ranges that jobs of the current thread read from now on."""
        listed = [(topic, partition, *offsets) for (topic, partition), offsets in ranges.items()]
        self._context.setLocalProperty(self._property, json.dumps(listed))


def _read_current_ranges(
    reader: RecordReader, property_name: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    send_acknowledgments()
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(property_name)
    if text is None:
        raise EpochError("the Spark job has no offset ranges, because another thread started it; start again")
    ranges = [OffsetRange(*fields) for fields in json.loads(text)]
    remaining_bytes = int(context.getLocalProperty(MOST_BYTES_PROPERTY) or sys.maxsize)
    for _ in batches:
        with _pooled_consumer(reader, ranges) as consumer:
            for records in reader.read_with(consumer, [r for r in ranges if r.until > r.since]):
                remaining_bytes -= records.nbytes
                if remaining_bytes < 0:
                    raise TooManyBytesError
                yield records


_pool: dict[str, Any] = {}  # unused consumers by their settings and partitions


@contextmanager
def _pooled_consumer(reader: RecordReader, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
    """Provide a consumer that this process keeps for later tasks, unless an error occurs while it is used.

    Each set of partitions has its own consumer, because a consumer may not know partitions that were added later.
    """
    key = repr((sorted(reader.settings.items()), reader.skips_lost, sorted((r.topic, r.partition) for r in ranges)))
    consumer = _pool.pop(key, None)
    if consumer is None:
        consumer = reader.connect(len(ranges))
    try:
        yield consumer
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    _pool[key] = consumer
    if len(_pool) > _MAX_POOLED:
        _pool.pop(next(iter(_pool))).close()
