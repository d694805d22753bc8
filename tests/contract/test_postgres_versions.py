"""Window rows in Postgres while newer versions wait in the staged table: a reader sees the newest committed version only."""

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
    """Merge staged versions rarely, also when they hold few rows."""
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", -1)


@pytest.fixture(params=[True, False], ids=["copies", "no-copies"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with copies of the staged rows on the machine of the reader, and without."""
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
    """a and b; then c for b; then d as a third."""
    done = None
    for names in (("a", "b"), ("a", "c"), ("a", "c", "d")):
        done = add_epoch(store, done, *names)
    assert done is not None
    return done


@pytest.mark.parametrize("most", [3, 16])
@pytest.mark.parametrize("first", select_cases(range(0, 8, 2)))
@pytest.mark.usefixtures("elsewhere")
def test_revised_windows_with_rows_that_wait(first: int, most: int, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of `tests.laws` with crashes at every step, restarts and reshards. Versions are merged rarely, or every other epoch."""
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", most)
    for seed in range(first, first + 2):
        revisions.check(seed, False, partial(create_store, url, f"revisions {seed}"))
        updates.check(updates.plan_run(seed), partial(create_store, url, f"updates {seed}"))


@pytest.mark.usefixtures("elsewhere")
def test_the_newest_committed_version_counts(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    three_epochs(store)
    assert table(url) == []
    assert len(ask(url, "SELECT token FROM slackwater_staged_p")) == 7
    assert seen(url) == ["a", "c", "d"]
    assert table(url, "windows") == ["a", "c", "d"]
    assert ask(url, "SELECT epoch FROM slackwater_windows_p ORDER BY 1") == [2, 2, 2]
    store.close()


@pytest.mark.usefixtures("elsewhere")
def test_a_unit_that_went_is_gone(url: str) -> None:
    store = open_runner(lambda: create_store(url))
    done = add_epoch(store, three_epochs(store), "a")
    assert seen(url) == table(url, "windows") == ["a"]
    done = add_epoch(store, done, "a", "x")
    assert seen(url) == table(url, "windows") == ["a", "x"]
    store.close()


@pytest.mark.usefixtures("elsewhere")
def test_what_was_staged_and_not_committed_is_never_seen_and_goes_at_the_start(url: str) -> None:
    """The process dies between COPY and commit."""
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
def test_what_a_stale_runner_stages_is_garbage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_look_stays_what_it_was_while_rows_are_folded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_runner(lambda: create_store(url))
    done = three_epochs(store)
    with create_store(url).peek() as snapshot:
        monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 1)
        add_epoch(store, done, "x")
        assert table(url) == ["x"]
        assert users(snapshot) == ["a", "c", "d"]
    assert seen(url) == ["x"]
    store.close()


def test_folded_are_the_newest_versions_with_the_places_they_have(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many epochs add and delete rows that are merged now and then. The result equals the same rows written to one table directly."""
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


def test_a_copy_that_was_changed_is_not_believed(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_fork_has_all_rows(url: str) -> None:
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


def test_what_is_put_aside_goes_with_its_rows(url: str) -> None:
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


def test_it_is_weighed_checked_and_made_small(url: str) -> None:
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


def test_a_state_removed_is_removed_whole(url: str) -> None:
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


def test_tables_of_before_are_gone_on_with(url: str) -> None:
    """In earlier versions the staged table was unlogged and had no epochs, and the view read the state table alone."""
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
