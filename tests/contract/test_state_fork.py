"""Forks of a state: they keep windows, clocks and offsets, but have a new name and no output of the original."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.states import write_state_fixtures as states
from tests.fixtures.states.write_state_fixtures import HERE, KINDS
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import LocalResult
from tests.support.session_store_commits import (
    build_session_commit,
    commit_sessions_of_users,
    open_session_store,
    read_session_users,
)

from slackwater.cli.main import main
from slackwater.errors import LockHeldError, StartError, StateError
from slackwater.state import fork as forking
from slackwater.state.commit import FORMAT, OutputMetadata, SourceRecord
from slackwater.state.files.store import KEPT_EPOCHS, FilesStore
from slackwater.state.fork import fork_store
from slackwater.state.postgres.store import PostgresStore

Make = Callable[[str], Any]


@pytest.fixture(params=select_cases(["files", "postgres", "objects"], keep=2))
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield a function that opens the store of a pipeline by name."""
    stores: list[Any] = []
    url = ""
    place: Any = request.getfixturevalue("bucket") if request.param == "objects" else tmp_path / "state"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").database(f"fork_{abs(hash(request.node.name)):x}")

    def make_store(name: str) -> Any:
        stores.append(PostgresStore(url, "public", name) if url else FilesStore(place, name))
        return stores[-1]

    yield make_store
    for store in stores:
        store.close()


def select_comparable_results(result: LocalResult) -> Any:
    return result.rows, result.gone, result.counters, result.open_sessions


@pytest.mark.parametrize("kind", select_cases(KINDS))
def test_fork_and_original_continue_to_same_results(kind: str, store_factory: Make) -> None:
    """The fork starts at the epoch of the original, and both read the same rows into separate targets."""
    scenario, story = KINDS[kind], KINDS[kind].story
    states.run_first_half(scenario, lambda: store_factory("law"))
    fork = fork_store(store_factory("law"), "other")
    before = store_factory("law").read_commit_record().record
    assert (fork.pipeline, fork.epoch, fork.output) == ("other", before["epoch"], ())
    assert fork.state_id not in ("", before["state_id"])
    assert fork.sources == {n: SourceRecord.model_validate(s) for n, s in before["sources"].items()}
    rest = [
        states.run_script_part(
            scenario, lambda n=n: store_factory(n), story[scenario.half :], scenario.clock_us, flush=True
        )
        for n in ("other", "law")
    ]
    assert select_comparable_results(rest[0]) == select_comparable_results(rest[1])
    assert rest[0].rows


@pytest.mark.parametrize("kind", select_cases(KINDS))
def test_fork_of_format_1_state_has_current_format(kind: str, postgres: Any, tmp_path: Path) -> None:
    scenario = KINDS[kind]
    shutil.copytree(HERE / "format-1" / "files" / kind, tmp_path / kind)
    url = postgres.database(f"fork_old_{kind}")
    with psycopg.connect(url) as db:
        db.execute((HERE / "format-1" / "postgres.sql").read_text())  # type: ignore[arg-type]
    results = []
    for make_store in (lambda n: FilesStore(tmp_path / kind, n), lambda n: PostgresStore(url, kind, n)):
        old = make_store("law")
        fork_store(old, "other")
        assert old.read_commit_record().version == 1
        old.close()
        done = states.run_script_part(
            scenario,
            lambda make=make_store: make("other"),
            scenario.story[scenario.half :],
            scenario.clock_us,
            flush=True,
        )
        results.append(select_comparable_results(done))
    assert results[0] == results[1]
    with psycopg.connect(url) as db:
        rows = db.execute(f'SELECT pipeline_name, state_version FROM "{kind}".slackwater_pipelines ORDER BY 1')
        assert rows.fetchall() == [("law", 1), ("other", FORMAT)]


