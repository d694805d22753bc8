"""Add partitions to a topic while a pipeline runs, and while it is stopped. Each record is read exactly once.

epochs      --- e0 --- e1 --------- stop ------------ e2 --- e3
partitions  1      1      add: 3          add: 4          add: 6
records     A      A B    on 1 and 2      on 3           on 4 and 5
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import Make, Topic, minute_window, to_count_rows
from tests.support.spark_pipeline_runner import SparkPipelineRunner

pytestmark = pytest.mark.spark


def add_partitions(topic: Topic, total: int) -> None:
    """Raise the number of partitions to `total`, and wait until the broker reports them."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    admin = AdminClient({"bootstrap.servers": topic.broker.address, "log_level": 0})
    admin.create_partitions([NewPartitions(topic.name, total)])[topic.name].result(20)
    deadline = time.monotonic() + 60
    while len(admin.list_topics(topic.name, timeout=30).topics[topic.name].partitions) < total:
        assert time.monotonic() < deadline, f"{topic.name} has no {total} partitions after 60 s"
        time.sleep(0.05)


class RecordWriter:
    """Sends records to random partitions of a topic, and counts the records of each user."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic, self.random, self.partitions = topic, random.Random(seed), 1
        self.users: Counter[str] = Counter()

    def send_records(self) -> None:
        """Send up to 20 records. Each partition that exists gets at least one."""
        for partition in [*range(self.partitions), *self.random.choices(range(self.partitions), k=5)]:
            rows = [{"user": f"u{self.random.randrange(4)}", "amount": 1} for _ in range(self.random.randint(1, 3))]
            self.users.update(r["user"] for r in rows)
            self.topic.send_rows(*rows, second=self.random.uniform(0, 50), partition=partition)

    def add_random_partitions(self) -> None:
        """Add one to three partitions."""
        self.partitions += self.random.randint(1, 3)
        add_partitions(self.topic, self.partitions)

    def expected_counts(self) -> list[tuple[str, int, int]]:
        return sorted((user, n, n) for user, n in self.users.items())


def hour_window() -> Any:
    """Return a window of one hour for all records, with a lateness for which no record is late."""
    return minute_window(duration_ms="1h", lateness_ms="1h")


def run_while_partitions_are_added(runner: SparkPipelineRunner, source: Any, writer: RecordWriter, turns: int) -> None:
    """Run the pipeline while partitions are added `turns` times, until it has read every record."""
    stop, failures = threading.Event(), []

    def rows_in() -> int:
        return runner.statuses[-1].counters.rows_in if runner.statuses else 0

    def change() -> None:
        try:
            for _ in range(turns):
                writer.add_random_partitions()
                writer.send_records()
                deadline = time.monotonic() + 400
                while rows_in() < writer.users.total() and time.monotonic() < deadline:
                    time.sleep(0.05)
                if rows_in() != writer.users.total():
                    failures.append(f"{rows_in()} rows read, expected {writer.users.total()}")
                    return
        finally:
            stop.set()

    changing = threading.Thread(target=change)
    changing.start()
    runner.run_pipeline(source=source, window=hour_window(), available_now=False, flush=False, stop=stop)
    changing.join()
    assert not failures, failures


@pytest.mark.parametrize("seed", select_cases(range(6)))
def test_records_of_partitions_added_at_any_time_are_read_once(
    runner: SparkPipelineRunner, topic_factory: Make, seed: int
) -> None:
    draw = random.Random(seed)
    writer = RecordWriter(topic_factory(1), seed)
    latest = seed % 2 == 1
    if latest:  # records sent before the first start are not read
        writer.send_records()
        writer.users.clear()
    source = writer.topic.source(
        options={"kafka.metadata.max.age.ms": "500"}, starting_offsets="latest" if latest else None
    )
    runner.run_pipeline(source=source, window=hour_window(), flush=False)
    before = runner.statuses[-1].counters.rows_in if runner.statuses else 0
    assert before == 0
    writer.send_records()
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.5:
            writer.add_random_partitions()
            writer.send_records()
        runner.run_pipeline(source=source, window=hour_window(), flush=False)
        if draw.random() < 0.5:
            run_while_partitions_are_added(runner, source, writer, turns=draw.randint(1, 2))
    writer.add_random_partitions()
    writer.send_records()
    assert to_count_rows(runner.run_pipeline(source=source, window=hour_window())) == writer.expected_counts()
    assert runner.statuses[-1].counters.rows_late == 0


def test_starting_offset_applies_to_a_partition_that_is_added_later(
    runner: SparkPipelineRunner, topic_factory: Make
) -> None:
    """Records before a configured offset are skipped. Other partitions are read from the beginning."""
    events = topic_factory(1)
    events.send_rows({"user": "a", "amount": 1})
    table: Any = {events.name: {"1": 2}}
    source = events.source(starting_offsets=table)
    runner.run_pipeline(source=source, window=hour_window(), flush=False)
    add_partitions(events, 3)
    events.send_rows(*[{"user": "b", "amount": 1}] * 5, partition=1)
    events.send_rows(*[{"user": "c", "amount": 1}] * 4, partition=2)
    assert to_count_rows(runner.run_pipeline(source=source, window=hour_window())) == [
        ("a", 1, 1),
        ("b", 3, 3),
        ("c", 4, 4),
    ]
