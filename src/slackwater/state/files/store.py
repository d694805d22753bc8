"""The files store: one directory per pipeline, on a local disk, in a mounted file system, or in an object store.

state/<pipeline>/
  lock                      the lock of the runner (flock, or a lease in an object store), with the name of its process
  manifests/000000012.json  the commit of an epoch: created only if absent, with a checksum as its last line
  segments/…                state rows (Arrow), referenced by manifests
  outputs/…                 staged output (Arrow), kept until it is published
  offsets/…                 lists of text lines, referenced by manifests
  published                 the last epoch that all targets hold, with a checksum
  reached                   the targets that hold the latest epoch while others lack it, with a checksum
  runs                      the history of runs, one line of JSON each; expendable
  checkpoint/…              Spark's plan of the next epoch; expendable
"""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import polars as pl

from slackwater.errors import FencedError, StateError, Topic
from slackwater.state.commit import Commit, OutputMetadata, SegmentMetadata
from slackwater.state.files.commit_log import CommitLog, ProgressFiles, list_file
from slackwater.state.files.segments import file_ref
from slackwater.state.files.shard import BackgroundMerger, FileShard
from slackwater.state.fork import forked_commit, name_taken_error
from slackwater.state.protocol import ASIDE, Publish, Snapshot, StateLayout, StoredRecord, missing_epoch_error
from slackwater.state.run_history import Run
from slackwater.storage import storage_for
from slackwater.storage.arrow_files import read_arrow
from slackwater.storage.base import NAMED, FileRef, Storage, StorageLock
from slackwater.storage.local import LocalStorage

log = logging.getLogger("slackwater")

KEPT_EPOCHS = 8  # number of latest commits that garbage collection keeps
FORK_ATTEMPTS = 5  # number of times that a fork is tried while a runner deletes files
FORKING = "forking"  # marker file that exists while a fork is in progress
FETCHED_AT_ONCE = 16  # staged files that are fetched in parallel from an object store