def test_fork_keeps_files_that_runner_removes_from_original(store_factory: Make) -> None:
    """Fork a state with lists next to a runner, which then commits until the files are removed from the original."""
    store = open_session_store(lambda: store_factory("p"))
    commit_sessions_of_users(store, None, "a", "b")
    listed = store.write_list(1, ["one", "two"])
    source = {"offsets": {"segments": [listed], "count": 2}, "rows": 2}
    named = {"sources": {"s": source}, "replayed": (listed,), "tried": (listed,)}
    done = store.commit(
        build_session_commit(1, segments=read_latest_commit(store_factory("p")).stages[0].segments, **named)
    )
    fork = fork_store(store_factory("p"), "q")
    assert store_factory("q").epochs() == [1]
    last = done.model_copy(update={"sources": {}, "replayed": (), "tried": ()})
    for _ in range(KEPT_EPOCHS + 3):
        last = commit_sessions_of_users(store, last, "x")
    store.close()
    again = store_factory("q")
    reopened = again.open()
    assert reopened == fork
    assert again.published_epoch() == 1
    (name,) = reopened.sources["s"].offsets.lists
    assert again.read_list(name) == ["one", "two"]
    assert (reopened.replayed, reopened.tried) == ((name,), (name,))
    again.close()
    with store_factory("q").peek() as snapshot:
        assert read_session_users(snapshot) == ["a", "b"]
    with store_factory("p").peek() as snapshot:
        assert read_session_users(snapshot) == ["x"]


def read_latest_commit(store: Any) -> Any:
    with store.peek() as snapshot:
        return snapshot.commit


def test_forks_of_running_pipeline_contain_whole_commits(store_factory: Make) -> None:
    """Epoch n has exactly the users 0 to n mod 7, also if the runner commits during the copy."""
    store, stop, wrong, forks = (
        open_session_store(lambda: store_factory("p")),
        threading.Event(),
        list[Any](),
        list[Any](),
    )
    last = commit_sessions_of_users(store, None, "0")

    def copy() -> None:
        while not stop.is_set():
            try:
                forks.append(fork_store(store_factory("p"), f"f{len(forks)}"))
            except BaseException as error:
                wrong.append(error)
                return

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        while len(forks) < 5 and not wrong:
            last = commit_sessions_of_users(store, last, *(str(n) for n in range((last.epoch + 1) % 7 + 1)))
    finally:
        stop.set()
        thread.join()
    store.close()
    assert wrong == []
    for number, one in enumerate(forks):
        with store_factory(f"f{number}").peek() as snapshot:
            assert snapshot.commit == one
            assert read_session_users(snapshot) == [str(n) for n in range(one.epoch % 7 + 1)]


def test_fork_from_earlier_epoch_requires_retained_epoch(store_factory: Make) -> None:
    store = open_session_store(lambda: store_factory("p"))
    commit_sessions_of_users(
        store, commit_sessions_of_users(store, commit_sessions_of_users(store, None, "a"), "b"), "c"
    )
    store.close()
    if isinstance(store, FilesStore):
        assert fork_store(store_factory("p"), "q", 1).epoch == 1
        with store_factory("q").peek() as snapshot:
            assert read_session_users(snapshot) == ["b"]
        message = "epoch 7 is not kept in .*; available: epochs 0 to 2"
    else:
        message = "epoch 7 is not kept in the tables .*, which hold the latest; available: epoch 2"
    with pytest.raises(StateError, match=message):
        fork_store(store_factory("p"), "r", 7)
    assert store_factory("r").read_commit_record() is None


def test_fork_refuses_missing_state_used_name_and_unpublished_output(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "PATIENCE_S", 0.2)
    with pytest.raises(StateError, match=r"epoch 0 is not kept in .*; available: no state yet"):
        fork_store(store_factory("p"), "q")
    store = open_session_store(lambda: store_factory("p"))
    done = commit_sessions_of_users(store, None, "a")
    for name in ("p", "taken"):
        if name == "taken":
            fork_store(store_factory("p"), "taken")
        with pytest.raises(StateError, match=rf'"{name}" already has a state \(epoch 0 in .*\); choose another name'):
            fork_store(store_factory("p"), name)
    with pytest.raises(StartError, match=r'found the name "../q", expected letters, digits'):
        fork_store(store_factory("p"), "../q")
    other = store_factory("busy")
    other.open()
    with pytest.raises(LockHeldError, match=r"already running: process .* holds"):
        fork_store(store_factory("p"), "busy")
    other.close()
    waits = store.shard(0, 1, 1, ()).write_output(one_user_output_frame())
    store.commit(done.model_copy(update={"epoch": 1, "output": (waits,)}))
    with pytest.raises(
        StateError, match="epoch 1 was committed, but its output is not published yet; start the runner"
    ):
        fork_store(store_factory("p"), "q")
    assert store_factory("q").read_commit_record() is None
    store.mark_published(1)
    assert fork_store(store_factory("p"), "q").output == ()
    store.close()


