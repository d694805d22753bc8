"""Kafka on Spark with a real broker: payloads, seeking, added and removed partitions, lost offsets, dead letters."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.avro_records import encode_avro_record
from tests.support.case_selection import exhaustive, select_cases
from tests.support.fake_schema_registry import build_subject_response, serve_registry_responses
from tests.support.kafka_topics import (
    START_MS,
    Make,
    Topic,
    minute_window,
    read_messages,
    to_count_rows,
    wait_until,
    wait_until_transactions_end,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.kafka import broker as kafka_broker
from slackwater.spark.tuning import source_statistics
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark


def read_newest_position(runner: SparkPipelineRunner, pipeline: str) -> str | None:
    """Return the position of the newest row of the source, as stored in the state."""
    with FilesStore(runner.home / "state", pipeline).peek() as snapshot:
        assert snapshot is not None
        (clock,) = snapshot.commit.clocks.values()
        return clock.newest_at


def test_json_schema_is_inferred_and_record_metadata_is_available_in_sql(
    runner: SparkPipelineRunner, topic_factory: Make
) -> None:
    events = topic_factory(2)
    events.send_rows({"user": "a", "amount": 1}, second=1, key="k", headers=[("h", b"x")])
    events.send_rows({"user": "b", "amount": 2}, second=2, partition=1)
    sql = (
        "SELECT concat_ws('|', user, CAST(_key AS STRING), _headers[0].key, CAST(_headers[0].value AS STRING), _topic,"
        " _partition, _offset, CAST(unix_millis(_event_ts) AS STRING)) AS user, amount, _event_ts FROM source"
    )
    frame = runner.run_pipeline(source=events.source(schema=None), transform_sql=sql, window=minute_window())
    name = events.name
    assert to_count_rows(frame) == [
        (f"a|k|h|x|{name}|0|0|{START_MS + 1000}", 1, 1),
        (f"b|{name}|1|0|{START_MS + 2000}", 1, 2),
    ]
    assert read_newest_position(runner, "test") == f"{name}-1 at offset 0"


def test_each_of_many_partitions_holds_back_the_watermark(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute the newest times of all partitions in a separate job. The results do not change."""
    monkeypatch.setattr(source_statistics, "MIN_PARTITIONS", 3)
    monkeypatch.setattr(source_statistics, "MIN_COMPARISONS", 1)
    events = topic_factory(3)
    events.send_rows({"user": "a", "amount": 1}, second=1)
    events.send_rows({"user": "b", "amount": 2}, {"user": "b", "amount": 4}, second=600, partition=1)
    events.send_rows({"user": "c", "amount": 8}, second=601, partition=2)
    # the first partition holds back the watermark
    assert runner.run_pipeline(source=events.source(), window=minute_window(), flush=False).is_empty()
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        (clock,) = snapshot.commit.clocks.values()
    seconds = {name: ((p.max_event_us or 0) // 1000 - START_MS) // 1000 for name, p in clock.partitions.items()}
    assert seconds == {f"{events.name}-0": 1, f"{events.name}-1": 600, f"{events.name}-2": 601}
    events.send_rows({"user": "d", "amount": 16}, second=602)
    assert to_count_rows(runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)) == [
        ("a", 1, 1)
    ]


def test_raw_payloads_are_decoded_in_sql(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    events = topic_factory()
    events.send_rows(b"a;3", b"b;4", second=1)
    sql = "SELECT split_part(CAST(value AS STRING), ';', 1) AS user, CAST(split_part(CAST(value AS STRING), ';', 2) AS BIGINT) AS amount, _event_ts FROM source"
    frame = runner.run_pipeline(
        source=events.source(schema=None, payload_format="raw"), transform_sql=sql, window=minute_window()
    )
    assert to_count_rows(frame) == [("a", 1, 3), ("b", 1, 4)]


@pytest.mark.matrix
def test_source_reads_topics_by_list_or_pattern(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    first, second = topic_factory(), topic_factory()
    first.send_rows({"user": "a", "amount": 1}, second=1)
    second.send_rows({"user": "a", "amount": 2}, second=2)
    listed = first.source(query=f"{first.name}, {second.name}")
    runner.run_pipeline(source=listed, window=minute_window(), name="listed", target_path=str(runner.home / "x"))
    assert to_count_rows(pl.read_parquet(runner.home / "x" / "*.parquet")) == [("a", 2, 3)]
    assert read_newest_position(runner, "listed") == f"{second.name}-0 at offset 0"
    pattern = first.source(query=f"pattern:{first.name.rsplit('-', 1)[0]}-.*")
    assert to_count_rows(runner.run_pipeline(source=pattern, window=minute_window(), name="pattern")) == [("a", 2, 3)]


@pytest.mark.matrix
def test_run_continues_from_offsets_in_the_state_without_a_checkpoint(
    runner: SparkPipelineRunner, topic_factory: Make
) -> None:
    events = topic_factory(2)
    events.send_rows(*[{"user": "a", "amount": 1}] * 5, second=1)
    events.send_rows(*[{"user": "b", "amount": 1}] * 3, second=2, partition=1)
    runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)
    shutil.rmtree(runner.home / "state" / "test" / "checkpoint")
    events.send_rows(*[{"user": "a", "amount": 1}] * 4, second=3)
    frame = runner.run_pipeline(source=events.source(), window=minute_window())
    assert to_count_rows(frame) == [("a", 9, 9), ("b", 3, 3)]
    assert runner.statuses[-1].counters.rows_in == 12


@exhaustive(beside="test_file_source_planner.py::test_state_continues_when_the_planner_changes")
def test_slackwater_and_spark_planners_alternate_on_one_topic(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    """Plan with Slackwater, with Spark and with Slackwater again. A limit splits each turn into several epochs."""
    events = topic_factory(2)
    for turn, options in enumerate([{}, {"minOffsetsPerTrigger": "1"}, {}]):
        events.send_rows(*[{"user": "a", "amount": 1}] * 5, second=turn)
        events.send_rows(*[{"user": "b", "amount": 1}] * 2, second=turn, partition=1)
        source = events.source(options=options, max_offsets_per_trigger=4)
        frame = runner.run_pipeline(source=source, window=minute_window(), flush=turn == 2)
        checkpoints = list((runner.home / "state" / "test" / "checkpoint").iterdir())
        assert len(checkpoints) == bool(options), "each cleans up after the other"
    assert to_count_rows(frame) == [("a", 15, 15), ("b", 6, 6)]
    rows = [s.rows for s in runner.statuses if s.rows]
    assert sum(rows) == 21
    assert max(rows) <= 4 + 1, "a partition gets on by one record at least"
    assert runner.statuses[-1].counters.rows_in == 21


def test_records_of_an_open_transaction_are_read_after_the_commit(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any
) -> None:
    """Uncommitted records are not planned. A start at "latest" behind such records does not lose the position."""
    from confluent_kafka import Producer

    events = topic_factory()
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0, "transactional.id": events.name})
    producer.init_transactions(30)

    def put(count: int) -> None:
        for _ in range(count):
            producer.produce(events.name, json.dumps({"user": "a", "amount": 1}), timestamp=START_MS)
        producer.flush(30)

    producer.begin_transaction()
    put(2)
    producer.commit_transaction(30)
    wait_until_transactions_end(kafka.address, events.name)
    producer.begin_transaction()
    put(3)
    source, latest = events.source(), {"name": "latest", "target_path": str(runner.home / "latest")}
    runner.run_pipeline(source=source, window=minute_window(), flush=False)
    assert runner.statuses[-1].counters.rows_in == 2
    late = events.source(starting_offsets="latest")
    runner.run_pipeline(source=late, window=minute_window(), flush=False, **latest)
    producer.commit_transaction(30)
    wait_until_transactions_end(kafka.address, events.name)
    producer.begin_transaction()
    put(1)
    producer.commit_transaction(30)
    wait_until_transactions_end(kafka.address, events.name)
    assert to_count_rows(runner.run_pipeline(source=source, window=minute_window())) == [("a", 6, 6)]
    runner.run_pipeline(source=late, window=minute_window(), **latest)
    assert to_count_rows(runner.read_output("latest")) == [("a", 1, 1)]


@exhaustive(beside="test_config_change.py::test_rebuild_reprocesses_all_input")
def test_rebuild_starts_at_the_given_offsets(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    events, other = topic_factory(2), topic_factory()
    events.send_rows(*[{"user": "a", "amount": n} for n in (1, 2, 4, 8)], second=1)
    events.send_rows({"user": "b", "amount": 16}, second=2, partition=1)
    other.send_rows(*[{"user": "c", "amount": 32}] * 2, second=3)
    sources: Any = [events.source(), other.source(name="others")]
    runner.run_pipeline(sources=sources, window=minute_window(), flush=False)
    before = runner.statuses[-1].counters.rows_in
    assert before == 7
    hours: Any = {"sources": sources, "window": minute_window(duration_ms="1h")}
    begins = {"events": {events.name: {"0": 2}}, "others": "latest"}
    with pytest.raises(sw.SlackwaterError, match="run FILE --rebuild"):
        runner.run_pipeline(**hours)
    bad: Any = minute_window(duration_ms="1h", aggregations=[sw.Aggregation(agg="sum", column="amuont", as_="total")])
    with pytest.raises(sw.SlackwaterError, match="amuont"):  # refused before the previous state is moved
        runner.run_pipeline(sources=sources, window=bad, rebuild=begins)
    target = str(runner.home / "again")
    runner.run_pipeline(**hours, rebuild=begins, flush=False, target_path=target)
    other.send_rows({"user": "c", "amount": 64}, second=4)
    runner.run_pipeline(**hours, target_path=target)
    assert to_count_rows(runner.read_output("again")) == [("a", 2, 12), ("b", 1, 16), ("c", 1, 64)]
    assert runner.statuses[-1].counters.rows_in == 4


def delete_records_before(kafka: Any, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(20)


@pytest.mark.semantics("restarts")
def test_lost_offsets_stop_the_pipeline_or_are_counted(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any
) -> None:
    """Offsets that the broker no longer has stop the pipeline, or are counted as lost."""
    events = topic_factory(1)
    events.send_rows(*[{"user": "a", "amount": 1}] * 3, second=1)
    runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)
    events.send_rows(*[{"user": "a", "amount": 1}] * 4, second=2)
    delete_records_before(kafka, events.name, 5)
    with pytest.raises(sw.SlackwaterError, match=rf"{events.name}-0 offsets 3 to 4 are gone; this epoch was not"):
        runner.run_pipeline(source=events.source(), window=minute_window())
    frame = runner.run_pipeline(source=events.source(on_data_loss="skip"), window=minute_window())
    assert to_count_rows(frame) == [("a", 5, 5)]
    assert runner.statuses[-1].counters.rows_lost == 2


BAD = (b"{broken", b"\xff\xfe", None, b'{"user": "a", "amount": "many"}', b"7")


@exhaustive(beside="test_kafka.py::test_dead_letters_keep_the_original_bytes")
def test_undecodable_records_are_reported_with_topic_and_offset(
    runner: SparkPipelineRunner, topic_factory: Make
) -> None:
    events = topic_factory(1)
    events.send_rows({"user": "a", "amount": 1}, second=1)
    events.send_rows(*BAD, second=2)
    with pytest.raises(sw.SlackwaterError, match=rf"5 bad rows .*undecodable: .* in {events.name}-0 at offset 1"):
        runner.run_pipeline(source=events.source(), window=minute_window())
    frame = runner.run_pipeline(source=events.source(), window=minute_window(), on_error="drop")
    assert to_count_rows(frame) == [("a", 1, 1)]
    assert runner.statuses[-1].counters.rows_bad == 5


@pytest.mark.parametrize("place", select_cases(["kafka", "files", "postgres"]))
def test_dead_letters_keep_the_original_bytes(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, postgres: Any, place: str
) -> None:
    events, letters = topic_factory(1), topic_factory(1)
    events.send_rows({"user": "a", "amount": 1}, second=1)
    events.send_rows(*BAD, second=2, key="k\0", headers=[("h", b"\x01")])
    events.send_rows({"user": "a", "amount": 1}, second=40 * 365 * 86400)  # far in the future: another reason
    target = {
        "files": lambda: sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        "kafka": lambda: sw.Target(connection=letters.connection, topic=letters.name),
        "postgres": lambda: sw.Target(
            connection=sw.PostgresConnection(url=postgres.url), table=f"letters{time.time_ns()}"
        ),
    }[place]()
    frame = runner.run_pipeline(source=events.source(), window=minute_window(), on_error="dlq", dead_letter=target)
    assert to_count_rows(frame) == [("a", 1, 1)]
    if place == "kafka":
        records = list(read_messages(kafka.address, letters.name))
        assert [m.value() for m in records[:5]] == list(BAD)
        assert {m.key() for m in records[:5]} == {b"k\0"}
        headers = [dict(m.headers()) for m in records]
        assert headers[0]["h"] == b"\x01"
        assert [h["slackwater-reason"] for h in headers] == [b"undecodable"] * 5 + [b"future"]
        assert [h["slackwater-offset"] for h in headers] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert headers[0]["slackwater-pipeline"] == b"test-letters"
        return
    if place == "files":
        stored = pl.read_parquet(runner.home / "letters" / "*.parquet")
    else:
        import psycopg

        with psycopg.connect(postgres.url) as db:
            cursor = db.execute(f"SELECT * FROM {target.table}")
            names = [c.name for c in cursor.description or ()]
            stored = pl.DataFrame([dict(zip(names, r, strict=True)) for r in cursor], infer_schema_length=None)
    stored = stored.sort("offset")
    assert stored["value"].to_list()[:5] == list(BAD)
    assert set(stored["key"].to_list()[:5]) == {b"k\0"}
    assert stored["reason"].to_list() == ["undecodable"] * 5 + ["future"]
    assert json.loads(stored["headers"][0]) == [{"key": "h", "value": base64.b64encode(b"\x01").decode()}]
    assert stored["pipeline"].to_list() == ["test"] * 6
    assert stored["topic"].to_list() == [events.name] * 6


@exhaustive(beside="test_kafka.py::test_each_of_many_partitions_holds_back_the_watermark")
def test_partition_read_ahead_of_another_makes_no_row_late(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    """
    partition 0   ●──●──●──────────────────●      read first, whole
    partition 1   ●●●●●●●●●●●●●●●●●●●●●●●●●●●     a little in every epoch
    """
    events = topic_factory(2)
    for second in range(0, 600, 10):
        events.send_rows({"user": "a", "amount": 1}, second=second, partition=1)
    events.send_rows(*[{"user": "b", "amount": 1}] * 2, second=0)
    events.send_rows({"user": "b", "amount": 1}, second=590)
    frame = runner.run_pipeline(source=events.source(max_offsets_per_trigger=9), window=minute_window())
    assert len(runner.statuses) > 5
    assert runner.statuses[-1].counters.rows_late == 0
    assert frame["n"].sum() == 63


@exhaustive(beside="test_late_row_dead_letters.py::test_late_row_of_an_idle_partition_has_the_cause_idle")
def test_late_rows_of_an_idle_partition_are_counted_with_cause_idle(
    runner: SparkPipelineRunner, topic_factory: Make
) -> None:
    """The second partition is silent until the watermark passes it. Its old rows are late with the cause idle.

    The first partition receives rows all the time. If both partitions were silent, the watermark would not move.
    """
    events, stop = topic_factory(2), threading.Event()

    def drive() -> None:
        def goes_on() -> Any:
            events.send_rows({"user": "a", "amount": 1}, second=500)
            time.sleep(0.5)
            return runner.statuses and runner.statuses[-1].watermark_us

        try:
            wait_until(goes_on)
            events.send_rows({"user": "b", "amount": 1}, second=2, partition=1)
            wait_until(lambda: sum(runner.statuses[-1].counters.late.values()))
        finally:
            stop.set()

    driving = threading.Thread(target=drive)
    driving.start()
    window = minute_window(source_idleness_ms="1s")
    runner.run_pipeline(
        source=events.source(), window=window, available_now=False, flush=False, stop=stop, idle_pause_ms=100
    )
    driving.join()
    assert runner.statuses[-1].counters.late == {"idle": 1}


def test_offsets_are_committed_to_a_consumer_group(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    events = topic_factory(2)
    events.send_rows(*[{"user": "a", "amount": 1}] * 3, second=1)
    group = f"lag-{events.name}"
    runner.run_pipeline(source=events.source(commit_group=group), window=minute_window())
    consumer: Any = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    committed = consumer.committed([TopicPartition(events.name, 0), TopicPartition(events.name, 1)], timeout=20)
    assert [p.offset for p in committed] == [3, 0]
    consumer.close()


def test_missing_topic_broker_or_schema_is_reported_with_a_one_line_error(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker, "SECONDS", 3)
    events = topic_factory(1)
    with pytest.raises(
        sw.SlackwaterError, match=r'^source "events": there is no topic "nope" at .*; available: .*'
    ) as e:
        runner.run_pipeline(source=events.source(query="nope"), window=minute_window())
    assert "\n" not in str(e.value)
    away = sw.KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(
        sw.SlackwaterError, match=r'^source "events": Kafka at 127.0.0.1:1 cannot be reached \(.*refused.*\)'
    ):
        runner.run_pipeline(source=events.source(connection=away), window=minute_window())
    with pytest.raises(sw.SlackwaterError, match=r'no schema is declared and ".*" has no records to infer one from'):
        runner.run_pipeline(source=events.source(schema=None), window=minute_window())


@exhaustive(beside="test_spark_engine.py::test_restart_with_changed_shards_and_sources_loses_no_rows")
def test_sources_may_be_added_and_removed(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    first, second, third = topic_factory(), topic_factory(), topic_factory()
    for n, events in enumerate((first, second, third)):
        events.send_rows(*[{"user": "a", "amount": 10**n}] * 2, second=n)
    one, two, three = (t.source(name=f"s{n}") for n, t in enumerate((first, second, third)))
    runner.run_pipeline(sources=[one, two], window=minute_window(), flush=False)
    first.send_rows({"user": "a", "amount": 1}, second=3)
    frame = runner.run_pipeline(sources=[three, one], window=minute_window())
    assert to_count_rows(frame) == [("a", 7, 2 + 20 + 200 + 1)]


AVRO_1 = {
    "type": "record",
    "name": "e",
    "fields": [{"name": "user", "type": "string"}, {"name": "amount", "type": "long"}],
}
AVRO_2 = {
    "type": "record", "name": "e",
    "fields": [
        {"name": "user", "type": "string"}, {"name": "amount", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip


@pytest.mark.matrix
def test_avro_is_decoded_with_a_schema_file(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    events = topic_factory()
    events.send_rows(*[encode_avro_record(AVRO_1, {"user": "a", "amount": n}) for n in (1, 2)], second=1)
    events.send_rows(b"\xff\xff\xff", second=2)
    path = runner.home / "event.avsc"
    path.write_text(json.dumps(AVRO_1))
    source = events.source(schema=None, payload_format="avro", avro_schema_file=str(path))
    frame = runner.run_pipeline(source=source, window=minute_window(), on_error="drop")
    assert to_count_rows(frame) == [("a", 2, 3)]
    assert runner.statuses[-1].counters.rows_bad == 1


EVENT: dict[str, Any] = {
    "title": "event",
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "amount": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "note": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/note"}]},
    },
    "definitions": {"note": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


@pytest.fixture
def registry_address() -> Iterator[str]:
    """Serve a small schema registry: two Avro versions, and two JSON versions below /json."""

    avro_versions = [{"id": 7, "schema": json.dumps(AVRO_1)}, {"id": 9, "schema": json.dumps(AVRO_2)}]
    before = {**EVENT, "properties": {}}
    json_versions = [{"id": 3, "schema": json.dumps(before)}, {"id": 4, "schema": json.dumps(EVENT)}]
    with serve_registry_responses(
        lambda path: build_subject_response(path, json_versions if path.startswith("/json/") else avro_versions)
    ) as address:
        yield address


def encode_json_with_schema_id(row: Any, number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + json.dumps(row).encode()


def check_decoding_of_two_avro_versions(
    runner: SparkPipelineRunner, events: Topic, registry: str, first: int, second: int
) -> None:
    events.send_rows(
        encode_avro_record(AVRO_1, {"user": "a", "amount": 1}, first),
        encode_avro_record(AVRO_2, {"user": "a", "amount": 2, "note": "x"}, second),
        second=1,
    )
    events.send_rows(
        encode_avro_record(AVRO_1, {"user": "a", "amount": 1}, 10**6), second=2
    )  # an id that the subject does not have
    connection = sw.KafkaConnection(bootstrap_servers=events.broker.address, schema_registry=registry)
    source = events.source(schema=None, payload_format="avro", connection=connection)
    sql = "SELECT concat(user, coalesce(note, '')) AS user, amount, _event_ts FROM source"
    frame = runner.run_pipeline(source=source, transform_sql=sql, window=minute_window(), on_error="drop")
    assert to_count_rows(frame) == [("a", 1, 1), ("ax", 1, 2)]
    assert runner.statuses[-1].counters.rows_bad == 1


def check_decoding_with_registered_json_schema(
    runner: SparkPipelineRunner, events: Topic, registry: str, number: int
) -> None:
    early, late = "2023-11-14T22:13:20Z", "2023-11-14T23:13:20.5+01:00"
    events.send_rows(
        encode_json_with_schema_id({"user": "a", "amount": 1, "at": early, "more": 1}, number),
        encode_json_with_schema_id(
            {"user": "a", "amount": 2, "at": late, "note": {"text": "x"}}, 10**6
        ),  # read by the newest schema
    )
    events.send_rows(
        b'{"user": "a", "amount": 1}',
        encode_json_with_schema_id({"user": "a", "amount": "many", "at": early}, number),
        b"\0\0",
    )
    connection = sw.KafkaConnection(bootstrap_servers=events.broker.address, schema_registry=registry)
    source = events.source(schema=None, payload_format="json_schema", connection=connection)
    sql = "SELECT concat(user, coalesce(note.text, '')) AS user, amount, at AS _event_ts FROM source"
    frame = runner.run_pipeline(source=source, transform_sql=sql, window=minute_window(), on_error="drop")
    assert to_count_rows(frame) == [("a", 1, 1), ("ax", 1, 2)]
    assert runner.statuses[-1].counters.rows_bad == 3


def test_avro_of_two_schema_versions_is_decoded_with_a_registry(
    runner: SparkPipelineRunner, topic_factory: Make, registry_address: str
) -> None:
    check_decoding_of_two_avro_versions(runner, topic_factory(), registry_address, 7, 9)


def test_json_is_decoded_with_a_json_schema_of_a_registry(
    runner: SparkPipelineRunner, topic_factory: Make, registry_address: str
) -> None:
    check_decoding_with_registered_json_schema(runner, topic_factory(), f"{registry_address}/json", 4)


@exhaustive(beside="test_kafka.py::test_avro_of_two_schema_versions_is_decoded_with_a_registry")
def test_avro_is_decoded_with_a_real_registry(
    runner: SparkPipelineRunner, topic_factory: Make, schema_registry: Any
) -> None:
    events = topic_factory()
    first, second = (
        schema_registry.register_schema(f"{events.name}-value", json.dumps(s), "AVRO") for s in (AVRO_1, AVRO_2)
    )
    check_decoding_of_two_avro_versions(runner, events, schema_registry.url, first, second)


@exhaustive(beside="test_kafka.py::test_json_is_decoded_with_a_json_schema_of_a_registry")
def test_json_is_decoded_with_schema_references_of_a_real_registry(
    runner: SparkPipelineRunner, topic_factory: Make, schema_registry: Any
) -> None:
    events = topic_factory()
    note = json.dumps({"type": "object", "properties": {"text": {"type": "string"}}})
    schema_registry.register_schema(f"{events.name}-note", note, "JSON")
    shared = {**EVENT["properties"], "note": {"$ref": "note.json"}}
    whole = json.dumps({"type": "object", "properties": shared})
    other = {"name": "note.json", "subject": f"{events.name}-note", "version": 1}
    number = schema_registry.register_schema(f"{events.name}-value", whole, "JSON", [other])
    check_decoding_with_registered_json_schema(runner, events, schema_registry.url, number)


@exhaustive(beside="test_target_kafka.py::test_epoch_is_published_after_a_lost_broker_returns")
def test_run_continues_after_the_broker_restarts(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, tmp_path: Path
) -> None:
    events, stop = topic_factory(), threading.Event()
    events.send_rows({"user": "a", "amount": 1}, second=1)

    def drive() -> None:
        end = time.monotonic() + 400
        try:
            while not runner.statuses and time.monotonic() < end:
                time.sleep(0.05)
            kafka.kill()
            time.sleep(3)
            kafka.start()
            events.send_rows({"user": "a", "amount": 1}, second=2)
            while runner.statuses[-1].counters.rows_in < 2 and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            stop.set()

    driving = threading.Thread(target=drive)
    driving.start()
    runner.run_pipeline(source=events.source(), window=minute_window(), available_now=False, flush=False, stop=stop)
    driving.join()
    assert runner.statuses[-1].counters.rows_in == 2
