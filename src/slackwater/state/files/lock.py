"""Who runs a pipeline: a file that is locked (flock) for the life of a runner, and says who that is."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import TextIO

from slackwater.errors import ExhaustedError, LockHeldError, StateError

LOCK_S = 0.2  # how long a start waits for the lock: `holder` holds it for an instant


def take(path: Path) -> TextIO:
    """Lock this file, and write into it who holds it, until it is closed. Raises LockHeldError, StateError."""
    file = _opened(path)
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(0.02)
                continue
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise LockHeldError(
                f"pipeline is already running: {holder} holds {path}; stop it first, one runner per pipeline"
            ) from error
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def holder(path: Path) -> str | None:
    """Who holds the lock; None for nobody. Raises StateError."""
    try:
        with path.open(errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ExhaustedError.of(error) or StateError(
            f"lock {path} cannot be looked at ({error.strerror}); check who may read it"
        ) from error
    return None


def _opened(path: Path) -> TextIO:
    """The lock, which is written over: so it must be a file of this directory, and no link to another one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        what = "is a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise ExhaustedError.of(error) or StateError(
            f"lock {path} {what}; expected a file that may be written: remove it"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateError(f"lock {path} is no file; remove it")
    return os.fdopen(descriptor, "a+", errors="replace")
