"""Workers read the same records from Kafka as Spark's own reader, with the same values in every column.

a range of offsets ──▶ Spark's Kafka reader ───────────▶ rows ─┐
           ╰─────────▶ librdkafka in Python workers ───────────┴─▶ equal
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.case_selection import exhaustive
from tests.support.kafka_topics import START_MS, Make, Topic, minute_window, to_count_rows, wait_until_transactions_end
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.payloads import json_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.payloads.json_payload import JsonPayload
from slackwater.tuning_switches import VARIABLE

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def force_worker_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers read batches of any size."""
    monkeypatch.setattr(json_payload, "MANY_RECORDS", 1)
    monkeypatch.delenv(VARIABLE, raising=False)


def draw_record_value(rng: random.Random) -> bytes | None:
    bad = (b"{broken", b"\xff\xfe", None, b'{"user": "a", "amount": "many"}', b"7", b'{"user": "\xc3\xbc"}', b"")
    return rng.choice(bad) if rng.random() < 0.3 else json.dumps({"user": f"u{rng.randrange(9)}", "amount": 7}).encode()


def write_records(rng: random.Random, topics: list[Topic], partitions: int) -> None:
    """Write plain, bad and empty records with keys and headers, in transactions that are committed or aborted."""
    headers = (None, [], [("h", b"x")], [("h", None), ("h", b""), ("ü", b"\x00\xff")])
    producer = Producer(
        {"bootstrap.servers": topics[0].broker.address, "log_level": 0, "transactional.id": topics[0].name}
    )
    producer.init_transactions(30)
    for _ in range(8):
        producer.begin_transaction()
        for _ in range(rng.randint(1, 40)):
            producer.produce(
                rng.choice(topics).name,
                draw_record_value(rng),
                rng.choice([None, b"", b"k", b"\x00"]),
                partition=rng.randrange(partitions),
                timestamp=START_MS + rng.randrange(10**6),
                headers=rng.choice(headers),
            )
        if rng.random() < 0.4:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    for topic in topics:
        wait_until_transactions_end(topic.broker.address, topic.name)


def read_frame(spark: Any, source: KafkaSource, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Any:
    return source._read(spark, ranges)[0]


def read_sorted_records(
    spark: Any, source: KafkaSource, ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> list[str]:
    return sorted(repr(row) for row in read_frame(spark, source, ranges).collect())


@pytest.mark.parametrize("with_headers", [True, False])
def test_workers_read_the_same_records_as_spark(
    spark: Any, topic_factory: Make, monkeypatch: pytest.MonkeyPatch, with_headers: bool
) -> None:
    rng = random.Random(with_headers)
    topics, partitions = [topic_factory(3), topic_factory(3)], 3
    write_records(rng, topics, partitions)
    spec = topics[0].source(query=",".join(t.name for t in topics))
    broker = KafkaBroker(topics[0].connection)
    payload = JsonPayload.from_records(RawRecords(spark, spec))
    source = KafkaSource(spec, broker, payload, "g", with_headers)
    bounds = broker.offset_ranges([(t.name, p) for t in topics for p in range(partitions)])
    assert sum(end for _, end in bounds.values()) > 60
    for size in (1, 2, 6, 6, 6, 6):
        ranges = {}
        for place in rng.sample(sorted(bounds), size):
            since = rng.randint(0, bounds[place][1] - 1)
            ranges[place] = (since, rng.randint(since + 1, bounds[place][1]))
        ranges = bounds if size == 6 and rng.random() < 0.5 else ranges
        monkeypatch.setenv(VARIABLE, "kafka_workers,json_workers")
        expected = read_sorted_records(spark, source, ranges)
        for disabled in ("query_reuse", ""):
            monkeypatch.setenv(VARIABLE, disabled)
            plan = read_frame(spark, source, ranges)._jdf.queryExecution().analyzed().toString()
            assert "kafka" not in plan.lower(), "Spark's reader is not used"
            assert ("_decoded" in plan) == bool(disabled), "workers decode large epochs only"
            assert read_sorted_records(spark, source, ranges) == expected


def test_source_with_spark_reader_options_is_read_by_spark(spark: Any, topic_factory: Make) -> None:
    events = topic_factory()
    events.send_rows({"user": "a", "amount": 1})
    payload = JsonPayload.from_records(RawRecords(spark, events.source()))
    source = KafkaSource(events.source(), KafkaBroker(events.connection), payload, "g")
    ranges = {(events.name, 0): (0, 1)}

    def uses_workers(source: KafkaSource) -> bool:
        return "MapInArrow" in read_frame(spark, source, ranges)._jdf.queryExecution().analyzed().toString()

    assert uses_workers(source)
    with_options = replace(source, spec=events.source(options={"kafkaConsumer.pollTimeoutMs": "60000"}))
    assert "kafka" in read_frame(spark, with_options, ranges)._jdf.queryExecution().analyzed().toString().lower()


def test_run_with_the_worker_reader_gives_correct_windows(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    events = topic_factory(2)
    events.send_rows({"user": "a", "amount": 1}, {"user": "a", "amount": 2}, second=1)
    events.send_rows({"user": "b", "amount": 4}, second=2, partition=1)
    assert to_count_rows(runner.run_pipeline(source=events.source(), window=minute_window())) == [
        ("a", 2, 3),
        ("b", 1, 4),
    ]


@exhaustive(beside="test_kafka_worker_reader.py::test_workers_read_the_same_records_as_spark")
def test_headers_are_read_if_the_sql_uses_the_headers_column(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    """Column names are not case-sensitive, and `struct(*)` contains all columns."""
    events = topic_factory()
    events.send_rows({"user": "a", "amount": 1}, second=1, headers=[("h", b"x")])
    for name, expression in (
        ("named", "_Headers[0].key"),
        ("in-a-struct", "get_json_object(to_json(struct(*)), '$._headers[0].key')"),
    ):
        runner.run_pipeline(
            source=events.source(),
            transform_sql=f"SELECT {expression} AS user, amount, _event_ts FROM source",
            window=minute_window(),
            name=name,
            target_path=str(runner.home / name),
        )
        assert to_count_rows(runner.read_output(name)) == [("h", 1, 1)]


def test_run_fails_when_records_expire_during_the_read(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = topic_factory()
    events.send_rows(*[{"user": "a", "amount": 1}] * 3, second=1)
    monkeypatch.setattr(KafkaSource, "_ranges", lambda self, start, end: ({(events.name, 0): (100, 103)}, 0))
    with pytest.raises(sw.SlackwaterError, match=rf"committed: {events.name}-0: records no longer exist") as raised:
        runner.run_pipeline(source=events.source(), window=minute_window())
    assert "\n" not in str(raised.value)
