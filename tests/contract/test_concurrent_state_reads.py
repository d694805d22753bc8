"""Reads of a state next to a running pipeline. A snapshot shows one commit, blocks nobody and changes nothing."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.laws.generators import join_scenarios
from tests.support import why_command_fixtures as states
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.session_store_commits import (
    LOGIC,
    Make,
    commit_sessions_of_users,
    open_session_store,
    read_session_users,
)

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.errors import StateError
from slackwater.state.commit import Commit
from slackwater.state.files.commit_log import CommitLog
from slackwater.state.files.store import KEPT_EPOCHS, FilesStore
from slackwater.state.postgres.store import PostgresStore
from slackwater.state.protocol import OUTLINE, Snapshot
from slackwater.storage.local import LocalStorage
from slackwater.ui.blocks.join_buffers import build_buffers


@pytest.fixture(params=select_cases(["files", "postgres", "objects"], keep=2))
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield a function that opens the same store each time."""
    stores: list[Any] = []

    def files() -> FilesStore:
        return FilesStore(tmp_path / "state", "p")

    def postgres() -> PostgresStore:
        stores.append(PostgresStore(url, "public", "p"))
        return stores[-1]  # type: ignore[no-any-return]

    if request.param == "files":
        yield files
        return
    if request.param == "objects":
        place = request.getfixturevalue("bucket")
        yield lambda: FilesStore(place, "p")
        return
    url = request.getfixturevalue("postgres").database(f"peek_{abs(hash(request.node.name)):x}")
    yield postgres
    for store in stores:
        store.close()


def test_state_read_before_the_first_start_creates_no_files_or_tables(store_factory: Make, tmp_path: Path) -> None:
    store = store_factory()
    with store.peek() as snapshot:
        assert snapshot is None
    assert store.runner() is None
    assert list(tmp_path.iterdir()) == []
    if isinstance(store, PostgresStore):
        with psycopg.connect(store._url) as db:
            assert db.execute("SELECT to_regclass('slackwater_pipelines')").fetchone() == (None,)


def test_runner_without_a_commit_is_visible_but_has_no_snapshot(store_factory: Make) -> None:
    store = open_session_store(store_factory)
    with store_factory().peek() as snapshot:
        assert snapshot is None
    assert store_factory().runner().startswith("process ")
    store.close()


def test_snapshot_is_unchanged_while_the_runner_commits_new_epochs(store_factory: Make) -> None:
    """The runner removes the files of the snapshot and replaces and deletes its rows before the test reads them."""
    store = open_session_store(store_factory)
    first = commit_sessions_of_users(store, None, "a", "b", "c")
    store.mark_published(0)
    with store_factory().peek() as snapshot:
        last = first
        for _ in range(KEPT_EPOCHS + 9):
            last = commit_sessions_of_users(store, last, "a", "x")
        assert (snapshot.commit, snapshot.published) == (first, 0)
        assert read_session_users(snapshot) == ["a", "b", "c"]
        with store_factory().peek() as later:
            assert (later.commit.epoch, read_session_users(later)) == (last.epoch, ["a", "x"])
    store.close()


def test_snapshot_needs_no_runner_and_does_not_block_a_start(store_factory: Make) -> None:
    store = open_session_store(store_factory)
    commit_sessions_of_users(store, None, "a")
    assert store_factory().runner().startswith("process ")
    store.close()
    other = store_factory()
    assert other.runner() is None
    with other.peek() as snapshot:
        again = open_session_store(store_factory)
        commit_sessions_of_users(again, snapshot.commit, "b")
        assert read_session_users(snapshot) == ["a"]
        again.close()


def test_continuous_reads_do_not_block_starts_and_see_whole_commits(store_factory: Make) -> None:
    """Read in one thread while another starts, commits and stops. Epoch n holds exactly the users 0 to n mod 7."""
    stop, wrong = threading.Event(), list[Any]()

    def look() -> None:
        while not stop.is_set():
            try:
                store = store_factory()
                store.runner()
                with store.peek() as snapshot:
                    if snapshot is not None:
                        seen_users, epoch = read_session_users(snapshot), snapshot.commit.epoch
                        assert seen_users == [str(n) for n in range(epoch % 7 + 1)], (epoch, seen_users)
            except BaseException as error:
                wrong.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    last: Commit | None = None
    try:
        for _ in range(3):
            store = open_session_store(store_factory)
            for _ in range(12):
                last = commit_sessions_of_users(
                    store, last, *(str(n) for n in range(((last.epoch if last else -1) + 1) % 7 + 1))
                )
            store.close()
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def test_read_retries_when_the_latest_epoch_is_removed_before_it_is_opened(tmp_path: Path) -> None:
    """Let the runner commit and clean up after the reader lists the latest epoch and before it reads the manifest."""
    store = FilesStore(tmp_path, "p")
    store.open()
    last = commit_sessions_of_users(store, None, "a")
    opened: list[int] = []

    class Slow(CommitLog):
        def open_commit(self, epoch: int) -> Snapshot:
            nonlocal last
            opened.append(epoch)
            for _ in range(0 if len(opened) > 1 else KEPT_EPOCHS + 2):
                last = commit_sessions_of_users(store, last, "b")
            return super().open_commit(epoch)

    with Slow(LocalStorage(str(tmp_path / "p"))).peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]
    assert opened == [0, KEPT_EPOCHS + 2]
    store.close()


