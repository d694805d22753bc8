"""Forks of a files store: the same immutable files under two states, linked, or copied where links cannot be made."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from slackwater.errors import StateError
from slackwater.state.commit import Commit
from slackwater.state.files.storage import NAMED, Storage
from slackwater.state.fork import forked_commit, name_taken
from slackwater.state.protocol import Snapshot, epoch_not_kept

ATTEMPTS = 5
FORKING = "forking"  # a file that is there while a fork is made


class ForkOrigin(Protocol):
    """A store whose commit is copied."""

    @property
    def place(self) -> Storage: ...
    def epochs(self) -> list[int]: ...
    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]: ...


class ForkCopy(ForkOrigin, Protocol):
    """A store that gets it."""

    def claim(self) -> None: ...
    def check_begins(self) -> None: ...
    def create_state(self, commit: Commit) -> None: ...
    def close(self) -> None: ...


def fork_state(store: ForkOrigin, copy: ForkCopy, epoch: int | None, renames: bool = False) -> Commit | None:
    """See `StateStore.fork`."""
    to = copy.place
    if existing := copy.epochs():
        raise name_taken(to.name, existing[-1], f"in {to.root}")
    if not store.epochs():
        raise epoch_not_kept(epoch or 0, [], store.place.root)
    fresh = to.is_fresh() or to.has(FORKING)
    copy.claim()
    copied: list[str] = []
    try:
        if existing := copy.epochs():  # since we looked
            copied, fresh = [], False
            raise name_taken(to.name, existing[-1], f"in {to.root}")
        if to.has(FORKING):  # of a fork that was killed: it names nothing, so nobody needs what it left
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
    """Put the files of a commit there; None while its output waits.

    What a runner removes meanwhile is of a commit that is not kept any more: then a later one is looked for.
    """
    gone = ""
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
                        to.copy_from(store.place, name)
                        copied.append(name)
                return commit
            except FileNotFoundError as error:
                gone = str(error.filename)
    raise StateError(
        f"state file {gone} is missing; restore it from a copy of the state directory; nothing was changed"
    )
