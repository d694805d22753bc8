"""Record the runs of a pipeline in every store. The history is bounded, readable during a run, and never fails a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.runner.run import record_run
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore
from slackwater.state.run_history import MOST_RUNS, MOST_TEXT, Run, add_or_replace_run, one_line
from slackwater.ui.blocks.commit_and_runs import build_runs

Make = Callable[[], Any]


@pytest.fixture(params=["files", "objects", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that opens the same store each time."""
    if request.param == "files":
        return lambda: FilesStore(tmp_path, "p")
    if request.param == "objects":
        url = request.getfixturevalue("bucket")
        return lambda: FilesStore(url, "p")
    url = request.getfixturevalue("postgres").database(f"runs_{abs(hash(request.node.name)):x}")
    return lambda: PostgresStore(url, "public", "p")


@pytest.fixture
def opened_store(store_factory: Make) -> Iterator[Any]:
    new_store = store_factory()
    new_store.open()
    yield new_store
    new_store.close()


def create_stop_event(is_set: bool = False) -> threading.Event:
    stop_event = threading.Event()
    if is_set:
        stop_event.set()
    return stop_event


def build_run_record(started_us: int, **more: Any) -> Run:
    return Run(started_us=started_us, runner="process 1 on here", epoch=-1, **more)


def test_run_is_recorded_at_its_start_and_at_its_end(store_factory: Make, opened_store: Any) -> None:
    assert store_factory().runs() == ()
    with record_run(opened_store, create_stop_event(), lambda: 4, 2):
        (begun,) = store_factory().runs()
        assert (begun.epoch, begun.ended_us, begun.outcome) == (2, None, None)
    (ended,) = store_factory().runs()
    assert ended.is_same(begun)
    assert (ended.outcome, ended.last_epoch, ended.error) == ("finished", 4, None)
    assert ended.ended_us is not None
    assert ended.ended_us >= ended.started_us
    with record_run(opened_store, create_stop_event(True), lambda: 5, 4):
        pass
    with pytest.raises(RuntimeError), record_run(opened_store, create_stop_event(), lambda: 6, 5):
        raise RuntimeError("no\nroom\0 \ud800" + "x" * 5000)
    runs = store_factory().runs()
    assert [r.outcome for r in runs] == ["finished", "stopped", "failed"]
    error = runs[-1].error
    assert error is not None
    assert error.startswith("no room")
    assert "\n" not in error
    assert len(error) == MOST_TEXT


def test_killed_run_stays_in_the_history_without_an_end_time(store_factory: Make, opened_store: Any) -> None:
    opened_store.save_run(build_run_record(1))
    opened_store.save_run(build_run_record(2, ended_us=3, outcome="finished", last_epoch=0))
    assert [(r.started_us, r.outcome) for r in store_factory().runs()] == [(1, None), (2, "finished")]


def test_run_history_drops_the_oldest_runs_beyond_its_limit(store_factory: Make, opened_store: Any) -> None:
    for n in range(MOST_RUNS + 7):
        opened_store.save_run(build_run_record(n))
    assert [r.started_us for r in store_factory().runs()] == list(range(7, MOST_RUNS + 7))


def test_next_runner_appends_to_the_run_history(store_factory: Make, opened_store: Any) -> None:
    opened_store.save_run(build_run_record(1))
    opened_store.close()
    opened_store.open()
    opened_store.save_run(build_run_record(2))
    assert [r.started_us for r in store_factory().runs()] == [1, 2]


def test_removing_a_state_removes_its_run_history(store_factory: Make, opened_store: Any) -> None:
    opened_store.save_run(build_run_record(1))
    opened_store.remove()
    assert store_factory().runs() == ()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"{}\n", b"[" * 9000, b'{"started_us": 1e999}\n', b"null\n7\n"])
def test_damaged_run_history_reads_as_empty_and_does_not_fail_a_run(tmp_path: Path, damage: bytes) -> None:
    with_files = FilesStore(tmp_path, "p")
    with_files.open()
    (tmp_path / "p" / "runs").write_bytes(damage)
    assert FilesStore(tmp_path, "p").runs() == ()
    with record_run(with_files, create_stop_event(), lambda: 0, -1):
        pass
    assert [r.outcome for r in with_files.runs()] == ["finished"]
    with_files.close()


def test_unwritable_run_history_does_not_fail_a_run(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, "p")
    store.open()
    (tmp_path / "p" / "runs").mkdir()
    with record_run(store, create_stop_event(), lambda: 0, -1):
        reached = True
    assert reached
    store.close()


def test_error_is_truncated_to_one_line_and_end_replaces_start_entry() -> None:
    assert one_line(" a\n b\t c ") == "a b c"
    assert len(one_line("x" * 9999)) == MOST_TEXT
    assert (
        add_or_replace_run([build_run_record(1), build_run_record(2)], build_run_record(1, outcome="stopped"))[
            -1
        ].outcome
        == "stopped"
    )


def test_run_history_distinguishes_running_failed_and_killed_runs() -> None:
    failed = build_run_record(2, ended_us=5, outcome="failed", last_epoch=3, error="no room").model_copy(
        update={"epoch": 1}
    )
    noted_runs = [build_run_record(1), failed, build_run_record(9).model_copy(update={"epoch": 3})]
    history = build_runs(noted_runs, "process 1 on here", 7)
    assert [r.outcome for r in history.runs] == ["running", "failed", "killed"]
    assert [(r.first_epoch, r.last_epoch, r.epochs) for r in history.runs] == [(4, 7, 4), (2, 3, 2), (0, 1, 2)]
    assert history.failure is None
    killed = build_runs(noted_runs, None, 7).failure
    assert killed is not None
    assert killed.outcome == "killed"
    assert build_runs(noted_runs[:2], None, 3).failure is not None
    assert build_runs([], None, -1).failure is None
