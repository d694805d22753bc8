"""Kafka as a stream: Spark plans the batches and keeps their offsets; the engine reads each batch by its offsets.

    checkpoint/offsets/7   {"orders": {"0": 1200, "1": 1180}}      the end of batch 7, and the start of batch 8
    state store            the same, as part of the commit          `seek` writes it into a fresh checkpoint

Rows carry the payload's columns and `_key`, `_value`, `_headers`, `_topic`, `_partition`, `_offset`; `_event_ts` is the
record's timestamp.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import KafkaConnection
from slackwater.config.source import Source
from slackwater.errors import EpochError, StartError
from slackwater.sources.base import CORRUPT, SourceBatch, checkpoint_line, reason
from slackwater.sources.payload import Payload
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset
_SECONDS = 15
_META = ("_key", "_value", "_headers", "_topic", "_partition", "_offset")


@dataclass(frozen=True)
class Broker:
    """What is asked of a cluster beside reading: which partitions there are, and which offsets they hold."""

    connection: KafkaConnection
    errors: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """For librdkafka, quiet: what it would print goes into our own messages."""

        def on_error(error: Any) -> None:
            self.errors.append(error.str())

        own = {k: v for k, v in self.connection.options.items() if k not in _JVM_ONLY}
        return {
            **own,
            "bootstrap.servers": str(self.connection.bootstrap_servers),
            "log_level": 0,
            "error_cb": on_error,
        }

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.settings())

    def partitions(self, query: str, where: str) -> dict[str, list[int]]:
        """The partitions of each topic that a query names. Raises StartError if it cannot be asked, or names none."""
        from confluent_kafka import KafkaException

        try:
            topics = self._admin.list_topics(timeout=_SECONDS).topics
        except KafkaException as error:
            self._admin.poll(0)
            last = [e for e in self.errors if "brokers are down" not in e]
            raise StartError(
                f"{where}: Kafka at {self.connection.bootstrap_servers} cannot be reached "
                f"({last[-1] if last else error.args[0].str()}); check bootstrap_servers and that the brokers run"
            ) from None
        found = {t: sorted(meta.partitions) for t, meta in topics.items() if matches(query, t)}
        missing = [t for t in named(query) if t not in found]
        if missing:
            others = ", ".join(sorted(t for t in topics if not t.startswith("_"))[:10]) or "none"
            raise StartError(
                f'{where}: there is no topic "{missing[0]}" at {self.connection.bootstrap_servers}; create it, or correct '
                f"query; there are: {others}"
            )
        return found

    def at(self, partitions: Sequence[tuple[str, int]], ms: int) -> dict[tuple[str, int], int]:
        """Per partition the offset of the first record whose time is `ms` or later; of the next to be written if none is."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        asked = [TopicPartition(t, p) for t, p in partitions]
        try:
            when: Any = OffsetSpec.for_timestamp(max(ms, 0))
            found = self._admin.list_offsets(dict.fromkeys(asked, when), request_timeout=_SECONDS)
            offsets = {(p.topic, p.partition): found[p].result().offset for p in asked}
        except KafkaException as error:
            raise EpochError(
                f"Kafka at {self.connection.bootstrap_servers} does not say which offsets it holds "
                f"({error.args[0].str()}); check that the brokers run"
            ) from None
        none = [key for key, offset in offsets.items() if offset < 0]
        return {**offsets, **{key: high for key, (_, high) in self.bounds(none).items()}} if none else offsets

    def bounds(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """The first offset that is there and the next to be written, per partition. Raises EpochError."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        first: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        last: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        low, high = self._listed(partitions, first, last)
        return {p: (low[p], high[p]) for p in low}

    def since(self, partitions: Sequence[tuple[str, int]], time_us: int) -> dict[tuple[str, int], int]:
        """The first offset at or after a time, per partition; the next to be written where there is none. Raises EpochError."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        at: Any = OffsetSpec.for_timestamp(-(-time_us // 1000))
        last: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        found, high = self._listed(partitions, at, last)
        return {p: high[p] if found[p] < 0 else found[p] for p in found}

    def _listed(self, partitions: Sequence[tuple[str, int]], *specs: Any) -> list[dict[tuple[str, int], int]]:
        """What the brokers answer to each of these questions, per partition."""
        from confluent_kafka import KafkaException, TopicPartition

        asked = [TopicPartition(t, p) for t, p in partitions]
        end = time.monotonic() + _SECONDS
        while True:
            try:
                answers = [self._admin.list_offsets(dict.fromkeys(asked, s), request_timeout=_SECONDS) for s in specs]
                return [{(p.topic, p.partition): a[p].result().offset for p in asked} for a in answers]
            except KafkaException as error:
                # what the client knows of the cluster may be old: a partition that is new, a broker that came back
                self.__dict__.pop("_admin", None)
                if time.monotonic() > end:
                    raise EpochError(
                        f"Kafka at {self.connection.bootstrap_servers} does not say which offsets it holds "
                        f"({error.args[0].str()}); check that the brokers run"
                    ) from None
                time.sleep(0.2)


# settings of the Java client that librdkafka does not know
_JVM_ONLY = ("sasl.jaas.config", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type")


def named(query: str) -> list[str]:
    """The topics that a query names one by one; none for a pattern."""
    return [] if query.startswith("pattern:") else [t.strip() for t in query.split(",") if t.strip()]


def matches(query: str, topic: str) -> bool:
    if query.startswith("pattern:"):
        return re.fullmatch(query.removeprefix("pattern:"), topic) is not None
    return topic in named(query)


def sample(session: SparkSession, spec: Source, connection: KafkaConnection) -> list[str]:
    """The values of the first records that are there, as text: to infer a schema from."""
    options = {f"kafka.{k}": str(v) for k, v in connection.options.items()}
    query = spec.query or ""
    read = session.read.format("kafka").options(**options)
    read = read.option("kafka.bootstrap.servers", str(connection.bootstrap_servers))
    if query.startswith("pattern:"):
        read = read.option("subscribePattern", query.removeprefix("pattern:"))
    else:
        read = read.option("subscribe", ",".join(named(query)))
    rows = read.load().where("value IS NOT NULL").selectExpr("CAST(value AS STRING) AS v").limit(1000).collect()
    return [row["v"] for row in rows]


@dataclass(frozen=True)
class KafkaSource:
    """One Kafka source with its payload. `group`: the consumer group of its reads."""

    spec: Source
    broker: Broker
    payload: Payload
    group: str
    with_headers: bool = True

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def schema(self) -> StructType:
        """The columns of its rows."""
        from pyspark.sql.types import StructType

        fields = [f for f in self.payload.schema.fields if f.name != CORRUPT]
        meta: Any = StructType.fromDDL(
            "_key BINARY, _value BINARY, _headers ARRAY<STRUCT<key: STRING, value: BINARY>>, _topic STRING, _partition INT, "
            "_offset BIGINT, _event_ts TIMESTAMP"
        )
        return StructType([*fields, *meta.fields])

    @property
    def _where(self) -> str:
        return f'source "{self.name}"'

    def check(self) -> None:
        """Raise StartError if the brokers or the topics are not there."""
        self.broker.partitions(self.spec.query or "", self._where)

    def signature(self) -> dict[str, Any]:
        return {"name": self.name, "query": self.spec.query, "kafka": str(self.broker.connection.bootstrap_servers)}

    def _options(self) -> dict[str, str]:
        given = {f"kafka.{k}": str(v) for k, v in self.broker.connection.options.items()}
        return {
            "kafka.isolation.level": "read_committed",
            **given,
            "kafka.bootstrap.servers": str(self.broker.connection.bootstrap_servers),
            "failOnDataLoss": "false",  # judged here, by offsets, before a batch is read
            "includeHeaders": str(self.with_headers).lower(),
            **self.spec.options,
        }

    def plan(self, session: SparkSession) -> DataFrame:
        """The streaming DataFrame that plans batches; its rows are never read through it."""
        query, start = self.spec.query or "", self.spec.starting_offsets or "earliest"
        reader = session.readStream.format("kafka").options(**self._options())
        if query.startswith("pattern:"):
            reader = reader.option("subscribePattern", query.removeprefix("pattern:"))
        else:
            reader = reader.option("subscribe", ",".join(named(query)))
        if not isinstance(start, str):
            start = json.dumps(self._start(start))
        reader = reader.option("startingOffsets", start)
        if self.spec.max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.spec.max_offsets_per_trigger)
        try:
            return reader.load()
        except Exception as error:
            if "kafka" in str(error) and "find" in str(error):
                raise StartError(
                    f"{self._where}: this Spark session has no Kafka connector; start it with the jars of "
                    "spark-sql-kafka-0-10 in spark.jars, or let slackwater start Spark"
                ) from None
            raise StartError(f"{self._where}: {reason(error)}") from None

    def _start(self, given: Offsets) -> Offsets:
        """Offsets of a config, completed: partitions that it does not name begin at their first record (-2)."""
        there = self.broker.partitions(self.spec.query or "", self._where)
        return {t: {str(p): given.get(t, {}).get(str(p), -2) for p in parts} for t, parts in there.items()}

    def latest(self) -> Offsets:
        """The offsets that the next records will have."""
        there = self.broker.partitions(self.spec.query or "", self._where)
        bounds = self.broker.bounds([(t, p) for t, parts in there.items() for p in parts])
        return {t: {str(p): bounds[t, p][1] for p in parts} for t, parts in there.items()}

    def stated(self) -> Offsets:
        """The offsets that `starting_offsets` means, unless it is "latest"."""
        given, there = self.spec.starting_offsets, self.broker.partitions(self.spec.query or "", self._where)
        named = given if isinstance(given, Mapping) else {}
        bounds = self.broker.bounds([(t, p) for t, parts in there.items() for p in parts])
        return {
            t: {str(p): int(named.get(t, {}).get(str(p), bounds[t, p][0])) for p in parts} for t, parts in there.items()
        }

    # -- where to go on ------------------------------------------------------------------------------------------

    def seek(self, checkpoint: Path, index: int, store: StateStore, record: SourceRecord) -> str:
        """The offsets a fresh checkpoint starts from; "-": this source was never read.

        Partitions that the state does not know begin at `starting_offsets`.
        """
        if record.offsets is None:
            return "-"
        there = self.broker.partitions(self.spec.query or "", self._where)
        bounds = self.broker.bounds([(t, p) for t, parts in there.items() for p in parts])
        start = self.spec.starting_offsets or "earliest"
        found: dict[str, dict[str, int]] = {}
        for (topic, part), (low, high) in bounds.items():
            known = record.offsets.get(topic, {}).get(str(part))
            if known is None:
                given = start.get(topic, {}).get(str(part), low) if isinstance(start, Mapping) else None
                known = given if given is not None else high if start == "latest" else low
            found.setdefault(topic, {})[str(part)] = int(known)
        return json.dumps(found)

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
        """The records of one planned batch; None if it has none of this source."""
        end = self._offsets(checkpoint, index, number)
        if end is None:
            return None
        return self.between(
            session, self._offsets(checkpoint, index, number - 1) or self._initial(checkpoint, index), end
        )

    def between(self, session: SparkSession, start: Offsets, end: Offsets) -> SourceBatch | None:
        """The records from `start` up to `end`, which is not included; None if there are none."""
        ranges, lost = self._ranges(start, end)
        heard = {f"{t}-{p}": max(until - since, 0) for (t, p), (since, until) in ranges.items()}
        if any(heard.values()):
            frame = self._read(session, {k: r for k, r in ranges.items() if r[1] > r[0]})
        elif lost:
            frame = session.createDataFrame([], self.schema)
        else:
            return None
        return SourceBatch(frame, end, partitions=heard, lost=lost)

    def _offsets(self, checkpoint: Path, index: int, number: int) -> Offsets | None:
        line = checkpoint_line(checkpoint, index, number) if number >= 0 else None
        found: Offsets | None = None if line is None else json.loads(line)
        return found

    def _initial(self, checkpoint: Path, index: int) -> Offsets:
        path = checkpoint / "sources" / str(index) / "0"
        try:
            text = path.read_bytes().decode(errors="replace")
            found: Offsets = json.loads(text[text.index("{") :])
        except (OSError, ValueError) as error:
            raise EpochError(
                f"checkpoint file {path} is missing or damaged; delete the checkpoint directory and start again"
            ) from error
        return found

    def _ranges(self, start: Offsets, end: Offsets) -> tuple[dict[tuple[str, int], tuple[int, int]], int]:
        """From where to where each partition is read, and how many records are gone (with `on_data_loss = "skip"`)."""
        parts = [(t, int(p)) for t, of in end.items() for p in of]
        bounds = self.broker.bounds(parts)
        ranges, lost, gone = {}, 0, []
        for topic, part in parts:
            low, high = bounds[topic, part]
            since = start.get(topic, {}).get(str(part), low)
            until = end[topic][str(part)]
            if since < low:
                gone.append(f"{topic}-{part} offsets {since} to {min(low, until) - 1} of the records are gone")
                lost, since = lost + max(min(low, until) - since, 0), low
            if since > high or until > high:
                gone.append(
                    f"{topic}-{part} ends at offset {high}, before offset {max(since, until)}: it was made anew"
                )
                since, until = low, min(until, high)
            ranges[topic, part] = (since, max(until, since))
        if gone and self.spec.on_data_loss != "skip":
            raise EpochError(
                f"{self._where}: {'; '.join(gone)}; nothing of this epoch was committed: keep records longer in Kafka "
                '(retention.ms), or set on_data_loss = "skip" to count them as lost and go on'
            )
        return ranges, lost

    def _read(self, session: SparkSession, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> DataFrame:
        def by_topic(value: Any) -> str:
            found: dict[str, Any] = {}
            for (topic, part), bounds in ranges.items():
                found.setdefault(topic, {})[str(part)] = value(bounds)
            return json.dumps(found)

        assigned: dict[str, list[int]] = {}
        for topic, part in ranges:
            assigned.setdefault(topic, []).append(part)
        read = session.read.format("kafka").options(**self._options()).option("assign", json.dumps(assigned))
        read = read.option("kafka.group.id", self.group)
        read = read.option("failOnDataLoss", str(self.spec.on_data_loss != "skip").lower())
        read = read.option("startingOffsets", by_topic(lambda r: r[0])).option(
            "endingOffsets", by_topic(lambda r: r[1])
        )
        records = read.load()
        if not self.with_headers:
            records = records.selectExpr("*", "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers")
        return self.decode(records)

    def decode(self, records: DataFrame, more: Sequence[str] = ()) -> DataFrame:
        """Records as Spark reads them from a topic, with their headers, as rows of this source. `more`: columns to keep."""
        meta = [f"{m[1:]} AS {m}" for m in _META]
        return self.payload.decode(records, [*meta, "timestamp AS _event_ts", *more])

    # -- for others ----------------------------------------------------------------------------------------------

    def advertise(self, offsets: Offsets) -> None:
        """Commit offsets to `commit_group`, for tools that show lag; nothing here reads them."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if self.spec.commit_group is None:
            return
        consumer: Any = Consumer({**self.broker.settings(), "group.id": self.spec.commit_group})
        try:
            consumer.commit(
                offsets=[TopicPartition(t, int(p), o) for t, of in offsets.items() for p, o in of.items()],
                asynchronous=False,
            )
        except KafkaException:
            return  # advisory: the state store knows where to go on
        finally:
            consumer.close()
