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
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import polars as pl
from pydantic import ValidationError

from slackwater.errors import EpochError, ExhaustedError, FencedError, LockHeldError, StateError
from slackwater.joins.logic import JoinLogic
from slackwater.state import migrations
from slackwater.state.commit import Commit, OutputMeta, SegmentMeta, misfit
from slackwater.state.files.arrow import checksum, opened, read_arrow, verify, write_synced
from slackwater.state.files.buffers import FilesBuffers
from slackwater.state.files.fork import fork
from slackwater.state.files.units import FilesShard, SegmentReader
from slackwater.state.protocol import Publish, Snapshot, Stateful, Written, not_kept

log = logging.getLogger("slackwater")

KEPT_EPOCHS = 8
LOCK_S = 0.2  # how long a start waits for the lock: `runner` holds it for an instant


class FilesStore:
    """A `StateStore` in a directory. Nothing is created or changed before `open`."""

    def __init__(self, path: str | Path, pipeline: str) -> None:
        self.root = str(Path(path).resolve() / pipeline)
        self._dir = Path(self.root)
        self.checkpoint = self._dir / "checkpoint"
        self._lock: TextIO | None = None
        self._latest = -1
        self._whole: set[str] = set()  # segments that were looked at and found as written

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
        self._take_lock()

    def _found(self) -> Commit | None:
        """The latest commit, if it is what the rest of the directory says it is."""
        epochs = self.epochs()
        latest = self._read(epochs[-1]) if epochs else None
        self.check_published(self.published(), latest.epoch if latest else -1)
        if latest is None:
            self.check_begins()
            return None
        former = set()
        for epoch in epochs[:-1]:
            with suppress(StateError):  # one that is damaged is not needed for a start
                former.add(self._read(epoch).state_id)
        if former and latest.state_id not in former:
            raise StateError(
                f"manifest {self._path(latest.epoch)} is of another state (state_id {latest.state_id!r}) than the commits "
                f"before it ({', '.join(map(repr, sorted(former)))}); restore it from a copy of the directory"
            )
        return latest

    def check_published(self, published: int, latest: int) -> None:
        """Raise StateError if an epoch was published whose commit is not there."""
        if published > latest:
            there = f"the latest manifest is of epoch {latest}" if latest >= 0 else "there is no manifest"
            raise StateError(
                f"manifest {self._path(published)} is missing: {self._dir / 'published'} says that epoch {published} was "
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
            self._take_lock()
            stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
            aside = self._dir.with_name(f"{self._dir.name}.before-{stamp}")
            former, self._lock = self._lock, None
            try:
                self._dir.rename(aside)
            except OSError as error:
                raise StateError(
                    f"state directory {self.root} cannot be moved to {aside} ({error.strerror}); nothing was changed"
                ) from None
            finally:
                if former is not None:
                    former.close()
        self.open()
        return None if aside is None else str(aside)

    def _take_lock(self) -> None:
        file = self._lock_file()
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
                    f"pipeline is already running: {holder} holds {self._dir / 'lock'}; stop it first, one runner per pipeline"
                ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._lock = file

    def _lock_file(self) -> TextIO:
        """The lock, which is written over: so it must be a file of this directory, and no link to another one."""
        path = self._dir / "lock"
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

    def runner(self) -> str | None:
        path = self._dir / "lock"
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

    @contextmanager
    def peek(self, epoch: int | None = None) -> Iterator[Snapshot | None]:
        """All files are opened at once: removed by a runner's garbage collection, they stay readable while they are open."""
        found, epochs = None, self.epochs()
        if epoch is not None:
            found = self._of_epoch(epoch, epochs)
        while epochs and found is None:
            try:
                found = self._opened(epochs[-1])
            except StateError:
                former, epochs = epochs, self.epochs()
                if epochs[-1:] == former[-1:]:
                    raise
                # else a runner went on meanwhile, and removed what the former commit names
        yield found

    def _of_epoch(self, epoch: int, kept: Sequence[int]) -> Snapshot:
        try:
            if epoch in kept:
                return self._opened(epoch)
        except StateError:
            if epoch in (kept := self.epochs()):
                raise
        raise not_kept(epoch, kept, self.root)

    def _opened(self, epoch: int) -> Snapshot:
        manifest = self._read(epoch)
        stages = [
            [SegmentReader(self.root, metas, {}).opened() for metas in stage.segments] for stage in manifest.stages
        ]
        named = [m for stage in manifest.stages for shard in stage.segments for m in shard]
        for meta in named:
            if meta.file not in self._whole:
                verify(self._dir / meta.file, meta.checksum, meta.bytes)
        self._whole = {m.file for m in named}

        def buffers(shard: int, logic: JoinLogic, stage: int) -> FilesBuffers:
            found = FilesBuffers(self.root, manifest.stages[stage].segments[shard], logic)
            return found.hold({s.meta.file: s.table for s in stages[stage][shard].segments})

        return Snapshot(
            manifest,
            self.published(),
            lambda shard, logic, stage: stages[stage][shard].typed(logic.state_schema),
            self.read_list,
            buffers,
            self._reached(manifest.epoch),
        )

    def epochs(self) -> list[int]:
        try:
            found = list((self._dir / "manifests").glob("*.json"))
        except OSError as error:
            raise ExhaustedError.of(error) or error from None
        return sorted(int(p.stem) for p in found if re.fullmatch("[0-9]{9,18}", p.stem))

    def _path(self, epoch: int) -> Path:
        return self._dir / "manifests" / f"{epoch:09d}.json"

    def _verify(self, manifest: Commit) -> None:
        """Every segment is there and holds what was written; once per start, as later ones are this process's own."""
        for meta in (m for stage in manifest.stages for shard in stage.segments for m in shard):
            verify(self._dir / meta.file, meta.checksum, meta.bytes)
            opened(self._dir / meta.file, meta.rows)
        for name in (n for source in manifest.sources.values() for n in offset_files(source.offsets)):
            verify(self._dir / name, Path(name).stem.rpartition("-")[2])

    @property
    def forking(self) -> Path:
        """A file that is there while a fork is made in this directory."""
        return self._dir / "forking"

    def manifest(self, epoch: int) -> Commit:
        """The record of a commit. Raises StateError if it is not there, damaged, or another one's."""
        return self._read(epoch)

    def written(self) -> Written | None:
        epochs = self.epochs()
        return self._written(epochs[-1]) if epochs else None

    def _written(self, epoch: int) -> Written:
        """A manifest as it is, whole, and of a format that can be read."""
        path = self._path(epoch)
        try:
            text, _, digest = path.read_text().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = int(data["format"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ExhaustedError.of(error) or StateError(
                f"manifest {path} is damaged or unreadable; restore it from a copy of the directory"
            ) from error
        if digest != checksum(text.encode()):
            raise StateError(f"manifest {path} is damaged: it does not hold what was written; restore it from a copy")
        migrations.route(version, f"state in {self.root}")
        return Written(version, data)

    def _read(self, epoch: int) -> Commit:
        (version, data), path = self._written(epoch), self._path(epoch)
        try:
            found = Commit.model_validate(migrations.forward(data, version, f"manifest {path}"))
        except ValidationError as error:
            raise StateError(
                f"manifest {self._path(epoch)} is damaged: {misfit(error)}; restore it from a copy"
            ) from error
        except RecursionError:
            raise StateError(f"manifest {path} is damaged: it is nested too deeply; restore it from a copy") from None
        if (found.pipeline, found.epoch) != (self._dir.name, epoch):
            raise StateError(
                f'manifest {path} is of epoch {found.epoch} of "{found.pipeline}", expected epoch {epoch} of '
                f'"{self._dir.name}": it was put in the place of another; restore that one from a copy'
            )
        return found

    def prepare(self, logic: Stateful, stage: int = 0) -> None:
        return

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...], stage: int = 0) -> FilesShard:
        return FilesShard(self.root, shard, epoch, metas)

    def output(self, meta: OutputMeta) -> pl.DataFrame:
        return read_arrow(self._dir / meta.file, meta.checksum)

    def stage_list(self, epoch: int, lines: Sequence[str]) -> str:
        text = "".join(f"{line}\n" for line in lines)
        name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{checksum(text.encode())}.jsonl"
        (self._dir / "offsets").mkdir(exist_ok=True)
        write_synced(self._dir / name, text.encode())
        return name

    def read_list(self, name: str) -> list[str]:
        path = self._dir / name
        verify(path, path.stem.rpartition("-")[2])
        return path.read_text().splitlines()

    def joins(self, target: object) -> bool:
        return False

    def commit(self, manifest: Commit, publish: Publish | None = None) -> Commit:
        if manifest.epoch != self._latest + 1:
            raise FencedError(
                f"epoch {manifest.epoch} does not follow epoch {self._latest}, the latest this runner knows; nothing was committed"
            )
        return self._put(manifest)

    def found(self, manifest: Commit) -> None:
        """Begin a state with this commit, whatever its epoch; its files are there. After an `open` that found none."""
        self._verify(manifest)
        self._put(manifest)
        self.note_published(manifest.epoch)

    def _put(self, manifest: Commit) -> Commit:
        final, text = self._path(manifest.epoch), manifest.model_dump_json()
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._dir, prefix=".commit-", delete=False) as file:
                file.write(f"{text}\n{checksum(text.encode())}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ExhaustedError.of(error) or EpochError(
                f"epoch {manifest.epoch} was not committed: a file in {self._dir} cannot be written ({error.strerror}); "
                "make room and start again"
            ) from None
        try:
            if self._latest >= 0 and not self._path(self._latest).exists():
                raise FencedError(
                    f"epoch {self._latest} is gone from {self.root}: another runner went on; this one stops"
                )
            os.link(file.name, final)
        except FileExistsError as error:
            raise FencedError(
                f"epoch {manifest.epoch} was already committed by another runner in {self.root}; this one stops"
            ) from error
        finally:
            Path(file.name).unlink()
        _sync_directory(final.parent)
        self._latest = manifest.epoch
        return manifest

    def published(self) -> int:
        path = self._dir / "published"
        try:
            text = path.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise ExhaustedError.of(error) or StateError(
                f"{path} cannot be read ({error.strerror}); check who may read it"
            ) from error
        found = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions wrote no checksum
        if found is None or found[2] not in (None, checksum(found[1].encode())):
            raise StateError(
                f"{path} is damaged; restore it from a copy of the directory, or remove it: the latest epoch is published "
                "once more then, which a target that knows its last epoch ignores"
            )
        return int(found[1])

    def note_published(self, epoch: int) -> None:
        temporary, number = self._dir / ".published", str(epoch)
        write_synced(temporary, f"{number} {checksum(number.encode())}\n".encode())
        temporary.replace(self._dir / "published")

    def reached(self) -> frozenset[str]:
        return self._reached(self._latest)

    def _reached(self, epoch: int) -> frozenset[str]:
        path = self._dir / "reached"
        try:
            text, _, sum_ = path.read_text(errors="replace").strip().rpartition("\n")
            found = json.loads(text) if checksum(text.encode()) == sum_ else None
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("targets"), list):
            log.warning("%s is damaged; what an epoch left in part is published once more", path)
            return frozenset()
        return frozenset(map(str, found["targets"])) if found.get("epoch") == epoch else frozenset()

    def note_reached(self, epoch: int, target: str) -> None:
        text = json.dumps({"epoch": epoch, "targets": sorted({*self._reached(epoch), target})})
        temporary = self._dir / ".reached"
        write_synced(temporary, f"{text}\n{checksum(text.encode())}\n".encode())
        temporary.replace(self._dir / "reached")

    def collect_garbage(self) -> None:
        epochs = self.epochs()
        for epoch in epochs[:-KEPT_EPOCHS]:
            self._path(epoch).unlink(missing_ok=True)
        try:
            kept = [self._read(e) for e in epochs[-KEPT_EPOCHS:]]
        except StateError as error:
            log.warning("%s; nothing is cleaned up", error)
            return
        used = {s.file for m in kept for stage in m.stages for shard in stage.segments for s in shard} | {
            o.file for m in kept for o in (*m.output, *m.letters)
        }
        used |= {file for m in kept for s in m.sources.values() for file in offset_files(s.offsets)}
        used |= {name for m in kept for name in (*m.replayed, *m.tried)}
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


def offset_files(offsets: object) -> list[str]:
    """The lists that a source's offsets refer to."""
    files = offsets.get("segments") if isinstance(offsets, dict) else None
    return [str(f) for f in files] if isinstance(files, list) else []


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
