"""Background merging of segments, in a thread of the driver's process while epochs continue.

    commit 12   [a][b][c][d][e][f][g][h]       eight segments of one size class: the thread merges them into [m]
    epoch  13   [a][b][c][d][e][f][g][h][i]    does not wait for [m]
    epoch  14   [m][i][j]                      shards opened after the merge have [m] instead of [a] to [h]

A merged segment takes effect when a commit references it; unreferenced segments are garbage-collected. If the thread
falls behind until twice as many segments of a shard have piled up, the task that writes the shard merges them
(`FilesShard.stage`).
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import singledispatch

from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state.commit import Commit, SegmentMeta
from slackwater.state.files.join_buffers import JoinWriter
from slackwater.state.files.segment_merge_policy import FAN, SegmentMerge
from slackwater.state.files.segments import FilesShard
from slackwater.state.protocol import NoState, StateLayout
from slackwater.storage.base import Storage
from slackwater.windows.state_rows import KeyedStateLayout

StageShard = tuple[int, int]  # stage number, shard


@singledispatch
def merge_segments(logic: StateLayout, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    """Merge segments of a shard that have piled up, and return the merges."""
    raise_unregistered(logic, "slackwater.state.files.background_merge.merge_segments")


@merge_segments.register
def _(logic: KeyedStateLayout, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return shard.merges(logic, watermark, FAN)


@merge_segments.register
def _(logic: CompiledJoin, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return JoinWriter(shard.storage, shard.shard, shard.epoch, logic).merges(shard.metas, watermark, FAN)


@merge_segments.register
def _(logic: NoState, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return []


class BackgroundMerger:
    """Merges the segments of one store in one background thread. Only the driver's thread calls its methods."""

    def __init__(self, storage: Storage) -> None:
        # set at the start
        self._storage = storage
        self._logics: dict[int, StateLayout] = {}  # by stage number
        # changes with every commit
        self._watermarks: list[int] = []  # by stage, as of the latest commit
        self._thread: ThreadPoolExecutor | None = None
        # with the epoch in the names of the files they write
        self._running: dict[StageShard, tuple[int, Future[list[SegmentMerge]]]] = {}
        self._done: dict[StageShard, tuple[int, list[SegmentMerge]]] = {}

    def add_stage(self, stage: int, logic: StateLayout) -> None:
        """Register the logic of a stage. Only registered stages are merged."""
        self._logics[stage] = logic

    @property
    def epochs(self) -> Collection[int]:
        """Return epochs whose files must be kept, because they may be merged segments that no commit references."""
        return {epoch for epoch, _ in (*self._running.values(), *self._done.values())}

    def apply_merges(self, stage: int, shard: int, metas: tuple[SegmentMeta, ...]) -> tuple[SegmentMeta, ...]:
        """Return the segments of a shard after applying finished merges. Raises the error of a merge that failed."""
        for merge in self._collect_finished((stage, shard)):
            metas = merge.apply(metas, self._watermarks[stage])
        return metas

    def _collect_finished(self, stage_shard: StageShard) -> list[SegmentMerge]:
        if stage_shard in self._running and self._running[stage_shard][1].done():
            epoch, future = self._running.pop(stage_shard)
            if merges := future.result():
                self._done[stage_shard] = (epoch, merges)
        return self._done.get(stage_shard, (0, []))[1]

    def schedule_merges(self, commit: Commit) -> None:
        """Start merging the segments of a new commit that have piled up, and forget merges that it already contains.

        A failed merge does not affect the commit: only `apply_merges` raises its error.
        """
        self._watermarks = [stage.watermark_us for stage in commit.stages]
        segments = {
            (number, shard): metas
            for number, stage in enumerate(commit.stages)
            for shard, metas in enumerate(stage.segments)
        }
        for stage_shard, (_, merges) in [*self._done.items()]:
            metas, watermark = segments.get(stage_shard, ()), self._watermarks[stage_shard[0]]
            if all(merge.apply(metas, watermark) == metas for merge in merges):  # already applied, or outdated
                del self._done[stage_shard]
        for stage_shard, metas in segments.items():
            if stage_shard[0] in self._logics and stage_shard not in self._running and stage_shard not in self._done:
                self._start_merge(commit, stage_shard, metas)

    def _start_merge(self, commit: Commit, stage_shard: StageShard, metas: tuple[SegmentMeta, ...]) -> None:
        if len(metas) < FAN:
            return
        stage, number = stage_shard
        shard, watermark = FilesShard(self._storage, number, commit.epoch, metas), self._watermarks[stage]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="slackwater-merge")
        self._running[stage_shard] = (
            commit.epoch,
            self._thread.submit(merge_segments, self._logics[stage], shard, watermark),
        )

    def close(self) -> None:
        """Wait for the merge in progress, because another runner may take over the state afterward."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._running.clear()
        self._done.clear()
