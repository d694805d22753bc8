"""The commits of a pipeline in files, the lists that they refer to, and the files that record the progress of a run.

Each epoch has one file, which is never overwritten and ends with a checksum. The newest file describes the current
state. Readers need no lock. They open all segments of a commit at once, because open files stay readable when the
garbage collection of a runner deletes them.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from slackwater.errors import (
    EpochError,
    FencedError,
    ResourceExhaustedError,
    StateError,
    Topic,
    is_forbidden,
    permission_error,
)
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state import migrations
from slackwater.state.commit import Commit, parse_commit
from slackwater.state.commit_record_fields import RecordError
from slackwater.state.files.join_buffers import FileJoinBuffers
from slackwater.state.files.segments import SegmentReader, file_ref, list_segments
from slackwater.state.protocol import Snapshot, StoredRecord, missing_epoch_error
from slackwater.state.run_history import Run, add_or_replace_run, encode_runs, parse_runs
from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import FileRef, Storage, VersionedContent, verify_file

log = logging.getLogger("slackwater")


class CommitLog:
    """Reads and writes the commits of a pipeline. Methods raise StateError for damaged files."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._verified: set[str] = set()  # segments of the commit that was opened last, which need no second check

    def epochs(self) -> list[int]:
        """Return the epochs of the stored commits, ascending."""
        try:
            sizes = self.storage.sizes("manifests")
        except OSError as error:
            raise ResourceExhaustedError.from_error(error) or error from None
        return sorted(int(name[:-5]) for name in sizes if re.fullmatch(r"[0-9]{9,18}\.json", name))

    def list_all_epochs(self) -> list[int]:
        """Return the epochs of the stored commits, including recent ones that a listing may not show yet.

        In an object store, this costs at least one more request than `epochs`.
        """
        epochs = self.epochs()
        while self.storage.is_remote and self.storage.has(self.file(following := epochs[-1] + 1 if epochs else 0)):
            epochs.append(following)
        return epochs

    @staticmethod
    def file(epoch: int) -> str:
        """Return the relative name of the file of a commit."""
        return f"manifests/{epoch:09d}.json"

    def full_name(self, epoch: int) -> str:
        """Return the absolute path or URL of the file of a commit, for messages."""
        return self.storage.full_name(self.file(epoch))

    def read_record(self, epoch: int) -> StoredRecord:
        """Read the record of a commit in its stored format.

        Raises StateError if it is damaged or its format cannot be migrated.
        """
        shown = self.full_name(epoch)
        try:
            text, _, ending = self.storage.read(self.file(epoch)).content.decode().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = data["format"]
            if not isinstance(data, dict) or type(version) is not int:
                raise ValueError("found no record with a format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise (
                ResourceExhaustedError.from_error(error)
                or permission_error(f"manifest {shown}", error)
                or StateError(
                    f"manifest {shown} is damaged or unreadable; restore it from a backup of the directory",
                    Topic.STATE_DAMAGED,
                )
            ) from error
        if ending.partition(" ")[0] != file_checksum(text.encode()):
            raise StateError(
                f"manifest {shown} is damaged: it does not match its checksum; restore it from a backup",
                Topic.STATE_DAMAGED,
            )
        migrations.migration_route(version, f"state in {self.storage.root}")
        return StoredRecord(version, data)

    def read(self, epoch: int) -> Commit:
        """Read a commit. Raises StateError if it is missing, damaged, or belongs to another epoch or pipeline."""
        (version, data), shown = self.read_record(epoch), self.full_name(epoch)
        try:
            commit = parse_commit(data, version, f"manifest {shown}")
        except RecordError as error:
            raise StateError(
                f"manifest {shown} is damaged: {error}; restore it from a backup", Topic.STATE_DAMAGED
            ) from None
        if (commit.pipeline, commit.epoch) != (self.storage.name, epoch):
            raise StateError(
                f"manifest {shown} was overwritten with another manifest: found epoch {commit.epoch} of "
                f'"{commit.pipeline[:100]}", expected epoch {epoch} of "{self.storage.name}"; restore it from a backup',
                Topic.STATE_DAMAGED,
            )
        return commit

    def put(self, commit: Commit, latest: int, writer: str = "") -> None:
        """Write a commit to a new file.

        Args:
            commit: The commit of the next epoch.
            latest: The epoch of the previous commit, or -1. On disk, the file of that commit must still exist.
            writer: A token that identifies this runner. If the response from an object store is lost, the token
                shows which runner wrote the file.

        Raises:
            FencedError: Another runner took over.
            EpochError: The file cannot be written.
        """
        text, storage = commit.model_dump_json(), self.storage
        sealed = f"{text}\n{file_checksum(text.encode())}{f' {writer}' if writer else ''}\n".encode()
        # in an object store, the lease shows whether another runner took over
        if latest >= 0 and not storage.is_remote and not storage.has(self.file(latest)):
            raise FencedError(
                f"epoch {latest} is gone from {storage.root}: another runner took over; this runner is stopping"
            )
        try:
            created = storage.create(self.file(commit.epoch), sealed)
        except OSError as error:
            remedy = "give this user write access" if is_forbidden(error) else "free some space"
            raise ResourceExhaustedError.from_error(error) or EpochError(
                f"epoch {commit.epoch} was not committed: a file in {storage.root} cannot be written ({error.strerror}); "
                f"{remedy}, and start again"
            ) from None
        if not created:
            raise FencedError(
                f"epoch {commit.epoch} was already committed in {storage.root} by another runner; this runner is "
                "stopping"
            )

    # -- open commits -----------------------------------------------------------------------------------------------

    @contextmanager
    def peek(self, epoch: int | None = None) -> Iterator[Snapshot | None]:
        """Open a commit for reading; see `StateStore.peek`."""
        snapshot, epochs = None, self.epochs()
        if epoch is not None:
            snapshot = self._open_kept(epoch, epochs)
        while epochs and snapshot is None:
            try:
                snapshot = self.open_commit(epochs[-1])
            except StateError:
                earlier_epochs, epochs = epochs, self.epochs()
                if epochs[-1:] == earlier_epochs[-1:]:
                    raise
                # a runner has committed since, and deleted files of this commit: open the new one
        yield snapshot

    def _open_kept(self, epoch: int, epochs: Sequence[int]) -> Snapshot:
        try:
            if epoch in epochs:
                return self.open_commit(epoch)
        except StateError:
            if epoch in (epochs := self.epochs()):
                raise
        raise missing_epoch_error(epoch, epochs, self.storage.root)

    def open_commit(self, epoch: int) -> Snapshot:
        """Open a commit and all its segments. Raises StateError if a file is missing or damaged."""
        commit, progress = self.read(epoch), ProgressFiles(self.storage)
        self.storage.fetch([file_ref(m) for m in commit.metas])
        stages = [[list_segments(self.storage, metas) for metas in stage.segments] for stage in commit.stages]
        for segment in (segment for stage in stages for shard in stage for segment in shard):
            _ = segment.table
        for meta in commit.metas:
            if meta.file not in self._verified:
                verify_file(self.storage, file_ref(meta))
        self._verified = {m.file for m in commit.metas}

        def buffers(shard: int, logic: CompiledJoin, stage: int) -> FileJoinBuffers:
            join_buffers = FileJoinBuffers(self.storage, commit.stages[stage].segments[shard], logic)
            return join_buffers.use_open_tables({s.meta.file: s.table for s in stages[stage][shard]})

        return Snapshot(
            commit,
            progress.published_epoch(),
            lambda shard, logic, stage: SegmentReader(stages[stage][shard], logic.state_schema),
            self.read_list,
            buffers,
            progress.delivered_targets(epoch),
        )

    # -- lists -----------------------------------------------------------------------------------------------------

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        """Write a list to a file, and return the name of the file. Raises EpochError if this fails.

        The name contains the checksum of the list.
        """
        content = "".join(f"{line}\n" for line in lines).encode()
        name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{file_checksum(content)}.jsonl"
        self.storage.put(name, content)
        return name

    def read_list(self, name: str) -> list[str]:
        """Return the lines of a list. Raises StateError if it is damaged."""
        verify_file(self.storage, list_file(name))
        return self.storage.local_path(list_file(name)).read_text().splitlines()


