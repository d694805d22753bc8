"""Staged rows in Postgres are merged in the background: readers, tasks and restarts see the same rows at any moment."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.laws.generators import window_revision_runs, window_update_runs
from tests.support.background_merges import (
    SECONDS,
    HeldMerge,
    commit_epochs,
    create_store,
    merge_after_three_tokens,
    query_rows,
    read_snapshot_users,
    read_stored_tokens,
    read_table_users,
    terminate_connection,
    wait_until,
)
from tests.support.case_selection import select_cases
from tests.support.session_store_commits import (
    LOGIC,
    build_open_session_rows,
    open_session_store,
    read_session_users,
)

from slackwater.errors import FencedError, StateError
from slackwater.state.commit import Commit
from slackwater.state.postgres import background_merge, pipeline_lock, staged_row_merge, staged_rows
from slackwater.state.postgres.store import PostgresStore
from slackwater.windows.state_layout import NEVER


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"merges_{abs(hash(request.node.name)):x}")


@pytest.fixture(autouse=True)
def merge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_after_three_tokens(monkeypatch)


def merge_backends(url: str) -> list[int]:
    """Return the server processes of connections with an open transaction."""
    rows = query_rows(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    return [pid for (pid,) in rows]


@pytest.mark.parametrize("waits", [False, True], ids=["at any moment", "before the next commit"])
@pytest.mark.parametrize("has_copies", [True, False], ids=["copies", "no-copies"])
@pytest.mark.parametrize("first", select_cases(range(0, 8, 2)))
def test_windows_are_correct_while_merges_run_in_the_background(
    first: int, has_copies: bool, waits: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run seeds of `tests.laws` with crashes at every step, restarts and reshards. Merges end at any moment, or at once."""
    if not has_copies:
        monkeypatch.setattr(staged_rows, "find_local_copy", lambda meta: None)
    merges = 0
    start = background_merge.BackgroundMerges.start_if_due

    def start_and_count(self: background_merge.BackgroundMerges, layouts: Any) -> None:
        nonlocal merges
        before = self._merge
        start(self, layouts)
        merges += self._merge is not before
        if waits and self._merge.thread is not None:
            assert self._merge.recorded.wait(SECONDS)

    monkeypatch.setattr(background_merge.BackgroundMerges, "start_if_due", start_and_count)
    for seed in range(first, first + 2):
        window_revision_runs.check_revision_run(
            seed, False, partial(PostgresStore, database_url, "public", f"revisions {seed}")
        )
        window_update_runs.check_update_run(
            window_update_runs.plan_update_run(seed), partial(PostgresStore, database_url, "public", f"updates {seed}")
        )
    assert merges > 0