class FilesStore:
    """A `StateStore` in a directory or below the URL of an object store. Nothing is created or changed before `open`.

    Args:
        path: The directory or URL of all states, or the storage of another pipeline in the same location.
        pipeline: The name of the pipeline.
        options: Settings for access to an object store. They are never stored.
    """

    def __init__(self, path: str | Path | Storage, pipeline: str, options: Mapping[str, str] | None = None) -> None:
        self.storage = (
            storage_for(path, pipeline, options or {}) if isinstance(path, str | Path) else path.sibling(pipeline)
        )
        self.root = self.storage.root
        self._lock: StorageLock | None = None
        self._log, self._latest = CommitLog(self.storage), -1
        self._progress = ProgressFiles(self.storage)
        self._merger = BackgroundMerger(self.storage)
        self._named: dict[int, frozenset[str]] = {}  # by epoch: files of the commits that this process wrote or read
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def checkpoint(self) -> Path:
        """Return the directory for Spark's checkpoints, which is within the state directory.

        If the state is in an object store, the directory is temporary. This suffices for sources that can seek.
        """
        if not self.storage.is_remote:
            return Path(self.root) / "checkpoint"
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)
        return Path(self._temporary.name) / "checkpoint"

    def open(self) -> Commit | None:
        self.claim()
        try:
            latest = self._read_latest()
            if latest is not None:
                self._verify(latest)
        except StateError:
            self.close()
            raise
        self._latest = latest.epoch if latest else -1
        self._clear_attempts()
        return latest

    def discard_attempt(self, epoch: int) -> None:
        if not self.storage.is_remote and epoch > self._latest and not self.storage.has(self._log.file(epoch)):
            self._clear_attempts()

    def _clear_attempts(self) -> None:
        """Delete the files of epochs that were never committed, while this process holds the lock.

        In an object store, they are left to garbage collection, because a runner that lost its lease may still commit.
        """
        if self.storage.is_remote:
            return
        merging_epochs = self._merger.epochs
        for folder in NAMED:
            uncommitted = [
                name for name in self.storage.sizes(folder) if name[:9].isdigit() and int(name[:9]) > self._latest
            ]
            self.storage.delete([f"{folder}/{name}" for name in uncommitted if int(name[:9]) not in merging_epochs])
        if isinstance(self.storage, LocalStorage):
            self.storage.clear_pending()

    def claim(self) -> None:
        """Create the directory if necessary, and take its lock, without reading the state.

        Raises LockHeldError if another process holds the lock, and StateError for other problems.
        """
        self.storage.prepare()
        self._lock = self.storage.lock()
        self._named.clear()
        self._progress.invalidate()

    def _read_latest(self) -> Commit | None:
        """Return the latest commit, or None. Raises StateError if commits are missing or belong to another state."""
        epochs = self._log.list_all_epochs()
        latest = self._log.read(epochs[-1]) if epochs else None
        published, newest = self.published_epoch(), latest.epoch if latest else -1
        if published > newest:
            latest_shown = f"the latest manifest belongs to epoch {newest}" if latest else "there is no manifest"
            raise StateError(
                f"manifest {self._log.full_name(published)} is missing: {self._progress.published_file} says that "
                f"epoch {published} was published, but {latest_shown}; restore it from a backup of the directory",
                Topic.STATE_DAMAGED,
            )
        if latest is None:
            self.check_begins()
            return None
        state_ids = set()
        for epoch in epochs[:-1]:
            with suppress(StateError):  # startup does not depend on earlier commits
                state_ids.add(self._log.read(epoch).state_id)
        if state_ids and latest.state_id not in state_ids:
            raise StateError(
                f"manifest {self._log.full_name(latest.epoch)} belongs to another state: found state_id "
                f"{latest.state_id!r}, expected {' or '.join(map(repr, sorted(state_ids)))} as in the earlier commits; "
                "restore it from a backup of the directory",
                Topic.STATE_DAMAGED,
            )
        return latest

    def check_begins(self) -> None:
        """Check a state without commits. Raises StateError if it has files of epochs after 0 or is an incomplete fork."""
        if self.storage.has(FORKING):
            raise StateError(
                f"{self.root} contains an incomplete fork; remove the directory, or repeat the fork: "
                f"slackwater state fork … {self.storage.name}",
                Topic.NAME_IN_USE,
            )
        for folder in NAMED:
            for name in sorted(self.storage.sizes(folder)):
                if name[:9].isdigit() and int(name[:9]) > 0:
                    shown = self.storage.full_name(f"{folder}/{name}")
                    raise StateError(
                        f"{self.storage.full_name('manifests')} contains no manifest, but {shown} belongs to epoch "
                        f"{int(name[:9])}; restore the manifests from a copy of the directory, or remove the directory "
                        "to start over",
                        Topic.STATE_DAMAGED,
                    )

    def start_over(self) -> str | None:
        aside = None
        if self.epochs():
            held = self.storage.lock()
            try:
                aside = self.put_aside()
            finally:
                held.close()
        self.open()
        return aside

    def put_aside(self) -> str:
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
        return self.storage.put_aside(f"{self.storage.name}{ASIDE}{stamp}")

    def pipelines(self) -> list[str]:
        return [name for name in self.storage.names() if ASIDE not in name]

    def _verify(self, commit: Commit) -> None:
        """Raise StateError if a segment or an offset list is damaged. This is checked only once, at startup."""
        self.storage.check([*map(file_ref, commit.metas), *map(list_file, commit.offset_lists)])

    def runner(self) -> str | None:
        return self.storage.holder()

    def runs(self) -> tuple[Run, ...]:
        return ProgressFiles(self.storage).runs()

    def save_run(self, run: Run) -> None:
        self._confirm("record this run")
        self._progress.save_run(run)

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        return self._log.peek(epoch)

    def epochs(self) -> list[int]:
        return self._log.epochs()

    def manifest(self, epoch: int) -> Commit:
        """Read a commit. Raises StateError if it is missing, damaged, or belongs to another epoch or pipeline."""
        return self._log.read(epoch)

    def read_commit_record(self) -> StoredRecord | None:
        epochs = self.epochs()
        return self._log.read_record(epochs[-1]) if epochs else None

    def prepare(self, logic: StateLayout, stage: int = 0, begins: bool = False) -> None:
        self._merger.add_stage(stage, logic)

    def drop_stages(self, stages: range) -> None:
        """Do nothing, because garbage collection deletes unreferenced files."""

    def shard(
        self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMetadata, ...], stage: int = 0
    ) -> FileShard:
        return FileShard(self.storage, shard, epoch, self._merger.apply_merges(stage, shard, metas))

    def outputs(self, metas: Sequence[OutputMetadata]) -> list[pl.DataFrame]:
        if not self.storage.is_remote or len(metas) < 2:
            return [self._read_output(m) for m in metas]
        with ThreadPoolExecutor(min(len(metas), FETCHED_AT_ONCE)) as pool:
            return list(pool.map(self._read_output, metas))

    def _read_output(self, meta: OutputMetadata) -> pl.DataFrame:
        held = self.storage.local_path(FileRef(meta.file, meta.checksum))
        return read_arrow(held, meta.checksum, self.storage.full_name(meta.file))

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        return self._log.write_list(epoch, lines)

    def read_list(self, name: str) -> list[str]:
        return self._log.read_list(name)

    def shares_transaction(self, target: object) -> bool:
        return False

    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        """Commit an epoch; see `StateStore.commit`. `publish` is ignored: no target shares a transaction with files."""
        if commit.epoch != self._latest + 1:
            raise FencedError(
                f"epoch {commit.epoch} does not follow epoch {self._latest}, the latest epoch that this runner "
                "knows; nothing was committed, and this runner is stopping"
            )
        self._put(commit)
        return commit

    def _put(self, commit: Commit) -> None:
        self._confirm(f"commit epoch {commit.epoch}")
        self._log.put(commit, self._latest, "" if self._lock is None else self._lock.token)
        # if this runner lost its lease in the meantime, the next runner publishes this commit
        self._confirm(f"continue from epoch {commit.epoch}")
        self._latest = commit.epoch
        self._named[commit.epoch] = files_of(commit)
        self._merger.schedule_merges(commit)

    def _confirm(self, doing: str) -> None:
        """Raise FencedError if this runner has lost the lock. `doing`: the action to prevent, named in the message."""
        if self._lock is not None:
            self._lock.confirm(doing)

    def published_epoch(self) -> int:
        return self._progress.published_epoch(held=self._lock is not None)

    def mark_published(self, epoch: int) -> None:
        self._confirm(f"mark epoch {epoch} as published")
        self._progress.mark_published(epoch)

    def delivered_targets(self) -> frozenset[str]:
        return self._progress.delivered_targets(self._latest, held=self._lock is not None)

    def mark_delivered(self, epoch: int, target: str) -> None:
        self._confirm(f'record the epoch of target "{target}"')
        self._progress.mark_delivered(epoch, target)

    def collect_garbage(self) -> None:
        self._confirm("clean up")
        # a listing may be outdated, so add the epochs that this process has committed
        epochs = sorted({*self.epochs(), *(e for e in self._named if e > self._latest - KEPT_EPOCHS)})
        self.storage.delete([self._log.file(e) for e in epochs[:-KEPT_EPOCHS]])
        try:  # a commit with many shards is large, so do not read again what this process wrote
            known_files, recent = self._named, epochs[-KEPT_EPOCHS:]
            files_by_epoch = {e: known_files[e] if e in known_files else files_of(self._log.read(e)) for e in recent}
        except StateError as error:
            log.warning("%s; no old files were deleted", error)
            return
        self._named, used = files_by_epoch, frozenset[str]().union(*files_by_epoch.values())
        merging_epochs = self._merger.epochs
        stored = [(f"{folder}/{name}", name[:9]) for folder in NAMED for name in self.storage.sizes(folder)]
        old = [(file, int(epoch)) for file, epoch in stored if epoch.isdigit() and int(epoch) <= self._latest]
        self.storage.delete([file for file, epoch in old if epoch not in merging_epochs and file not in used])

    def fork(self, name: str, epoch: int | None = None, renames: bool = False) -> Commit | None:
        return _fork(self, FilesStore(self.storage, name), epoch, renames)

    def remove(self) -> None:
        """Delete the state and release the lock. Requires `open`."""
        self._merger.close()
        self.storage.remove()
        self.close()

    def close(self) -> None:
        self._merger.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def files_of(commit: Commit) -> frozenset[str]:
    """Return the names of all files that a commit references."""
    staged = (o.file for o in (*commit.output, *commit.letters))
    return frozenset([*(m.file for m in commit.metas), *staged, *commit.lists])


