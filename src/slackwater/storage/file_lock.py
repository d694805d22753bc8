"""The lock of a pipeline in a file system: a file that names the runner's process and is locked by it with flock.

    state/<pipeline>/        locked as well, so that deleting the file below does not admit a second runner
                     lock    "process 4711 on host"

Some network file systems cannot lock directories. There, a runner checks before each commit that the file has not been
replaced.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import TextIO

from slackwater.errors import ExhaustedError, FencedError, LockHeldError, StateError, Topic, is_forbidden

LOCK_S = 0.2  # how long a start waits for the lock, because `lock_holder` holds it briefly


class Flock:
    """The lock of this process. `directory`: the descriptor of the directory; None if it cannot be locked."""

    token = ""

    def __init__(self, path: Path, file: TextIO, directory: int | None) -> None:
        self._path, self._file, self._directory = path, file, directory

    def confirm(self, doing: str) -> None:
        """Raise FencedError if the locked directory or, if no directory is locked, the locked file has been replaced.

        `doing` describes the forbidden action in the error message.
        """
        descriptor = self._file.fileno() if self._directory is None else self._directory
        path = self._path if self._directory is None else self._path.parent
        try:
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return
        except OSError:
            pass
        raise FencedError(
            f"this runner must not {doing}: {path} was removed or replaced during the run; find the cause, and start "
            "again"
        )

    def close(self) -> None:
        self._file.close()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def take_lock(path: Path) -> Flock:
    """Lock this file and its directory, and write the name of the process into the file.

    Raises LockHeldError if another process holds one of the locks, or StateError.
    """
    file = _open_lock_file(path)
    end = time.monotonic() + LOCK_S
    if not _try_lock(file.fileno(), end):
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise LockHeldError(
            f"pipeline is already running: {holder} holds {path}; stop that process first, because a pipeline can "
            "have only one runner at a time"
        ) from None
    directory = _open_directory(path.parent)
    try:
        if directory is not None and not _try_lock(directory, end):
            os.close(directory)
            file.close()
            raise LockHeldError(
                f"pipeline is already running: another process holds {path.parent}, but its lock file {path.name} "
                "was removed; stop that process first, because a pipeline can have only one runner at a time"
            )
    except OSError:  # a network file system that cannot lock directories
        assert directory is not None
        os.close(directory)
        directory = None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return Flock(path, file, directory)


def lock_holder(path: Path) -> str | None:
    """Return the process that holds the lock; None if no process does. Raises StateError if the lock cannot be read."""
    try:
        with path.open(errors="replace") as file:
            if not _is_free(file.fileno()):
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ExhaustedError.from_error(error) or StateError(
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
    """Open a directory and return its descriptor; None if this user cannot read it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None


def _try_lock(descriptor: int, end: float) -> bool:
    """Lock a descriptor. Return False if another process still holds the lock at `end` (monotonic clock).

    Raises OSError if the file system cannot lock it.
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
    """Open the lock file. It is overwritten, so it must be a regular file and not a link."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        problem = "is a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        remedy = "give this user write access" if is_forbidden(error) else "remove it"
        raise ExhaustedError.from_error(error) or StateError(
            f"lock {path} {problem}; expected a writable file; {remedy}"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateError(f"lock {path} is not a file; remove it", Topic.STATE_DAMAGED)
    return os.fdopen(descriptor, "a+", errors="replace")
