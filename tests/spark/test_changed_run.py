"""A pipeline on Spark that is stopped, changed and started again: added aggregation, larger gap, other shards; and rebuilt."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import Runner
from tests.spark.test_engine import SIMPLE, events, simple

import slackwater as sw
from slackwater.state.files import FilesStore

pytestmark = pytest.mark.spark


def store(runner: Runner, shards: int) -> sw.StateStore:
    return sw.StateStore(kind="files", path=str(runner.home / "state"), shards=shards)


def test_a_changed_pipeline_goes_on(runner: Runner) -> None:
    """
    gap 20      [0 ── 40]        [70 ── 90]
    gap 40      [0 ───────────────── 90] ── 100: rows 95 and 100 are counted by what was added
    """
    before = simple(lateness_ms="1h")
    source = runner.source(SIMPLE, max_files_per_trigger=1)
    runner.write("0.jsonl", events(0, 45) + events(70, 95))
    runner.run(source=source, window=before, state_store=store(runner, 2), flush=False)
    added = sw.Aggregation(agg="count", column="user", as_="users")
    after = simple(lateness_ms="1h", gap_ms="40s", aggregations=[*before.aggregations, added])
    runner.write("1.jsonl", events(95, 105))
    found = runner.run(source=source, window=after, state_store=store(runner, 3))
    whole = len(events(0, 45) + events(70, 95))
    assert found.select("n", "users").rows() == [(whole + 2, 2)]
    told = [line.partition(":")[0] for level, line in runner.notices if level == "info" and "config has" in line]
    assert told == ["gap_ms", 'aggregation "users"', "shards"]
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        assert (snapshot.manifest.shards, snapshot.manifest.fingerprint["gap_ms"]) == (3, 40_000)


def test_a_rebuild_reads_everything_again(runner: Runner) -> None:
    source: Any = runner.source(SIMPLE)
    runner.write("0.jsonl", events(0, 45))
    runner.run(source=source, window=simple(lateness_ms="1h"))
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        former = snapshot.manifest.state_id
    tumbling = simple(
        kind="tumbling", duration_ms="1m", gap_ms=None, max_session_duration_ms=None, max_groups_per_window=9
    )
    runner.run(source=source, window=tumbling, rebuild={}, target_path=str(runner.home / "again"))
    assert runner.output("again")["n"].to_list() == [len(events(0, 45))]
    assert any("starting over; the former state is now" in line for _, line in runner.notices)
    assert ("info", "sources begin: events at its first file") in runner.notices
    with FilesStore(runner.home / "state", "test").peek() as snapshot:
        assert snapshot is not None
        assert snapshot.manifest.state_id not in ("", former)
