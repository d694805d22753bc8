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
from tests.support.session_store_commits import commit_sessions_of_users, open_session_store, read_session_users

from slackwater.errors import FencedError, LockHeldError
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore


@pytest.fixture
def store_factory(tmp_path: Path) -> Callable[[], FilesStore]:
    return lambda: FilesStore(str(tmp_path), "p")


def _forbid_directory_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a network file system that emulates flock with byte-range locks and so cannot lock directories."""
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("times", [1, 3])
def test_removed_lock_file_does_not_admit_a_second_runner(store_factory: Callable[[], FilesStore], times: int) -> None:
    first = open_session_store(store_factory)
    done = commit_sessions_of_users(first, None, "a")
    for _ in range(times):
        Path(first.root, "lock").unlink()
        with pytest.raises(
            LockHeldError,
            match=r"another process has locked the directory .*/p, but its lock file lock was removed; stop",
        ):
            store_factory().open()
        assert store_factory().runner() == "another process"
    done = commit_sessions_of_users(first, done, "b")
    first.collect_garbage()
    first.close()
    assert store_factory().runner() is None
    again = store_factory()
    assert again.open() == done
    assert verify_state(store_factory()).problems == []
    again.close()


def test_runner_of_a_replaced_state_is_fenced(store_factory: Callable[[], FilesStore]) -> None:
    first = open_session_store(store_factory)
    done = commit_sessions_of_users(first, None, "a")
    shutil.rmtree(first.root)
    second = open_session_store(store_factory)
    new = commit_sessions_of_users(second, None, "b")
    for act in (
        lambda: first.commit(done.model_copy(update={"epoch": 1})),
        first.collect_garbage,
        lambda: first.mark_published(0),
    ):
        with pytest.raises(FencedError, match="p was removed or replaced during the run"):
            act()
    first.close()
    assert commit_sessions_of_users(second, new, "b", "d").epoch == 1
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["b", "d"]
    second.close()


def test_runner_without_directory_locks_is_fenced_if_its_lock_file_is_removed(
    store_factory: Callable[[], FilesStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_directory_locks(monkeypatch)
    first = open_session_store(store_factory)
    done = commit_sessions_of_users(first, None, "a")
    with pytest.raises(LockHeldError, match="is already running: process"):
        store_factory().open()
    Path(first.root, "lock").unlink()
    second = open_session_store(store_factory)
    with pytest.raises(FencedError, match="lock was removed or replaced during the run"):
        commit_sessions_of_users(first, done, "c")
    commit_sessions_of_users(second, done, "b")
    first.close()
    assert verify_state(store_factory()).problems == []
    second.close()
