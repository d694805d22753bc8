"""Topics that are deleted and created again: offsets of the old topic are not used in the new topic."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import Make, Topic, minute_window, to_count_rows
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.cli.main import main
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.core.offsets import KafkaOffsets
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark
RECREATED = (
    r'source "events": topic ".*" was deleted and created again: found id \S+, expected \S+, but .*nothing was read'
)


def recreate_topic(kafka: Any, former: Topic) -> Topic:
    """Delete a topic and create another one of the same name and size."""
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    (described,) = admin.describe_topics(TopicCollection([former.name])).values()
    partitions = len(described.result(30).partitions)
    admin.delete_topics([former.name])[former.name].result(30)
    end = time.monotonic() + 60
    while former.name in admin.list_topics(timeout=30).topics and time.monotonic() < end:
        time.sleep(0.05)
    return Topic(kafka, former.name, partitions)


def read_stored_offsets(home: Path, pipeline: str = "test") -> KafkaOffsets:
    with FilesStore(home / "state", pipeline).peek() as snapshot:
        assert snapshot is not None
        return KafkaOffsets.coerce(snapshot.commit.sources["events"].offsets)


@pytest.mark.parametrize("records", select_cases([3, 5, 1]))  # as many records as before, more, and fewer
def test_start_is_refused_if_topic_was_recreated(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, records: int
) -> None:
    events = topic_factory(1)
    events.send_rows(*[{"user": "old", "amount": 1}] * 3, second=1)
    runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)
    first = read_stored_offsets(runner.home)
    assert list(first.ids) == [events.name]
    events = recreate_topic(kafka, events)
    events.send_rows(*[{"user": "new", "amount": 1}] * records, second=2)
    with pytest.raises(sw.SlackwaterError, match=RECREATED):
        runner.run_pipeline(source=events.source(), window=minute_window())
    assert read_stored_offsets(runner.home) == first
    frame = runner.run_pipeline(source=events.source(on_data_loss="skip"), window=minute_window())
    assert to_count_rows(frame) == [("new", records, records), ("old", 3, 3)]
    assert read_stored_offsets(runner.home).ids != first.ids
    assert to_count_rows(runner.run_pipeline(source=events.source(), window=minute_window())) == to_count_rows(frame)


def test_state_reset_to_earliest_reads_recreated_topic(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = topic_factory(1)
    events.send_rows(*[{"user": "old", "amount": 1}] * 3, second=1)
    runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)
    events = recreate_topic(kafka, events)
    events.send_rows(*[{"user": "new", "amount": 1}] * 4, second=2)
    config = runner.home / "p.toml"
    config.write_text(
        f'name = "test"\n[connections.k]\nkind = "kafka"\nbootstrap_servers = "{kafka.address}"\n[connections.lake]\nkind = "files"\n'
        f'[[sources]]\nname = "events"\nconnection = "k"\nquery = "{events.name}"\nschema = "user STRING, amount BIGINT"\n'
        '[transform.window]\nkind = "tumbling"\nduration_ms = "1m"\nlateness_ms = 0\ngroup_by = ["user"]\n'
        'max_groups_per_window = 1000\n[[transform.window.aggregations]]\nagg = "count"\nas = "n"\n'
        f'[target]\nconnection = "lake"\npath = "{runner.home}/out"\n[state_store]\nkind = "files"\npath = "{runner.home}/state"\n'
    )
    arguments = ["slackwater", "state", "reset", str(config), "--offsets", "events=earliest"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    frame = runner.run_pipeline(source=events.source(), window=minute_window())
    assert to_count_rows(frame) == [("new", 4, 4), ("old", 3, 3)]


@pytest.mark.parametrize("planned_by_spark", [False, True])
def test_running_pipeline_stops_when_topic_is_recreated(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, planned_by_spark: bool
) -> None:
    """Recreate the topic while the pipeline runs. Records of the new topic are not read at an old offset."""
    events, stop = topic_factory(1), threading.Event()
    events.send_rows(*[{"user": "old", "amount": 1}] * 3, second=1)
    options = {"minOffsetsPerTrigger": "1"} if planned_by_spark else {}

    def replace() -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end and not (runner.statuses and runner.statuses[-1].counters.rows_in == 3):
            time.sleep(0.05)
        recreate_topic(kafka, events).send_rows(*[{"user": "new", "amount": 1}] * 7, second=2)

    replacing = threading.Thread(target=replace)
    replacing.start()
    with pytest.raises(sw.SlackwaterError, match=r"deleted and created again|it was created again"):
        runner.run_pipeline(
            source=events.source(options=options), window=minute_window(), available_now=False, flush=False, stop=stop
        )
    replacing.join()
    assert read_stored_offsets(runner.home).next_offset(events.name, 0) == 3
    frame = runner.run_pipeline(source=events.source(on_data_loss="skip"), window=minute_window())
    assert to_count_rows(frame) == [("new", 7, 7), ("old", 3, 3)]


def test_state_without_topic_ids_stores_them_at_next_commit(
    runner: SparkPipelineRunner, topic_factory: Make, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = topic_factory(1)
    events.send_rows({"user": "a", "amount": 1}, second=1)
    with monkeypatch.context() as former:
        former.setattr(KafkaBroker, "topic_ids", lambda self, topics: {})
        runner.run_pipeline(source=events.source(), window=minute_window(), flush=False)
    assert not read_stored_offsets(runner.home).ids
    events.send_rows({"user": "a", "amount": 1}, second=2)
    assert to_count_rows(runner.run_pipeline(source=events.source(), window=minute_window())) == [("a", 2, 2)]
    assert read_stored_offsets(runner.home).ids


def test_error_names_only_the_recreated_topic(runner: SparkPipelineRunner, topic_factory: Make, kafka: Any) -> None:
    first, second = topic_factory(2), topic_factory(1)
    both = f"{first.name},{second.name}"
    first.send_rows({"user": "a", "amount": 1}, second=1, partition=1)
    second.send_rows({"user": "b", "amount": 1}, second=1)
    runner.run_pipeline(source=first.source(query=both), window=minute_window(), flush=False)
    recreate_topic(kafka, first).send_rows(*[{"user": "c", "amount": 1}] * 2, second=2, partition=1)
    second.send_rows({"user": "b", "amount": 1}, second=2)
    with pytest.raises(sw.SlackwaterError, match=f'topic "{first.name}" was deleted') as refused:
        runner.run_pipeline(source=first.source(query=both), window=minute_window())
    assert second.name not in str(refused.value)
    frame = runner.run_pipeline(source=first.source(query=both, on_data_loss="skip"), window=minute_window())
    assert to_count_rows(frame) == [("a", 1, 1), ("b", 2, 2), ("c", 2, 2)]
