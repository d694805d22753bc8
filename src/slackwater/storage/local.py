"""State in a directory, on a local disk or any mounted file system, and the lock of its runner.

The runner locks two things with flock:

    state/<pipeline>/        so that deleting the lock file does not admit a second runner
                     lock    a file with the name of the process: "process 4711 on host"

Some network file systems cannot lock directories. There, a runner checks before each commit that the lock file has not
been replaced.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import polars as pl

from slackwater.core.paths import STATE_FOLDERS
from slackwater.errors import FencedError, LockHeldError, ResourceExhaustedError, StateError, Topic, is_forbidden
from slackwater.storage import arrow_files
from slackwater.storage.base import FileRef, Storage, StorageLock, VersionedContent, open_file

PENDING = ".commit-"  # prefix of the temporary file from which a commit is linked
LOCK_S = 0.2  # seconds that startup waits for the lock, because `find_lock_holder` takes it briefly


@dataclass(frozen=True)
class LocalStorage:
    """A `Storage` on a file system. `root` is the absolute path of the state directory."""

    root: str

    @property
    def path(self) -> Path:
        return Path(self.root)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_remote(self) -> bool:
        return False

    def full_name(self, file: str) -> str:
        return str(self.path / file)

    def sibling(self, name: str) -> LocalStorage:
        return LocalStorage(str(self.path.with_name(name)))

    def names(self) -> list[str]:
        return sorted(p.parent.name for p in self.path.parent.glob("*/manifests"))

    def write(self, file: str, frame: pl.DataFrame) -> tuple[int, str]:
        return arrow_files.write_arrow(self.path / file, frame)

    def put(self, file: str, content: bytes) -> None:
        path = self.path / file
        path.parent.mkdir(exist_ok=True)
        arrow_files.write_synced(path, content)

    def local_path(self, file: FileRef) -> Path:
        return self.path / file.file

    def fetch(self, files: Sequence[FileRef]) -> None:
        return

    def find_damage(self, file: FileRef) -> str:
        return arrow_files.find_damage(self.path / file.file, file.checksum, file.bytes)

    def check(self, files: Sequence[FileRef]) -> None:
        for file in files:
            arrow_files.verify_file(self.path / file.file, file.checksum, file.bytes)
            if file.rows is not None:
                open_file(self, file)

    def read(self, file: str) -> VersionedContent:
        return VersionedContent((self.path / file).read_bytes())

    def create(self, file: str, content: bytes) -> bool:
        final = self.path / file
        with tempfile.NamedTemporaryFile("wb", dir=self.path, prefix=PENDING, delete=False) as temporary:
            try:
                temporary.write(content)
                temporary.flush()
                os.fsync(temporary.fileno())
                os.link(temporary.name, final)
            except FileExistsError:
                return False
            finally:
                Path(temporary.name).unlink()
        _sync(final.parent)
        return True

    def replace(self, file: str, content: bytes, version: str | None) -> str:
        path = self.path / file
        temporary = path.with_name(f".{path.name}")
        arrow_files.write_synced(temporary, content)
        temporary.replace(path)
        return ""

    def sizes(self, folder: str) -> Mapping[str, int]:
        return {p.name: _size(p) for p in sorted((self.path / folder).glob("*"))}

    def clear_pending(self) -> None:
        """Delete the temporary files of a process that died during a commit."""
        for path in self.path.glob(f"{PENDING}*"):
            path.unlink(missing_ok=True)

    def has(self, file: str) -> bool:
        return (self.path / file).exists()

    def delete(self, files: Collection[str]) -> None:
        for file in files:
            (self.path / file).unlink(missing_ok=True)

    def prepare(self) -> None:
        try:
            for name in (*STATE_FOLDERS, "checkpoint"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceExhaustedError.from_error(error) or StateError(
                f"state directory {self.root} cannot be created ({error.strerror}); expected a writable directory"
            ) from error

    def lock(self) -> StorageLock:
        return acquire_lock(self.path / "lock")

    def holder(self) -> str | None:
        return find_lock_holder(self.path / "lock")

    def is_fresh(self) -> bool:
        return not self.path.exists()

    def copy_from(self, origin: Storage, file: str) -> None:
        _link(Path(origin.root) / file, self.path / file)

    def put_aside(self, name: str) -> str:
        aside = self.path.with_name(name)
        try:
            self.path.rename(aside)
        except OSError as error:
            raise StateError(
                f"state directory {self.root} cannot be moved to {aside} ({error.strerror}); nothing was changed"
            ) from None
        return str(aside)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # deleted in the meantime


def _link(path: Path, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    to.unlink(missing_ok=True)  # left by an attempt that was killed
    try:
        to.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:  # the file system does not support hard links
        try:
            shutil.copyfile(path, to)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StateError(
                f"state file {path} cannot be copied to {to} ({error.strerror}); free some space, or check the "
                "permissions"
            ) from None


# -- the lock ----------------------------------------------------------------------------------------------------------


class Flock:
    """A `StorageLock` that this process holds on a file and, if the file system allows it, on its directory.

    Args:
        path: The path of the lock file.
        file: The open and locked file.
        directory: A descriptor of the locked directory; None if the directory cannot be locked.
    """

    token = ""

    def __init__(self, path: Path, file: TextIO, directory: int | None) -> None:
        self._path, self._file, self._directory = path, file, directory

    def confirm(self, doing: str) -> None:
        """Raise FencedError if the locked directory or, without one, the lock file has been replaced.

        `doing`: the action to prevent, named in the message, such as "commit epoch 7".
        """
        descriptor = self._file.fileno() if self._directory is None else self._directory
        path = self._path if self._directory is None else self._path.parent
        try:
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return
        except OSError:
            pass
        raise FencedError(
            f"this runner can no longer {doing}: {path} was removed or replaced during the run; find the cause, and "
            "start again"
        )

    def close(self) -> None:
        self._file.close()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def acquire_lock(path: Path) -> Flock:
    """Lock a file and its directory, and write the name of this process to the file.

    Raises LockHeldError if another process holds one of the locks, and StateError if the file cannot be opened.
    """
    file = _open_lock_file(path)
    end = time.monotonic() + LOCK_S
    if not _try_lock(file.fileno(), end):
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise LockHeldError(
            f"pipeline is already running: {holder} holds the lock {path}; stop that process first, because a "
            "pipeline can have only one runner at a time"
        ) from None
    directory = _open_directory(path.parent)
    try:
        if directory is not None and not _try_lock(directory, end):
            os.close(directory)
            file.close()
            raise LockHeldError(
                f"pipeline is already running: another process has locked the directory {path.parent}, but its lock "
                f"file {path.name} was removed; stop that process first, because a pipeline can have only one runner "
                "at a time"
            )
    except OSError:  # a network file system that cannot lock directories
        assert directory is not None
        os.close(directory)
        directory = None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return Flock(path, file, directory)


def find_lock_holder(path: Path) -> str | None:
    """Return the name of the process that holds the lock, or None if it is free.

    Raises StateError if the lock file cannot be read.
    """
    try:
        with path.open(errors="replace") as file:
            if not _is_free(file.fileno()):
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ResourceExhaustedError.from_error(error) or StateError(
            f"lock {path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    directory = _open_directory(path.parent)
    if directory is None:
        return None
    try:
        return None if _is_free(directory) else "another process"
    except OSError:
        return None  # a network file system that cannot lock directories
    finally:
        os.close(directory)


def _open_directory(path: Path) -> int | None:
    """Open a directory and return its descriptor, or None if this user cannot read it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None


def _try_lock(descriptor: int, end: float) -> bool:
    """Lock a file descriptor, waiting until `end` (monotonic clock) if another process holds the lock.

    Return whether the lock was taken. Raises OSError if the file system cannot lock the file.
    """
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock_file(path: Path) -> TextIO:
    """Open or create the lock file. Raises StateError for a symbolic link or a special file.

    The file is overwritten later, so following a link could destroy another file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        problem = "is a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        remedy = "give this user write access" if is_forbidden(error) else "remove it"
        raise ResourceExhaustedError.from_error(error) or StateError(
            f"lock {path} {problem}; expected a writable file; {remedy}"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateError(f"lock {path} is not a file; remove it", Topic.STATE_DAMAGED)
    return os.fdopen(descriptor, "a+", errors="replace")
