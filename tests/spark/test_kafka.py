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
from tests.support.avro_records import avro_record
from tests.support.case_selection import exhaustive, select_cases
from tests.support.registry_answers import entries, serve_answers
from tests.support.runner import Runner
from tests.support.topics import (
    START_MS,
    Make,
    Topic,
    count_rows,
    minutes,
    read_messages,
    wait_for_transactions,
    wait_until,
)

import slackwater as sw
from slackwater.connectors.kafka import broker as kafka_broker
from slackwater.spark.tuning import source_statistics
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark


def newest_at(runner: Runner, pipeline: str) -> str | None:
    """Return the position of the newest row of the source, as stored in the state."""
    with FilesStore(runner.home / "state", pipeline).peek() as snapshot:
        assert snapshot is not None
        (clock,) = snapshot.commit.clocks.values()
        return clock.newest_at


def test_json_schema_is_inferred_and_record_metadata_is_available_in_sql(runner: Runner, topic: Make) -> None:
    events = topic(2)
    events.send({"user": "a", "amount": 1}, second=1, key="k", headers=[("h", b"x")])
    events.send({"user": "b", "amount": 2}, second=2, partition=1)
    sql = (
        "SELECT concat_ws('|', user, CAST(_key AS STRING), _headers[0].key, CAST(_headers[0].value AS STRING), _topic,"
        " _partition, _offset, CAST(unix_millis(_event_ts) AS STRING)) AS user, amount, _event_ts FROM source"
    )
    frame = runner.run(source=events.source(schema=None), transform_sql=sql, window=minutes())
    name = events.name
    assert count_rows(frame) == [
        (f"a|k|h|x|{name}|0|0|{START_MS + 1000}", 1, 1),
        (f"b|{name}|1|0|{START_MS + 2000}", 1, 2),
    ]
    assert newest_at(runner, "test") == f"{name}-1 at offset 0"


