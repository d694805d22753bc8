"""Topics of a test's own on a real broker: to write to, to read from, and a window over their rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import slackwater as sw

START_MS = 1_700_000_000_000
SCHEMA = "user STRING, amount BIGINT"


class Topic:
    """A topic of a test's own. Times are seconds after the start."""

    def __init__(self, broker: Any, name: str, partitions: int = 1) -> None:
        self.broker, self.name = broker, name
        broker.create(name, partitions)

    def send(
        self,
        *rows: Mapping[str, Any] | bytes | None,
        at: float = 0.0,
        partition: int = 0,
        key: str | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self._producer.list_topics(self.name, 30)  # so it knows of partitions that came later
        for row in rows:
            value = json.dumps(row) if isinstance(row, Mapping) else row
            self._producer.produce(
                self.name, value, key, partition=partition, timestamp=int(START_MS + 1000 * at), headers=headers or []
            )
        assert self._producer.flush(30) == 0

    @cached_property
    def _producer(self) -> Producer:
        """One per topic: the broker takes half a second to know an idempotent one."""
        return Producer({"bootstrap.servers": self.broker.address, "enable.idempotence": True})

    @property
    def connection(self) -> Any:
        return sw.KafkaConnection(bootstrap_servers=self.broker.address)

    def source(self, **more: Any) -> Any:
        given = {"name": "events", "connection": self.connection, "query": self.name, "schema": SCHEMA}
        return sw.Source(**{k: v for k, v in {**given, **more}.items() if v is not None})


Make = Callable[..., Topic]


@pytest.fixture
def topic(kafka: Any, request: pytest.FixtureRequest) -> Make:
    made = iter(range(100))
    return lambda partitions=1: Topic(kafka, f"t{abs(hash(request.node.nodeid)):x}-{next(made)}", partitions)


def minutes(**more: Any) -> Any:
    """Counts and sums per user and minute."""
    given = {
        "kind": "tumbling", "duration_ms": "1m", "group_by": ["user"], "max_groups_per_window": 1000,
        "aggregations": [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="amount", as_="total")],
    }  # fmt: skip
    return sw.Window(**{**given, **more})


def waited_for(what: Callable[[], Any]) -> None:
    """Return once `what` holds; machines differ in speed, so only a hang is too long."""
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def counted(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.select("user", "n", "total").rows(), key=str)


def messages(kafka: Any, topic: str) -> list[Any]:
    """All messages a read_committed consumer sees."""
    settings = {
        "bootstrap.servers": kafka.address,
        "group.id": "test",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "log_level": 0,
    }
    consumer: Consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, end = [], time.monotonic() + 200
    while time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message)
        elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return found
