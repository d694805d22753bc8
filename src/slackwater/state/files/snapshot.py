"""Read commits of a files store without a lock, even while a runner is active.

All files of a commit are opened together, so that they remain readable when the runner's garbage collection deletes
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from slackwater.errors import StateError
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state.files import offset_lists, progress_files
from slackwater.state.files.commit_log import CommitLog
from slackwater.state.files.join_buffers import FilesBuffers
from slackwater.state.files.segments import SegmentReader
from slackwater.state.protocol import Snapshot, missing_epoch_error
from slackwater.storage.base import file_ref, verify_file


class SnapshotReader:
    """Opens the commits of a `CommitLog`, and remembers which segments it has already verified."""

    def __init__(self, log: CommitLog) -> None:
        self._log, self._storage = log, log.storage
        self._whole: set[str] = set()  # segments of the latest snapshot, already verified

    @contextmanager
    def peek(self, epoch: int | None = None) -> Iterator[Snapshot | None]:
        """Open a commit; see `StateStore.peek`."""
        snapshot, epochs = None, self._log.epochs()
        if epoch is not None:
            snapshot = self._open_kept(epoch, epochs)
        while epochs and snapshot is None:
            try:
                snapshot = self.open_commit(epochs[-1])
            except StateError:
                earlier_epochs, epochs = epochs, self._log.epochs()
                if epochs[-1:] == earlier_epochs[-1:]:
                    raise
                # a runner has committed in the meantime and deleted files of the previous commit: open the new one
        yield snapshot

    def _open_kept(self, epoch: int, epochs: Sequence[int]) -> Snapshot:
        try:
            if epoch in epochs:
                return self.open_commit(epoch)
        except StateError:
            if epoch in (epochs := self._log.epochs()):
                raise
        raise missing_epoch_error(epoch, epochs, self._storage.root)

    def open_commit(self, epoch: int) -> Snapshot:
        """Open one commit with all its files. Raises StateError if one of them is missing or damaged."""
        commit = self._log.read(epoch)
        self._storage.fetch([file_ref(m) for m in commit.metas])
        stages = [
            [SegmentReader(self._storage, metas, {}).open_files() for metas in stage.segments]
            for stage in commit.stages
        ]
        segments = [m for stage in commit.stages for shard in stage.segments for m in shard]
        for meta in segments:
            if meta.file not in self._whole:
                verify_file(self._storage, file_ref(meta))
        self._whole = {m.file for m in segments}

        def buffers(shard: int, logic: CompiledJoin, stage: int) -> FilesBuffers:
            join_buffers = FilesBuffers(self._storage, commit.stages[stage].segments[shard], logic)
            return join_buffers.use_open_tables({s.meta.file: s.table for s in stages[stage][shard].segments})

        return Snapshot(
            commit,
            progress_files.read_published_epoch(progress_files.ProgressFile(self._storage, progress_files.PUBLISHED)),
            lambda shard, logic, stage: stages[stage][shard].with_schema(logic.state_schema),
            partial(offset_lists.read_list, self._storage),
            buffers,
            progress_files.delivered_targets(
                progress_files.ProgressFile(self._storage, progress_files.REACHED), commit.epoch
            ),
        )
