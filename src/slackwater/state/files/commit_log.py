"""The commits of a pipeline: one file per epoch, which is never overwritten, and the lists that commits refer to.

The last line of each file is a checksum. The newest file describes the current state. Anyone may open a commit without
a lock, even while a runner is active. All its files are opened together, so that they remain readable when the runner's
garbage collection deletes them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from slackwater.errors import EpochError, ExhaustedError, FencedError, StateError, Topic, is_forbidden, permission_error
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state import migrations
from slackwater.state.commit import Commit, parse_commit
from slackwater.state.commit_record_fields import RecordError
from slackwater.state.files.join_buffers import FilesBuffers
from slackwater.state.files.progress_files import ProgressFiles
from slackwater.state.files.segments import SegmentReader, list_segments
from slackwater.state.protocol import Snapshot, StoredRecord, missing_epoch_error
from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import FileRef, Storage, file_ref, verify_file


class CommitLog:
    """The commits of a pipeline. It remembers which segments it has already verified."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._verified: set[str] = set()  # segments of the commit that was opened last

    def epochs(self) -> list[int]:
        """Return the stored epochs, ascending. Raises ExhaustedError if no file descriptor is left."""
        try:
            sizes = self.storage.sizes("manifests")
        except OSError as error:
            raise ExhaustedError.from_error(error) or error from None
        return sorted(int(name[:-5]) for name in sizes if re.fullmatch(r"[0-9]{9,18}\.json", name))

    def list_all_epochs(self) -> list[int]:
        """Return the stored epochs, including those that an object store's listing does not show yet.

        This costs at least one additional request. Raises StateError if the store cannot be read.
        """
        epochs = self.epochs()
        while self.storage.is_remote and self.storage.has(self.file(following := epochs[-1] + 1 if epochs else 0)):
            epochs.append(following)
        return epochs

    @staticmethod
    def file(epoch: int) -> str:
        return f"manifests/{epoch:09d}.json"

    def full_name(self, epoch: int) -> str:
        """Return the full name of the file of a commit, for messages."""
        return self.storage.full_name(self.file(epoch))

    def read_record(self, epoch: int) -> StoredRecord:
        """Read a commit as it is stored. Raises StateError if it is damaged or its format cannot be migrated."""
        shown = self.full_name(epoch)
        try:
            text, _, ending = self.storage.read(self.file(epoch)).content.decode().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = data["format"]
            if not isinstance(data, dict) or type(version) is not int:
                raise ValueError("found no record with a format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise (
                ExhaustedError.from_error(error)
                or permission_error(f"manifest {shown}", error)
                or StateError(
                    f"manifest {shown} is damaged or unreadable; restore it from a copy of the directory",
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
                f'manifest {shown} holds epoch {commit.epoch} of "{commit.pipeline[:100]}", expected epoch {epoch} of '
                f'"{self.storage.name}": another manifest was overwritten; restore it from a backup',
                Topic.STATE_DAMAGED,
            )
        return commit

    def put(self, commit: Commit, latest: int, writer: str = "") -> None:
        """Write a commit. On disk, the file of epoch `latest` must still exist (-1: there is no earlier epoch).

        `writer`: a token of this runner. If the file of the epoch exists, its token shows whether this runner wrote it
        (and the response was lost) or another runner did. Raises FencedError if another runner took over, and
        EpochError if the file cannot be written.
        """
        text, storage = commit.model_dump_json(), self.storage
        sealed = f"{text}\n{file_checksum(text.encode())}{f' {writer}' if writer else ''}\n".encode()
        # in an object store, the lease shows whether another runner took over
        if latest >= 0 and not storage.is_remote and not storage.has(self.file(latest)):
            raise FencedError(
                f"epoch {latest} is gone from {storage.root}: another runner took over; this one is stopping"
            )
        try:
            created = storage.create(self.file(commit.epoch), sealed)
        except OSError as error:
            remedy = "give this user write access" if is_forbidden(error) else "free some space"
            raise ExhaustedError.from_error(error) or EpochError(
                f"epoch {commit.epoch} was not committed: a file in {storage.root} cannot be written ({error.strerror}); "
                f"{remedy} and start again"
            ) from None
        if not created:
            raise FencedError(
                f"epoch {commit.epoch} was already committed in {storage.root} by another runner; this one is stopping"
            )

    # -- open commits -----------------------------------------------------------------------------------------------

    @contextmanager
    def peek(self, epoch: int | None = None) -> Iterator[Snapshot | None]:
        """Open a commit; see `StateStore.peek`."""
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
                # a runner has committed in the meantime and deleted files of the previous commit: open the new one
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
        """Open one commit with all its files. Raises StateError if one of them is missing or damaged."""
        commit, progress = self.read(epoch), ProgressFiles(self.storage)
        self.storage.fetch([file_ref(m) for m in commit.metas])
        stages = [[list_segments(self.storage, metas) for metas in stage.segments] for stage in commit.stages]
        for segment in (segment for stage in stages for shard in stage for segment in shard):
            _ = segment.table
        for meta in commit.metas:
            if meta.file not in self._verified:
                verify_file(self.storage, file_ref(meta))
        self._verified = {m.file for m in commit.metas}

        def buffers(shard: int, logic: CompiledJoin, stage: int) -> FilesBuffers:
            join_buffers = FilesBuffers(self.storage, commit.stages[stage].segments[shard], logic)
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
        """Write a list as a file with its checksum in the name. Return the name. Raises EpochError if this fails."""
        content = "".join(f"{line}\n" for line in lines).encode()
        name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{file_checksum(content)}.jsonl"
        self.storage.put(name, content)
        return name

    def read_list(self, name: str) -> list[str]:
        """Return the lines of a list. Raises StateError if it is damaged."""
        verify_file(self.storage, list_file(name))
        return self.storage.local_path(list_file(name)).read_text().splitlines()


def list_file(name: str) -> FileRef:
    """Return a reference to the file of a list. The checksum is taken from the end of the name."""
    return FileRef(name, PurePosixPath(name).stem.rpartition("-")[2])
