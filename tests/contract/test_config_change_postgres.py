"""Config changes with state in Postgres: the first commit alters the columns, and results match the files store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.laws.generators import config_changes
from tests.laws.generators.config_changes import MS, SCHEMA, Config
from tests.support.case_selection import select_cases
from tests.support.script import Crash, Restart, RowsInput, run_local

from slackwater.errors import EpochError
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.state.postgres import commit_transaction
from slackwater.state.postgres.store import PostgresStore

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "4"))
Make = Callable[[], PostgresStore]
BEFORE = Config("session", lateness=50)
AFTER = Config("session", gap=9, lateness=50, aggs=("n", "fs", "kinds"), shards=3)


@pytest.fixture
def url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"changed_{abs(hash(request.node.name)):x}")
    while _MADE:
        _MADE.pop().close()


_MADE: list[PostgresStore] = []


def store_maker(url: str, schema: str = "public", name: str = "law") -> Make:
    """Return a function that opens the same store each time. The fixture `url` closes all of them."""

    def make() -> PostgresStore:
        _MADE.append(PostgresStore(url, schema, name))
        return _MADE[-1]

    return make


def rows(*times: int) -> RowsInput:
    return RowsInput({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 1.0} for t in times]})


def columns(url: str, table: str = "slackwater_state_law") -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
    with psycopg.connect(url) as db:
        return {row[0] for row in db.execute(query, (table,))}


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling", "hopping"]))
def test_runs_with_a_config_change_match_the_mixed_oracle(kind: str, url: str) -> None:
    for seed in range(SEEDS):
        config_changes.check_run(seed, kind, crashes=seed % 2 == 1, store=store_maker(url, f"s{kind}{seed}"))


def test_commit_of_a_config_change_adds_and_drops_columns(url: str) -> None:
    run_local(BEFORE.window, [rows(0, 7)], SCHEMA, flush=False, store=store_maker(url))
    assert {"n.n", "ids.n", "ids.hi", "ids.lo"} <= columns(url)
    run_local(AFTER.window, [], SCHEMA, flush=False, store=store_maker(url), shards=3)
    now = columns(url)
    assert {"n.n", "fs.n", "kinds.set"} <= now
    assert not {"ids.n", "ids.hi", "ids.lo"} & now
    assert {"fs.n", "kinds.set"} <= columns(url, "slackwater_windows_law")
    with psycopg.connect(url) as db:
        query = 'SELECT "n.n", "fs.n", "kinds.set", ordinal FROM slackwater_state_law'
        assert db.execute(query).fetchall() == [(2, 0, [], 0)], "joined at once, and nothing is left of what was two"
    result = run_local(AFTER.window, [rows(9)], SCHEMA, store=store_maker(url), shards=3)
    assert [(r["n"], r["fs"], r["kinds"]) for r in result.rows] == [(3, 1, 1)]


@pytest.mark.parametrize("step", [f"{p}.{s}" for p in ("read", "stage", "commit") for s in ("before", "after")])
def test_restart_after_a_kill_at_any_step_completes_the_config_change(step: str, url: str) -> None:
    script = [rows(0, 7), Crash(step), Restart(AFTER.window, 3), rows(9)]
    result = run_local(BEFORE.window, script, SCHEMA, store=store_maker(url))
    assert [(r["n"], r["fs"]) for r in result.rows] == [(3, 1)]


def test_failed_commit_of_a_config_change_rolls_back_columns_and_epoch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_local(BEFORE.window, [rows(0, 7)], SCHEMA, flush=False, store=store_maker(url))
    before, view = columns(url), columns(url, "slackwater_windows_law")

    def fails(self: Any, commit: Any) -> None:
        self.db.execute("SELECT 1 / 0")

    with monkeypatch.context() as patch:
        patch.setattr(commit_transaction.Transaction, "_write_offsets", fails)
        with pytest.raises(EpochError, match="epoch 1 was not committed: division by zero"):
            run_local(AFTER.window, [], SCHEMA, store=store_maker(url), shards=3)
    assert (columns(url), columns(url, "slackwater_windows_law")) == (before, view)
    with store_maker(url)().peek() as snapshot:
        assert snapshot is not None
        assert snapshot.commit.epoch == 0
        logic = restore_window(snapshot.commit)
        held = [snapshot.reader(shard, logic).scan() for shard in range(2)]
        assert sorted(n for frame in held for n in frame["n.n"]) == [1, 1]
    result = run_local(BEFORE.window, [rows(9)], SCHEMA, store=store_maker(url))
    assert sorted(r["n"] for r in result.rows) == [1, 2], "the former config goes on"


def test_snapshots_before_and_after_a_config_change_are_readable(url: str) -> None:
    run_local(BEFORE.window, [rows(0, 7)], SCHEMA, flush=False, store=store_maker(url))
    with store_maker(url)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(2)) == 2
    run_local(AFTER.window, [], SCHEMA, flush=False, store=store_maker(url), shards=3)
    with store_maker(url)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(3)) == 1


def test_sessions_continue_after_the_row_gap_expression_changes(url: str) -> None:
    def by(gap: str) -> Any:
        return BEFORE.window.model_copy(update={"gap_ms": gap, "max_session_duration_ms": 500})

    def row(t: int, g: int, h: int) -> RowsInput:
        return RowsInput({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 1.0, "g": g, "h": h}]})

    schema, script = (
        SCHEMA | {"g": "bigint", "h": "bigint"},
        [row(0, 10, 1), row(30, 2, 50), Restart(by("h")), row(40, 1, 7)],
    )
    in_files, here = (run_local(by("g"), script, schema, store=s) for s in (None, store_maker(url)))
    assert here.rows == in_files.rows
    assert sorted((r["window_start"] // MS, r["window_end"] // MS) for r in here.rows) == [(0, 10), (30, 32), (40, 47)]


def test_start_over_renames_the_previous_state(url: str) -> None:
    run_local(BEFORE.window, [rows(0, 7)], SCHEMA, flush=False, store=store_maker(url))
    store = store_maker(url)()
    aside = store.start_over()
    assert aside is not None
    name = aside.split('"')[1]
    store.close()
    assert store_maker(url)().epochs() == []
    with store_maker(url, name=name)().peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        assert sum(snapshot.reader(s, logic).scan().height for s in range(2)) == 2
    result = run_local(AFTER.window, [rows(9)], SCHEMA, store=store_maker(url), shards=3)
    assert [(r["n"], r["_epoch"]) for r in result.rows] == [(1, 1)]
    other = store_maker(url)()
    assert (other.start_over() or "").startswith('"law.before-')
    assert store_maker(url, name="new")().start_over() is None
    other.close()
