"""Kafka target on a real broker: encoded messages, each epoch once although processes are killed, and one runner."""

from __future__ import annotations

import datetime as dt
import io
import json
import signal
import subprocess
import sys
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.support.kafka_topics import read_messages

import slackwater as sw
from slackwater.connectors.kafka.message_encoding import KafkaMessageEncoder, avro_schema, json_objects
from slackwater.connectors.kafka.target import EPOCHS_TOPIC, KafkaTarget, TopicCreation
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import FencedError, PublishError, StartError
from slackwater.runner import connection_checks
from slackwater.runner.component_factory import create_targets
from slackwater.testing.services import free_port

AT = dt.datetime(2024, 3, 1, 9, 0, 0, 250_001)
UTC = AT.replace(tzinfo=dt.UTC)
INF = float("inf")
WIDE: dict[str, tuple[Any, Any]] = {  # a value and its JSON form
    "boolean": (True, True),
    "tinyint": (-128, -128),
    "smallint": (300, 300),
    "int": (-(2**31), -(2**31)),
    "bigint": (2**63 - 1, 2**63 - 1),
    "float": (0.5, 0.5),
    "double": (1e300, 1e300),
    "string": ('é "\n\\', 'é "\n\\'),
    "binary": (b"\x00\xff", "AP8="),
    "date": (dt.date(2024, 2, 29), "2024-02-29"),
    "timestamp": (UTC, "2024-03-01T09:00:00.250001Z"),
    "timestamp_ntz": (AT, "2024-03-01T09:00:00.250001"),
    "decimal(10,2)": (Decimal("-1.50"), "-1.50"),
}
FIELDS = tuple(Field(t.split("(")[0], t) for t in WIDE)
NARROW = (Field("key", "string"), Field("n", "bigint"))


def all_type_rows() -> pl.DataFrame:
    rows = [tuple(v for v, _ in WIDE.values()), (None,) * len(WIDE)]
    return pl.DataFrame(rows, schema={f.name: f.polars for f in FIELDS}, orient="row")


def number_rows(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"key": [f"k{n}" for n in numbers], "n": numbers}, schema={f.name: f.polars for f in NARROW})


@pytest.fixture
def topic(kafka: Any) -> str:
    """Create a topic and return its name, which is also the name of its writer."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kafka.create(name)
    return name


def kafka_target(kafka: Any, topic: str, delivery: str = "exactly_once", **more: Any) -> KafkaTarget:
    table = TargetTable(topic, NARROW, ("key",))
    return KafkaTarget({"bootstrap.servers": kafka.address}, topic, table, "json", delivery, **({"timeout": 10} | more))


def open_target(kafka: Any, topic: str, delivery: str = "exactly_once", **more: Any) -> KafkaTarget:
    target = kafka_target(kafka, topic, delivery, **more)
    target.open()
    return target


def read_numbers(kafka: Any, topic: str) -> list[int]:
    return [json.loads(m.value())["n"] for m in read_messages(kafka.address, topic)]


def run_killed_publisher(kafka: Any, topic: str, epoch: int, when: str) -> None:
    """Run a process that publishes rows 1 and 2 and is killed before or after the commit."""
    script = f"""
import os, signal
import slackwater.connectors.kafka.target as module
from slackwater.core.schema import Field
from slackwater.connectors.target import TargetTable
import polars as pl

class Dying(module.Producer):
    def commit_transaction(self, timeout):
        self.flush(10) if {when!r} == "before" else super().commit_transaction(timeout)
        os.kill(os.getpid(), signal.SIGKILL)

module.Producer = Dying
table = TargetTable({topic!r}, (Field("key", "string"), Field("n", "bigint")), ("key",))
target = module.KafkaTarget({{"bootstrap.servers": {kafka.address!r}}}, {topic!r}, table, "json", "exactly_once")
target.open()
target.publish({epoch}, pl.DataFrame({{"key": ["k1", "k2"], "n": [1, 2]}}))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def test_every_type_is_encoded_as_json() -> None:
    full, empty = json_objects(all_type_rows())
    assert json.loads(full) == {f.name: expected for f, (_, expected) in zip(FIELDS, WIDE.values(), strict=True)}
    assert json.loads(empty) == dict.fromkeys(f.name for f in FIELDS)


def test_json_encodes_special_floats_quoted_names_and_empty_frames() -> None:
    frame = pl.DataFrame({'a "b"}': [float("nan"), INF, -INF, 0.1, None]})
    expected = [b'{"a \\"b\\"}":' + v + b"}" for v in (b'"NaN"', b'"Infinity"', b'"-Infinity"', b"0.1", b"null")]
    assert json_objects(frame) == expected
    assert json_objects(frame.clear()) == []


