"""Continuous pipelines on Spark: idle sources, timed triggers, a clean stop, lookups, and key hashes."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import exhaustive
from tests.support.sample_events_and_windows import (
    SIMPLE,
    build_event_rows,
    build_simple_session_window,
    to_microseconds,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.core.hashing import spark_xxhash64
from slackwater.core.schema import Field
from slackwater.runner import run_loops

pytestmark = pytest.mark.spark


class BackgroundRun:
    """A pipeline that runs in its own thread."""

    def __init__(self, runner: SparkPipelineRunner, **settings: Any) -> None:
        self.stop, self.failure = threading.Event(), None
        self.runner = runner
        run_settings = {"available_now": False, "flush": False, "stop": self.stop, **settings}
        self.thread = threading.Thread(
            target=self._run_pipeline, args=(run_settings,), daemon=True
        )  # a daemon thread lets a failed test end
        self.thread.start()

    def _run_pipeline(self, run_settings: dict[str, Any]) -> None:
        try:
            self.runner.run_pipeline(**run_settings)
        except BaseException as error:
            self.failure = error

    def wait_for(self, condition: Callable[[], bool], seconds: float = 400) -> None:
        """Wait for a condition. `seconds` only limits how long a failing test takes."""
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until and self.thread.is_alive():
            time.sleep(0.05)
        assert self.failure is None
        assert condition()

    def stop_and_join(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.failure is None


def test_source_without_new_rows_becomes_idle_and_windows_close(runner: SparkPipelineRunner) -> None:
    """Both sources become idle. A new row of `events` then moves the watermark past the rows of `more`."""
    runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    runner.write_input_file("0.jsonl", build_event_rows(0, 10, user="b"), folder="more")
    sources = [runner.files_source(SIMPLE), runner.files_source(SIMPLE, name="more", folder="more")]
    live = BackgroundRun(
        runner, sources=sources, window=build_simple_session_window(source_idleness_ms="2s"), idle_pause_ms=100
    )
    live.wait_for(lambda: bool(runner.statuses) and all(s.idle for s in runner.statuses[-1].sources))
    assert runner.statuses[-1].watermark_us == to_microseconds("2024-03-01T00:00:05Z"), "all idle: it stays"
    runner.write_input_file("1.jsonl", build_event_rows(100, 101))
    live.wait_for(lambda: runner.statuses[-1].counters.rows_emitted == 2)
    live.stop_and_join()
    (closing,) = [s for s in runner.statuses if s.emitted]  # by now `events` may be idle again
    assert [s.idle for s in closing.sources] == [False, True]
    assert runner.read_output()["user"].to_list() == ["a", "b"]


@exhaustive(beside="test_idle_sources.py::test_duration_of_a_slow_epoch_does_not_count_as_idle_time")
def test_slow_epoch_does_not_count_as_idle_and_idle_sources_close_windows(runner: SparkPipelineRunner) -> None:
    """The second epoch takes 10 s, longer than the idleness of 6 s, and `more` is not polled meanwhile.

    events   ●●  ●──10 s──   ○ ○ ○ ○ ○ ○      after 6 s without rows on both sources, the watermark advances
    more     ●●  ··········  ○ ○ ○ ○ ○ ○
    """
    slow = sw.Aggregation(
        agg="tests.support.slow_sum_aggregator:SlowSumAggregator", columns={"wait": "wait"}, as_="waited"
    )
    sql = "SELECT *, CASE WHEN i > 1 THEN 10000L END AS wait FROM source"
    sources = [runner.files_source(SIMPLE), runner.files_source(SIMPLE, name="more", folder="more")]
    runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    runner.write_input_file("0.jsonl", build_event_rows(0, 10, user="b"), folder="more")
    window = build_simple_session_window(gap_ms="1s", source_idleness_ms="6s", idle_close_ms="6s", aggregations=[slow])
    live = BackgroundRun(runner, sources=sources, window=window, transform_sql=sql, idle_pause_ms=100)
    live.wait_for(lambda: bool(runner.statuses) and runner.statuses[-1].counters.rows_in == 4)
    runner.write_input_file("1.jsonl", [e | {"i": 2} for e in build_event_rows(100, 101)])
    live.wait_for(lambda: runner.statuses[-1].counters.rows_in == 5)
    (worked,) = [s for s in runner.statuses if s.rows == 1]
    assert worked.seconds > 10
    assert [(s.idle, s.quiet_us < 6_000_000) for s in worked.sources] == [(False, True)] * 2
    live.wait_for(lambda: runner.statuses[-1].counters.rows_emitted == 5)
    live.stop_and_join()
    last = runner.statuses[-1]
    assert all(s.idle for s in last.sources)
    assert last.watermark_us is not None
    assert last.watermark_us >= to_microseconds("2024-03-01T00:01:40Z") + 6_000_000
    assert runner.read_output()["user"].to_list() == ["a", "a", "a", "b", "b"]


def test_run_with_timed_triggers_stops_cleanly_and_resumes(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    live = BackgroundRun(
        runner, source=runner.files_source(SIMPLE), window=build_simple_session_window(), trigger_interval_ms=300
    )
    live.wait_for(lambda: len(runner.statuses) == 1)
    runner.write_input_file("1.jsonl", build_event_rows(10, 20))
    live.wait_for(lambda: len(runner.statuses) == 2)
    live.stop_and_join()
    assert runner.run_pipeline(source=runner.files_source(SIMPLE), window=build_simple_session_window())[
        "n"
    ].to_list() == [4]


def test_idle_query_is_polled_less_often_until_rows_arrive(spark: Any, tmp_path: Path) -> None:
    """The pause is an internal field of Spark, which another version may move."""
    (tmp_path / "in").mkdir()
    stream = spark.readStream.format("text").load(str(tmp_path / "in")).writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        interval, jvm_query = run_loops.poll_interval_from_query(query), query._jsq.streamingQuery()
        interval.slow_down(60)
        assert jvm_query.pollingDelayMs() == interval.pause_ms == run_loops.LONGEST_MS
        interval.speed_up()
        assert jvm_query.pollingDelayMs() == interval.pause_ms == run_loops.SHORTEST_MS
    finally:
        query.stop()


def test_run_without_a_state_store_warns_that_state_is_in_memory(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    shape = {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None}
    window = build_simple_session_window(**shape, max_groups_per_window=5)
    assert runner.run_pipeline(source=runner.files_source(SIMPLE), window=window, state_store=None).height == 1
    assert any(level == "warning" and line.startswith("STATE IS IN MEMORY") for level, line in runner.notices)


def test_lookup_is_refreshed_and_a_failed_refresh_retains_the_old_rows(runner: SparkPipelineRunner) -> None:
    """The lookup changes between two epochs. Then its file is deleted."""
    import polars as pl

    runner.write_input_file("0.jsonl", build_event_rows(0, 1))
    home = runner.home / "teams"
    home.mkdir()
    pl.DataFrame({"user": ["a"], "team": ["red"]}).write_parquet(home / "t.parquet")
    live = BackgroundRun(
        runner,
        source=runner.files_source(SIMPLE),
        lookups={
            "teams": sw.Lookup(connection=sw.FilesConnection(), query=str(home / "t.parquet"), refresh_interval_ms=1)
        },
        transform_sql="SELECT team, i, _event_ts FROM source JOIN teams USING (user)",
        window=build_simple_session_window(group_by=["team"]),
    )
    live.wait_for(lambda: len(runner.statuses) == 1)
    pl.DataFrame({"user": ["a"], "team": ["blue"]}).write_parquet(home / "t.parquet")
    runner.write_input_file("1.jsonl", build_event_rows(100, 101))
    live.wait_for(lambda: len(runner.statuses) == 2)
    (home / "t.parquet").unlink()
    runner.write_input_file("2.jsonl", build_event_rows(200, 201))
    live.wait_for(lambda: len(runner.statuses) == 3)
    live.stop_and_join()
    assert any('lookup "teams": refresh 1 failed' in line for _, line in runner.notices)
    frame = runner.run_pipeline(
        source=runner.files_source(SIMPLE),
        transform_sql="SELECT 'x' AS team, i, _event_ts FROM source WHERE false",
        window=build_simple_session_window(group_by=["team"]),
    )
    assert sorted(frame["team"].to_list()) == ["blue", "blue", "red"]


@pytest.mark.semantics("event-time")
def test_processing_time_uses_the_clock_time_of_the_epoch(runner: SparkPipelineRunner) -> None:
    """With `time_mode = "processing"`, the event time of a row is the clock time of its epoch."""
    runner.write_input_file("0.jsonl", [{"user": "a", "i": 1}])
    window = build_simple_session_window(event_time_column="_event_ts", time_mode="processing")
    frame = runner.run_pipeline(source=runner.files_source("user STRING, i INT"), window=window)
    now = dt.datetime.now(dt.UTC)
    assert abs((frame["window_start"][0] - now).total_seconds()) < 300


def test_key_hashes_equal_those_of_spark(spark: Any) -> None:
    moment = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
    values: dict[str, list[Any]] = {
        "string": ["", "ü", None],
        "bigint": [-1, 2**40, None],
        "int": [7, -7, None],
        "smallint": [3, -3, None],
        "boolean": [True, False, None],
        "double": [1.5, -2.25, None],
        "float": [1.5, -2.25, None],
        "date": [dt.date(1969, 7, 20), dt.date(2024, 3, 1), None],
        "timestamp": [moment, moment, None],
        "binary": [b"\x00\xff", b"", None],
        "decimal(10,2)": [decimal.Decimal("1.25"), decimal.Decimal("-7.10"), None],
        "decimal(30,5)": [decimal.Decimal("1.25"), decimal.Decimal("-7.10"), None],
    }
    fields = [Field(f"c{n}", name) for n, name in enumerate(values)]
    rows = list(zip(*values.values(), strict=True))
    ddl = ", ".join(f"{f.name} {f.type}" for f in fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = spark.createDataFrame(rows, ddl)
        expected = frame.selectExpr(f"xxhash64({', '.join(f.name for f in fields)}) AS h").collect()
    plain = [[int(v.timestamp()) * 1_000_000 if isinstance(v, dt.datetime) else v for v in row] for row in rows]
    assert [spark_xxhash64(row, fields) for row in plain] == [r["h"] for r in expected]