def test_readers_see_the_same_rows_before_during_and_after_a_merge(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens: a b c ─ merge ─▶ (table); d arrives meanwhile and stays staged"""
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    assert read_table_users(database_url) == []
    done = commit_epochs(store, "xc", after=done)
    assert len(read_stored_tokens(database_url)) == 4
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["c", "x"]
    with create_store(database_url).peek() as snapshot:
        held.release()
        wait_until(lambda: read_table_users(database_url) == ["a", "c", "d"])
        assert len(read_stored_tokens(database_url)) == 2 and read_stored_tokens(database_url)[0] == ""
        assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["c", "x"]
        assert read_session_users(snapshot) == ["c", "x"]
    done = commit_epochs(store, "xy", after=done)
    assert [m.file == "" for m in done.stages[0].segments[0]] == [True, False, False]
    wait_until(
        lambda: query_rows(database_url, "SELECT DISTINCT epoch FROM slackwater_staged_p ORDER BY 1") == [(3,), (4,)]
    )
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["x", "y"]
    store.close()
    again = create_store(database_url)
    again.open()  # raises StateError if the number of rows in the table differs from the commit
    assert read_table_users(database_url) == ["x", "y"]
    again.close()


@pytest.mark.parametrize("has_copies", [True, False], ids=["copies", "no-copies"])
def test_task_that_began_before_the_end_of_a_merge_reads_the_same_rows(
    has_copies: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_copies:
        monkeypatch.setattr(staged_rows, "find_local_copy", lambda meta: None)
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    task = store.shard(0, 1, 3, done.stages[0].segments[0])
    held.release()
    wait_until(lambda: read_stored_tokens(database_url) == [""])
    assert sorted(task.reader(LOGIC).scan()["user"]) == ["a", "c", "d"]
    metas = task.stage(LOGIC, build_open_session_rows("z"), LOGIC.empty_state(), NEVER)
    assert len(metas) == 4
    store.close()


def test_failed_merge_is_logged_and_repeated(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    (pid,) = merge_backends(database_url)
    terminate_connection(database_url, pid)
    with caplog.at_level(logging.WARNING, logger="slackwater"):
        held.release()
        wait_until(lambda: not store._merges._merge.is_running)
    assert "p: the background merge of staged rows failed (" in caplog.text
    assert read_stored_tokens(database_url)[0] != ""
    done = commit_epochs(store, "e", after=done)
    wait_until(lambda: read_table_users(database_url) == ["e"])
    assert read_snapshot_users(database_url) == ["e"]
    store.close()


def test_commit_waits_for_an_overdue_merge(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_row_merge, "OVERDUE", 2)
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "a", "b", "c", "d", "e")
    assert held.reached.wait(SECONDS)
    commits = threading.Thread(target=commit_epochs, args=(store, "f"), kwargs={"after": done})
    commits.start()
    commits.join(0.3)
    assert commits.is_alive()
    held.release()
    commits.join(SECONDS)
    assert read_stored_tokens(database_url)[0] == "" and read_snapshot_users(database_url) == ["f"]
    store.close()


def test_commit_finds_out_whether_a_merge_whose_connection_was_lost_took_effect(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a merge is lost during its COMMIT, before or after the COMMIT takes effect."""
    for takes_effect in (True, False):
        record = background_merge.BackgroundMerges._record_merge

        class LosingConnection:
            def __init__(self, db: Any) -> None:
                self._db = db

            def execute(self, query: str, *arguments: Any) -> Any:
                if query != "COMMIT":
                    return self._db.execute(query, *arguments)
                if takes_effect:  # noqa: B023 - used within this iteration
                    self._db.execute("COMMIT")
                raise psycopg.OperationalError("the connection is lost")

        def record_and_lose(merges: Any, db: Any, *rest: Any) -> None:
            record(merges, LosingConnection(db), *rest)  # type: ignore[arg-type]  # noqa: B023

        monkeypatch.setattr(background_merge.BackgroundMerges, "_record_merge", record_and_lose)
        store = open_session_store(lambda: create_store(database_url))
        done = commit_epochs(store, "ab", "ac", "acd")
        wait_until(lambda: not store._merges._merge.is_running)  # noqa: B023
        monkeypatch.setattr(background_merge.BackgroundMerges, "_record_merge", record)
        assert (read_table_users(database_url) == ["a", "c", "d"]) == takes_effect
        done = commit_epochs(store, "xc", after=done)
        assert (done.stages[0].segments[0][0].file == "") == takes_effect
        assert read_snapshot_users(database_url) == ["c", "x"]
        store.close()
        again = create_store(database_url)
        again.open()
        assert read_table_users(database_url) == ["c", "x"]
        again.prepare(LOGIC)
        again.remove()


def test_start_waits_for_a_merge_of_a_disconnected_runner(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_lock, "PATIENCE_S", 0.2)
    monkeypatch.setattr(pipeline_lock, "LOCK_S", 0.2)
    held, first = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(first, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    terminate_connection(database_url, first._db.info.backend_pid)
    second, opened = create_store(database_url), list[Commit]()
    opening = threading.Thread(target=lambda: opened.append(second.open()))  # type: ignore[arg-type]
    opening.start()
    opening.join(0.5)
    assert opening.is_alive()
    held.release()
    opening.join(SECONDS)
    assert read_table_users(database_url) == read_snapshot_users(database_url) == ["a", "c", "d"]
    with pytest.raises(FencedError, match="another runner took the lock"):
        commit_epochs(first, "z", after=done)
    second.prepare(LOGIC)
    commit_epochs(second, "n", after=opened[0])
    assert read_snapshot_users(database_url) == ["n"]
    second.close()
    first.close()


def test_merge_of_a_replaced_runner_has_no_effect(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runner is replaced before its merge begins."""
    begun = threading.Event()
    lock = pipeline_lock.lock_merges

    def wait_and_lock(db: Any, tables: Any) -> None:
        if threading.current_thread().name == "slackwater-merge":
            assert begun.wait(SECONDS)
        lock(db, tables)

    monkeypatch.setattr(pipeline_lock, "lock_merges", wait_and_lock)
    first = open_session_store(lambda: create_store(database_url))
    commit_epochs(first, "ab", "ac", "acd")
    terminate_connection(database_url, first._db.info.backend_pid)
    second = create_store(database_url)
    latest = second.open()
    second.prepare(LOGIC)
    commit_epochs(second, "q", after=latest)
    begun.set()
    wait_until(lambda: not first._merges._merge.is_running)
    assert read_table_users(database_url) == ["a", "c", "d"] and read_snapshot_users(database_url) == ["q"]
    second.close()
    first.close()


def test_close_stops_a_merge_and_the_next_start_repeats_it(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    commit_epochs(store, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    threading.Timer(0.3, held.release).start()
    store.close()
    assert read_table_users(database_url) == []
    again = create_store(database_url)
    again.open()
    assert read_table_users(database_url) == ["a", "c", "d"]
    again.close()


def test_merge_with_missing_rows_fails_and_the_next_start_reports_them(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac")
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM slackwater_staged_p WHERE epoch = 0")
    commit_epochs(store, "acd", after=done)
    wait_until(lambda: not store._merges._merge.is_running)
    store.close()
    with pytest.raises(StateError, match="lacks rows that the latest commit refers to; restore it from a backup"):
        create_store(database_url).open()
