"""Two runners never commit to one state, even if its lock file or the state itself is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.store_commits import add_epoch, open_runner, users

from slackwater.errors import FencedError, LockHeldError
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], FilesStore]:
    return lambda: FilesStore(str(tmp_path), "p")


def _without_locks_of_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a network file system that emulates flock with byte-range locks and so cannot lock directories."""
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("times", [1, 3])
def test_removed_lock_file_does_not_admit_a_second_runner(make: Callable[[], FilesStore], times: int) -> None:
    first = open_runner(make)
    done = add_epoch(first, None, "a")
    for _ in range(times):
        Path(first.root, "lock").unlink()
        with pytest.raises(
            LockHeldError,
            match=r"another process has locked the directory .*/p, but its lock file lock was removed; stop",
        ):
            make().open()
        assert make().runner() == "another process"
    done = add_epoch(first, done, "b")
    first.collect_garbage()
    first.close()
    assert make().runner() is None
    again = make()
    assert again.open() == done
    assert verify_state(make()).problems == []
    again.close()


def test_runner_of_a_replaced_state_is_fenced(make: Callable[[], FilesStore]) -> None:
    first = open_runner(make)
    done = add_epoch(first, None, "a")
    shutil.rmtree(first.root)
    second = open_runner(make)
    new = add_epoch(second, None, "b")
    for act in (
        lambda: first.commit(done.model_copy(update={"epoch": 1})),
        first.collect_garbage,
        lambda: first.mark_published(0),
    ):
        with pytest.raises(FencedError, match="p was removed or replaced during the run"):
            act()
    first.close()
    assert add_epoch(second, new, "b", "d").epoch == 1
    with make().peek() as snapshot:
        assert users(snapshot) == ["b", "d"]
    second.close()


def test_runner_without_directory_locks_is_fenced_if_its_lock_file_is_removed(
    make: Callable[[], FilesStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_locks_of_directories(monkeypatch)
    first = open_runner(make)
    done = add_epoch(first, None, "a")
    with pytest.raises(LockHeldError, match="is already running: process"):
        make().open()
    Path(first.root, "lock").unlink()
    second = open_runner(make)
    with pytest.raises(FencedError, match="lock was removed or replaced during the run"):
        add_epoch(first, done, "c")
    add_epoch(second, done, "b")
    first.close()
    assert verify_state(make()).problems == []
    second.close()