def test_each_of_many_partitions_holds_back_the_watermark(
    runner: Runner, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute the newest times of all partitions in a separate job. The results do not change."""
    monkeypatch.setattr(source_statistics, "MIN_PARTITIONS", 3)
    monkeypatch.setattr(source_statistics, "MIN_COMPARISONS", 1)
    events = topic(3)
    events.send({"user": "a", "amount": 1}, second=1)
    events.send({"user": "b", "amount": 2}, {"user": "b", "amount": 4}, second=600, partition=1)
    events.send({"user": "c", "amount": 8}, second=601, partition=2)
    # the first partition holds back the watermark
    assert runner.run(source=events.source(), window=minutes(), flush=False).is_empty()
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        (clock,) = snapshot.commit.clocks.values()
    seconds = {name: ((p.max_event_us or 0) // 1000 - START_MS) // 1000 for name, p in clock.partitions.items()}
    assert seconds == {f"{events.name}-0": 1, f"{events.name}-1": 600, f"{events.name}-2": 601}
    events.send({"user": "d", "amount": 16}, second=602)
    assert count_rows(runner.run(source=events.source(), window=minutes(), flush=False)) == [("a", 1, 1)]


def test_raw_payloads_are_decoded_in_sql(runner: Runner, topic: Make) -> None:
    events = topic()
    events.send(b"a;3", b"b;4", second=1)
    sql = "SELECT split_part(CAST(value AS STRING), ';', 1) AS user, CAST(split_part(CAST(value AS STRING), ';', 2) AS BIGINT) AS amount, _event_ts FROM source"
    frame = runner.run(source=events.source(schema=None, payload_format="raw"), transform_sql=sql, window=minutes())
    assert count_rows(frame) == [("a", 1, 3), ("b", 1, 4)]


@pytest.mark.matrix
def test_source_reads_topics_by_list_or_pattern(runner: Runner, topic: Make) -> None:
    first, second = topic(), topic()
    first.send({"user": "a", "amount": 1}, second=1)
    second.send({"user": "a", "amount": 2}, second=2)
    listed = first.source(query=f"{first.name}, {second.name}")
    runner.run(source=listed, window=minutes(), name="listed", target_path=str(runner.home / "x"))
    assert count_rows(pl.read_parquet(runner.home / "x" / "*.parquet")) == [("a", 2, 3)]
    assert newest_at(runner, "listed") == f"{second.name}-0 at offset 0"
    pattern = first.source(query=f"pattern:{first.name.rsplit('-', 1)[0]}-.*")
    assert count_rows(runner.run(source=pattern, window=minutes(), name="pattern")) == [("a", 2, 3)]


@pytest.mark.matrix
def test_run_continues_from_offsets_in_the_state_without_a_checkpoint(runner: Runner, topic: Make) -> None:
    events = topic(2)
    events.send(*[{"user": "a", "amount": 1}] * 5, second=1)
    events.send(*[{"user": "b", "amount": 1}] * 3, second=2, partition=1)
    runner.run(source=events.source(), window=minutes(), flush=False)
    shutil.rmtree(runner.home / "state" / "test" / "checkpoint")
    events.send(*[{"user": "a", "amount": 1}] * 4, second=3)
    frame = runner.run(source=events.source(), window=minutes())
    assert count_rows(frame) == [("a", 9, 9), ("b", 3, 3)]
    assert runner.statuses[-1].counters.rows_in == 12


@exhaustive(beside="test_planned_files.py::test_state_continues_when_the_planner_changes")
def test_slackwater_and_spark_planners_alternate_on_one_topic(runner: Runner, topic: Make) -> None:
    """Plan with Slackwater, with Spark and with Slackwater again. A limit splits each turn into several epochs."""
    events = topic(2)
    for turn, options in enumerate([{}, {"minOffsetsPerTrigger": "1"}, {}]):
        events.send(*[{"user": "a", "amount": 1}] * 5, second=turn)
        events.send(*[{"user": "b", "amount": 1}] * 2, second=turn, partition=1)
        source = events.source(options=options, max_offsets_per_trigger=4)
        frame = runner.run(source=source, window=minutes(), flush=turn == 2)
        checkpoints = list((runner.home / "state" / "test" / "checkpoint").iterdir())
        assert len(checkpoints) == bool(options), "each cleans up after the other"
    assert count_rows(frame) == [("a", 15, 15), ("b", 6, 6)]
    rows = [s.rows for s in runner.statuses if s.rows]
    assert sum(rows) == 21
    assert max(rows) <= 4 + 1, "a partition gets on by one record at least"
    assert runner.statuses[-1].counters.rows_in == 21


def test_records_of_an_open_transaction_are_read_after_the_commit(runner: Runner, topic: Make, kafka: Any) -> None:
    """Uncommitted records are not planned. A start at "latest" behind such records does not lose the position."""
    from confluent_kafka import Producer

    events = topic()
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0, "transactional.id": events.name})
    producer.init_transactions(30)

    def put(count: int) -> None:
        for _ in range(count):
            producer.produce(events.name, json.dumps({"user": "a", "amount": 1}), timestamp=START_MS)
        producer.flush(30)

    producer.begin_transaction()
    put(2)
    producer.commit_transaction(30)
    wait_for_transactions(kafka.address, events.name)
    producer.begin_transaction()
    put(3)
    source, latest = events.source(), {"name": "latest", "target_path": str(runner.home / "latest")}
    runner.run(source=source, window=minutes(), flush=False)
    assert runner.statuses[-1].counters.rows_in == 2
    late = events.source(starting_offsets="latest")
    runner.run(source=late, window=minutes(), flush=False, **latest)
    producer.commit_transaction(30)
    wait_for_transactions(kafka.address, events.name)
    producer.begin_transaction()
    put(1)
    producer.commit_transaction(30)
    wait_for_transactions(kafka.address, events.name)
    assert count_rows(runner.run(source=source, window=minutes())) == [("a", 6, 6)]
    runner.run(source=late, window=minutes(), **latest)
    assert count_rows(runner.output("latest")) == [("a", 1, 1)]


@exhaustive(beside="test_config_change.py::test_rebuild_reprocesses_all_input")
def test_rebuild_starts_at_the_given_offsets(runner: Runner, topic: Make) -> None:
    events, other = topic(2), topic()
    events.send(*[{"user": "a", "amount": n} for n in (1, 2, 4, 8)], second=1)
    events.send({"user": "b", "amount": 16}, second=2, partition=1)
    other.send(*[{"user": "c", "amount": 32}] * 2, second=3)
    sources: Any = [events.source(), other.source(name="others")]
    runner.run(sources=sources, window=minutes(), flush=False)
    before = runner.statuses[-1].counters.rows_in
    assert before == 7
    hours: Any = {"sources": sources, "window": minutes(duration_ms="1h")}
    begins = {"events": {events.name: {"0": 2}}, "others": "latest"}
    with pytest.raises(sw.SlackwaterError, match="run FILE --rebuild"):
        runner.run(**hours)
    bad: Any = minutes(duration_ms="1h", aggregations=[sw.Aggregation(agg="sum", column="amuont", as_="total")])
    with pytest.raises(sw.SlackwaterError, match="amuont"):  # refused before the previous state is moved
        runner.run(sources=sources, window=bad, rebuild=begins)
    target = str(runner.home / "again")
    runner.run(**hours, rebuild=begins, flush=False, target_path=target)
    other.send({"user": "c", "amount": 64}, second=4)
    runner.run(**hours, target_path=target)
    assert count_rows(runner.output("again")) == [("a", 2, 12), ("b", 1, 16), ("c", 1, 64)]
    assert runner.statuses[-1].counters.rows_in == 4


def delete_before(kafka: Any, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(20)


@pytest.mark.semantics("restarts")
def test_lost_offsets_stop_the_pipeline_or_are_counted(runner: Runner, topic: Make, kafka: Any) -> None:
    """Offsets that the broker no longer has stop the pipeline, or are counted as lost."""
    events = topic(1)
    events.send(*[{"user": "a", "amount": 1}] * 3, second=1)
    runner.run(source=events.source(), window=minutes(), flush=False)
    events.send(*[{"user": "a", "amount": 1}] * 4, second=2)
    delete_before(kafka, events.name, 5)
    with pytest.raises(sw.SlackwaterError, match=rf"{events.name}-0 offsets 3 to 4 are gone; this epoch was not"):
        runner.run(source=events.source(), window=minutes())
    frame = runner.run(source=events.source(on_data_loss="skip"), window=minutes())
    assert count_rows(frame) == [("a", 5, 5)]
    assert runner.statuses[-1].counters.rows_lost == 2


BAD = (b"{broken", b"\xff\xfe", None, b'{"user": "a", "amount": "many"}', b"7")


@exhaustive(beside="test_kafka.py::test_dead_letters_keep_the_original_bytes")
def test_undecodable_records_are_reported_with_topic_and_offset(runner: Runner, topic: Make) -> None:
    events = topic(1)
    events.send({"user": "a", "amount": 1}, second=1)
    events.send(*BAD, second=2)
    with pytest.raises(sw.SlackwaterError, match=rf"5 bad rows .*undecodable: .* in {events.name}-0 at offset 1"):
        runner.run(source=events.source(), window=minutes())
    frame = runner.run(source=events.source(), window=minutes(), on_error="drop")
    assert count_rows(frame) == [("a", 1, 1)]
    assert runner.statuses[-1].counters.rows_bad == 5


@pytest.mark.parametrize("place", select_cases(["kafka", "files", "postgres"]))
def test_dead_letters_keep_the_original_bytes(
    runner: Runner, topic: Make, kafka: Any, postgres: Any, place: str
) -> None:
    events, letters = topic(1), topic(1)
    events.send({"user": "a", "amount": 1}, second=1)
    events.send(*BAD, second=2, key="k\0", headers=[("h", b"\x01")])
    events.send({"user": "a", "amount": 1}, second=40 * 365 * 86400)  # far in the future: another reason
    target = {
        "files": lambda: sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        "kafka": lambda: sw.Target(connection=letters.connection, topic=letters.name),
        "postgres": lambda: sw.Target(
            connection=sw.PostgresConnection(url=postgres.url), table=f"letters{time.time_ns()}"
        ),
    }[place]()
    frame = runner.run(source=events.source(), window=minutes(), on_error="dlq", dead_letter=target)
    assert count_rows(frame) == [("a", 1, 1)]
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
def test_partition_read_ahead_of_another_makes_no_row_late(runner: Runner, topic: Make) -> None:
    """
    partition 0   ●──●──●──────────────────●      read first, whole
    partition 1   ●●●●●●●●●●●●●●●●●●●●●●●●●●●     a little in every epoch
    """
    events = topic(2)
    for second in range(0, 600, 10):
        events.send({"user": "a", "amount": 1}, second=second, partition=1)
    events.send(*[{"user": "b", "amount": 1}] * 2, second=0)
    events.send({"user": "b", "amount": 1}, second=590)
    frame = runner.run(source=events.source(max_offsets_per_trigger=9), window=minutes())
    assert len(runner.statuses) > 5
    assert runner.statuses[-1].counters.rows_late == 0
    assert frame["n"].sum() == 63


@exhaustive(beside="test_late_rows.py::test_late_row_of_an_idle_partition_has_the_cause_idle")
def test_late_rows_of_an_idle_partition_are_counted_with_cause_idle(runner: Runner, topic: Make) -> None:
    """The second partition is silent until the watermark passes it. Its old rows are late with the cause idle.

    The first partition receives rows all the time. If both partitions were silent, the watermark would not move.
    """
    events, stop = topic(2), threading.Event()

    def drive() -> None:
        def goes_on() -> Any:
            events.send({"user": "a", "amount": 1}, second=500)
            time.sleep(0.5)
            return runner.statuses and runner.statuses[-1].watermark_us

        try:
            wait_until(goes_on)
            events.send({"user": "b", "amount": 1}, second=2, partition=1)
            wait_until(lambda: sum(runner.statuses[-1].counters.late.values()))
        finally:
            stop.set()

    driving = threading.Thread(target=drive)
    driving.start()
    window = minutes(source_idleness_ms="1s")
    runner.run(source=events.source(), window=window, available_now=False, flush=False, stop=stop, idle_pause_ms=100)
    driving.join()
    assert runner.statuses[-1].counters.late == {"idle": 1}


def test_offsets_are_committed_to_a_consumer_group(runner: Runner, topic: Make, kafka: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    events = topic(2)
    events.send(*[{"user": "a", "amount": 1}] * 3, second=1)
    group = f"lag-{events.name}"
    runner.run(source=events.source(commit_group=group), window=minutes())
    consumer: Any = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    committed = consumer.committed([TopicPartition(events.name, 0), TopicPartition(events.name, 1)], timeout=20)
    assert [p.offset for p in committed] == [3, 0]
    consumer.close()


def test_missing_topic_broker_or_schema_is_reported_in_one_line(
    runner: Runner, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker, "SECONDS", 3)
    events = topic(1)
    with pytest.raises(
        sw.SlackwaterError, match=r'^source "events": there is no topic "nope" at .*; available: .*'
    ) as e:
        runner.run(source=events.source(query="nope"), window=minutes())
    assert "\n" not in str(e.value)
    away = sw.KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(
        sw.SlackwaterError, match=r'^source "events": Kafka at 127.0.0.1:1 cannot be reached \(.*refused.*\)'
    ):
        runner.run(source=events.source(connection=away), window=minutes())
    with pytest.raises(sw.SlackwaterError, match=r'no schema is declared and ".*" has no records to infer one from'):
        runner.run(source=events.source(schema=None), window=minutes())


@exhaustive(beside="test_engine.py::test_restart_with_changed_shards_and_sources_loses_no_rows")
def test_sources_may_be_added_and_removed(runner: Runner, topic: Make) -> None:
    first, second, third = topic(), topic(), topic()
    for n, events in enumerate((first, second, third)):
        events.send(*[{"user": "a", "amount": 10**n}] * 2, second=n)
    one, two, three = (t.source(name=f"s{n}") for n, t in enumerate((first, second, third)))
    runner.run(sources=[one, two], window=minutes(), flush=False)
    first.send({"user": "a", "amount": 1}, second=3)
    frame = runner.run(sources=[three, one], window=minutes())
    assert count_rows(frame) == [("a", 7, 2 + 20 + 200 + 1)]


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
def test_avro_is_decoded_with_a_schema_file(runner: Runner, topic: Make) -> None:
    events = topic()
    events.send(*[avro_record(AVRO_1, {"user": "a", "amount": n}) for n in (1, 2)], second=1)
    events.send(b"\xff\xff\xff", second=2)
    path = runner.home / "event.avsc"
    path.write_text(json.dumps(AVRO_1))
    source = events.source(schema=None, payload_format="avro", avro_schema_file=str(path))
    frame = runner.run(source=source, window=minutes(), on_error="drop")
    assert count_rows(frame) == [("a", 2, 3)]
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
def registry() -> Iterator[str]:
    """Serve a small schema registry: two Avro versions, and two JSON versions below /json."""

    avro_versions = [{"id": 7, "schema": json.dumps(AVRO_1)}, {"id": 9, "schema": json.dumps(AVRO_2)}]
    before = {**EVENT, "properties": {}}
    json_versions = [{"id": 3, "schema": json.dumps(before)}, {"id": 4, "schema": json.dumps(EVENT)}]
    with serve_answers(
        lambda path: entries(path, json_versions if path.startswith("/json/") else avro_versions)
    ) as address:
        yield address


def framed(row: Any, number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + json.dumps(row).encode()


def avro_of_two_versions(runner: Runner, events: Topic, registry: str, first: int, second: int) -> None:
    events.send(
        avro_record(AVRO_1, {"user": "a", "amount": 1}, first),
        avro_record(AVRO_2, {"user": "a", "amount": 2, "note": "x"}, second),
        second=1,
    )
    events.send(
        avro_record(AVRO_1, {"user": "a", "amount": 1}, 10**6), second=2
    )  # an id that the subject does not have
    connection = sw.KafkaConnection(bootstrap_servers=events.broker.address, schema_registry=registry)
    source = events.source(schema=None, payload_format="avro", connection=connection)
    sql = "SELECT concat(user, coalesce(note, '')) AS user, amount, _event_ts FROM source"
    frame = runner.run(source=source, transform_sql=sql, window=minutes(), on_error="drop")
    assert count_rows(frame) == [("a", 1, 1), ("ax", 1, 2)]
    assert runner.statuses[-1].counters.rows_bad == 1


def json_of_a_schema(runner: Runner, events: Topic, registry: str, number: int) -> None:
    early, late = "2023-11-14T22:13:20Z", "2023-11-14T23:13:20.5+01:00"
    events.send(
        framed({"user": "a", "amount": 1, "at": early, "more": 1}, number),
        framed({"user": "a", "amount": 2, "at": late, "note": {"text": "x"}}, 10**6),  # read by the newest schema
    )
    events.send(b'{"user": "a", "amount": 1}', framed({"user": "a", "amount": "many", "at": early}, number), b"\0\0")
    connection = sw.KafkaConnection(bootstrap_servers=events.broker.address, schema_registry=registry)
    source = events.source(schema=None, payload_format="json_schema", connection=connection)
    sql = "SELECT concat(user, coalesce(note.text, '')) AS user, amount, at AS _event_ts FROM source"
    frame = runner.run(source=source, transform_sql=sql, window=minutes(), on_error="drop")
    assert count_rows(frame) == [("a", 1, 1), ("ax", 1, 2)]
    assert runner.statuses[-1].counters.rows_bad == 3


def test_avro_of_two_schema_versions_is_decoded_with_a_registry(runner: Runner, topic: Make, registry: str) -> None:
    avro_of_two_versions(runner, topic(), registry, 7, 9)


def test_json_is_decoded_with_a_json_schema_of_a_registry(runner: Runner, topic: Make, registry: str) -> None:
    json_of_a_schema(runner, topic(), f"{registry}/json", 4)


@exhaustive(beside="test_kafka.py::test_avro_of_two_schema_versions_is_decoded_with_a_registry")
def test_avro_is_decoded_with_a_real_registry(runner: Runner, topic: Make, schema_registry: Any) -> None:
    events = topic()
    first, second = (schema_registry.register(f"{events.name}-value", json.dumps(s), "AVRO") for s in (AVRO_1, AVRO_2))
    avro_of_two_versions(runner, events, schema_registry.url, first, second)


@exhaustive(beside="test_kafka.py::test_json_is_decoded_with_a_json_schema_of_a_registry")
def test_json_is_decoded_with_schema_references_of_a_real_registry(
    runner: Runner, topic: Make, schema_registry: Any
) -> None:
    events = topic()
    note = json.dumps({"type": "object", "properties": {"text": {"type": "string"}}})
    schema_registry.register(f"{events.name}-note", note, "JSON")
    shared = {**EVENT["properties"], "note": {"$ref": "note.json"}}
    whole = json.dumps({"type": "object", "properties": shared})
    other = {"name": "note.json", "subject": f"{events.name}-note", "version": 1}
    number = schema_registry.register(f"{events.name}-value", whole, "JSON", [other])
    json_of_a_schema(runner, events, schema_registry.url, number)


@exhaustive(beside="test_target_kafka.py::test_epoch_is_published_after_a_lost_broker_returns")
def test_run_continues_after_the_broker_restarts(runner: Runner, topic: Make, kafka: Any, tmp_path: Path) -> None:
    events, stop = topic(), threading.Event()
    events.send({"user": "a", "amount": 1}, second=1)

    def drive() -> None:
        end = time.monotonic() + 400
        try:
            while not runner.statuses and time.monotonic() < end:
                time.sleep(0.05)
            kafka.kill()
            time.sleep(3)
            kafka.start()
            events.send({"user": "a", "amount": 1}, second=2)
            while runner.statuses[-1].counters.rows_in < 2 and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            stop.set()

    driving = threading.Thread(target=drive)
    driving.start()
    runner.run(source=events.source(), window=minutes(), available_now=False, flush=False, stop=stop)
    driving.join()
    assert runner.statuses[-1].counters.rows_in == 2