def _fork(store: FilesStore, copy: FilesStore, epoch: int | None, renames: bool) -> Commit | None:
    """Copy a commit of `store` to `copy`; see `StateStore.fork`. On disk, hard links replace copies if possible."""
    to = copy.storage
    if existing := copy.epochs():
        raise name_taken_error(to.name, existing[-1], f"in {to.root}")
    if not store.epochs():
        raise missing_epoch_error(epoch or 0, [], store.storage.root)
    fresh = to.is_fresh() or to.has(FORKING)
    copy.claim()
    copied: list[str] = []
    try:
        if existing := copy.epochs():  # again, because another process may have created the state
            copied, fresh = [], False
            raise name_taken_error(to.name, existing[-1], f"in {to.root}")
        if to.has(FORKING):  # a killed fork left files that no commit references
            to.delete([f"{folder}/{file}" for folder in NAMED for file in to.sizes(folder)])
            to.delete([FORKING])
        copy.check_begins()
        to.put(FORKING, b"")
        commit = _copy_files(store, to, epoch, copied)
        if commit is not None:
            commit = forked_commit(commit, to.name, renames=renames)
            copy._verify(commit)
            copy._put(commit)
            copy.mark_published(commit.epoch)
            to.delete([FORKING])
            copied = []
        return commit
    finally:
        if copied or not copy.epochs():
            to.delete([FORKING])
            if fresh:
                to.remove()
            to.delete(copied)
        copy.close()


def _copy_files(store: FilesStore, to: Storage, epoch: int | None, copied: list[str]) -> Commit | None:
    """Copy the files of a commit to `to`, and return the commit, or None if its output is unpublished.

    If a runner deletes a file in the meantime, the copy starts again, with the latest commit if `epoch` is None.
    `copied`: a list to which the names of copied files are added.
    """
    missing = ""
    for _ in range(FORK_ATTEMPTS):
        with store.peek(epoch) as snapshot:
            if snapshot is None:
                break
            commit = snapshot.commit
            if commit.staged and snapshot.published < commit.epoch:
                return None
            try:
                for name in [*(m.file for m in commit.metas), *commit.lists]:
                    if name not in copied:
                        to.copy_from(store.storage, name)
                        copied.append(name)
                return commit
            except FileNotFoundError as error:
                missing = str(error.filename)
    raise StateError(
        f"state file {missing} is missing; restore it from a copy of the state directory; nothing was changed",
        Topic.STATE_DAMAGED,
    )


class TemporaryFilesStore(FilesStore):
    """A files store in a temporary directory, which is deleted when the process ends."""

    def __init__(self, pipeline: str) -> None:
        home = tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)
        super().__init__(home.name, pipeline)
        self._temporary = home