def list_file(name: str) -> FileRef:
    """Return a reference to the file of a list. The name ends with the checksum."""
    return FileRef(name, PurePosixPath(name).stem.rpartition("-")[2])


# -- small files next to the commits -----------------------------------------------------------------------------------


class _SmallFile:
    """A file that only the runner writes. In an object store, the runner caches the content to save requests."""

    def __init__(self, storage: Storage, file: str) -> None:
        self._storage, self._file = storage, file
        self.full_name = storage.full_name(file)
        self._known: VersionedContent | None = None
        self._is_known = False

    def read(self, held: bool) -> bytes | None:
        """Return the content, or None if the file does not exist. Raises OSError if it cannot be read.

        `held`: whether this process holds the lock, so that it may use its cache.
        """
        if not (held and self._is_known and self._storage.is_remote):
            try:
                self._known = self._storage.read(self._file)
            except FileNotFoundError:
                self._known = None
            self._is_known = True
        return None if self._known is None else self._known.content

    def read_text(self, held: bool) -> str | None:
        """Return the content as text, or None if the file does not exist. Raises StateError if it cannot be read.

        `held`: whether this process holds the lock, so that it may use its cache.
        """
        try:
            content = self.read(held)
        except OSError as error:
            raise ResourceExhaustedError.from_error(error) or StateError(
                f"{self.full_name} cannot be read ({error.strerror}); check its permissions"
            ) from error
        return None if content is None else content.decode(errors="replace")

    def write(self, text: str) -> None:
        """Replace the content. Raises EpochError if this fails, and FencedError if another runner has replaced it."""
        if self._storage.is_remote and not self._is_known:
            self.read(held=False)
        content, version = text.encode(), None if self._known is None else self._known.version
        self._known = VersionedContent(content, self._storage.replace(self._file, content, version))
        self._is_known = True

    def invalidate(self) -> None:
        """Drop the cached content, because another runner may have replaced the file."""
        self._known, self._is_known = None, False


