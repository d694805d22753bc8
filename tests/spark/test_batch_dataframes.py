"""Batch DataFrames have the rows that a streaming run over the same input publishes. They use no state store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.longest_text_aggregator import LongestTextAggregator
from tests.support.real_dataset_pipelines import PIPELINES, check_known_result
from tests.support.sample_events_and_windows import (
    SCHEMA,
    build_rows_of_every_type,
    build_window_with_every_aggregation,
    format_iso_time,
    to_comparable_rows,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import ConfigError, StartError

pytestmark = pytest.mark.spark
PLAIN = "user STRING, gap BIGINT, ts TIMESTAMP"


def read_json_frame(spark: Any, path: Path, schema: str = SCHEMA, **options: str) -> Any:
    return spark.read.schema(schema).options(**options).json(str(path))


def collect_sorted_rows(batch: Any) -> pl.DataFrame:
    """Collect the rows of a batch, ordered by its first columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's
        frame = pl.from_arrow(batch.toArrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.sort(frame.columns[:4])


def counting_window(kind: str = "session", **more: Any) -> sw.Window:
    shape = {"session": {"gap_ms": "20s", "max_session_duration_ms": "2m"}}.get(
        kind, {"duration_ms": "1m", "max_groups_per_window": 10}
    )
    defaults = {
        "kind": kind, "group_by": ["user"], "event_time_column": "ts",
        "aggregations": [sw.Aggregation(agg="count", as_="n")],
    }  # fmt: skip
    return sw.Window(**{**defaults, **shape, **more})


@pytest.mark.parametrize("kind", ["hopping", "session", "tumbling"])
@pytest.mark.parametrize("shards", [3, None])
@exhaustive(beside="test_batch_dataframes.py::test_user_aggregation_and_columns_with_dots_match_a_streaming_run")
def test_every_aggregation_matches_a_streaming_run(runner: SparkPipelineRunner, kind: str, shards: int | None) -> None:
    """Some sessions are cut by the cap. The streaming run takes three epochs."""
    rows = build_rows_of_every_type(90)
    for part in range(3):
        runner.write_input_file(f"{part}.jsonl", rows[part * 30 : part * 30 + 30])
    longer = {"gap_ms": "30s", "emit_metadata": True} if kind == "session" else {}
    shape = build_window_with_every_aggregation(kind, lateness_ms="1m", **longer)
    expected = runner.run_pipeline(source=runner.files_source(SCHEMA, max_files_per_trigger=1), window=shape)
    batch = sw.batch(read_json_frame(runner.spark, runner.home / "in"), shape, shards=shards)
    assert [(f.name, f.dataType.simpleString()) for f in batch.schema][:4] == [
        (name, {pl.String: "string", pl.Int64: "bigint"}.get(type(kind), "timestamp"))
        for name, kind in list(expected.schema.items())[:4]
    ]
    frame = collect_sorted_rows(batch)
    assert frame.columns == expected.columns
    if kind == "session":
        assert "cap" in expected["_emit_reason"].to_list()
        # a batch closes all windows, as the flush of the streaming run does
        expected = expected.with_columns(pl.col("_emit_reason").replace("flush", "close"))
    assert to_comparable_rows(frame) == to_comparable_rows(expected)


@pytest.mark.parametrize("kind", select_cases(["hopping", "session"]))
def test_user_aggregation_and_columns_with_dots_match_a_streaming_run(runner: SparkPipelineRunner, kind: str) -> None:
    rows = [{"user": "ab"[n % 2], "s": "x" * (n % 7), "a.dot": n % 3, "ts": format_iso_time(9 * n)} for n in range(40)]
    runner.write_input_file("0.jsonl", rows)
    schema = "user STRING, s STRING, `a.dot` INT, ts TIMESTAMP"
    aggregations = [
        sw.Aggregation(agg=LongestTextAggregator, columns={"text": "s"}, as_="longest"),
        sw.Aggregation(agg="collect_set", column="a.dot", max_values_per_group=9, as_="the.set"),
    ]
    longer = {"gap_ms": "60s", "max_session_duration_ms": "3m"} if kind == "session" else {}
    shape = build_window_with_every_aggregation(kind, group_by=["user", "a.dot"], aggregations=aggregations, **longer)
    expected = runner.run_pipeline(source=runner.files_source(schema), window=shape)
    frame = collect_sorted_rows(sw.batch(read_json_frame(runner.spark, runner.home / "in", schema), shape))
    # LongestTextAggregator prefixes the key at each merge, and the number of merges is not fixed
    bare = pl.col("longest").str.split(": ").list.last()
    assert frame.with_columns(bare).rows() == expected.with_columns(bare).rows()
    assert frame["longest"].str.starts_with("a: ").any()
    assert frame.height > 5


@pytest.mark.matrix
def test_batch_with_lookups_does_not_change_the_callers_session(runner: SparkPipelineRunner) -> None:
    """The result belongs to the caller's session, whose views and settings do not change."""
    spark = runner.spark
    runner.write_input_file("0.jsonl", [{"user": "ab"[n % 2], "ts": format_iso_time(n)} for n in range(10)])
    events = read_json_frame(spark, runner.home / "in", PLAIN)
    people = spark.createDataFrame([("a", "Ann")], "user STRING, name STRING")
    for name in ("source", "people"):  # other tests may have created these views
        spark.catalog.dropTempView(name)
    sql = "SELECT p.name AS user, s._event_ts FROM source s JOIN people p ON s.user = p.user"
    batch = sw.batch(events, counting_window(), sql, lookups={"people": people})
    assert batch.sparkSession is events.sparkSession
    batch.createOrReplaceTempView("sessions_of_batch")
    assert [tuple(r) for r in spark.sql("SELECT user, n FROM sessions_of_batch").collect()] == [("Ann", 5)]
    assert {"source", "people"}.isdisjoint(t.name for t in spark.catalog.listTables())
    spark.catalog.dropTempView("sessions_of_batch")


def test_batch_is_lazy_until_it_is_collected(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", [{"user": "a", "ts": "no time"}])
    schema = "user STRING, ts STRING"
    batch = sw.batch(read_json_frame(runner.spark, runner.home / "in", schema), counting_window())
    with pytest.raises(
        Exception, match=r'batch: bad row of "rows": no event time in "ts": \{"user":"a","ts":"no time"\}'
    ):
        batch.collect()


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
def test_bad_rows_are_dropped_only_with_on_error_drop(runner: SparkPipelineRunner, kind: str) -> None:
    times = [format_iso_time(0), None, "2999-01-01T00:00:00Z", format_iso_time(5)]
    runner.write_input_file("0.jsonl", [{"user": "a", "ts": event_time} for event_time in times])
    events = read_json_frame(runner.spark, runner.home / "in", PLAIN)
    assert collect_sorted_rows(sw.batch(events, counting_window(kind), on_error="drop"))["n"].to_list() == [2]
    with pytest.raises(Exception, match="bad row of"):
        sw.batch(events, counting_window(kind), "SELECT user, _event_ts FROM source WHERE ts > '2024-01-01'").collect()


@exhaustive(beside="test_per_row_session_gaps.py::test_rows_without_a_usable_gap_are_bad_rows")
def test_row_without_a_positive_gap_is_a_bad_row(runner: SparkPipelineRunner) -> None:
    rows = [{"user": "a", "gap": gap, "ts": format_iso_time(n)} for n, gap in enumerate([9000, None, 3000, -1])]
    runner.write_input_file("0.jsonl", rows)
    events, shape = read_json_frame(runner.spark, runner.home / "in", PLAIN), counting_window(gap_ms="gap")
    with pytest.raises(
        Exception,
        match=r"batch: the gap \(gap\) must be positive .* for at least 2 rows it is not: user=a at 2024-03-01",
    ):
        sw.batch(events, shape).collect()
    runner.notices.clear()
    expected = runner.run_pipeline(source=runner.files_source(PLAIN), window=shape, on_error="drop")
    assert collect_sorted_rows(sw.batch(events, shape, on_error="drop")).rows() == expected.rows()
    assert expected["n"].to_list() == [2]


@exhaustive(beside="test_batch_dataframes.py::test_batches_of_real_files_have_the_known_results")
@pytest.mark.parametrize("emit", select_cases(["final", "on_close"]))
def test_open_windows_are_not_emitted_without_flush(runner: SparkPipelineRunner, emit: str) -> None:
    rows = [
        {"user": "ab"[n % 2], "ts": format_iso_time(second)} for n, second in enumerate([0, 1, 70, 71, 150, 151, 300])
    ]
    runner.write_input_file("0.jsonl", rows)
    more = {
        "emit": emit,
        "late_data": "reopen",
        "allowed_lateness_ms": "2m",
        "emit_metadata": True,
        "lateness_ms": "5s",
    }
    for kind in ("session", "tumbling"):
        shape = counting_window(kind, **more)
        expected = runner.run_pipeline(
            name=kind, source=runner.files_source(PLAIN), window=shape, flush=False, target_path=str(runner.home / kind)
        )
        expected = runner.read_output(kind)
        frame = collect_sorted_rows(
            sw.batch(read_json_frame(runner.spark, runner.home / "in", PLAIN), shape, flush=False)
        )
        assert to_comparable_rows(frame) == to_comparable_rows(expected)
        assert (
            0
            < frame.height
            < collect_sorted_rows(sw.batch(read_json_frame(runner.spark, runner.home / "in", PLAIN), shape)).height
        )


def test_batch_of_an_empty_input_has_no_rows(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", [])
    events = read_json_frame(runner.spark, runner.home / "in", PLAIN)
    for shape in (counting_window(), counting_window("tumbling", group_by=[])):
        for flush in (True, False):
            batch = sw.batch(events, shape, flush=flush)
            assert batch.collect() == []
            assert "n" in batch.columns


def test_unsupported_batch_arguments_are_refused(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", [{"user": "a", "ts": format_iso_time(0)}])
    events = read_json_frame(runner.spark, runner.home / "in", PLAIN)
    stream = runner.spark.readStream.schema(PLAIN).json(str(runner.home / "in"))
    with pytest.raises(ConfigError, match='on_error: found "dlq", expected "fail" or "drop"'):
        sw.batch(events, counting_window(), on_error="dlq")
    with pytest.raises(StartError, match='"rows" is a streaming DataFrame; expected a batch DataFrame'):
        sw.batch(stream, counting_window())
    with pytest.raises(StartError, match='column "usr" does not come out of the SQL; did you mean "user"'):
        sw.batch(events, counting_window(group_by=["usr"]))


@pytest.mark.shared_data
def test_batches_of_real_files_have_the_known_results(spark: Any, real_events_folder: Path) -> None:
    wiki = read_json_frame(
        spark,
        real_events_folder / "wikiticker-2015-09-12.json.gz",
        "time STRING, user STRING, page STRING, deleted BIGINT",
    )
    n = sw.Aggregation(agg="count", as_="n")
    deleted = sw.Aggregation(agg="sum", column="deleted", as_="deleted")
    time = {"event_time_column": "time"}
    session = sw.Window(
        kind="session", gap_ms="30m", max_session_duration_ms="30d", group_by=["user"], aggregations=[n], **time
    )
    check_known_result("wiki-sessions", collect_sorted_rows(sw.batch(wiki, session)))
    hourly = sw.Window(kind="tumbling", duration_ms="1h", max_groups_per_window=1, aggregations=[n, deleted], **time)
    check_known_result("wiki-hourly", collect_sorted_rows(sw.batch(wiki, hourly)))
    hopping = sw.Window(
        kind="hopping", duration_ms="1h", hop_ms="15m", max_groups_per_window=1, aggregations=[n], **time
    )
    check_known_result("wiki-hopping", collect_sorted_rows(sw.batch(wiki, hopping)))
    ibis = spark.read.csv(
        str(real_events_folder / PIPELINES["ibis"]["file"]), sep="\t", header=True,
        schema="seq INT, sha STRING, author_time BIGINT, commit_time BIGINT, author_id STRING, nparents INT",
    )  # fmt: skip
    authors = sw.Window(
        kind="session", gap_ms="30m", max_session_duration_ms="30d", group_by=["author_id"], aggregations=[n],
        event_time_column="author_time", event_time_unit="s",
    )  # fmt: skip
    check_known_result(
        "ibis", collect_sorted_rows(sw.batch(ibis, authors))
    )  # 35 % of the rows are out of order, and none is late in a batch


@pytest.mark.matrix
@pytest.mark.parametrize("how", select_cases(["full", "inner", "left", "right"]))
def test_join_matches_a_streaming_run(runner: SparkPipelineRunner, how: str) -> None:
    for part in range(2):
        rows = [{"k": [None, 1, 2][n % 3], "v": n, "ts": format_iso_time(13 * n)} for n in range(part, 40, 2)]
        runner.write_input_file("0.jsonl", rows, folder=("l", "r")[part])
    schema = "k INT, v BIGINT, ts TIMESTAMP"
    join = sw.Join(
        kind=how, left_source="l", right_source="r", left_keys=["k"], right_keys=["k"], lower_ms="-30s", upper_ms="90s",
        event_time_column="ts", right_sql="SELECT k, v * 2 AS v, _event_ts FROM source WHERE v <> 21",
        lateness_ms="1h",
    )  # fmt: skip
    expected = runner.run_pipeline(sources=[runner.files_source(schema, name, name) for name in ("l", "r")], join=join)
    left, right = (read_json_frame(runner.spark, runner.home / name, schema) for name in ("l", "r"))
    frame = collect_sorted_rows(sw.batch_join(left, right, join, shards=2))
    assert frame.columns == expected.columns
    assert sorted(frame.rows(), key=str) == sorted(expected.rows(), key=str)
    assert frame.height > 11