@pytest.mark.parametrize("schema_id", [None, 258])
def test_every_type_is_encoded_as_avro(schema_id: int | None) -> None:
    table = TargetTable("p", FIELDS, ("int", "string"))
    (key, full, _), (_, empty, _) = KafkaMessageEncoder(table, "avro", schema_id=schema_id).messages(all_type_rows())
    assert json.loads(key or b"") == {"int": -(2**31), "string": WIDE["string"][1]}
    frame = b"" if schema_id is None else b"\0\0\0\1\2"
    assert full.startswith(frame)
    read = [fastavro.schemaless_reader(io.BytesIO(v[len(frame) :]), avro_schema(table), None) for v in (full, empty)]
    assert read == all_type_rows().to_dicts()


def test_avro_refuses_invalid_column_names() -> None:
    with pytest.raises(StartError, match=r"Avro does not allow the column name .a b.; .* rename the column"):
        KafkaMessageEncoder(TargetTable("p", (Field("a b", "int"),), None), "avro")


def test_message_key_is_built_from_identity_or_key_columns() -> None:
    table = TargetTable("p", NARROW, ("key",))
    assert [k for k, *_ in KafkaMessageEncoder(table).messages(number_rows(1))] == [b'{"key":"k1"}']
    assert [k for k, *_ in KafkaMessageEncoder(table, key_columns=["n", "key"]).messages(number_rows(1))] == [
        b'{"n":1,"key":"k1"}'
    ]
    assert [k for k, *_ in KafkaMessageEncoder(TargetTable("p", NARROW, None)).messages(number_rows(1))] == [None]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_an_epoch_is_published_once_and_an_older_one_ignored(kafka: Any, topic: str, delivery: str) -> None:
    target = open_target(kafka, topic, delivery)
    target.publish(3, number_rows(1, 2))
    target.publish(3, number_rows(1, 2))
    target.publish(2, number_rows(7))
    target.publish(4, number_rows(3))
    target.publish(5, number_rows())
    target.close()
    assert target.guarantee == delivery.replace("_", " ")
    first, *_ = records = list(read_messages(kafka.address, topic))
    assert [json.loads(m.value())["n"] for m in records] == [1, 2, 3]
    assert (first.key(), first.value()) == (b'{"key":"k1"}', b'{"key":"k1","n":1}')
    assert first.headers() == [("slackwater-pipeline", topic.encode()), ("slackwater-epoch", b"3")]
    again = open_target(kafka, topic, delivery)
    assert again.last_epoch() == (5 if delivery == "exactly_once" else -1)
    again.close()


def test_epoch_is_published_again_after_a_kill_before_the_commit(kafka: Any, topic: str) -> None:
    run_killed_publisher(kafka, topic, 0, "before")
    target = open_target(kafka, topic)
    assert target.last_epoch() == -1
    target.publish(0, number_rows(1, 2))
    target.close()
    assert read_numbers(kafka, topic) == [1, 2]


def test_epoch_is_not_published_again_after_a_kill_after_the_commit(kafka: Any, topic: str) -> None:
    run_killed_publisher(kafka, topic, 0, "after")
    target = open_target(kafka, topic)
    assert target.last_epoch() == 0
    target.publish(0, number_rows(1, 2))
    target.close()
    assert read_numbers(kafka, topic) == [1, 2]


def test_a_second_runner_fences_the_first(kafka: Any, topic: str) -> None:
    first = open_target(kafka, topic)
    first.publish(0, number_rows(1))
    second = open_target(kafka, topic)
    for epoch in (1, 2):
        with pytest.raises(FencedError, match=r"refused epoch \d of .* this runner is no longer the only writer"):
            first.publish(epoch, number_rows(8))
    second.publish(1, number_rows(2))
    first.close()
    second.close()
    assert read_numbers(kafka, topic) == [1, 2]


def test_runner_is_fenced_while_publishing_many_rows(kafka: Any, topic: str) -> None:
    first = open_target(kafka, topic)
    second = open_target(kafka, topic)
    with pytest.raises(FencedError):
        first.publish(0, number_rows(*range(250_000)))
    second.publish(0, number_rows(2))
    second.close()
    assert read_numbers(kafka, topic) == [2]


def test_last_epoch_is_read_after_an_open_transaction_of_another_writer(kafka: Any, topic: str) -> None:
    target = open_target(kafka, topic)
    settings = {"bootstrap.servers": kafka.address, "transactional.id": f"other-{topic}", "log_level": 0}
    other = Producer(settings)
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(EPOCHS_TOPIC, b"0", b"other", partition=0)
    other.flush(10)
    target.publish(0, number_rows(1))
    target.close()
    aborted = threading.Event()

    def abort() -> None:
        aborted.set()
        other.abort_transaction(10)

    soon = threading.Timer(1.5, abort)
    soon.start()
    assert open_target(kafka, topic).last_epoch() == 0
    assert aborted.is_set(), "it waited for the open transaction to end"
    soon.join()


