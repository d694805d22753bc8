"""Forks of a file-based store: the fork gets hard links to the immutable files, or copies if links are not possible."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from slackwater.errors import StateError, Topic
from slackwater.state.commit import Commit
from slackwater.state.fork import forked_commit, name_taken_error
from slackwater.state.protocol import Snapshot, missing_epoch_error
from slackwater.storage.base import NAMED, Storage

ATTEMPTS = 5
FORKING = "forking"  # marker file that exists while a fork is in progress


class ForkOrigin(Protocol):
    """The store whose commit is copied."""

    @property
    def storage(self) -> Storage: ...
    def epochs(self) -> list[int]: ...
    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]: ...


class ForkCopy(ForkOrigin, Protocol):
    """The files store that receives the copy of a state, for a new pipeline."""

    def claim(self) -> None: ...
    def check_begins(self) -> None: ...
    def create_state(self, commit: Commit) -> None: ...
    def close(self) -> None: ...


def fork_state(store: ForkOrigin, copy: ForkCopy, epoch: int | None, renames: bool = False) -> Commit | None:
    """Copy a commit to another store; see `StateStore.fork`."""
    to = copy.storage
    if existing := copy.epochs():
        raise name_taken_error(to.name, existing[-1], f"in {to.root}")
    if not store.epochs():
        raise missing_epoch_error(epoch or 0, [], store.storage.root)
    fresh = to.is_fresh() or to.has(FORKING)
    copy.claim()
    copied: list[str] = []
    try:
        if existing := copy.epochs():  # created since the first check
            copied, fresh = [], False
            raise name_taken_error(to.name, existing[-1], f"in {to.root}")
        if to.has(FORKING):  # left by a fork that was killed: no commit references its files
            to.delete([f"{folder}/{file}" for folder in NAMED for file in to.sizes(folder)])
            to.delete([FORKING])
        copy.check_begins()
        to.put(FORKING, b"")
        commit = _copy_files(store, to, epoch, copied)
        if commit is not None:
            commit = forked_commit(commit, to.name, renames=renames)
            copy.create_state(commit)
            to.delete([FORKING])
            copied = []
        return commit
    finally:
        if copied or not copy.epochs():
            to.delete([FORKING])
            if fresh:
                to.remove()
            to.delete(copied)
        copy.close()


def _copy_files(store: ForkOrigin, to: Storage, epoch: int | None, copied: list[str]) -> Commit | None:
    """Copy the files of a commit, and append their names to `copied`. Return None if its output is unpublished.

    If a runner deletes one of the files during the copy, copying restarts, with the latest commit if `epoch` is None.
    """
    missing = ""
    for _ in range(ATTEMPTS):
        with store.peek(epoch) as snapshot:
            if snapshot is None:
                break
            commit = snapshot.commit
            if commit.staged and snapshot.published < commit.epoch:
                return None
            try:
                for name in [*(m.file for m in commit.metas), *commit.lists]:
                    if name not in copied:
                        to.copy_from(store.storage, name)
                        copied.append(name)
                return commit
            except FileNotFoundError as error:
                missing = str(error.filename)
    raise StateError(
        f"state file {missing} is missing; restore it from a copy of the state directory; nothing was changed",
        Topic.STATE_DAMAGED,
    )
