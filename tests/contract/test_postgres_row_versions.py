"""Window rows in Postgres with newer versions in the staged table: a reader sees only the newest committed version."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.laws.generators import window_revision_runs, window_update_runs
from tests.support.case_selection import select_cases
from tests.support.session_store_commits import (
    LOGIC,
    build_open_session_rows,
    commit_sessions_of_users,
    open_session_store,
    read_session_users,
)

from slackwater.errors import StateError
from slackwater.maintenance import verify_state
from slackwater.maintenance.state_sizes import measure_state_sizes
from slackwater.state.commit import Commit
from slackwater.state.postgres import staged_row_merge, staged_rows
from slackwater.state.postgres.store import PostgresStore
from slackwater.windows.state_layout import NEVER


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"versions_{abs(hash(request.node.name)):x}")


@pytest.fixture(autouse=True)
def merge_staged_rows_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge staged versions rarely, even when they contain few rows, and never in the background."""
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", -1)
    monkeypatch.setattr(staged_row_merge, "OVERDUE", 1)


@pytest.fixture(params=[True, False], ids=["copies", "no-copies"])
def toggle_local_copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with and without local copies of the staged rows on the machine of the reader."""
    if not request.param:
        monkeypatch.setattr(staged_rows, "find_local_copy", lambda meta: None)


def create_store(url: str, name: str = "p") -> PostgresStore:
    return PostgresStore(url, "public", name)


def query_first_column(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        return [row[0] for row in db.execute(query)]  # type: ignore[arg-type]


def read_table_users(url: str, table_kind: str = "state", name: str = "p") -> list[Any]:
    return query_first_column(url, f'SELECT "user" FROM "slackwater_{table_kind}_{name}" ORDER BY 1')


def read_snapshot_users(url: str, name: str = "p") -> list[str]:
    with create_store(url, name).peek() as snapshot:
        return read_session_users(snapshot)


def commit_three_epochs(store: PostgresStore) -> Commit:
    """Commit the users a and b, then a and c, then a, c and d."""
    done = None
    for names in (("a", "b"), ("a", "c"), ("a", "c", "d")):
        done = commit_sessions_of_users(store, done, *names)
    assert done is not None
    return done


@pytest.mark.parametrize("most", [3, 16])
@pytest.mark.parametrize("first", select_cases(range(0, 8, 2)))
@pytest.mark.usefixtures("toggle_local_copies")
def test_revised_windows_are_correct_with_staged_rows(
    first: int, most: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run seeds of `tests.laws` with crashes at every step, restarts, reshards, and frequent or rare merges."""
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", most)
    for seed in range(first, first + 2):
        window_revision_runs.check_revision_run(seed, False, partial(create_store, database_url, f"revisions {seed}"))
        window_update_runs.check_update_run(
            window_update_runs.plan_update_run(seed), partial(create_store, database_url, f"updates {seed}")
        )


