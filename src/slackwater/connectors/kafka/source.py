"""Kafka sources as streams. Each batch is a range of offsets, and the state stores the end of the range.

`kafka.planner` or Spark plans the batches.

    checkpoint/offsets/7   {"orders": {"0": 1200, "1": 1180}}      the end of batch 7, and the start of batch 8
    state store            the same offsets, in the commit         `seek` returns them for a new checkpoint

Rows have the columns of the payload, and `_key`, `_value`, `_headers`, `_topic`, `_partition` and `_offset`. The column
`_event_ts` is the timestamp of the record.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import KafkaConnection
from slackwater.config.source import Source
from slackwater.connectors import spark_connect_support
from slackwater.connectors.dead_letter_restoration import restore_records
from slackwater.connectors.kafka import worker_reader
from slackwater.connectors.kafka.broker import KafkaBroker, make_client, named_topics
from slackwater.connectors.kafka.epoch_reader import EpochReader
from slackwater.connectors.payloads.arrow_json_decoder import DECODED
from slackwater.connectors.payloads.base import Payload
from slackwater.connectors.source import SourceBatch, SparkPlannedSource, checkpoint_line, spark_error_reason
from slackwater.core.column_names import CORRUPT
from slackwater.core.humanize import mismatch
from slackwater.core.offset_base import Offsets
from slackwater.core.offsets import ByTopic, KafkaOffsets, group_by_topic
from slackwater.errors import EpochError, StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("slackwater")
# A consumer requests more records before Spark seeks to another offset. If none exist, the broker delays its response
# by fetch.max.wait.ms (500 by default). The records of the task are sent only after that response.
CONSUMER_DEFAULTS = {"kafka.fetch.max.wait.ms": "5", "kafka.max.poll.records": "5000"}
_META = ("_key", "_value", "_headers", "_topic", "_partition", "_offset")


def sample_records(session: SparkSession, spec: Source, connection: KafkaConnection) -> list[str]:
    """Return the values of up to 1,000 records as strings, from which a schema can be inferred."""
    options = {f"kafka.{k}": str(v) for k, v in connection.options.items()}
    query = spec.query or ""
    read = session.read.format("kafka").options(**options)
    read = read.option("kafka.bootstrap.servers", str(connection.bootstrap_servers))
    if query.startswith("pattern:"):
        read = read.option("subscribePattern", query.removeprefix("pattern:"))
    else:
        read = read.option("subscribe", ",".join(named_topics(query)))
    rows = read.load().where("value IS NOT NULL").selectExpr("CAST(value AS STRING) AS v").limit(1000).collect()
    return [row["v"] for row in rows]


@dataclass(frozen=True)
class KafkaSource(SparkPlannedSource):
    """A Kafka source with its payload, planned by Spark. The subclass `PlannedKafkaSource` is planned by the run.

    Args:
        broker: The connection to the cluster.
        payload: The decoder of the records.
        group: The consumer group for reading.
        with_headers: Whether to read the headers of the records. If false, `_headers` is NULL.
    """

    broker: KafkaBroker
    payload: Payload
    group: str
    with_headers: bool = True

    @property
    def schema(self) -> StructType:
        from pyspark.sql import types as T  # noqa: N812

        fields = [f for f in self.payload.schema.fields if f.name != CORRUPT]
        text, binary = T.StringType(), T.BinaryType()
        header = T.StructType([T.StructField("key", text), T.StructField("value", binary)])
        meta = {"_key": binary, "_value": binary, "_headers": T.ArrayType(header), "_topic": text}
        meta |= {"_partition": T.IntegerType(), "_offset": T.LongType(), "_event_ts": T.TimestampType()}
        return T.StructType([*fields, *(T.StructField(name, kind) for name, kind in meta.items())])

    @property
    def _where(self) -> str:
        return f'source "{self.name}"'

    def partitions(self) -> list[tuple[str, int]]:
        """Return the current partitions of all topics of the source.

        Raises StartError if the brokers cannot be reached or a topic does not exist.
        """
        topics = self.broker.partitions(self.spec.query or "", self._where)
        return [(topic, part) for topic, parts in topics.items() for part in parts]

    @property
    def isolation(self) -> str:
        """The isolation level of reads: "read_committed" unless configured otherwise."""
        return self._options()["kafka.isolation.level"]

    def signature(self) -> dict[str, Any]:
        return {"name": self.name, "query": self.spec.query, "kafka": str(self.broker.connection.bootstrap_servers)}

    def _options(self) -> dict[str, str]:
        configured = {f"kafka.{k}": str(v) for k, v in self.broker.connection.options.items()}
        return {
            "kafka.isolation.level": "read_committed",
            **CONSUMER_DEFAULTS,
            **configured,
            "kafka.bootstrap.servers": str(self.broker.connection.bootstrap_servers),
            "failOnDataLoss": "false",  # `_ranges` detects lost records before a batch is read
            "includeHeaders": str(self.with_headers).lower(),
            **self.spec.options,
        }

    def plan(self, session: SparkSession) -> DataFrame:
        query, start = self.spec.query or "", self.spec.starting_offsets or "earliest"
        reader = session.readStream.format("kafka").options(**self._options())
        if query.startswith("pattern:"):
            reader = reader.option("subscribePattern", query.removeprefix("pattern:"))
        else:
            reader = reader.option("subscribe", ",".join(named_topics(query)))
        if not isinstance(start, str):
            start = json.dumps(self._complete_offsets(start))
        reader = reader.option("startingOffsets", start)
        if self.spec.max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.spec.max_offsets_per_trigger)
        try:
            return reader.load()
        except Exception as error:
            raise StartError(f"{self._where}: {spark_error_reason(error)}") from None

    def check_connector(self, session: SparkSession) -> None:
        """Raise StartError if Spark has no Kafka connector."""
        try:
            read = session.read.format("kafka").options(**self._options()).option("subscribe", "any")
            assert read.load().schema
        except Exception as error:
            if "kafka" in str(error) and "find" in str(error):
                starts = "a server of Spark Connect" if spark_connect_support.is_connect(session) else "a session"
                raise StartError(
                    f"{self._where}: the running Spark {session.version} has no Kafka connector; start {starts} with "
                    f"the jars of spark-sql-kafka-0-10_2.13:{session.version} in spark.jars, or let "
                    "slackwater start Spark",
                    Topic.NOT_INSTALLED,
                ) from None

    def _complete_offsets(self, offsets: ByTopic) -> ByTopic:
        """Extend the configured offsets to all partitions.

        Partitions without a configured offset begin at their first record, which Spark writes as -2.
        """
        topics = self.broker.partitions(self.spec.query or "", self._where)
        return {t: {str(p): offsets.get(t, {}).get(str(p), -2) for p in parts} for t, parts in topics.items()}

    def latest(self) -> KafkaOffsets:
        """Return the offsets of the next records to be written."""
        return self._choose_offsets(lambda topic, part, bounds: bounds[1])

    def configured_start(self) -> KafkaOffsets:
        """Return the offsets that `starting_offsets` specifies. For "latest", call `latest` instead."""
        named = self.spec.starting_offsets if isinstance(self.spec.starting_offsets, Mapping) else {}
        return self._choose_offsets(lambda topic, part, bounds: int(named.get(topic, {}).get(part, bounds[0])))

    def _choose_offsets(self, choose: Callable[[str, str, tuple[int, int]], int]) -> KafkaOffsets:
        """Return an offset for each partition, with the topic ids.

        `choose`: a function that takes the topic, the partition, and its first and end offsets, and returns the offset.
        """
        partitions = self.partitions()
        ids, bounds = self.broker.topic_ids({t for t, _ in partitions}), self.broker.offset_ranges(partitions)
        return KafkaOffsets(group_by_topic({(t, p): choose(t, str(p), bounds[t, p]) for t, p in partitions}), ids)

    # -- start offsets -------------------------------------------------------------------------------------------

    def seek(self, checkpoint: Path, index: int, store: StateStore, record: SourceRecord) -> str:
        """Return the offsets at which a new checkpoint starts, as JSON. "-" if this source has never been read."""
        return "-" if record.offsets is None else json.dumps(self.start_offsets(record))

    def start_offsets(self, record: SourceRecord) -> ByTopic:
        """Return the offset of each partition at which reading continues after `record`.

        A source that has never been read begins at `starting_offsets`. Later, a partition that is not in the state
        begins at its first record, unless `starting_offsets` contains an offset for it. The value "latest" does not
        apply to new partitions, because records written while the pipeline was stopped would be lost. Partitions of a
        recreated topic begin at their first record.

        Raises:
            EpochError: A topic was recreated, and `on_data_loss` is not "skip".
        """
        if record.offsets is None:
            return (self.latest() if self.spec.starting_offsets == "latest" else self.configured_start()).topics
        before = KafkaOffsets.coerce(record.offsets)
        partitions = self.partitions()
        ids, bounds = self.broker.topic_ids({t for t, _ in partitions}), self.broker.offset_ranges(partitions)
        replaced = self._check_topics(before, ids)
        start = self.spec.starting_offsets
        offsets: dict[str, dict[str, int]] = {}
        for (topic, part), (low, _) in bounds.items():
            offset = low if topic in replaced else before.next_offset(topic, part)
            if offset is None:
                start_offset = start.get(topic, {}).get(str(part), low) if isinstance(start, Mapping) else None
                offset = low if start_offset is None else start_offset
            offsets.setdefault(topic, {})[str(part)] = int(offset)
        return offsets

    def _check_topics(self, before: KafkaOffsets, ids: Mapping[str, str]) -> Sequence[str]:
        """Return the topics that were deleted and recreated since `before`.

        Raises EpochError if there are any, unless `on_data_loss` is "skip".
        """
        replaced = before.replaced_topics(ids)
        if not replaced:
            return replaced
        texts = [
            f'topic "{t}" was deleted and created again: ' + mismatch(f"id {ids[t]}", before.ids[t]) for t in replaced
        ]
        if self.spec.on_data_loss != "skip":
            raise EpochError(
                f"{self._where}: {'; '.join(texts)}, but the offsets in the state belong to the deleted topic; nothing "
                "was read; read the new topic from its start with `slackwater state reset … --offsets "
                f'{self.name}=earliest`, or set on_data_loss = "skip" to do so at the next start',
                Topic.TOPIC_RECREATED,
            )
        log.warning(
            "%s: %s; the new topic is read from its first record, and unread records of the deleted topic are lost "
            "(on_data_loss)",
            self._where,
            "; ".join(texts),
        )
        return replaced

    # -- a batch -------------------------------------------------------------------------------------------------

    def batch(
        self,
        session: SparkSession,
        checkpoint: Path,
        index: int,
        number: int,
        store: StateStore,
        epoch: int,
        record: SourceRecord,
    ) -> SourceBatch | None:
        """Return this source's records in a planned batch. None if the batch has no records of this source."""
        end = self._planned_end(checkpoint, index, number)
        if end is None:
            return None
        return self.read_between(
            session,
            self._planned_end(checkpoint, index, number - 1) or self._initial_offsets(checkpoint, index),
            end,
            record,
        )

    def read_between(
        self, session: SparkSession, start: ByTopic, end: ByTopic, record: SourceRecord | None = None
    ) -> SourceBatch | None:
        """Return the records from `start` up to but not including `end`, or None if none exist and none were lost.

        Args:
            session: The Spark session.
            start: The offset of each partition at which to begin.
            end: The offset of each partition at which to end.
            record: The offsets in the state, with the ids of the topics that were read.

        Raises:
            EpochError: Records were lost or a topic was recreated, and `on_data_loss` is not "skip".
        """
        ids = self.broker.topic_ids(end)
        replaced = self._check_topics(KafkaOffsets.coerce(None if record is None else record.offsets), ids)
        ranges, lost = self._ranges({t: parts for t, parts in start.items() if t not in replaced}, end)
        record_counts = {f"{t}-{p}": max(until - since, 0) for (t, p), (since, until) in ranges.items()}
        if any(record_counts.values()):
            frame, is_shared = self._read(session, ranges)
        elif lost:
            frame, is_shared = session.createDataFrame([], self.schema), False
        else:
            return None
        return SourceBatch(frame, KafkaOffsets(end, ids), partitions=record_counts, lost=lost, is_shared=is_shared)

    def _planned_end(self, checkpoint: Path, index: int, number: int) -> ByTopic | None:
        line = checkpoint_line(checkpoint, index, number) if number >= 0 else None
        offsets: ByTopic | None = None if line is None else json.loads(line)
        return offsets

    def _initial_offsets(self, checkpoint: Path, index: int) -> ByTopic:
        path = checkpoint / "sources" / str(index) / "0"
        try:
            text = path.read_bytes().decode(errors="replace")
            offsets: ByTopic = json.loads(text[text.index("{") :])
        except (OSError, ValueError) as error:
            raise EpochError(
                f"checkpoint file {path} is missing or damaged; delete the directory {checkpoint} and start again",
                Topic.CHECKPOINT_DAMAGED,
            ) from error
        return offsets

    def _ranges(self, start: ByTopic, end: ByTopic) -> tuple[dict[tuple[str, int], tuple[int, int]], int]:
        """Return the offset range to read in each partition, and the number of lost records.

        Raises EpochError if records were lost, unless `on_data_loss` is "skip".
        """
        parts = [(t, int(p)) for t, numbers in end.items() for p in numbers]
        bounds = self.broker.offset_ranges(parts)
        ranges, lost, losses = {}, 0, []
        for topic, part in parts:
            low, high = bounds[topic, part]
            since = start.get(topic, {}).get(str(part), low)
            until = end[topic][str(part)]
            if since < low:
                losses.append(f"{topic}-{part} offsets {since} to {min(low, until) - 1} are gone")
                lost, since = lost + max(min(low, until) - since, 0), low
            if since > high or until > high:
                losses.append(
                    f"{topic}-{part} ends at offset {high}, before offset {max(since, until)}: it was created again"
                )
                since, until = low, min(until, high)
            ranges[topic, part] = (since, max(until, since))
        if losses and self.spec.on_data_loss != "skip":
            raise EpochError(
                f"{self._where}: {'; '.join(losses)}; this epoch was not committed; keep records longer in Kafka "
                '(retention.ms), or set on_data_loss = "skip" to count them as lost and continue',
                Topic.RECORDS_DELETED,
            )
        return ranges, lost

    def _read(self, session: SparkSession, ranges: worker_reader.RangesByPartition) -> tuple[DataFrame, bool]:
        return self._epoch_reader.read(session, ranges)

    @cached_property
    def _epoch_reader(self) -> EpochReader:
        return EpochReader(
            worker_reader.consumer_settings(self.broker.connection, self.group, self.isolation),
            self._options(),
            bool(self.spec.options),
            self.spec.on_data_loss == "skip",
            self.with_headers,
            self.payload,
            lambda records, count: self.decode(records, count=count),
        )

    def decode(self, records: DataFrame, more: Sequence[str] = (), count: int | None = None) -> DataFrame:
        """Decode records in the format of Spark's Kafka reader into rows of this source.

        Args:
            records: The records.
            more: Additional columns to keep.
            count: The number of records, if known.
        """
        columns = {m: m[1:] for m in _META}
        if self.payload.runs_in_workers(count) and DECODED not in records.columns:  # nested columns are slow to send
            to_text = "CASE WHEN headers IS NOT NULL THEN to_json(headers) END"
            records = records.withColumn("headers", spark_connect_support.sql_functions(records).expr(to_text))
            columns["_headers"] = "from_json(headers, 'ARRAY<STRUCT<key: STRING, value: BINARY>>')"
        meta = [f"{sql} AS {name}" for name, sql in columns.items()]
        return self.payload.decode(records, [*meta, "timestamp AS _event_ts", *more], count)

    def decode_dead_letter_rows(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        return self.decode(restore_records(letters, letter), [letter])

    # -- for external tools ----------------------------------------------------------------------------------------

    def advertise(self, offsets: Offsets) -> None:
        """Commit offsets to the consumer group `commit_group` for lag monitors. Slackwater never reads them back."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        kafka_offsets = KafkaOffsets.coerce(offsets)
        if self.spec.commit_group is None:
            return
        consumer: Any = make_client(Consumer, {**self.broker.settings(), "group.id": self.spec.commit_group})
        try:
            consumer.commit(
                offsets=[TopicPartition(topic, int(part), offset) for topic, part, offset in kafka_offsets.entries()],
                asynchronous=False,
            )
        except KafkaException:
            return  # only informative: the state store has the offsets
        finally:
            consumer.close()
