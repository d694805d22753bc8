"""Hints from the first rows about the schema and the time unit, and warnings about files that change after a read."""

from __future__ import annotations

import json
import logging
import os
import shutil
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.files.source import FilesSource
from slackwater.core.paths import file_uri_to_path
from slackwater.errors import BadRowError, StartError
from slackwater.metrics import Metrics
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark

THEN_S = 1_709_287_200  # 2024-03-01T10:00:00Z


def hourly_window(**more: Any) -> sw.Window:
    defaults = {
        "kind": "tumbling",
        "duration_ms": "1h",
        "max_groups_per_window": 9,
        "group_by": ["user"],
        "event_time_column": "ts",
    }
    return sw.Window(**{**defaults, "aggregations": [sw.Aggregation(agg="count", as_="n")], **more})


def logged_messages(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if word in r.getMessage()]


def build_event_rows(scale: int, n: int = 30, **more: Any) -> list[dict[str, Any]]:
    return [{"user": "a", "ts": (THEN_S + k) * scale, **more} for k in range(n)]


# -- columns missing from the data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", select_cases([2500, 30]))
def test_column_missing_from_the_first_rows_is_reported_with_candidates(
    runner: SparkPipelineRunner, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """The warning is logged once per column, after 1,000 rows or at the end of a shorter input.

    A column that exists and is NULL causes no warning.
    """
    rows = [{"User_ID": "a", "ts": THEN_S + k, "url": None} for k in range(count)]
    for n in range(0, count, 800):
        runner.write_input_file(f"{n:04}.jsonl", rows[n : n + 800])
    source = runner.files_source("user_id STRING, url STRING, ts BIGINT, referer STRING", max_files_per_trigger=1)
    with caplog.at_level(logging.WARNING, "slackwater"):
        runner.run_pipeline(source=source, window=hourly_window(group_by=["user_id"], event_time_unit="s"))
    first, second = logged_messages(caplog, "does not occur in the first")
    assert 'source "events": the column "user_id"' in first
    assert first.endswith('available: User_ID, ts, url; did you mean "User_ID"?')
    assert f"first {min(count, 1000):,} rows" in first
    assert '"referer"' in second
    assert "did you mean" not in second


def test_column_missing_from_a_parquet_file_is_reported(
    runner: SparkPipelineRunner, caplog: pytest.LogCaptureFixture
) -> None:
    (runner.home / "in").mkdir()
    pl.DataFrame({"usr": ["a"] * 5, "ts": [THEN_S + k for k in range(5)]}).write_parquet(
        runner.home / "in" / "0.parquet"
    )
    source = sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=str(runner.home / "in"),
        format="parquet",
        schema="user STRING, ts BIGINT",
    )
    with caplog.at_level(logging.WARNING, "slackwater"):
        runner.run_pipeline(source=source, window=hourly_window(event_time_unit="s"))
    (line,) = logged_messages(caplog, "does not occur in the first")
    assert line.endswith('available: ts, usr; did you mean "usr"?')


# -- units -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "meant", "scale"),
    select_cases([("ms", "s", 1), ("us", "us", 10**6), ("s", "ms", 10**3), ("s", "ns", 10**9)], keep=2),
)
def test_wrong_event_time_unit_is_reported_with_the_right_unit(
    runner: SparkPipelineRunner, caplog: pytest.LogCaptureFixture, declared: str, meant: str, scale: int
) -> None:
    """A unit that is too fine gives times before 1990 and a warning. A unit that is too coarse gives bad rows.

    All pairs are in tests/unit/test_time_unit_hints_and_changed_files.py.
    """
    runner.write_input_file("0.jsonl", [{"user": "a", "ts": 0}, *build_event_rows(scale)])
    source, how = runner.files_source("user STRING, ts BIGINT"), hourly_window(event_time_unit=declared)
    if declared == "s" and meant != "s":
        with pytest.raises(BadRowError, match=f'did you mean event_time_unit = "{meant}"'):
            runner.run_pipeline(source=source, window=how)
        return
    with caplog.at_level(logging.WARNING, "slackwater"):
        runner.run_pipeline(source=source, window=how)
    lines = logged_messages(caplog, "did you mean event_time_unit")
    assert len(lines) == (declared != meant)
    assert all(line.endswith(f'did you mean event_time_unit = "{meant}"?') for line in lines)


def test_run_without_valid_event_times_fails_with_a_unit_hint(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(1000, 1200))
    with pytest.raises(StartError, match=r'none of its first 1,200 rows .* did you mean event_time_unit = "ms"'):
        runner.run_pipeline(
            source=runner.files_source("user STRING, ts BIGINT"),
            window=hourly_window(event_time_unit="s"),
            on_error="drop",
        )


