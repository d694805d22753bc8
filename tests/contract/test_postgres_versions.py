"""Window rows in Postgres with newer versions in the staged table: a reader sees only the newest committed version."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.laws.generators import revisions, updates
from tests.support.case_selection import select_cases
from tests.support.store_commits import LOGIC, add_epoch, open_runner, rows, users

from slackwater.errors import StateError
from slackwater.maintenance import verify_state
from slackwater.maintenance.state_sizes import measure_state_sizes
from slackwater.state.commit import Commit
from slackwater.state.postgres import staged_row_merge, staged_rows
from slackwater.state.postgres.store import PostgresStore
from slackwater.windows.state_layout import NEVER


@pytest.fixture
def url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"versions_{abs(hash(request.node.name)):x}")


@pytest.fixture(autouse=True)
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge staged versions rarely, even when they contain few rows."""
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", -1)


@pytest.fixture(params=[True, False], ids=["copies", "no-copies"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with and without local copies of the staged rows on the machine of the reader."""
    if not request.param:
        monkeypatch.setattr(staged_rows, "find_local_copy", lambda meta: None)


def create_store(url: str, name: str = "p") -> PostgresStore:
    return PostgresStore(url, "public", name)


def ask(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        return [row[0] for row in db.execute(query)]  # type: ignore[arg-type]


def table(url: str, table_kind: str = "state", name: str = "p") -> list[Any]:
    return ask(url, f'SELECT "user" FROM "slackwater_{table_kind}_{name}" ORDER BY 1')


def seen(url: str, name: str = "p") -> list[str]:
    with create_store(url, name).peek() as snapshot:
        return users(snapshot)


def three_epochs(store: PostgresStore) -> Commit:
    """Commit the users a and b, then a and c, then a, c and d."""
    done = None
    for names in (("a", "b"), ("a", "c"), ("a", "c", "d")):
        done = add_epoch(store, done, *names)
    assert done is not None
    return done


@pytest.mark.parametrize("most", [3, 16])
@pytest.mark.parametrize("first", select_cases(range(0, 8, 2)))
@pytest.mark.usefixtures("elsewhere")
def test_revised_windows_are_correct_with_staged_rows(
    first: int, most: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run seeds of `tests.laws` with crashes at every step, restarts, reshards, and frequent or rare merges."""
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", most)
    for seed in range(first, first + 2):
        revisions.check(seed, False, partial(create_store, url, f"revisions {seed}"))
        updates.check(updates.plan_run(seed), partial(create_store, url, f"updates {seed}"))


@pytest.mark.usefixtures("elsewhere")
def test_reader_sees_only_the_newest_committed_version(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    assert table(url) == []
    assert len(ask(url, "SELECT token FROM slackwater_staged_p")) == 7
    assert seen(url) == ["a", "c", "d"]
    assert table(url, "windows") == ["a", "c", "d"]
    assert ask(url, "SELECT epoch FROM slackwater_windows_p ORDER BY 1") == [2, 2, 2]
    store.close()


@pytest.mark.usefixtures("elsewhere")
def test_removed_unit_is_invisible_to_readers(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    done = add_epoch(store, three_epochs(store), "a")
    assert seen(url) == table(url, "windows") == ["a"]
    done = add_epoch(store, done, "a", "x")
    assert seen(url) == table(url, "windows") == ["a", "x"]
    store.close()


@pytest.mark.usefixtures("elsewhere")
def test_uncommitted_staged_rows_are_invisible_and_deleted_at_the_next_start(url: str) -> None:
    """Stage rows without a commit, as a crash between COPY and commit does."""
    store = open_runner(lambda: create_store(url))
    done = three_epochs(store)
    shard = store.shard(0, 1, 3, done.stages[0].segments[0])
    shard.stage(LOGIC, rows("zombie"), LOGIC.empty_state(), NEVER)
    assert seen(url) == table(url, "windows") == ["a", "c", "d"]
    store.close()
    again = open_runner(lambda: create_store(url))
    assert table(url, "staged") == []
    assert table(url) == seen(url) == ["a", "c", "d"]
    again.close()


@pytest.mark.usefixtures("elsewhere")
def test_rows_staged_by_a_stale_runner_are_ignored_and_deleted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_runner(lambda: create_store(url))
    done = three_epochs(store)
    stale = store.shard(0, 1, 3, done.stages[0].segments[0])
    store.close()
    again = create_store(url)
    latest = again.open()
    again.prepare(LOGIC)
    stale.stage(LOGIC, rows("zombie"), LOGIC.empty_state(), NEVER)
    latest = add_epoch(again, latest, "a", "e")
    assert seen(url) == table(url, "windows") == ["a", "e"]
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 1)
    add_epoch(again, latest, "a", "f")
    assert table(url) == seen(url) == ["a", "f"]
    assert table(url, "staged") == []
    again.close()


def test_open_snapshot_is_unchanged_while_staged_rows_are_merged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_runner(lambda: create_store(url))
    done = three_epochs(store)
    with create_store(url).peek() as snapshot:
        monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 1)
        add_epoch(store, done, "x")
        assert table(url) == ["x"]
        assert users(snapshot) == ["a", "c", "d"]
    assert seen(url) == ["x"]
    store.close()


def test_periodic_merges_leave_the_rows_of_the_latest_epoch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add and delete rows in many epochs, with a merge every few epochs. Readers see the rows of the latest epoch."""
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 4)
    store, done = open_runner(lambda: create_store(url)), None
    names = [("a",), ("a", "b"), ("b",), ("c", "b", "d"), ("d",), ("a", "b", "c"), ("x",), ("x", "y"), ("y",)]
    for epoch, chosen in enumerate(names):
        done = add_epoch(store, done, *chosen)
        assert seen(url) == sorted(chosen)
        assert table(url, "windows") == sorted(chosen)
        assert done.stages[0].segments[0][0].file == "" or epoch < 3
        if not staged_row_merge.list_staged_segments(done.stages[0].segments):
            assert table(url) == sorted(chosen)
    store.close()


def test_corrupt_local_copy_of_staged_rows_is_not_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path))
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    copies = list(tmp_path.rglob("*.arrow"))
    assert len(copies) == 3
    staged_rows._open.clear()
    assert seen(url) == ["a", "c", "d"]
    for path in copies:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    staged_rows._open.clear()
    assert seen(url) == ["a", "c", "d"]
    store.close()


def test_fork_contains_all_staged_rows(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    fork = store.fork("q")
    assert fork is not None
    assert not staged_row_merge.list_staged_segments(fork.stages[0].segments)
    assert table(url, name="q") == seen(url, "q") == ["a", "c", "d"]
    other = open_runner(lambda: create_store(url, "q"))
    add_epoch(other, fork, "q")
    other.close()
    assert (seen(url), seen(url, "q")) == (["a", "c", "d"], ["q"])
    store.close()


def test_state_replaced_by_start_over_retains_the_staged_rows(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    store.close()
    fresh = create_store(url)
    message = fresh.start_over()
    assert message is not None
    aside = message.split('"')[1]
    fresh.prepare(LOGIC)
    add_epoch(fresh, None, "new")
    assert (seen(url), seen(url, aside)) == (["new"], ["a", "c", "d"])
    old = create_store(url, aside)
    old.open()
    assert table(url, name=aside) == seen(url, aside) == ["a", "c", "d"]
    old.close()
    fresh.close()


def test_sizes_and_verify_read_staged_rows_and_missing_rows_are_reported(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    assert [s.rows for s in measure_state_sizes(store).shards] == [3]
    assert verify_state(store).problems == []
    with psycopg.connect(url) as db:
        db.execute("DELETE FROM slackwater_staged_p WHERE epoch = 1")
    assert ["holds 0 rows under" in p.what for p in verify_state(store).problems] == [True]
    store.close()
    with pytest.raises(StateError, match="lacks rows that the latest commit refers to; restore it from a backup"):
        create_store(url).open()


def test_remove_drops_every_table_and_view_of_the_state(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    store.remove()
    assert (
        ask(
            url,
            "SELECT relname::text FROM pg_class WHERE relname LIKE 'slackwater_st%' OR relname LIKE 'slackwater_w%'",
        )
        == []
    )
    fresh = create_store(url)
    assert fresh.open() is None
    fresh.close()


def test_run_continues_with_tables_of_an_earlier_version(url: str) -> None:
    """In earlier versions the staged table was unlogged and had no epochs, and the view read only the state table."""
    store = open_runner(lambda: create_store(url))
    done = add_epoch(store, None, "a", "b")
    store.close()
    first = create_store(url)
    first.open()  # merges the staged versions
    first.close()
    with psycopg.connect(url) as db:
        db.execute("DROP VIEW slackwater_windows_p")
        db.execute("DROP TABLE slackwater_staged_p")
        db.execute(
            'CREATE UNLOGGED TABLE slackwater_staged_p (token text NOT NULL, unit bigint, "user" text, ordinal integer NOT NULL)'
        )
    again = create_store(url)
    done = again.open()
    again.prepare(LOGIC)
    add_epoch(again, done, "a", "c")
    assert seen(url) == table(url, "windows") == ["a", "c"]
    assert table(url) == ["a", "b"]
    again.close()
