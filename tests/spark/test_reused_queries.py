"""Small epochs reuse the query of an earlier epoch, with the results of new queries, whatever each epoch contains.

one run over two topics   e0        e1          e2            e3         e4             …
records                   of both   of one      far future    many       of one part
query                     new       new         new, limited  shuffled   new or reused  …
"""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import Make, Topic, minute_window, to_count_rows, wait_until
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.kafka import epoch_reader
from slackwater.errors import EpochError
from slackwater.spark import engine, epoch_query, worker_tasks
from slackwater.spark.epoch_query import EpochQueryBuilder
from slackwater.spark.tuning import shuffle_tuning, source_statistics
from slackwater.tuning_switches import VARIABLE

pytestmark = pytest.mark.spark

PARTITIONS, FEW = 2, 30
YEARS_S = 3600 * 24 * 365 * 40  # from the records to the far future


class RandomEpochs:
    """Sends the records of random epochs to two topics, and waits after each until the pipeline has read them."""

    def __init__(self, topics: list[Topic], seed: int) -> None:
        self.topics, self.random, self.sent = topics, random.Random(seed), 0

    def send_epoch(self) -> None:
        """Send records to one or both topics, to one or both partitions. Some epochs are large, some have bad records."""
        draw = self.random
        size = 3 * FEW if draw.random() < 0.2 else draw.randint(1, FEW // 4)
        has_bad, has_future = draw.random() < 0.3, draw.random() < 0.2
        for topic in draw.sample(self.topics, draw.randint(1, 2)):
            for partition in draw.sample(range(PARTITIONS), draw.randint(1, PARTITIONS)):
                rows: list[Any] = [{"user": f"u{draw.randrange(4)}", "amount": draw.randrange(9)} for _ in range(size)]
                rows += [b"{broken"] if has_bad else []
                topic.send_rows(*rows, second=draw.uniform(0, 600), partition=partition)
                if has_future:
                    topic.send_rows({"user": "u1", "amount": 1}, second=YEARS_S, partition=partition)
                self.sent += len(rows) + has_future


def build_settings(topics: list[Topic]) -> dict[str, Any]:
    connection = topics[0].connection
    names = [topic.name for topic in topics]
    sources = [
        sw.Source(name=f"s{i}", connection=connection, query=name, schema="user STRING, amount BIGINT")
        for i, name in enumerate(names)
    ]
    return {
        "sources": sources,
        "transform_sql": "SELECT user, amount, _event_ts FROM source WHERE amount <> 3",
        "window": minute_window(lateness_ms="1d"),
        "on_error": "drop",
    }


@pytest.mark.parametrize("seed", select_cases(range(4)))
def test_random_epochs_give_the_results_of_new_queries(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(epoch_reader, "FEW_ROWS", FEW)
    monkeypatch.setattr(shuffle_tuning, "FEW_ROWS", FEW)
    topics = [topic_factory(PARTITIONS), topic_factory(PARTITIONS)]
    epochs, stop, failures = RandomEpochs(topics, seed), threading.Event(), list[BaseException]()
    build, built = EpochQueryBuilder.build, list[bool]()

    def count_and_build(*arguments: Any) -> Any:
        query = build(*arguments)
        built.append(query.is_one_task)
        return query

    monkeypatch.setattr(EpochQueryBuilder, "build", count_and_build)

    def send() -> None:
        try:
            for _ in range(14):
                epochs.send_epoch()
                wait_until(lambda: runner.statuses and runner.statuses[-1].counters.rows_in >= epochs.sent)
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()

    sending = threading.Thread(target=send)
    sending.start()
    runner.run_pipeline(**build_settings(topics), available_now=False, flush=False, stop=stop)
    sending.join()
    assert not failures, failures
    counters = runner.statuses[-1].counters
    ran = runner.statuses[-1].epoch
    assert sum(built) < ran, "no query was reused"
    runner.run_pipeline(**build_settings(topics))
    with_reuse = to_count_rows(runner.read_output())

    monkeypatch.setenv(VARIABLE, "query_reuse,one_task,kafka_workers")
    again = {
        "target_path": str(runner.home / "again"),
        "state_store": sw.StateStore(kind="files", path=str(runner.home / "b")),
    }
    runner.run_pipeline(**build_settings(topics), **again)
    assert with_reuse == to_count_rows(runner.read_output("again"))
    expected = runner.statuses[-1].counters
    assert (counters.rows_in, counters.rows_bad, counters.rows_used) == (
        expected.rows_in, expected.rows_bad, expected.rows_used,
    )  # fmt: skip
    assert with_reuse


def test_rows_of_records_with_many_bytes_are_not_collected(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the driver must suffice for any records. A worker reports too many bytes before they are collected."""
    events = topic_factory()
    events.send_rows(*[{"user": "a", "amount": n, "more": "x" * 1000} for n in range(40)], second=1)
    events.send_rows(*[{"user": "a", "amount": n} for n in range(40)], second=61)
    monkeypatch.setattr(epoch_query, "MOST_COLLECTED_BYTES", 12_000)
    collect, collected = worker_tasks.ingest_in_threads, list[int]()
    monkeypatch.setattr(
        engine, "ingest_in_threads", lambda tasks, rows: collected.append(rows.height) or collect(tasks, rows)
    )
    less, limits = EpochQueryBuilder.collect_less, list[int]()

    def record_limit(builder: EpochQueryBuilder, batch: Any) -> None:
        less(builder, batch)
        limits.append(builder.most_collected)

    monkeypatch.setattr(EpochQueryBuilder, "collect_less", record_limit)
    frame = runner.run_pipeline(source=events.source(max_offsets_per_trigger=20), window=minute_window())
    assert to_count_rows(frame) == [("a", 40, 780), ("a", 40, 780)]
    assert limits == [10], "the first epoch is run again"
    assert collected == [], "all epochs have more than ten records"
    monkeypatch.setattr(epoch_query, "MOST_COLLECTED_BYTES", 1 << 20)
    again = runner.run_pipeline(
        name="again", source=events.source(max_offsets_per_trigger=20), window=minute_window(),
        target_path=str(runner.home / "again"),
    )  # fmt: skip
    assert again.height
    assert len(collected) >= 4


def test_query_is_not_reused_if_a_separate_job_finds_the_newest_times(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows decides whether a separate job runs, even if the partitions are the same."""
    monkeypatch.setattr(source_statistics, "MIN_PARTITIONS", 2)
    monkeypatch.setattr(source_statistics, "MIN_COMPARISONS", 20)
    events = topic_factory(2)
    for n in range(44):
        events.send_rows({"user": "a", "amount": 1}, second=n, partition=n % 2)
    frame = runner.run_pipeline(source=events.source(max_offsets_per_trigger=20), window=minute_window())
    assert to_count_rows(frame) == [("a", 4, 4), ("a", 40, 40)]


class RaisingAggregator(sw.Aggregator):
    """Aggregator that raises an error of a given class while it aggregates rows."""

    inputs: ClassVar[dict[str, str]] = {"x": "bigint"}
    accumulators: ClassVar[dict[str, str]] = {"y": "bigint"}
    output = "bigint"

    def __init__(self, error: str = "") -> None:
        self.error = error

    def lift(self, x: pl.Expr) -> dict[str, pl.Expr]:
        return {"y": x.map_batches(self._raise, return_dtype=pl.Int64)}

    def _raise(self, values: pl.Series) -> pl.Series:
        if 42 in values.to_list():
            raise {"ValueError": ValueError, "OSError": OSError, "SystemExit": SystemExit}[self.error]("first\nsecond")
        return values

    def merge(self, y: pl.Expr) -> dict[str, pl.Expr]:
        return {"y": y.sum()}

    def finish(self, y: pl.Expr) -> pl.Expr:
        return y


@pytest.mark.parametrize("error", select_cases(["ValueError", "OSError", "SystemExit"]))
def test_error_of_user_code_is_reported_in_one_line(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    events = topic_factory()
    events.send_rows({"user": "a", "amount": 42}, second=1)
    failing = sw.Aggregation(agg=RaisingAggregator, columns={"x": "amount"}, options={"error": error}, as_="y")
    messages = []
    for disabled in ("", "query_reuse"):
        monkeypatch.setenv(VARIABLE, disabled)
        with pytest.raises(EpochError) as caught:
            runner.run_pipeline(source=events.source(), window=minute_window(aggregations=[failing]))
        messages.append(str(caught.value))
    assert messages[0] == f"the epoch failed and was not committed: {error}: first"
    assert error == "SystemExit" or messages[1] == messages[0], "a worker that exits cannot report a reason"
