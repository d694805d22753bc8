"""The directory of a file target, either local or in an object store.

             writing a file                   writing the marker                      reading the files back
Directory    temporary file, sync, rename     temporary file, sync, rename            in place
Bucket       put                              put if unchanged since the last read    from a local cache
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import xxhash

from slackwater.core.paths import OUTPUT_FOLDER, is_local
from slackwater.errors import PublishError
from slackwater.storage.file_cache import FileCache
from slackwater.storage.object_client import ObjectClient


class OutputDirectory(Protocol):
    """A flat directory of named files. Operations raise OSError or SlackwaterError."""

    @property
    def full_name(self) -> str:
        """The path or URL of the directory."""
        ...

    def names(self, within: str = "") -> list[str]:
        """Return the file names in the directory or its subfolder `within`. A missing folder counts as empty."""
        ...

    def write(self, name: str, fill: Callable[[Path], None]) -> None:
        """Write a file atomically. `fill`: a function that writes the content to a path."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file. None if it does not exist."""
        ...

    def write_marker(self, name: str, content: bytes) -> None:
        """Overwrite the marker, which is a small file.

        Raises PublishError if another runner has changed the marker since this runner read it.
        """
        ...

    def move(self, names: Sequence[str], to: str) -> None:
        """Move files to the subfolder `to`, one at a time."""
        ...

    def local_copy(self) -> Path:
        """Return a local directory that contains the files."""
        ...


def open_directory(path: str | Path, options: Mapping[str, str] | None = None) -> OutputDirectory:
    """Return the directory at a path or URL. Raises StartError if the URL or its options are not valid."""
    if isinstance(path, Path) or is_local(path):
        return LocalDirectory(Path(path))
    return BucketDirectory(ObjectClient(path.rstrip("/"), options or {}, "target"))


@dataclass(frozen=True)
class LocalDirectory:
    """Output directory in a local file system."""

    path: Path

    @property
    def full_name(self) -> str:
        return str(self.path)

    def names(self, within: str = "") -> list[str]:
        try:
            return sorted(p.name for p in (self.path / within).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, name: str, fill: Callable[[Path], None]) -> None:
        (self.path / OUTPUT_FOLDER).mkdir(parents=True, exist_ok=True)
        temporary = self.path / OUTPUT_FOLDER / f".{name}"
        with _delete_on_failure(temporary):
            fill(temporary)
            _flush(temporary)
            temporary.replace(self.path / name)

    def read(self, name: str) -> bytes | None:
        path = self.path / name
        return path.read_bytes() if path.exists() else None

    def write_marker(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with _delete_on_failure(temporary):
            temporary.write_bytes(content)
            _flush(temporary)
            temporary.replace(path)

    def move(self, names: Sequence[str], to: str) -> None:
        directory = self.path / to
        directory.mkdir(parents=True)
        for name in names:
            (self.path / name).replace(directory / Path(name).name)

    def local_copy(self) -> Path:
        return self.path


@contextmanager
def _delete_on_failure(path: Path) -> Iterator[None]:
    """Delete a partially written file if writing fails, for example because the disk is full."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


@dataclass
class BucketDirectory:
    """Output directory in an object store."""

    client: ObjectClient
    _versions: dict[str, str | None] = field(default_factory=dict)
    _content: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return self.client.url

    def names(self, within: str = "") -> list[str]:
        return sorted(name for name in self.client.sizes(within) if "/" not in name)

    def write(self, name: str, fill: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="slackwater-") as home:
            path = Path(home) / name
            fill(path)
            self.client.put(name, path.read_bytes())

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist. The content is cached after the first read."""
        if name not in self._content:
            try:
                stored = self.client.get(name)
                self._content[name], self._versions[name] = bytes(stored.content), stored.version
            except FileNotFoundError:
                self._content[name] = self._versions[name] = None
        return self._content[name]

    def write_marker(self, name: str, content: bytes) -> None:
        self.read(name)
        version = self.client.rewrite(name, content, self._versions[name])
        if version is None:
            del self._content[name], self._versions[name]
            raise PublishError(f"another runner has written {self.full_name}/{name}; this runner is stopping")
        self._content[name], self._versions[name] = content, version

    def move(self, names: Sequence[str], to: str) -> None:
        for name in names:
            with suppress(FileNotFoundError):  # already moved by an interrupted attempt
                self.client.copy(name, f"{to}/{Path(name).name}")
            self.client.delete([name])
            self._content.pop(name, None)
            self._versions.pop(name, None)

    def local_copy(self) -> Path:
        cache = FileCache(
            f"target-{xxhash.xxh3_128_hexdigest(repr(sorted(self.client.options.items())).encode() + self.full_name.encode())}"
        )
        sizes = {name: size for name, size in self.client.sizes("").items() if "/" not in name}
        for name, size in sizes.items():
            path = cache.path(name)
            if not path.exists() or path.stat().st_size != size:
                with suppress(FileNotFoundError):  # deleted in the meantime
                    cache.add(name, self.client.get(name, size).content)
        home = cache.path(".")
        home.mkdir(parents=True, exist_ok=True)
        for path in home.iterdir():
            if path.name not in sizes:
                path.unlink()
        return home


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
