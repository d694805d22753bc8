"""The files store: one directory per pipeline, on a local disk or any mounted file system.

state/<pipeline>/
  lock                      held for the life of a runner (flock), says who holds it
  manifests/000000012.json  one per epoch, created only if absent: that is the commit; its last line is a checksum
  segments/…                state rows (Arrow), referred to by manifests
  outputs/…                 staged output (Arrow), kept until published
  published                 the last epoch that reached the target
  checkpoint/…              Spark's plan of the next epoch; can be lost
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import polars as pl
from pydantic import ValidationError

from slackwater.errors import EpochError, FencedError, LockHeldError, StateError
from slackwater.joins.logic import JoinLogic
from slackwater.state.arrow import checksum, read_arrow, verify, write_synced
from slackwater.state.protocol import FORMAT, Manifest, OutputMeta, Publish, SegmentMeta, Snapshot, not_kept
from slackwater.state.segments import FilesShard, SegmentReader
from slackwater.windows.logic import Logic

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

    def open(self) -> Manifest | None:
        try:
            for name in ("manifests", "segments", "outputs", "checkpoint"):
                (self._dir / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"state directory {self.root} cannot be created ({error.strerror}); expected a writable directory"
            ) from error
        self._take_lock()
        epochs = self.epochs()
        try:
            latest = self._read(epochs[-1]) if epochs else None
            if latest is not None:
                self._verify(latest)
        except StateError:
            self.close()
            raise
        self._latest = latest.epoch if latest else -1
        return latest

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
        file = (self._dir / "lock").open("a+")
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

    def runner(self) -> str | None:
        path = self._dir / "lock"
        try:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip() or "another process"
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StateError(f"lock {path} cannot be looked at ({error.strerror}); check who may read it") from error
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
        return Snapshot(
            manifest,
            self.published(),
            lambda shard, logic, stage: stages[stage][shard].typed(logic.state_schema),
        )

    def epochs(self) -> list[int]:
        return sorted(int(p.stem) for p in (self._dir / "manifests").glob("*.json"))

    def _path(self, epoch: int) -> Path:
        return self._dir / "manifests" / f"{epoch:09d}.json"

    def _verify(self, manifest: Manifest) -> None:
        """Every segment is there and holds what was written; once per start, as later ones are this process's own."""
        for meta in (m for stage in manifest.stages for shard in stage.segments for m in shard):
            verify(self._dir / meta.file, meta.checksum, meta.bytes)
        for name in (n for source in manifest.sources.values() for n in _offset_files(source.offsets)):
            verify(self._dir / name, Path(name).stem.rpartition("-")[2])

    def _read(self, epoch: int) -> Manifest:
        path = self._path(epoch)
        try:
            text, _, digest = path.read_text().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = data["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"manifest {path} is damaged or unreadable; restore it from a copy of the directory"
            ) from error
        if version != FORMAT:
            raise StateError(
                f"state in {self.root} has format {version}, this version reads format {FORMAT}; "
                + (
                    "install a newer version of slackwater"
                    if version > FORMAT
                    else "no migration from it is registered"
                )
            )
        if digest != checksum(text.encode()):
            raise StateError(f"manifest {path} is damaged: it does not hold what was written; restore it from a copy")
        try:
            return Manifest.model_validate(data)
        except ValidationError as error:
            raise StateError(
                f"manifest {path} is damaged: {error.error_count()} fields do not fit; restore it from a copy"
            ) from error

    def prepare(self, logic: Logic | JoinLogic, stage: int = 0) -> None:
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

    def commit(self, manifest: Manifest, publish: Publish | None = None) -> Manifest:
        if manifest.epoch != self._latest + 1:
            raise FencedError(
                f"epoch {manifest.epoch} does not follow epoch {self._latest}, the latest this runner knows; nothing was committed"
            )
        final, text = self._path(manifest.epoch), manifest.model_dump_json()
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._dir, prefix=".commit-", delete=False) as file:
                file.write(f"{text}\n{checksum(text.encode())}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EpochError(
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
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text.lstrip("-").isdigit() else -1  # publishing again does no harm

    def note_published(self, epoch: int) -> None:
        temporary = self._dir / ".published"
        write_synced(temporary, str(epoch).encode())
        temporary.replace(self._dir / "published")

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
        used |= {file for m in kept for s in m.sources.values() for file in _offset_files(s.offsets)}
        used |= {name for m in kept for name in m.replayed}
        for folder in ("segments", "outputs", "offsets"):
            for path in (self._dir / folder).glob("*"):
                numbered = path.name[:9].isdigit()
                if numbered and f"{folder}/{path.name}" not in used and int(path.name[:9]) <= self._latest:
                    path.unlink(missing_ok=True)

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


def _offset_files(offsets: object) -> list[str]:
    files = offsets.get("segments") if isinstance(offsets, dict) else None
    return [str(f) for f in files] if isinstance(files, list) else []


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
