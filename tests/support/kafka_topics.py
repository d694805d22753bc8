"""Topics on a real broker, each for one test, with helpers to write and read rows and a window over the rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import polars as pl
import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

import slackwater as sw

START_MS = 1_700_000_000_000
SCHEMA = "user STRING, amount BIGINT"


class Topic:
    """A topic that one test uses. Times are in seconds after the start."""

    def __init__(self, broker: Any, name: str, partitions: int = 1) -> None:
        self.broker, self.name = broker, name
        broker.create(name, partitions)

    def send_rows(
        self,
        *rows: Mapping[str, Any] | bytes | None,
        second: float = 0.0,
        partition: int = 0,
        key: str | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self._producer.list_topics(self.name, 30)  # fetches partitions that were added later
        for row in rows:
            value = json.dumps(row) if isinstance(row, Mapping) else row
            self._producer.produce(
                self.name,
                value,
                key,
                partition=partition,
                timestamp=int(START_MS + 1000 * second),
                headers=headers or [],
            )
        assert self._producer.flush(30) == 0

    @cached_property
    def _producer(self) -> Producer:
        """Return the producer of the topic. The broker needs half a second to register an idempotent producer."""
        return Producer({"bootstrap.servers": self.broker.address, "log_level": 0, "enable.idempotence": True})

    @property
    def connection(self) -> Any:
        return sw.KafkaConnection(bootstrap_servers=self.broker.address)

    def source(self, **more: Any) -> Any:
        defaults = {"name": "events", "connection": self.connection, "query": self.name, "schema": SCHEMA}
        return sw.Source(**{k: v for k, v in {**defaults, **more}.items() if v is not None})


Make = Callable[..., Topic]


@pytest.fixture
def topic_factory(kafka: Any, request: pytest.FixtureRequest) -> Make:
    numbers = iter(range(100))
    return lambda partitions=1: Topic(kafka, f"t{abs(hash(request.node.nodeid)):x}-{next(numbers)}", partitions)


def minute_window(**more: Any) -> Any:
    """Return a window that counts and sums per user and minute."""
    defaults = {
        "kind": "tumbling", "duration_ms": "1m", "group_by": ["user"], "max_groups_per_window": 1000,
        "aggregations": [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="amount", as_="total")],
    }  # fmt: skip
    return sw.Window(**{**defaults, **more})


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until `condition` holds. The limit is long enough for slow machines and only ends a hang."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def to_count_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.select("user", "n", "total").rows(), key=str)


def wait_until_transactions_end(address: str, topic: str) -> dict[TopicPartition, int]:
    """Wait until a topic has no open transaction. Return the end offset of each partition.

    The commit of a producer returns when the broker has decided the outcome. Readers of committed records see the rows
    a moment later.
    """
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    parts = [TopicPartition(topic, p) for p in admin.list_topics(topic, timeout=30).topics[topic].partitions]

    def ends(level: IsolationLevel) -> dict[TopicPartition, int]:
        latest = dict.fromkeys(parts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(latest, isolation_level=level, request_timeout=30)
        return {part: future.result(30).offset for part, future in futures.items()}

    wait_until(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED))
    return ends(IsolationLevel.READ_COMMITTED)


def read_messages(address: str, topic: str) -> Iterator[Message[Any, Any]]:
    """Yield every committed message of a topic once, after all open transactions have ended."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "look",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "log_level": 0,
    }
    remaining = wait_until_transactions_end(address, topic)
    consumer: Consumer = Consumer(settings)
    consumer.assign([TopicPartition(part.topic, part.partition, 0) for part in remaining])
    while remaining:
        message = consumer.poll(0.5)
        if message is None:
            continue
        part = TopicPartition(topic, message.partition() or 0)
        error = message.error()
        if error is None:
            yield message
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif (message.offset() or 0) >= remaining.get(part, 0):
            remaining.pop(part, None)
    consumer.close()
