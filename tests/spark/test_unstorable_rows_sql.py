"""Rows that Postgres cannot store, on Spark: detected between SQL and shuffle, with the in-process messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import BadRowError
from slackwater.operators import unstorable_rows
from slackwater.operators.dead_letters import OUTSIDE

pytestmark = pytest.mark.spark

ROWS = [
    {"id": 1, "k": "ok", "s": "v", "t": 0},
    {"id": 2, "k": "a\0b", "s": "v", "t": 0},
    {"id": 3, "k": "ok", "s": "x\0y", "t": 0},
    {"id": 4, "k": "\\u0000", "s": "\\\\u0000", "t": 0},
    {"id": 5, "k": "x" * 5000, "s": "v", "t": 0},
    {"id": 6, "k": "ok", "s": "v", "t": -62_200_000_000},  # year 0
    {"id": 7, "k": "ok", "s": "bytes", "t": 0},
    {"id": 8, "k": None, "s": None, "t": 0},
]
BAD = {unstorable_rows.ZERO: 3, unstorable_rows.KEY: 1, OUTSIDE: 1}
# the SQL turns one of the strings into bytes that are not UTF-8
SQL = "SELECT id, k, CASE WHEN s = 'bytes' THEN CAST(X'ff41' AS STRING) ELSE s END AS s, _event_ts FROM source"
AGGREGATIONS = [
    sw.Aggregation(agg="count", as_="n"),
    sw.Aggregation(agg="max", column="s", as_="m"),
    sw.Aggregation(agg="sum", column="id", as_="ids"),
]
WINDOWS = {
    "tumbling": sw.Window(
        kind="tumbling", duration_ms=1000, event_time_column="t", event_time_unit="s", group_by=["k"],
        max_groups_per_window=100, aggregations=AGGREGATIONS,
    ),
    "session": sw.Window(
        kind="session", gap_ms=1000, max_session_duration_ms=60_000, event_time_column="t", event_time_unit="s", group_by=["k"],
        aggregations=AGGREGATIONS, late_data="dlq",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", select_cases(WINDOWS))
def test_unstorable_rows_become_dead_letters_and_other_rows_are_used(
    runner: SparkPipelineRunner, postgres: Any, kind: str
) -> None:
    url = postgres.database(f"unfit_{kind}")
    runner.write_input_file("0.jsonl", ROWS)
    runner.run_pipeline(
        source=runner.files_source("id BIGINT, k STRING, s STRING, t BIGINT"),
        transform_sql=SQL,
        window=WINDOWS[kind],
        on_error="dlq",
        target=sw.Target(connection=sw.PostgresConnection(url=url), table="out"),
        target_path=None,
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    )
    letters = pl.concat([pl.read_parquet(p) for p in (runner.home / "letters").glob("*.parquet")])
    assert Counter(letters["reason"].to_list()) == BAD
    assert letters["value"].null_count() == 0
    assert set(letters["source"]) == {"events"}
    counters = runner.statuses[-1].counters
    assert counters.rows_bad == 5
    assert counters.rows_used == 3
    with psycopg.connect(url) as db:
        assert sorted(db.execute("SELECT k, n, ids FROM out").fetchall(), key=str) == sorted(
            [("ok", 1, 1), ("\\u0000", 1, 4), (None, 1, 8)], key=str
        )


def test_on_error_fail_reports_the_unstorable_value(runner: SparkPipelineRunner, postgres: Any) -> None:
    url = postgres.database("unfit_fail")
    runner.write_input_file("0.jsonl", ROWS[:2])
    with pytest.raises(BadRowError, match=r'source "events": 1 bad row.*1: a string contains U\+0000.*"k":"a\\u0000b"'):
        runner.run_pipeline(
            source=runner.files_source("id BIGINT, k STRING, s STRING, t BIGINT"),
            window=WINDOWS["tumbling"],
            target=sw.Target(connection=sw.PostgresConnection(url=url), table="out"),
            target_path=None,
        )


@exhaustive(beside="test_previous_output.py::test_moved_output_is_complete_and_next_state_starts_clean")
def test_start_without_state_refuses_output_of_another_state(runner: SparkPipelineRunner) -> None:
    from slackwater.errors import StartError

    runner.write_input_file("0.jsonl", ROWS[:1])
    settings: dict[str, Any] = {
        "source": runner.files_source("id BIGINT, k STRING, s STRING, t BIGINT"),
        "window": WINDOWS["tumbling"],
    }
    once = runner.run_pipeline(**settings)
    assert runner.run_pipeline(**settings).equals(once)  # the state records its own output
    (runner.home / "state").rename(runner.home / "gone")
    with pytest.raises(StartError, match=r'target already contains . files? of another state of "test"'):
        runner.run_pipeline(**settings)
    with pytest.raises(StartError, match="--put-aside-output"):
        runner.run_pipeline(**settings, rebuild={})
    assert runner.run_pipeline(**settings, former_output="aside").equals(once)
    assert runner.run_pipeline(**settings, rebuild={}, former_output="keep").height == 2 * once.height
