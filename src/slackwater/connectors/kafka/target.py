"""Kafka topic target, which writes one message per row. With exactly_once, an epoch and its marker share a transaction.

    begin ─ row ─ row ─ row ─ marker ─ commit       readers with isolation.level = read_committed see all or none
            └──── topic ────┘ └ _slackwater_epochs (compacted): key "writer|topic", value "state:epoch"

The key of a message is the identity of its row, so that a compacted topic keeps one record per window. A superseded row
is written as its key with a NULL value (a tombstone). If the key columns do not identify windows, the topic is a log:
rows are only added.

A process that dies during an epoch leaves an open transaction. The next process with the same transactional.id makes
the broker abort this transaction. It then reads the marker, which shows whether the epoch was published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import polars as pl
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka.admin import AdminClient

from slackwater.connectors.kafka.epoch_markers import EPOCHS_TOPIC, KafkaEpochMarkers, kafka_error
from slackwater.connectors.kafka.message_encoding import DeadLetterMessageEncoder, KafkaMessageEncoder, Messages
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import YEARS, ValueLimits
from slackwater.errors import FencedError, PublishError, StartError, Topic
from slackwater.state.commit import TargetMarker

_EXACTLY_ONCE, _AT_LEAST_ONCE = "exactly_once", "at_least_once"
_SECRETS = ("password", "secret", "token", "jaas", ".key", "credential")
_EARLIER = (KafkaError._FATAL, KafkaError._STATE)
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_POLL_EVERY = 1000  # messages; a poll for each of them is slow
_KEY_BYTES = 500_000  # a message is 1 MB at most by default, and its value repeats the key


@dataclass(frozen=True)
class TopicCreation:
    """Settings of a topic to create.

    Args:
        partitions: The number of partitions. None means the broker's default.
        compact: Whether to set cleanup.policy = compact.
    """

    partitions: int | None = None
    compact: bool = False


_CREATION = TopicCreation()


class KafkaTarget:
    """Target that produces each epoch to one topic: at least once, or exactly once in a transaction."""

    def __init__(
        self,
        config: Mapping[str, str],
        topic: str,
        table: TargetTable,
        value_format: str = "json",
        delivery: str = _AT_LEAST_ONCE,
        *,
        key_columns: list[str] | None = None,
        schema_id: int | None = None,
        creation: TopicCreation | None = _CREATION,
        timeout: float = 30.0,
        upserts: bool = True,
    ) -> None:
        """Prepare the target without connecting.

        Args:
            config: The settings of librdkafka.
            topic: The name of the topic.
            table: The columns and the writer.
            value_format: "json" or "avro".
            delivery: "at_least_once" or "exactly_once".
            key_columns: The columns of the key. By default, they are the identity columns.
            schema_id: The schema id in the Confluent frame that precedes each Avro value. If None, values have no frame.
            creation: How to create a topic that does not exist. If None, `open` fails instead.
            timeout: The time limit of each broker operation, in seconds.
            upserts: Whether the key identifies a row, so that a record replaces earlier records with the same key.
        """
        self._config, self._topic, self._table, self._timeout = dict(config), topic, table, timeout
        self._exactly_once = delivery == _EXACTLY_ONCE
        self.upserts = upserts and table.identity is not None
        self._creation = creation
        self._rows = (
            DeadLetterMessageEncoder(table)
            if table.fields == LETTER
            else KafkaMessageEncoder(table, value_format, key_columns, schema_id)
        )
        self._markers = KafkaEpochMarkers(self._settings, topic, table.writer, timeout)
        self._producer: Producer | None = None
        self._last = -1
        self._last_error = ""
        self._fenced = False
        self._brokers = self._config.get("bootstrap.servers", "")
        self.guarantee = "exactly once" if self._exactly_once else "at least once"
        self.description = f'Kafka topic "{topic}" on {self._brokers}'

    @property
    def capacity(self) -> ValueLimits:
        """The value limits: four-digit years, as in JSON, and a maximum key size if rows have an identity."""
        return ValueLimits(time_range=YEARS, key_bytes=_KEY_BYTES if self._table.identity else None)

    def open(self) -> None:
        """Connect, and create the topic if it does not exist.

        With exactly_once, also abort the open transaction of an earlier process, and read the marker.
        """
        self._drop()
        self._last_error = ""
        clients: list[AdminClient | Producer] = []
        try:
            admin = AdminClient(self._settings({}))
            clients.append(admin)
            self._find_topic(admin)
            if self._exactly_once:
                self._markers.find_topic(admin)
            producer = Producer(self._settings(self._producer_settings()))
            clients.append(producer)
            if self._exactly_once:
                producer.init_transactions(self._timeout)
                marker = self._markers.read(admin)
                self._last = marker.epoch if marker is not None and marker.state == self._table.state else -1
        except KafkaException as error:
            for client in clients:
                client.poll(0)  # runs the error callback
            raise self._connection_error(error) from error
        self._producer = producer

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._timeout)
            self._producer = None

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        """Return the last marker. Only targets with exactly_once have one.

        `fence`: whether to abort the open transaction of a process that has died.
        """
        try:
            admin = AdminClient(self._settings({}))
            topics = admin.list_topics(timeout=self._timeout).topics
            if not {self._topic, EPOCHS_TOPIC} <= topics.keys():
                return None
            if fence:
                Producer(self._settings(self._producer_settings())).init_transactions(self._timeout)
            return self._markers.read(admin, committed=not fence)
        except KafkaException as error:
            raise self._connection_error(error) from error

    def writers(self) -> list[str]:
        try:
            admin = AdminClient(self._settings({}))
            if EPOCHS_TOPIC not in admin.list_topics(timeout=self._timeout).topics:
                return []
            return self._markers.writers(admin)
        except KafkaException as error:
            raise self._connection_error(error) from error

    def last_epoch(self) -> int:
        """Return the last epoch that is known to be published, or -1.

        With at_least_once, a process only knows of epochs that it has published itself.
        """
        return self._last

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        if self._fenced:
            raise self._fenced_error(epoch, "it was fenced before")
        if epoch <= self._last:
            return
        if self._producer is None:
            raise self._publish_error(epoch, "the target is not open")
        messages = self._rows.messages(rows)
        if superseded is not None and not superseded.is_empty():
            messages = chain(self._rows.tombstones(superseded), messages)
        try:
            if self._exactly_once:
                self._transaction(self._producer, epoch, messages, commit)
            else:
                self._produce_and_flush(self._producer, epoch, messages)
        except KafkaException as error:
            reason = self._reason(error)
            self._abandon(kafka_error(error))
            if self._fenced:
                raise self._fenced_error(epoch, reason) from error
            raise self._publish_error(epoch, reason) from error
        self._last = epoch

    def _transaction(self, producer: Producer, epoch: int, messages: Messages, commit: str) -> None:
        producer.begin_transaction()
        self._produce(producer, epoch, messages)  # committing reports errors
        marker = TargetMarker(state=self._table.state, epoch=epoch, commit=commit)
        value, headers = self._markers.record(marker)
        self._send(producer, EPOCHS_TOPIC, value, self._markers.key, partition=0, headers=headers)
        end = time.monotonic() + self._timeout
        while True:
            try:
                producer.commit_transaction(max(end - time.monotonic(), 0.1))
                return
            except KafkaException as error:
                if not kafka_error(error).retriable() or time.monotonic() >= end:
                    raise

    def _produce_and_flush(self, producer: Producer, epoch: int, messages: Messages) -> None:
        failed: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message[Any, Any]) -> None:
            if error is not None:
                failed.append(error)

        self._produce(producer, epoch, messages, on_delivery)
        remaining = producer.flush(self._timeout + 1)
        if failed:
            raise KafkaException(failed[0])
        if remaining:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{remaining} messages not acknowledged"))

    def _produce(
        self,
        producer: Producer,
        epoch: int,
        messages: Messages,
        on_delivery: Callable[[KafkaError | None, Message[Any, Any]], None] | None = None,
    ) -> None:
        """Produce the messages one by one, because batch calls of the client library do not support headers."""
        headers, topic = self._rows.headers(epoch), self._topic
        for number, (key, value, row_headers) in enumerate(messages):
            all_headers = [*row_headers, *headers] if row_headers else headers
            self._send(producer, topic, value, key, headers=all_headers, on_delivery=on_delivery)
            if number % _POLL_EVERY == 0:
                producer.poll(0)

    def _send(self, producer: Producer, *message: Any, **more: Any) -> None:
        """Produce one message, waiting while the client's queue is full."""
        end = 0.0
        while True:
            try:
                producer.produce(*message, **more)
                return
            except BufferError:
                end = end or time.monotonic() + self._timeout
                if time.monotonic() >= end:
                    reason = "the queue of unsent messages is full"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None
                producer.poll(0.05)

    def _abandon(self, error: KafkaError) -> None:
        """Discard unsent messages and abort the transaction. The next `open` determines whether a commit succeeded."""
        producer = self._producer
        assert producer is not None
        code = error.code()
        if (
            code in _EARLIER and self._exactly_once
        ):  # only says that an earlier call failed; aborting returns that error
            try:
                producer.abort_transaction(min(self._timeout, 5.0))
            except KafkaException as cause:
                code = kafka_error(cause).code()
        self._fenced = self._exactly_once and code in _FENCED
        if not self._fenced:
            producer.purge()
            if self._exactly_once:
                with suppress(KafkaException):
                    producer.abort_transaction(min(self._timeout, 5.0))
        self._drop()

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _find_topic(self, admin: AdminClient) -> None:
        if self._topic in admin.list_topics(timeout=self._timeout).topics:
            return
        if self._creation is None:
            raise StartError(
                f'Kafka topic "{self._topic}" does not exist on {self._brokers}, and create = false; create the '
                "topic (kafka-topics.sh"
                f" --bootstrap-server {self._brokers} --create --topic {self._topic} --partitions 6), or remove "
                "create = false",
                Topic.INPUT_MISSING,
            )
        config = {"cleanup.policy": "compact"} if self._creation.compact else {}
        self._markers.create(admin, self._topic, self._creation.partitions or -1, config)

    def create_topic(self) -> None:
        """Create the topic if it does not exist. Raises StartError if that is not allowed or fails."""
        admin = AdminClient(self._settings({}))
        try:
            self._find_topic(admin)
        except KafkaException as error:
            admin.poll(0)
            raise self._connection_error(error) from error

    def _settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client settings plus `more`.

        The client library does not log, because its errors contain the same information.
        """

        def on_error(error: KafkaError) -> None:
            if error.code() != KafkaError._ALL_BROKERS_DOWN:
                self._last_error = error.str()

        return {**self._config, **more, "log_level": 0, "error_cb": on_error}

    def _producer_settings(self) -> dict[str, Any]:
        within = int(self._timeout * 1000)
        settings: dict[str, Any] = {
            "partitioner": self._config.get(
                "partitioner", "murmur2_random"
            ),  # as Java clients do, so that equal keys share a partition
            "enable.idempotence": True,
            "message.timeout.ms": within,
        }
        if self._exactly_once:
            settings |= {"transactional.id": f"slackwater-{self._table.writer}", "transaction.timeout.ms": within}
        return settings

    def _connection_error(self, error: KafkaException) -> StartError:
        return StartError(
            f"Kafka at {self._brokers} cannot be used ({self._reason(error)}); expected brokers that answer within "
            f"{self._timeout:g} s; check bootstrap_servers and the security settings, and make sure "
            "the brokers are running",
            Topic.SERVICE_UNREACHABLE,
        )

    def _publish_error(self, epoch: int, reason: str) -> PublishError:
        return PublishError(
            f"{self.description} did not accept epoch {epoch} ({reason}); the epoch is committed in the state store "
            "and will be published at the next start"
        )

    def _fenced_error(self, epoch: int, reason: str) -> FencedError:
        return FencedError(
            f'{self.description} refused epoch {epoch} of "{self._table.writer}" ({reason}); another runner took over '
            "or this runner stalled, so this runner is no longer the only writer and is stopping"
        )

    def _reason(self, error: KafkaException) -> str:
        """Return an error as one line, without the values of secret settings."""
        inner = kafka_error(error)
        text = inner.str()
        if inner.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
            text = f"{text}: {self._last_error}" if self._last_error else text
        for name, value in self._config.items():
            if value and any(part in name for part in _SECRETS):
                text = text.replace(value, "***")
        return " ".join(text.split())