# -- files that change -------------------------------------------------------------------------------------------------


def test_file_changed_after_it_was_read_is_reported_and_counted_once(
    runner: SparkPipelineRunner, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    grows, same = (
        runner.write_input_file("0.jsonl", build_event_rows(1)),
        runner.write_input_file("1.jsonl", build_event_rows(1)),
    )
    replaced = runner.write_input_file("2.jsonl", build_event_rows(1))
    settings: dict[str, Any] = {
        "source": runner.files_source("user STRING, ts BIGINT"),
        "window": hourly_window(event_time_unit="s"),
        "flush": False,
    }
    runner.run_pipeline(**settings)
    assert runner.statuses[-1].counters.files_changed == 0
    with grows.open("a") as more:
        more.write(json.dumps({"user": "b", "ts": THEN_S}) + "\n")
    when = replaced.stat().st_mtime
    replaced.write_text(replaced.read_text() + "\n")
    os.utime(replaced, (when, when))
    with caplog.at_level(logging.WARNING, "slackwater"):
        runner.run_pipeline(**settings)
        runner.run_pipeline(**settings)
    (line,) = logged_messages(caplog, "changed after")
    assert 'source "events": 2 files changed after they were read, and are not read again:' in line
    assert str(grows) in line
    assert str(replaced) in line
    assert str(same) not in line
    assert runner.statuses[-1].counters.files_changed == 2
    metrics = Metrics()
    metrics.update(runner.statuses[-1])
    assert metrics.registry.get_sample_value("slackwater_streaming_files_changed_total", {"pipeline": "test"}) == 2
    pipeline = sw.pipeline(
        name="test",
        source=settings["source"],
        window=settings["window"],
        target=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "out")),
        state_store=sw.StateStore(kind="files", path=str(runner.home / "state")),
    )
    report = build_why_report(pipeline, FilesStore(str(runner.home / "state"), "test"), 0)
    assert report.changed_files["events"]["count"] == 2


# -- names of files ----------------------------------------------------------------------------------------------------

NAMES = ["a b", "a%20b", "100%", "h#1", "q?", "[x]", "x", "{a,b}", "ä名", "st*r", "back\\slash", "a;b,c+d&e=f"]


@pytest.mark.parametrize("form", select_cases(["json", "parquet"]))
def test_files_with_special_characters_are_read_exactly_once(runner: SparkPipelineRunner, form: str) -> None:
    """Spark lists percent-encoded names and its readers take patterns, but each name must match one file only.

    The folder looks like a pattern, too. A restart without the checkpoint and a backfill list the same files.
    """
    from pyspark.sql.types import StructType

    folder = runner.home / "in [1] #2 %41"
    folder.mkdir()

    def write(name: str, user: str) -> None:
        frame = pl.DataFrame({"user": [user], "ts": [THEN_S]})
        path = folder / f"{name}.{form}"
        frame.write_ndjson(path) if form == "json" else frame.write_parquet(path)

    for name in NAMES:
        write(name, name)
    query = str(folder / f"*.{form}")
    source = sw.Source(
        name="events", connection=sw.FilesConnection(), query=query, format=form, schema="user STRING, ts BIGINT",
        max_files_per_trigger=5,
    )  # fmt: skip
    settings = {
        "source": source,
        "window": hourly_window(event_time_unit="s", lateness_ms="2h", max_groups_per_window=99),
        "flush": False,
    }
    runner.run_pipeline(**settings)
    listed = FilesSource(source, StructType.fromDDL("user STRING, ts BIGINT")).list_files(runner.spark)
    assert sorted(file_uri_to_path(e.path) for e in listed) == sorted(str(folder / f"{n}.{form}") for n in NAMES)
    assert all(e.current is not None for e in listed)
    shutil.rmtree(runner.home / "state" / "test" / "checkpoint")
    write("y z", "y z")
    results = runner.run_pipeline(**settings | {"flush": True})
    assert sorted(results["user"].to_list()) == sorted([*NAMES, "y z"])
    assert results["n"].to_list() == [1] * (len(NAMES) + 1)


def test_query_of_a_file_named_like_a_pattern_reads_only_that_file(runner: SparkPipelineRunner) -> None:
    for name in ("report [1].jsonl", "report 1.jsonl"):
        runner.write_input_file(name, build_event_rows(1, 1, at=name))
    source = runner.files_source("user STRING, ts BIGINT, at STRING")
    source = source.model_copy(update={"query": str(runner.home / "in" / "report [1].jsonl")})
    frame = runner.run_pipeline(source=source, window=hourly_window(event_time_unit="s", group_by=["at"]))
    assert frame["at"].to_list() == ["report [1].jsonl"]
