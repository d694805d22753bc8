"""Epochs with few rows run as one Spark task for all shards, with the results, counters and dead letters of a shuffle.

records in Kafka ──▶ one task: reads all partitions ─▶ shards in threads of the driver, the query is reused ─┐
           ├───────▶ one task: reads all partitions, then shard 0, shard 1, … ───────────────────────────────┤
           ╰───────▶ a task per partition ─▶ shuffle ─▶ a task per shard ────────────────────────────────────┴─▶ equal
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import Make, Topic, minute_window
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.spark import operator_input
from slackwater.tuning_switches import VARIABLE

pytestmark = pytest.mark.spark

PARTITIONS, EPOCHS = 3, 3
# the last ones contain characters that end a line for some readers of text; reports quote the keys of late rows
USERS = ("u0", "u1", "u2", "u3", "a\u2028b", "c\x85d", "e\x0bf")
STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "session": lambda: {
        "window": minute_window(kind="session", duration_ms=None, gap_ms="20s", max_session_duration_ms="5m")
    },
    "tumbling": lambda: {"window": minute_window()},
    "hopping": lambda: {"window": minute_window(kind="hopping", duration_ms="1m", hop_ms="20s")},
    "dedup_then_window": lambda: {
        "stages": [
            sw.Stage(name="distinct", on_error="dlq", dedup=sw.Dedup(keys=["user", "amount"], within_ms="5s")),
            sw.Stage(name="counts", window=minute_window()),
        ]
    },
    "rows": lambda: {"transform_sql": "SELECT user, amount, _event_ts FROM source WHERE amount > 2"},
}


def send_random_rows(topic: Topic, rng: random.Random, epoch: int) -> None:
    """Send rows of a minute, some of them late and some not decodable, to all partitions."""
    for _ in range(40):
        second = 60 * epoch + rng.uniform(-90 if rng.random() < 0.1 else 0, 60)
        row = b"{broken" if rng.random() < 0.1 else {"user": rng.choice(USERS), "amount": rng.randrange(9)}
        topic.send_rows(row, second=second, partition=rng.randrange(PARTITIONS))


def run_epochs(
    runner: SparkPipelineRunner, topic: Topic, folder: str, settings: Mapping[str, Any]
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Run the pipeline over the topic in several epochs. Return its rows, its dead letters and its counters."""
    home, lake = runner.home / folder, sw.FilesConnection()
    runner.run_pipeline(
        **{
            "source": topic.source(max_offsets_per_trigger=40),
            "target_path": str(home / "out"),
            "state_store": sw.StateStore(kind="files", path=str(home / "state"), shards=2),
            "dead_letter": sw.Target(connection=lake, path=str(home / "letters")),
            **({} if "stages" in settings else {"on_error": "dlq"}),
            **settings,
        }
    )
    letters = pl.concat(pl.read_parquet(p) for p in (home / "letters").glob("*.parquet"))
    places = letters.select("reason", "partition", "offset", "epoch")
    return (
        sorted(map(str, runner.read_output(f"{folder}/out").rows())),
        sorted(map(str, places.rows())),
        {k: v for k, v in vars(runner.statuses[-1].counters).items() if k not in ("spent_us",)},
    )


@pytest.mark.parametrize("kind", select_cases(list(STEPS)))
def test_one_task_gives_the_results_of_a_shuffle(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topic, rng = topic_factory(PARTITIONS), random.Random(kind)
    for epoch in range(EPOCHS):
        send_random_rows(topic, rng, epoch)
    gather, gathered = operator_input.gather_shards, list[int]()
    monkeypatch.setattr(
        operator_input,
        "gather_shards",
        lambda operator, rows, shards: gathered.append(shards) or gather(operator, rows, shards),
    )
    reused = run_epochs(runner, topic, "reused", STEPS[kind]())
    built = len(gathered)
    monkeypatch.setenv(VARIABLE, "query_reuse")
    one_task = run_epochs(runner, topic, "one", STEPS[kind]())
    built_without_reuse = len(gathered) - built
    assert built_without_reuse >= EPOCHS
    assert built < built_without_reuse, "no query is reused"
    monkeypatch.setenv(VARIABLE, "one_task")
    shuffled = run_epochs(runner, topic, "shuffled", STEPS[kind]())
    assert len(gathered) == built + built_without_reuse, "the switch has no effect"
    assert reused == one_task == shuffled
    assert one_task[0] and one_task[1]


def test_rows_of_a_lookup_are_not_joined_by_one_task(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_factory(1)
    topic.send_rows({"user": "a", "amount": 1}, {"user": "b", "amount": 2}, second=1)
    runner.write_input_file("names.jsonl", [{"user": "a", "name": "Ann"}], folder="names")
    monkeypatch.setattr(operator_input, "gather_shards", lambda *arguments: pytest.fail("one task was used"))
    lookup = sw.Lookup(
        connection=sw.FilesConnection(), query=str(runner.home / "names" / "*.jsonl"), format="json",
        schema="user STRING, name STRING",
    )  # fmt: skip
    frame = runner.run_pipeline(
        source=topic.source(),
        transform_sql="SELECT s.user, s.amount, s._event_ts FROM source s JOIN names USING (user)",
        lookups={"names": lookup},
        window=minute_window(),
    )
    assert frame.select("user", "n").rows() == [("a", 1)]