def one_user_output_frame() -> Any:
    import polars as pl

    return pl.DataFrame({"user": ["a"], "__reason": ["close"]})


def test_fork_waits_until_runner_publishes_committed_output(store_factory: Make) -> None:
    store = open_session_store(lambda: store_factory("p"))
    waits = store.shard(0, 1, 0, ()).write_output(one_user_output_frame())
    store.commit(build_session_commit(0, output=(OutputMetadata.model_validate(waits.model_dump()),)))
    timer = threading.Timer(0.3, store.mark_published, [0])
    timer.start()
    assert fork_store(store_factory("p"), "q").epoch == 0
    timer.join()
    store.close()


def test_fork_links_or_copies_files_and_refuses_damaged_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are hard-linked, or copied where links are unsupported.

    A failed copy and a damaged file are errors that leave no part of a fork.
    """
    store = open_session_store(lambda: FilesStore(tmp_path, "p"))
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    path = tmp_path / "p" / done.stages[0].segments[0][0].file
    fork_store(store, "q")
    assert path.samefile(tmp_path / "q" / done.stages[0].segments[0][0].file)

    def refuse(self: Path, to: Path) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    fork_store(store, "r")
    assert not path.samefile(tmp_path / "r" / done.stages[0].segments[0][0].file)
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", lambda *paths: refuse(*paths))
        with pytest.raises(
            StateError, match=r"state file .* cannot be copied to .* \(no links here\); free some space"
        ):
            fork_store(store, "s")
    due = (10_006).to_bytes(8, "little")
    path.write_bytes(path.read_bytes().replace(due, (10_007).to_bytes(8, "little")))
    with pytest.raises(StateError, match=f"state file .*{path.name} does not match its checksum; restore"):
        fork_store(store, "s")
    assert not (tmp_path / "s").exists()


def test_fork_reports_missing_source_list(store_factory: Make) -> None:
    store = open_session_store(lambda: store_factory("p"))
    listed = store.write_list(0, ["x"])
    store.commit(build_session_commit(0, sources={"s": SourceRecord(offsets={"segments": [listed], "count": 1})}))
    store.close()
    if isinstance(store, FilesStore):
        store.storage.delete([listed])
        message = f"state file .*{Path(listed).name} is missing; restore it"
    else:
        with psycopg.connect(store._url) as db:
            db.execute("DELETE FROM slackwater_lists")
        message = "a list to which the state refers is missing from .*slackwater_lists.*; restore it"
    with pytest.raises(StateError, match=message):
        fork_store(store_factory("p"), "q")
    assert store_factory("q").read_commit_record() is None


def test_fork_reports_missing_postgres_table(postgres: Any) -> None:
    url = postgres.database("fork_missing")
    store = open_session_store(lambda: PostgresStore(url, "public", "p"))
    commit_sessions_of_users(store, None, "a")
    with psycopg.connect(url) as db:
        db.execute("DROP TABLE slackwater_state_p CASCADE")
    with pytest.raises(StateError, match=r"table .*slackwater_state_p.* is missing; restore it from a backup"):
        fork_store(store, "q")
    store.close()


def test_fork_command_prints_epoch_and_warns_about_spark_checkpoint(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_session_store(lambda: store_factory("p"))
    last = commit_sessions_of_users(store, None, "a", "b")
    store.commit(build_session_commit(1, sources={"queue": {"rows": 4}}, segments=last.stages[0].segments))
    store.close()
    where = [store.root] if isinstance(store, FilesStore) else [store._url]
    monkeypatch.setattr(sys, "argv", ["slackwater", "state", "fork", *where, "q"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    output = capsys.readouterr().out
    assert output.startswith('"q" begins with epoch 1: 2 state rows, ')
    assert 'To continue from it, use the same config with name = "q" and another target' in output
    assert 'warning: source "queue" continues from Spark\'s checkpoint, which is not copied' in output