def test_missing_segment_file_is_reported_by_name(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, "p")
    store.open()
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    path = tmp_path / "p" / done.stages[0].segments[0][0].file
    path.unlink()
    with pytest.raises(StateError, match=f"state file .*{path.name} cannot be read"), store.peek():
        pass


def test_unreadable_lock_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "p" / "lock").mkdir(parents=True)
    with pytest.raises(StateError, match=r"lock .*/p/lock cannot be read \(Is a directory\); check its permissions"):
        FilesStore(tmp_path, "p").runner()


def test_database_error_during_a_read_raises_state_error(postgres: Any) -> None:
    url = postgres.database("peek_broken")
    store = PostgresStore(url, "public", "p")
    store.open()
    store.prepare(LOGIC)
    commit_sessions_of_users(store, None, "a")
    store.close()
    with psycopg.connect(url) as db:
        db.execute("ALTER TABLE slackwater_pipelines RENAME record TO other")
    with (
        pytest.raises(StateError, match=r'state store in schema "public" of .*: column "record" does not exist'),
        store.peek(),
    ):
        pass


def test_why_command_prints_equal_reports_for_files_and_postgres_state(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Query sessions on three shards by key, one with a cut ahead. The answer also names a live runner."""
    url = postgres.database("peek_why")
    monkeypatch.setenv("STATE_URL", url)
    monkeypatch.chdir(tmp_path)
    config = states.SESSION
    stores = {"files.toml": config, "postgres.toml": config.replace('kind = "files"\npath = "state"', 'kind = "postgres"\nurl = "${STATE_URL}"')}  # fmt: skip
    clocks = [*(f"9:{m:02}" for m in range(2, 60, 8)), "10:03", "10:06"]
    story = [*states.STORY, MicroBatch({"web": states.build_user_event_rows("u3", *clocks)})]
    window = toml.loads(config).transform.window
    options: dict[str, Any] = {
        "lateness_ms": {"web": 30_000},
        "clock_us": states.NOON,
        "state_dir": "state",
        "flush": False,
    }
    for store in (None, lambda: PostgresStore(url, "public", "law")):
        run_local_script(window, story, states.TYPES, ("web", "app"), shards=3, store=store, **options)

    def say(file: str, *arguments: str) -> str:
        Path(file).write_text(stores[file])
        monkeypatch.setattr(sys, "argv", ["slackwater", "why", file, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    for arguments in ((), ("--key", "user=u3"), ("--key", "user")):
        one, other = (json.loads(say(f, "--json", *arguments)) for f in stores)
        assert (one.pop("file"), other.pop("file")) == tuple(stores)
        assert {**one, "now_us": 0} == {**other, "now_us": 0}
        assert one["runner"] is None
    runner = PostgresStore(url, "public", "law")
    runner.open()
    text = say("postgres.toml", "--key", "user=u3")
    runner.close()
    assert "runner     process " in text
    assert "    the session is cut there, at max_session_duration" in text


def test_snapshot_outline_equals_a_scan_without_keys_and_values(store_factory: Make) -> None:
    """The state has replaced and deleted units, and the outline covers several segments."""
    store = open_session_store(store_factory)
    last = None
    for names in (["a", "b", "c"], ["b", "d"], ["a", "d", "e"], ["e"], []):
        last = commit_sessions_of_users(store, last, *names)
        with store_factory().peek() as snapshot:
            reader = snapshot.reader(0, LOGIC)
            outline, whole = reader.outline(), reader.scan()
            assert outline.schema == {n: whole.schema[n] for n in OUTLINE}
            assert sorted(outline.rows()) == sorted(whole.select(OUTLINE).rows())
            assert outline.height == len(names)
    store.close()


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_join_buffers_are_equal_in_files_and_postgres_state(postgres: Any, tmp_path: Path, kind: str) -> None:
    """Postgres marks unmatched rows in a column. The test removes the segment files before it reads the buffers."""
    script = join_scenarios.draw_join_script(11)
    url = postgres.database(f"join_{kind}")
    buffers = []
    for make in (lambda: FilesStore(tmp_path, "law"), lambda: PostgresStore(url, "public", "law")):
        join_scenarios.run_join(kind, script, store=make)
        store = make()
        with store.peek() as snapshot:
            assert snapshot is not None
            for file in (tmp_path / "law" / "segments").glob("*"):
                file.unlink()
            buffers.append(build_buffers(snapshot, join_scenarios.SOURCES))
        store.close()
    assert buffers[0] is not None and buffers[0].sides[0].rows > 0
    assert buffers[0] == buffers[1]
