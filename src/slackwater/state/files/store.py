"""The files store: one directory per pipeline, on a local disk or any mounted file system.

state/<pipeline>/
  lock                      held for the life of a runner (flock), says who holds it
  manifests/000000012.json  one per epoch, created only if absent: that is the commit; its last line is a checksum
  segments/…                state rows (Arrow), referred to by manifests
  outputs/…                 staged output (Arrow), kept until published
  published                 the last epoch that reached all targets, and a checksum
  reached                   the targets that have their part of an epoch while others do not, and a checksum
  checkpoint/…              Spark's plan of the next epoch; can be lost
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

import polars as pl

from slackwater.errors import ExhaustedError, FencedError, StateError
from slackwater.state.commit import Commit, OutputMeta, SegmentMeta
from slackwater.state.files import lists, lock, published
from slackwater.state.files.arrow import opened, read_arrow, verify
from slackwater.state.files.commit import Log
from slackwater.state.files.fork import fork
from slackwater.state.files.snapshot import Onlooker
from slackwater.state.files.units import FilesShard
from slackwater.state.protocol import Publish, Snapshot, Stateful, Written

log = logging.getLogger("slackwater")

KEPT_EPOCHS = 8


class FilesStore:
    """A `StateStore` in a directory. Nothing is created or changed before `open`."""

    def __init__(self, path: str | Path, pipeline: str) -> None:
        self.root = str(Path(path).resolve() / pipeline)
        self._dir = Path(self.root)
        self.checkpoint = self._dir / "checkpoint"
        self._lock: TextIO | None = None
        self._log, self._latest = Log(self._dir), -1
        self._onlooker = Onlooker(self._log)

    def open(self) -> Commit | None:
        self.claim()
        try:
            latest = self._found()
            if latest is not None:
                self._verify(latest)
        except StateError:
            self.close()
            raise
        self._latest = latest.epoch if latest else -1
        return latest

    def claim(self) -> None:
        """Make the directory, where there is none, and take its lock; looks at nothing in it. Raises LockHeldError, StateError."""
        try:
            for name in ("manifests", "segments", "outputs", "checkpoint"):
                (self._dir / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExhaustedError.of(error) or StateError(
                f"state directory {self.root} cannot be created ({error.strerror}); expected a writable directory"
            ) from error
        self._lock = lock.take(self._dir / "lock")

    def _found(self) -> Commit | None:
        """The latest commit, if it is what the rest of the directory says it is."""
        epochs = self.epochs()
        latest = self._log.read(epochs[-1]) if epochs else None
        self.check_published(self.published(), latest.epoch if latest else -1)
        if latest is None:
            self.check_begins()
            return None
        former = set()
        for epoch in epochs[:-1]:
            with suppress(StateError):  # one that is damaged is not needed for a start
                former.add(self._log.read(epoch).state_id)
        if former and latest.state_id not in former:
            raise StateError(
                f"manifest {self._log.path(latest.epoch)} is of another state (state_id {latest.state_id!r}) than the commits "
                f"before it ({', '.join(map(repr, sorted(former)))}); restore it from a copy of the directory"
            )
        return latest

    def check_published(self, published: int, latest: int) -> None:
        """Raise StateError if an epoch was published whose commit is not there."""
        if published > latest:
            there = f"the latest manifest is of epoch {latest}" if latest >= 0 else "there is no manifest"
            raise StateError(
                f"manifest {self._log.path(published)} is missing: {self._dir / 'published'} says that epoch {published} was "
                f"published, and {there}; restore it from a copy of the directory"
            )

    def check_begins(self) -> None:
        """Raise StateError if there are files of later epochs though there is no commit."""
        if self.forking.exists():
            raise StateError(
                f"{self.root} holds a fork that was cut off; repeat it: slackwater state fork … {self._dir.name}, or remove the "
                "directory"
            )
        for folder in ("segments", "outputs", "offsets"):
            for path in sorted((self._dir / folder).glob("*")):
                if path.name[:9].isdigit() and int(path.name[:9]) > 0:
                    raise StateError(
                        f"{self._dir / 'manifests'} holds no manifest, and {path} is of epoch {int(path.name[:9])}; restore "
                        "the manifests from a copy of the directory, or remove the directory to start over"
                    )

    def start_over(self) -> str | None:
        aside = None
        if self.epochs():
            held = lock.take(self._dir / "lock")
            stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
            aside = self._dir.with_name(f"{self._dir.name}.before-{stamp}")
            try:
                self._dir.rename(aside)
            except OSError as error:
                raise StateError(
                    f"state directory {self.root} cannot be moved to {aside} ({error.strerror}); nothing was changed"
                ) from None
            finally:
                held.close()
        self.open()
        return None if aside is None else str(aside)

    def _verify(self, commit: Commit) -> None:
        """Every segment is there and holds what was written; once per start, as later ones are this process's own."""
        for meta in (m for stage in commit.stages for shard in stage.segments for m in shard):
            verify(self._dir / meta.file, meta.checksum, meta.bytes)
            opened(self._dir / meta.file, meta.rows)
        for name in commit.offset_lists:
            lists.check(self._dir, name)

    def runner(self) -> str | None:
        return lock.holder(self._dir / "lock")

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        return self._onlooker.peek(epoch)

    def epochs(self) -> list[int]:
        return self._log.epochs()

    @property
    def forking(self) -> Path:
        """A file that is there while a fork is made in this directory."""
        return self._dir / "forking"

    def manifest(self, epoch: int) -> Commit:
        """The record of a commit. Raises StateError if it is not there, damaged, or another one's."""
        return self._log.read(epoch)

    def written(self) -> Written | None:
        epochs = self.epochs()
        return self._log.written(epochs[-1]) if epochs else None

    def prepare(self, logic: Stateful, stage: int = 0, begins: bool = False) -> None:
        return

    def forget(self, stages: range) -> None:
        """Files that no commit names go with the next garbage."""

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...], stage: int = 0) -> FilesShard:
        return FilesShard(self.root, shard, epoch, metas)

    def output(self, meta: OutputMeta) -> pl.DataFrame:
        return read_arrow(self._dir / meta.file, meta.checksum)

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        return lists.put(self._dir, epoch, lines)

    def read_list(self, name: str) -> list[str]:
        return lists.read(self._dir, name)

    def shares_transaction(self, target: object) -> bool:
        return False

    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        if commit.epoch != self._latest + 1:
            raise FencedError(
                f"epoch {commit.epoch} does not follow epoch {self._latest}, the latest this runner knows; nothing was committed"
            )
        self._put(commit)
        return commit

    def found(self, commit: Commit) -> None:
        """Begin a state with this commit, whatever its epoch; its files are there. After an `open` that found none."""
        self._verify(commit)
        self._put(commit)
        self.note_published(commit.epoch)

    def _put(self, commit: Commit) -> None:
        self._log.put(commit, self._latest)
        self._latest = commit.epoch

    def published(self) -> int:
        return published.read(self._dir / "published")

    def note_published(self, epoch: int) -> None:
        published.note(self._dir / "published", epoch)

    def reached(self) -> frozenset[str]:
        return published.reached(self._dir / "reached", self._latest)

    def note_reached(self, epoch: int, target: str) -> None:
        published.note_reached(self._dir / "reached", epoch, target)

    def collect_garbage(self) -> None:
        epochs = self.epochs()
        for epoch in epochs[:-KEPT_EPOCHS]:
            self._log.path(epoch).unlink(missing_ok=True)
        try:
            kept = [self._log.read(e) for e in epochs[-KEPT_EPOCHS:]]
        except StateError as error:
            log.warning("%s; nothing is cleaned up", error)
            return
        used = {s.file for m in kept for stage in m.stages for shard in stage.segments for s in shard} | {
            o.file for m in kept for o in (*m.output, *m.letters)
        }
        used |= {name for m in kept for name in m.lists}
        for folder in ("segments", "outputs", "offsets"):
            for path in (self._dir / folder).glob("*"):
                numbered = path.name[:9].isdigit()
                if numbered and f"{folder}/{path.name}" not in used and int(path.name[:9]) <= self._latest:
                    path.unlink(missing_ok=True)

    def fork(self, name: str, epoch: int | None = None) -> Commit | None:
        return fork(self, FilesStore(self._dir.parent, name), epoch)

    def remove(self) -> None:
        """Take the state away, and give the lock back; after `open`."""
        shutil.rmtree(self._dir, ignore_errors=True)
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class InMemoryStore(FilesStore):
    """The files store on a temporary directory that goes with the process."""

    def __init__(self, pipeline: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)
        super().__init__(self._temporary.name, pipeline)

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()