@pytest.mark.usefixtures("toggle_local_copies")
def test_reader_sees_only_the_newest_committed_version(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    assert read_table_users(database_url) == []
    assert len(query_first_column(database_url, "SELECT token FROM slackwater_staged_p")) == 7
    assert read_snapshot_users(database_url) == ["a", "c", "d"]
    assert read_table_users(database_url, "windows") == ["a", "c", "d"]
    assert query_first_column(database_url, "SELECT epoch FROM slackwater_windows_p ORDER BY 1") == [2, 2, 2]
    store.close()


@pytest.mark.usefixtures("toggle_local_copies")
def test_removed_sessions_are_invisible_to_readers(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    done = commit_sessions_of_users(store, commit_three_epochs(store), "a")
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["a"]
    done = commit_sessions_of_users(store, done, "a", "x")
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["a", "x"]
    store.close()


@pytest.mark.usefixtures("toggle_local_copies")
def test_uncommitted_staged_rows_are_invisible_and_deleted_at_the_next_start(database_url: str) -> None:
    """Stage rows without a commit, as a crash between COPY and commit does."""
    store = open_session_store(lambda: create_store(database_url))
    done = commit_three_epochs(store)
    shard = store.shard(0, 1, 3, done.stages[0].segments[0])
    shard.stage(LOGIC, build_open_session_rows("zombie"), LOGIC.empty_state(), NEVER)
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["a", "c", "d"]
    store.close()
    again = open_session_store(lambda: create_store(database_url))
    assert read_table_users(database_url, "staged") == []
    assert read_table_users(database_url) == read_snapshot_users(database_url) == ["a", "c", "d"]
    again.close()


@pytest.mark.usefixtures("toggle_local_copies")
def test_rows_staged_by_a_stale_runner_are_ignored_and_deleted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_session_store(lambda: create_store(database_url))
    done = commit_three_epochs(store)
    stale = store.shard(0, 1, 3, done.stages[0].segments[0])
    store.close()
    again = create_store(database_url)
    latest = again.open()
    again.prepare(LOGIC)
    stale.stage(LOGIC, build_open_session_rows("zombie"), LOGIC.empty_state(), NEVER)
    latest = commit_sessions_of_users(again, latest, "a", "e")
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["a", "e"]
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 1)
    commit_sessions_of_users(again, latest, "a", "f")
    assert read_table_users(database_url) == read_snapshot_users(database_url) == ["a", "f"]
    assert read_table_users(database_url, "staged") == []
    again.close()


def test_open_snapshot_is_unchanged_while_staged_rows_are_merged(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_session_store(lambda: create_store(database_url))
    done = commit_three_epochs(store)
    with create_store(database_url).peek() as snapshot:
        monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 1)
        commit_sessions_of_users(store, done, "x")
        assert read_table_users(database_url) == ["x"]
        assert read_session_users(snapshot) == ["a", "c", "d"]
    assert read_snapshot_users(database_url) == ["x"]
    store.close()


def test_periodic_merges_leave_the_rows_of_the_latest_epoch(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add and delete rows in many epochs, with a merge every few epochs. Readers see the rows of the latest epoch."""
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 4)
    store, done = open_session_store(lambda: create_store(database_url)), None
    names = [("a",), ("a", "b"), ("b",), ("c", "b", "d"), ("d",), ("a", "b", "c"), ("x",), ("x", "y"), ("y",)]
    for epoch, chosen in enumerate(names):
        done = commit_sessions_of_users(store, done, *chosen)
        assert read_snapshot_users(database_url) == sorted(chosen)
        assert read_table_users(database_url, "windows") == sorted(chosen)
        assert done.stages[0].segments[0][0].file == "" or epoch < 3
        if not staged_row_merge.list_staged_segments(done.stages[0].segments):
            assert read_table_users(database_url) == sorted(chosen)
    store.close()


def test_corrupt_local_copy_of_staged_rows_is_not_used(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path))
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    copies = list(tmp_path.rglob("*.arrow"))
    assert len(copies) == 3
    staged_rows._open.clear()
    assert read_snapshot_users(database_url) == ["a", "c", "d"]
    for path in copies:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    staged_rows._open.clear()
    assert read_snapshot_users(database_url) == ["a", "c", "d"]
    store.close()


def test_fork_contains_all_staged_rows(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    fork = store.fork("q")
    assert fork is not None
    assert not staged_row_merge.list_staged_segments(fork.stages[0].segments)
    assert read_table_users(database_url, name="q") == read_snapshot_users(database_url, "q") == ["a", "c", "d"]
    other = open_session_store(lambda: create_store(database_url, "q"))
    commit_sessions_of_users(other, fork, "q")
    other.close()
    assert (read_snapshot_users(database_url), read_snapshot_users(database_url, "q")) == (["a", "c", "d"], ["q"])
    store.close()


def test_state_replaced_by_start_over_retains_the_staged_rows(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    store.close()
    fresh = create_store(database_url)
    message = fresh.start_over()
    assert message is not None
    aside = message.split('"')[1]
    fresh.prepare(LOGIC)
    commit_sessions_of_users(fresh, None, "new")
    assert (read_snapshot_users(database_url), read_snapshot_users(database_url, aside)) == (["new"], ["a", "c", "d"])
    old = create_store(database_url, aside)
    old.open()
    assert read_table_users(database_url, name=aside) == read_snapshot_users(database_url, aside) == ["a", "c", "d"]
    old.close()
    fresh.close()


def test_sizes_and_verify_read_staged_rows_and_missing_rows_are_reported(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    assert [s.rows for s in measure_state_sizes(store).shards] == [3]
    assert verify_state(store).problems == []
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM slackwater_staged_p WHERE epoch = 1")
    assert ["holds 0 rows under" in p.what for p in verify_state(store).problems] == [True]
    store.close()
    with pytest.raises(StateError, match="lacks rows that the latest commit refers to; restore it from a backup"):
        create_store(database_url).open()


def test_remove_drops_every_table_and_view_of_the_state(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_three_epochs(store)
    store.remove()
    assert (
        query_first_column(
            database_url,
            "SELECT relname::text FROM pg_class WHERE relname LIKE 'slackwater_st%' OR relname LIKE 'slackwater_w%'",
        )
        == []
    )
    fresh = create_store(database_url)
    assert fresh.open() is None
    fresh.close()


def test_run_continues_with_tables_of_an_earlier_version(database_url: str) -> None:
    """In earlier versions the staged table was unlogged and had no epochs, and the view read only the state table."""
    store = open_session_store(lambda: create_store(database_url))
    done = commit_sessions_of_users(store, None, "a", "b")
    store.close()
    first = create_store(database_url)
    first.open()  # merges the staged versions
    first.close()
    with psycopg.connect(database_url) as db:
        db.execute("DROP VIEW slackwater_windows_p")
        db.execute("DROP TABLE slackwater_staged_p")
        db.execute(
            'CREATE UNLOGGED TABLE slackwater_staged_p (token text NOT NULL, unit bigint, "user" text, ordinal integer NOT NULL)'
        )
    again = create_store(database_url)
    done = again.open()
    again.prepare(LOGIC)
    commit_sessions_of_users(again, done, "a", "c")
    assert read_snapshot_users(database_url) == read_table_users(database_url, "windows") == ["a", "c"]
    assert read_table_users(database_url) == ["a", "b"]
    again.close()
