"""Config changes with state in Postgres: the first commit alters the columns, and results match the files store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.laws.generators import config_change_runs
from tests.laws.generators.config_change_runs import MS, SCHEMA, RunConfig
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import DriverCrash, MicroBatch, PipelineRestart, run_local_script

from slackwater.errors import EpochError
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.state.postgres import commit_transaction
from slackwater.state.postgres.store import PostgresStore

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "4"))
Make = Callable[[], PostgresStore]
BEFORE = RunConfig("session", lateness=50)
AFTER = RunConfig("session", gap=9, lateness=50, aggs=("n", "fs", "kinds"), shards=3)


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"changed_{abs(hash(request.node.name)):x}")
    while _MADE:
        _MADE.pop().close()


_MADE: list[PostgresStore] = []


def store_factory(url: str, schema: str = "public", name: str = "law") -> Make:
    """Return a function that opens the same store each time. The fixture `database_url` closes all of them."""

    def make() -> PostgresStore:
        _MADE.append(PostgresStore(url, schema, name))
        return _MADE[-1]

    return make


def event_rows(*times: int) -> MicroBatch:
    return MicroBatch({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 1.0} for t in times]})


def list_columns(url: str, table: str = "slackwater_state_law") -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
    with psycopg.connect(url) as db:
        return {row[0] for row in db.execute(query, (table,))}


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling", "hopping"]))
def test_runs_with_a_config_change_match_an_oracle_of_both_configs(kind: str, database_url: str) -> None:
    for seed in range(SEEDS):
        config_change_runs.check_config_change_run(
            seed, kind, crashes=seed % 2 == 1, store=store_factory(database_url, f"s{kind}{seed}")
        )


def test_commit_of_a_config_change_adds_and_drops_columns(database_url: str) -> None:
    run_local_script(BEFORE.window, [event_rows(0, 7)], SCHEMA, flush=False, store=store_factory(database_url))
    assert {"n.n", "ids.n", "ids.hi", "ids.lo"} <= list_columns(database_url)
    run_local_script(AFTER.window, [], SCHEMA, flush=False, store=store_factory(database_url), shards=3)
    now = list_columns(database_url)
    assert {"n.n", "fs.n", "kinds.set"} <= now
    assert not {"ids.n", "ids.hi", "ids.lo"} & now
    assert {"fs.n", "kinds.set"} <= list_columns(database_url, "slackwater_windows_law")
    with psycopg.connect(database_url) as db:
        query = 'SELECT "n.n", "fs.n", "kinds.set", ordinal FROM slackwater_state_law'
        assert db.execute(query).fetchall() == [(2, 0, [], 0)], "joined at once, and nothing is left of what was two"
    result = run_local_script(AFTER.window, [event_rows(9)], SCHEMA, store=store_factory(database_url), shards=3)
    assert [(r["n"], r["fs"], r["kinds"]) for r in result.rows] == [(3, 1, 1)]


@pytest.mark.parametrize("step", [f"{p}.{s}" for p in ("read", "stage", "commit") for s in ("before", "after")])
def test_restart_after_a_kill_at_any_step_completes_the_config_change(step: str, database_url: str) -> None:
    script = [event_rows(0, 7), DriverCrash(step), PipelineRestart(AFTER.window, 3), event_rows(9)]
    result = run_local_script(BEFORE.window, script, SCHEMA, store=store_factory(database_url))
    assert [(r["n"], r["fs"]) for r in result.rows] == [(3, 1)]


def test_failed_commit_of_a_config_change_rolls_back_columns_and_epoch(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_local_script(BEFORE.window, [event_rows(0, 7)], SCHEMA, flush=False, store=store_factory(database_url))
    before, view = list_columns(database_url), list_columns(database_url, "slackwater_windows_law")

    def fails(self: Any, commit: Any) -> None:
        self.db.execute("SELECT 1 / 0")

    with monkeypatch.context() as patch:
        patch.setattr(commit_transaction.Transaction, "_write_offsets", fails)
        with pytest.raises(EpochError, match="epoch 1 was not committed: division by zero"):
            run_local_script(AFTER.window, [], SCHEMA, store=store_factory(database_url), shards=3)
    assert (list_columns(database_url), list_columns(database_url, "slackwater_windows_law")) == (before, view)
    with store_factory(database_url)().peek() as snapshot:
        assert snapshot is not None
        assert snapshot.commit.epoch == 0
        logic = restore_window(snapshot.commit)
        held = [snapshot.reader(shard, logic).scan() for shard in range(2)]
        assert sorted(n for frame in held for n in frame["n.n"]) == [1, 1]
    result = run_local_script(BEFORE.window, [event_rows(9)], SCHEMA, store=store_factory(database_url))
    assert sorted(r["n"] for r in result.rows) == [1, 2], "the former config goes on"


def test_snapshots_before_and_after_a_config_change_are_readable(database_url: str) -> None:
    run_local_script(BEFORE.window, [event_rows(0, 7)], SCHEMA, flush=False, store=store_factory(database_url))
    with store_factory(database_url)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(2)) == 2
    run_local_script(AFTER.window, [], SCHEMA, flush=False, store=store_factory(database_url), shards=3)
    with store_factory(database_url)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(3)) == 1


def test_sessions_continue_after_the_row_gap_expression_changes(database_url: str) -> None:
    def by(gap: str) -> Any:
        return BEFORE.window.model_copy(update={"gap_ms": gap, "max_session_duration_ms": 500})

    def row(t: int, g: int, h: int) -> MicroBatch:
        return MicroBatch({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 1.0, "g": g, "h": h}]})

    schema, script = (
        SCHEMA | {"g": "bigint", "h": "bigint"},
        [row(0, 10, 1), row(30, 2, 50), PipelineRestart(by("h")), row(40, 1, 7)],
    )
    in_files, here = (run_local_script(by("g"), script, schema, store=s) for s in (None, store_factory(database_url)))
    assert here.rows == in_files.rows
    assert sorted((r["window_start"] // MS, r["window_end"] // MS) for r in here.rows) == [(0, 10), (30, 32), (40, 47)]


def test_start_over_renames_the_previous_state(database_url: str) -> None:
    run_local_script(BEFORE.window, [event_rows(0, 7)], SCHEMA, flush=False, store=store_factory(database_url))
    store = store_factory(database_url)()
    aside = store.start_over()
    assert aside is not None
    name = aside.split('"')[1]
    store.close()
    assert store_factory(database_url)().epochs() == []
    with store_factory(database_url, name=name)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(2)) == 2
    result = run_local_script(AFTER.window, [event_rows(9)], SCHEMA, store=store_factory(database_url), shards=3)
    assert [(r["n"], r["_epoch"]) for r in result.rows] == [(1, 1)]
    other = store_factory(database_url)()
    assert (other.start_over() or "").startswith('"law.before-')
    assert store_factory(database_url, name="new")().start_over() is None
    other.close()