class ProgressFiles:
    """Three small files: the last published epoch, the targets that hold the latest epoch, and the history of runs.

    The second file lists targets until all of them hold the latest epoch. The first two files end with a checksum. For
    each method, `held` tells whether this process holds the lock, so that it may use its cache.
    """

    def __init__(self, storage: Storage) -> None:
        self._published, self._reached, self._runs = (_SmallFile(storage, n) for n in ("published", "reached", "runs"))

    def invalidate(self) -> None:
        """Drop the cached contents, because another runner may have replaced the files."""
        for file in (self._published, self._reached, self._runs):
            file.invalidate()

    @property
    def published_file(self) -> str:
        """Return the absolute path or URL of the file with the last published epoch, for messages."""
        return self._published.full_name

    def published_epoch(self, held: bool = False) -> int:
        """Return the last epoch that all targets hold, or -1 if there is none. Raises StateError."""
        text = self._published.read_text(held)
        if text is None:
            return -1
        match = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions wrote no checksum
        if match is None or match[2] not in (None, file_checksum(match[1].encode())):
            raise StateError(
                f"{self.published_file} is damaged; restore the file from a backup of the directory, or remove the "
                "file: the next start then publishes the latest epoch again, and targets that store their last epoch "
                "ignore the repetition",
                Topic.STATE_DAMAGED,
            )
        return int(match[1])

    def mark_published(self, epoch: int) -> None:
        """Record that all targets hold an epoch. Raises EpochError."""
        number = str(epoch)
        self._published.write(f"{number} {file_checksum(number.encode())}\n")

    def delivered_targets(self, epoch: int, held: bool = False) -> frozenset[str]:
        """Return the names of the targets that are recorded as holding this epoch.

        A damaged file is logged and counts as empty. Most targets ignore an epoch that they already hold.
        """
        record = None
        try:
            content = self._reached.read(held)
            if content is None:
                return frozenset()
            text, _, checksum = content.decode(errors="replace").strip().rpartition("\n")
            record = json.loads(text) if file_checksum(text.encode()) == checksum else None
        except (OSError, ValueError):
            pass
        if not isinstance(record, dict) or not isinstance(record.get("targets"), list):
            log.warning(
                "%s is damaged; if the last epoch reached only some targets, it is published again to all of them",
                self._reached.full_name,
            )
            return frozenset()
        return frozenset(map(str, record["targets"])) if record.get("epoch") == epoch else frozenset()

    def mark_delivered(self, epoch: int, target: str) -> None:
        """Record that a target holds this epoch. Raises EpochError."""
        text = json.dumps({"epoch": epoch, "targets": sorted({*self.delivered_targets(epoch, held=True), target})})
        self._reached.write(f"{text}\n{file_checksum(text.encode())}\n")

    def runs(self, held: bool = False) -> tuple[Run, ...]:
        """Return the recorded runs, oldest first. Damaged lines are skipped. Raises StateError."""
        return parse_runs((self._runs.read_text(held) or "").splitlines())

    def save_run(self, run: Run) -> None:
        """Add a run to the history, or replace its entry. Raises EpochError, FencedError or StateError."""
        self._runs.write(encode_runs(add_or_replace_run(self.runs(held=True), run)))
