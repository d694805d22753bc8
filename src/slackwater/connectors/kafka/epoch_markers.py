"""The markers of exactly-once Kafka targets, in one compacted topic per cluster with one key per writer and topic.

    _slackwater_epochs    key "writer|topic"    value "state:epoch"    headers: the commit id, the id of the rows' topic

A marker is a record that is written in the same transaction as the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from slackwater.errors import StartError, Topic
from slackwater.state.commit import TargetMarker

EPOCHS_TOPIC = "_slackwater_epochs"
_COMMIT, _TOPIC_ID = "slackwater-commit", "slackwater-topic-id"
_CLEANING_SECONDS = 10  # the interval at which a broker aborts transactions past their timeout


@dataclass
class KafkaEpochMarkers:
    """Access to the marker of one writer in one topic.

    Args:
        settings: A function that returns the client settings, extended with the settings passed to it.
        topic: The topic that contains the rows.
        writer: The name of the writer.
        timeout: The time limit of each broker operation, in seconds.
    """

    settings: Callable[[Mapping[str, Any]], dict[str, Any]]
    topic: str
    writer: str
    timeout: float
    _topic_id: str = field(default="", init=False)  # the topic's id when the marker was last read

    @property
    def key(self) -> bytes:
        return f"{self.writer}|{self.topic}".encode()

    @property
    def brokers(self) -> str:
        return str(self.settings({}).get("bootstrap.servers", ""))

    def record(self, marker: TargetMarker) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Return the value and the headers of the Kafka record that stores a marker."""
        headers = {_COMMIT: marker.commit, _TOPIC_ID: self._topic_id}
        return f"{marker.state}:{marker.epoch}".encode(), [(k, v.encode()) for k, v in headers.items() if v]

    def _topic_id_of(self, admin: AdminClient) -> str:
        """Return the current id of `topic`, or an empty string if unknown. A recreated topic has a different id."""
        try:
            answers = admin.describe_topics(TopicCollection([self.topic]), request_timeout=self.timeout)
            return str(answers[self.topic].result(self.timeout).topic_id)
        except KafkaException:
            return ""

    def find_topic(self, admin: AdminClient) -> None:
        """Create the markers topic if it does not exist. Raises StartError if the existing topic is not compacted.

        Brokers delete old markers from a topic that is not compacted, so epochs would be published again.
        """
        if EPOCHS_TOPIC not in admin.list_topics(timeout=self.timeout).topics:
            self.create(admin, EPOCHS_TOPIC, 1, {"cleanup.policy": "compact"})
        resource = ConfigResource(ResourceType.TOPIC, EPOCHS_TOPIC)
        future = admin.describe_configs([resource], request_timeout=self.timeout)[resource]
        try:
            policy = future.result(self.timeout)["cleanup.policy"].value
        except KafkaException as error:
            if kafka_error(error).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
            raise
        if policy != "compact":
            raise StartError(
                f'Kafka topic "{EPOCHS_TOPIC}" has cleanup.policy={policy}; expected compact, because otherwise '
                f"Kafka deletes the markers of published epochs; set it (kafka-configs.sh --bootstrap-server {self.brokers} "
                f"--alter --topic {EPOCHS_TOPIC} --add-config cleanup.policy=compact)",
                Topic.TARGET_UNSUITABLE,
            )

    def create(self, admin: AdminClient, topic: str, partitions: int, config: dict[str, str]) -> None:
        """Create a topic with the default number of replicas, and wait until it is visible.

        Args:
            admin: The client that creates the topic.
            topic: The name of the topic.
            partitions: The number of partitions. -1 means the broker's default.
            config: The settings of the topic, such as `cleanup.policy`.
        """
        future = admin.create_topics([NewTopic(topic, partitions, -1, config=config)])[topic]
        try:
            future.result(self.timeout)
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        end = time.monotonic() + self.timeout
        while topic not in admin.list_topics(timeout=self.timeout).topics:
            if time.monotonic() >= end:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f'topic "{topic}" created but not seen'))
            time.sleep(0.05)

    def read(self, admin: AdminClient, committed: bool = False) -> TargetMarker | None:
        """Return the last committed marker. None if there is no marker, or if `topic` was recreated.

        `committed`: whether to ignore open transactions. By default, the call waits until they end.
        """
        self._topic_id = self._topic_id_of(admin)
        last = self._last_records(admin, committed).get(self.key)
        return None if last is None else self._parse_marker(last)

    def writers(self, admin: AdminClient) -> list[str]:
        """Return the writers that have a marker for this topic."""
        names = (key.decode().rpartition("|") for key in self._last_records(admin, committed=True))
        return sorted(writer for writer, _, topic in names if topic == self.topic)

    def _last_records(self, admin: AdminClient, committed: bool) -> dict[bytes, Message[Any, Any]]:
        """Return the last committed record of each key in the markers topic.

        With `committed`, reading stops before the first open transaction. Without it, reading continues to the end of
        the log, because an open transaction of another pipeline can precede a marker of this pipeline. Kafka's own
        transaction markers occupy offsets, too. The end is therefore detected by the client's end-of-partition event.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        ends = admin.list_offsets(
            {TopicPartition(EPOCHS_TOPIC, 0): OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=level,
            request_timeout=self.timeout,
        )
        end_offset = next(iter(ends.values())).result(self.timeout).offset
        settings = {
            "group.id": f"slackwater-{self.writer}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        consumer: Consumer = Consumer(self.settings(settings))
        try:
            consumer.assign([TopicPartition(EPOCHS_TOPIC, 0, 0)])
            return self._read_to(consumer, end_offset)
        finally:
            consumer.close()

    def _read_to(self, consumer: Consumer, end_offset: int) -> dict[bytes, Message[Any, Any]]:
        last: dict[bytes, Message[Any, Any]] = {}
        offset = 0
        end = time.monotonic() + 2 * self.timeout + _CLEANING_SECONDS
        while offset < end_offset:
            if time.monotonic() >= end:
                reason = f'a transaction of another writer in "{EPOCHS_TOPIC}" stays open'
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                offset = (message.offset() or 0) + 1
                last[bytes(message.key() or b"")] = message
            elif error.code() == KafkaError._PARTITION_EOF:
                offset = message.offset() or 0
            elif not error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
        return last

    def _parse_marker(self, record: Message[Any, Any]) -> TargetMarker | None:
        pairs: list[tuple[str, bytes | None]] = list(record.headers() or [])  # type: ignore[arg-type]
        headers = {name: (value or b"").decode() for name, value in pairs}
        if self._topic_id and headers.get(_TOPIC_ID, self._topic_id) != self._topic_id:
            return None
        state, _, epoch = bytes(record.value() or b"").decode().rpartition(":")
        return TargetMarker(state=state, epoch=int(epoch), commit=headers.get(_COMMIT, ""))


def kafka_error(error: KafkaException) -> KafkaError:
    cause: KafkaError = error.args[0]
    return cause
