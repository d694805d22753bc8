"""Reused queries return the results of new queries, whatever each small epoch contains.

one run over two topics   e0        e1          e2                        e3         e4        …
records                   of both   of one      one in the far future     many       of both
query                     new       new         new, with a time limit    shuffled   reused    …
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
from slackwater.spark.epoch_query import EpochQuery, EpochQueryBuilder
from slackwater.spark.tuning import source_statistics
from slackwater.tuning_switches import VARIABLE

pytestmark = pytest.mark.spark

PARTITIONS, FEW = 2, 30
FAR_FUTURE_S = 3600 * 24 * 365 * 40


def count_queries(monkeypatch: pytest.MonkeyPatch) -> tuple[list[EpochQuery], list[EpochQuery]]:
    """Return two lists to which collected queries are appended: when they are built, and whenever they run."""
    build, collect = EpochQueryBuilder.build, EpochQuery.collect_rows
    built, runs = list[EpochQuery](), list[EpochQuery]()

    def build_and_record(*arguments: Any) -> EpochQuery:
        query = build(*arguments)
        if query.observer is not None:
            built.append(query)
        return query

    def collect_and_record(query: EpochQuery) -> pl.DataFrame:
        runs.append(query)
        return collect(query)

    monkeypatch.setattr(EpochQueryBuilder, "build", build_and_record)
    monkeypatch.setattr(EpochQuery, "collect_rows", collect_and_record)
    return built, runs


class RandomEpochs:
    """Sends the records of random epochs to two topics."""

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
                    topic.send_rows({"user": "u1", "amount": 1}, second=FAR_FUTURE_S, partition=partition)
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
    monkeypatch.setattr(epoch_reader, "MAX_COLLECTED_ROWS", FEW)
    monkeypatch.setattr(epoch_query, "MAX_ONE_TASK_ROWS", FEW)
    topics = [topic_factory(PARTITIONS), topic_factory(PARTITIONS)]
    epochs, stop, failures = RandomEpochs(topics, seed), threading.Event(), list[BaseException]()
    built, runs = count_queries(monkeypatch)

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
    assert len(built) < len(runs), "no query was reused"
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
    """Large records must not exhaust the memory of the driver. A worker stops reading when they have too many bytes."""
    events = topic_factory()
    events.send_rows(*[{"user": "a", "amount": n, "more": "x" * 1000} for n in range(40)], second=1)
    events.send_rows(*[{"user": "a", "amount": n} for n in range(40)], second=61)
    monkeypatch.setattr(epoch_query, "MOST_COLLECTED_BYTES", 12_000)
    ingest, collected = worker_tasks.ingest_in_driver, list[int]()
    monkeypatch.setattr(
        engine, "ingest_in_driver", lambda tasks, rows: collected.append(rows.height) or ingest(tasks, rows)
    )
    less, limits = EpochQueryBuilder.halve_collection_limit, list[int]()

    def record_limit(builder: EpochQueryBuilder, batch: Any) -> None:
        less(builder, batch)
        limits.append(builder.max_collected_records)

    monkeypatch.setattr(EpochQueryBuilder, "halve_collection_limit", record_limit)
    frame = runner.run_pipeline(source=events.source(max_offsets_per_trigger=20), window=minute_window())
    assert to_count_rows(frame) == [("a", 40, 780), ("a", 40, 780)]
    assert limits == [10], "the first epoch did not run again with a lower limit"
    assert collected == [], "an epoch with more than ten records was collected"
    monkeypatch.setattr(epoch_query, "MOST_COLLECTED_BYTES", 1 << 20)
    again = runner.run_pipeline(
        name="again", source=events.source(max_offsets_per_trigger=20), window=minute_window(),
        target_path=str(runner.home / "again"),
    )  # fmt: skip
    assert again.height
    assert len(collected) >= 4


def test_small_epoch_after_one_with_a_separate_job_for_the_newest_times(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows decides whether a separate job runs, even if the partitions are the same. Epochs: 20, 20 and 4 rows."""
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


PLANS = [
    ("SELECT user, amount, _event_ts FROM source DISTRIBUTE BY user", False),
    ("SELECT user, amount, _event_ts FROM source WHERE amount > 1", True),
    ("SELECT user, amount, _event_ts FROM source LATERAL VIEW explode(array(1, 2)) AS copy", True),
    ("SELECT /*+ REPARTITION(2) */ user, amount, _event_ts FROM source", False),
    ("SELECT s.user, s.amount, s._event_ts FROM source s JOIN VALUES ('a') AS v(user) USING (user)", False),
]


@pytest.mark.parametrize(("sql", "is_reused"), select_cases(PLANS))
def test_plan_with_an_exchange_is_not_reused(
    runner: SparkPipelineRunner, topic_factory: Make, monkeypatch: pytest.MonkeyPatch, sql: str, is_reused: bool
) -> None:
    """Spark keeps the rows of a shuffle or a broadcast with the plan, so a second run would return the same rows."""
    events = topic_factory()
    for n in range(30):
        events.send_rows({"user": "ab"[n % 2], "amount": n}, second=n)
    built, runs = count_queries(monkeypatch)
    settings = {"source": events.source(max_offsets_per_trigger=5), "transform_sql": sql, "window": minute_window()}
    with_reuse = runner.run_pipeline(**settings)
    assert (len(built) < len(runs)) == is_reused
    assert len(runs) == 5, "the first epoch with SQL is not collected"
    monkeypatch.setenv(VARIABLE, "query_reuse,one_task,kafka_workers")
    again = {"name": "again", "target_path": str(runner.home / "again")}
    runner.run_pipeline(**settings, **again)
    assert with_reuse.height
    assert to_count_rows(with_reuse) == to_count_rows(runner.read_output("again"))
