"""Changes of a pipeline between starts on Spark: an added aggregation, a larger gap, other shards, and a rebuild."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import order_payment_joins
from tests.support.case_selection import exhaustive
from tests.support.sample_events_and_windows import SIMPLE, build_event_rows, build_simple_session_window
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark


def files_state_store(runner: SparkPipelineRunner, shards: int) -> sw.StateStore:
    return sw.StateStore(kind="files", path=str(runner.home / "state"), shards=shards)


def test_changed_pipeline_continues_from_the_existing_state(runner: SparkPipelineRunner) -> None:
    """
    gap 20      [0 ── 40]        [70 ── 90]
    gap 40      [0 ───────────────── 90] ── 100: rows 95 and 100 are counted by the added aggregation
    """
    before = build_simple_session_window(lateness_ms="1h")
    source = runner.files_source(SIMPLE, max_files_per_trigger=1)
    runner.write_input_file("0.jsonl", build_event_rows(0, 45) + build_event_rows(70, 95))
    runner.run_pipeline(source=source, window=before, state_store=files_state_store(runner, 2), flush=False)
    added = sw.Aggregation(agg="count", column="user", as_="users")
    after = build_simple_session_window(lateness_ms="1h", gap_ms="40s", aggregations=[*before.aggregations, added])
    runner.write_input_file("1.jsonl", build_event_rows(95, 105))
    frame = runner.run_pipeline(source=source, window=after, state_store=files_state_store(runner, 3))
    whole = len(build_event_rows(0, 45) + build_event_rows(70, 95))
    assert frame.select("n", "users").rows() == [(whole + 2, 2)]
    changes = [line.partition(":")[0] for level, line in runner.notices if level == "info" and "config has" in line]
    assert changes == ["gap", 'aggregation "users"', "shards"]
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        assert (snapshot.commit.shards, snapshot.commit.stages[0].fingerprint["gap_ms"]) == (3, 40_000)


def test_rebuild_reprocesses_all_input(runner: SparkPipelineRunner) -> None:
    source: Any = runner.files_source(SIMPLE)
    runner.write_input_file("0.jsonl", build_event_rows(0, 45))
    runner.run_pipeline(source=source, window=build_simple_session_window(lateness_ms="1h"))
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        former = snapshot.commit.state_id
    tumbling = build_simple_session_window(
        kind="tumbling", duration_ms="1m", gap_ms=None, max_session_duration_ms=None, max_groups_per_window=9
    )
    runner.run_pipeline(source=source, window=tumbling, rebuild={}, target_path=str(runner.home / "again"))
    assert runner.read_output("again")["n"].to_list() == [len(build_event_rows(0, 45))]
    assert any("starting over; the previous state is now" in line for _, line in runner.notices)
    assert ("info", "sources begin: events at its first file") in runner.notices
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        assert snapshot.commit.state_id not in ("", former)


def state_files_with_text(text: str, runner: SparkPipelineRunner) -> list[str]:
    return [str(p) for p in (runner.home / "state").rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


def test_changed_sql_is_reported_at_start_and_not_stored_in_the_state(runner: SparkPipelineRunner) -> None:
    """SQL may contain values from the environment, such as a salt."""
    source: Any = runner.files_source(SIMPLE, max_files_per_trigger=1)
    runner.write_input_file("0.jsonl", build_event_rows(0, 45))
    sql = "SELECT *, sha2(concat(user, 's4lt'), 256) AS hidden FROM source"
    runner.run_pipeline(
        source=source, window=build_simple_session_window(lateness_ms="1h"), transform_sql=sql, flush=False
    )
    assert state_files_with_text("s4lt", runner) == []
    assert state_files_with_text("watermark_us", runner) != []
    runner.notices.clear()
    runner.run_pipeline(
        source=source, window=build_simple_session_window(lateness_ms="1h"), transform_sql=sql, flush=False
    )
    assert not [line for _, line in runner.notices if "config has" in line]
    runner.run_pipeline(
        source=source, window=build_simple_session_window(lateness_ms="1h"), transform_sql=sql.replace("s4lt", "p3pper")
    )
    (notice,) = [(level, line) for level, line in runner.notices if "config has" in line]
    assert notice[0] == "warning"
    assert notice[1].startswith("transform.sql: state has text ")
    assert notice[1].endswith("it applies to rows read after the next start; rows in the state do not change")
    assert "p3pper" not in notice[1]
    assert state_files_with_text("p3pper", runner) == []


@exhaustive(beside="test_config_change.py::test_changed_sql_is_reported_at_start_and_not_stored_in_the_state")
def test_join_sql_is_not_stored_in_the_state(runner: SparkPipelineRunner) -> None:
    order_payment_joins.write_order_and_payment_files(runner, 3)
    salted = order_payment_joins.build_order_payment_join(
        left_sql="SELECT *, sha2(concat(region, 's4lt'), 256) AS hidden FROM source"
    )
    runner.run_pipeline(sources=order_payment_joins.build_order_and_payment_sources(runner, (1, 1)), join=salted)
    assert state_files_with_text("watermark_us", runner) != []
    assert state_files_with_text("s4lt", runner) == []
