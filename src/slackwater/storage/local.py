"""State in a directory, on a local disk or any mounted file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from slackwater.core.paths import STATE_FOLDERS
from slackwater.errors import ExhaustedError, StateError
from slackwater.storage import arrow_files, file_lock
from slackwater.storage.base import FileRef, Storage, StorageLock, VersionedContent, open_file

PENDING = ".commit-"  # prefix of a commit's temporary file


@dataclass(frozen=True)
class LocalStorage:
    """A `Storage` in a file system."""

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
        """Delete temporary files of a process that died during a commit."""
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
            raise ExhaustedError.from_error(error) or StateError(
                f"state directory {self.root} cannot be created ({error.strerror}); expected a writable directory"
            ) from error

    def lock(self) -> StorageLock:
        return file_lock.take_lock(self.path / "lock")

    def holder(self) -> str | None:
        return file_lock.lock_holder(self.path / "lock")

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
                f"state file {path} cannot be copied to {to} ({error.strerror}); free some space"
            ) from None
