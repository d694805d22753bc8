"""A cache of immutable objects in local files, which can be memory-mapped.

A process trusts a copy that it has written itself, or whose checksum it has verified. `SLACKWATER_CACHE_DIR` sets the
directory of the cache; by default, it is in the temporary directory. `SLACKWATER_CACHE_BYTES` limits its size.
"""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from slackwater.errors import ResourceExhaustedError, StateError, Topic
from slackwater.storage.arrow_files import find_damage

BYTES = 20 << 30  # default limit
TRIM_EVERY = 64  # number of files that a process adds between two checks of the total size

_added = 0  # number of files that this process has added


class FileCache:
    """The cached files of one state. `name`: a subdirectory of the cache that no other state uses."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sound: set[str] = set()  # files with a correct checksum

    @cached_property
    def home(self) -> Path:
        """Return the cache directory. It is created on first use. Raises StateError if this fails."""
        return _cache_directory()

    def path(self, file: str) -> Path:
        """Return the path of the copy of a file, which may not exist."""
        return self.home / self._name / file

    def has_copy(self, file: str, digest: str) -> bool:
        """Return whether a copy with this checksum exists. If so, mark it as recently used."""
        path = self.path(file)
        if file not in self._sound:
            if not path.exists() or find_damage(path, digest):
                return False
            self._sound.add(file)
        try:
            os.utime(path)
        except FileNotFoundError:
            self._sound.discard(file)
            return False
        return True

    def add(self, file: str, content: Any) -> None:
        """Store a copy of a file, whose content the caller has verified. Raises StateError if this fails."""
        global _added
        path = self.path(file)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise ResourceExhaustedError.from_error(error) or StateError(
                f"the cache {self.home} cannot store a state file ({error.strerror}); free some space there, or set "
                "SLACKWATER_CACHE_DIR to a directory with more space",
                Topic.OBJECT_STORE,
            ) from None
        self._sound.add(file)
        _added += 1
        if _added % TRIM_EVERY == 0:
            trim_cache(self.home)

    def discard(self, files: Iterable[str]) -> None:
        """Delete the copies of these files."""
        for file in files:
            if ".." in Path(file).parts:  # the name may come from a listing, which is not trusted
                continue
            self._sound.discard(file)
            self.path(file).unlink(missing_ok=True)


def trim_cache(home: Path) -> None:
    """Delete the least recently used copies until the cache is within its limit. Files that are mapped stay readable."""
    most = int(os.environ.get("SLACKWATER_CACHE_BYTES") or BYTES)
    files = []
    for path in home.rglob("*"):
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files, key=lambda f: f[0]):
        if total <= most:
            return
        with suppress(OSError):
            path.unlink()
        total -= size


def _cache_directory() -> Path:
    """Create the cache directory, and return its path.

    Raises StateError if this fails, or if other users can write to the directory and thus change state in cached files.
    """
    configured = os.environ.get("SLACKWATER_CACHE_DIR")
    home = Path(configured) if configured else Path(tempfile.gettempdir()) / f"slackwater-cache-{os.getuid()}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.lstat()
    except OSError as error:
        raise StateError(
            f"the cache directory {home} for state files cannot be created ({error.strerror}); set "
            "SLACKWATER_CACHE_DIR to a writable directory",
            Topic.OBJECT_STORE,
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise StateError(
            f"the cache directory {home} for state files is not safe: it belongs to another user, or other users can "
            "write to it; remove it, or set SLACKWATER_CACHE_DIR to a directory that only this user can write to",
            Topic.OBJECT_STORE,
        )
    return home
