"""Forks of a files store: the same immutable files under two directories, linked, or copied where links cannot be made."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from slackwater.errors import StateError
from slackwater.state.commit import Commit
from slackwater.state.fork import forked, taken
from slackwater.state.protocol import Snapshot, not_kept

ATTEMPTS = 5


class Origin(Protocol):
    """A store whose commit is copied."""

    @property
    def root(self) -> str: ...
    def epochs(self) -> list[int]: ...
    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]: ...


class Copy(Origin, Protocol):
    """A store that gets it. `forking`: a file that is there while it is made."""

    @property
    def forking(self) -> Path: ...
    def claim(self) -> None: ...
    def check_begins(self) -> None: ...
    def found(self, commit: Commit) -> None: ...
    def close(self) -> None: ...


def fork(store: Origin, copy: Copy, epoch: int | None) -> Commit | None:
    """See `StateStore.fork`."""
    name = Path(copy.root).name
    if there := copy.epochs():
        raise taken(name, there[-1], f"in {copy.root}")
    if not store.epochs():
        raise not_kept(epoch or 0, [], store.root)
    fresh = not Path(copy.root).exists() or copy.forking.exists()
    copy.claim()
    made: list[Path] = []
    try:
        if there := copy.epochs():  # since we looked
            made, fresh = [], False
            raise taken(name, there[-1], f"in {copy.root}")
        if copy.forking.exists():  # of a fork that was killed: it names nothing, so nobody needs what it left
            _clear(Path(copy.root))
        copy.check_begins()
        copy.forking.touch()
        found = _copied(store, Path(copy.root), epoch, made)
        if found is not None:
            found = forked(found, name)
            copy.found(found)
            copy.forking.unlink()
            made = []
        return found
    finally:
        if made or not copy.epochs():
            copy.forking.unlink(missing_ok=True)
            _undo(Path(copy.root), made, fresh)
        copy.close()


def _clear(directory: Path) -> None:
    """Remove what an attempt that was killed has left."""
    for folder in ("segments", "outputs", "offsets"):
        shutil.rmtree(directory / folder, ignore_errors=True)
        (directory / folder).mkdir()
    (directory / "forking").unlink()


def _copied(store: Origin, to: Path, epoch: int | None, made: list[Path]) -> Commit | None:
    """Put the files of a commit below `to`; None while its output waits.

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
            segments = [m.file for m in commit.metas]
            try:
                for name in [*segments, *commit.lists]:
                    if (to / name) not in made:
                        _link(Path(store.root) / name, to / name)
                        made.append(to / name)
                return commit
            except FileNotFoundError as error:
                gone = str(error.filename)
    raise StateError(
        f"state file {gone} is missing; restore it from a copy of the state directory; nothing was changed"
    )


def _link(path: Path, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    to.unlink(missing_ok=True)  # of an attempt that was killed
    try:
        to.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        try:
            shutil.copyfile(path, to)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StateError(f"state file {path} cannot be copied to {to} ({error.strerror}); make room") from None


def _undo(directory: Path, made: list[Path], fresh: bool) -> None:
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    for path in made:
        path.unlink(missing_ok=True)