def test_unknown_commit_outcome_is_resolved_by_reopening(kafka: Any, topic: str, monkeypatch: Any) -> None:
    class Unsure(Producer):
        def commit_transaction(self, timeout: float = 1) -> None:
            super().commit_transaction(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    with monkeypatch.context() as patch:
        patch.setattr("slackwater.connectors.kafka.target.Producer", Unsure)
        target = open_target(kafka, topic)
        with pytest.raises(
            PublishError,
            match=r"epoch 0 \(no answer\); the epoch is committed in the state store and will be published at the next start",
        ):
            target.publish(0, number_rows(1))
    with pytest.raises(PublishError, match="not open"):
        target.publish(0, number_rows(1))
    target.open()
    target.publish(0, number_rows(1))
    target.publish(1, number_rows(2))
    target.close()
    assert read_numbers(kafka, topic) == [1, 2]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_too_large_row_publishes_nothing_of_the_epoch(kafka: Any, topic: str, delivery: str) -> None:
    rows = number_rows(1).with_columns(key=pl.lit("x" * 2_000_000))
    target = open_target(kafka, topic, delivery)
    with pytest.raises(PublishError, match=r"did not accept epoch 0 \(.*large.*\)"):
        target.publish(0, pl.concat([number_rows(0), rows]) if delivery == "exactly_once" else rows)
    target.open()
    target.publish(0, number_rows(1))
    target.close()
    assert read_numbers(kafka, topic) == [1]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_unreachable_brokers_are_reported_without_secrets(delivery: str, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    config = {"bootstrap.servers": f"127.0.0.1:{port}", "sasl.password": "hush"}
    with pytest.raises(StartError) as caught:  # an endless wait would exceed the time limit of the test
        KafkaTarget(config, "t", TargetTable("p", NARROW, None), "json", delivery, timeout=2).open()
    assert f"Kafka at 127.0.0.1:{port} cannot be used" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert "\n" not in str(caught.value) and "hush" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_epoch_is_published_after_a_lost_broker_returns(
    kafka: Any, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = open_target(kafka, topic, "at_least_once", timeout=2)
    kafka.kill()
    try:
        with pytest.raises(PublishError, match=r"did not accept epoch 0 .* and will be published at the next start"):
            target.publish(0, number_rows(1))
    finally:
        kafka.start()
    assert capfd.readouterr().err == ""
    target.open()
    target.publish(0, number_rows(1))
    assert read_numbers(kafka, topic) == [1]


def test_missing_topic_is_reported_or_created_on_request(kafka: Any) -> None:
    name = f"absent-{uuid.uuid4().hex[:8]}"
    with pytest.raises(
        StartError, match=rf'topic "{name}" does not exist on .*--create --topic {name} .*remove create'
    ):
        open_target(kafka, name, creation=None)
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    assert name not in admin.list_topics(timeout=10).topics
    open_target(kafka, name, "at_least_once", creation=TopicCreation(partitions=3, compact=True)).close()
    assert len(admin.list_topics(timeout=10).topics[name].partitions) == 3


def test_invalid_setting_is_reported_without_secrets(kafka: Any) -> None:
    config = {"bootstrap.servers": kafka.address, "sasl.password": "hush", "socket.timeout.ms": "hush"}
    with pytest.raises(StartError) as caught:
        KafkaTarget(config, "t", TargetTable("p", NARROW, None)).open()
    assert "socket.timeout.ms" in str(caught.value) and "hush" not in str(caught.value)


def test_check_reports_topics_that_a_start_will_create(kafka: Any, tmp_path: Path) -> None:
    """Check topics of results and dead letters without Spark. With `create = false`, a missing topic is refused."""
    name = f"made-{uuid.uuid4().hex[:8]}"
    content = f"""name = "c"
[connections.lake]
kind = "files"
[connections.bus]
kind = "kafka"
bootstrap_servers = "{kafka.address}"
[[sources]]
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform]
on_error = "dlq"
[transform.window]
kind = "tumbling"
duration = "5m"
event_time_column = "ts"
late_data = "reopen"
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "bus"
topic = "{name}"
partitions = 3
[dead_letter]
connection = "bus"
topic = "{name}-letters"
"""
    pipeline = sw.loads(content)
    assert [line.partition("; ")[2] for line in connection_checks.find_connection_notes(pipeline)] == [
        "a start will create it, with 3 partitions",
        "a start will create it, with the default number of partitions of the broker",
    ]
    create_targets(pipeline)
    create_targets(pipeline)  # a start after the first one
    assert connection_checks.find_connection_notes(pipeline) == []
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    assert len(admin.list_topics(timeout=10).topics[name].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, name)
    assert admin.describe_configs([resource])[resource].result(10)["cleanup.policy"].value == "compact"
    refused = sw.loads(content.replace("partitions = 3", "create = false").replace(name, f"no-{name}"))
    with pytest.raises(StartError, match=r"does not exist on .*create = false"):
        create_targets(refused)
    assert any(
        "create = false; create the topic, or remove create = false" in str(error)
        for error in connection_checks.find_connection_problems(refused)
    )
