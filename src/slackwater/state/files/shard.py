"""One shard of the files store: its reader, its writer, and the merge of its segments.

A thread of the driver merges segments while epochs continue:

    commit 12   [a][b][c][d][e][f][g][h]       eight segments of one size class: the thread merges them into [m]
    epoch  13   [a][b][c][d][e][f][g][h][i]    does not wait for [m]
    epoch  14   [m][i][j]                      shards opened after the merge have [m] instead of [a] to [h]

A merged segment takes effect when a commit references it. Unreferenced segments are garbage-collected. If the thread
lags behind and a shard has 16 segments of one size class, the task that stages rows merges them (`FileShard.stage`).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import singledispatchmethod

import polars as pl

from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Changes
from slackwater.state.commit import Commit, OutputMetadata, SegmentMetadata
from slackwater.state.files.join_buffers import FileJoinBuffers, JoinWriter
from slackwater.state.files.segments import (
    FAN,
    MOST,
    Segment,
    SegmentMerge,
    SegmentReader,
    count_segments_to_merge,
    list_segments,
    newest_units,
    sort_by_unit,
)
from slackwater.state.protocol import NoState, StateLayout
from slackwater.storage.base import Storage
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import KeyedStateLayout

StageShard = tuple[int, int]  # stage number, shard


@dataclass(frozen=True)
class FileShard:
    """A `ShardState` that is stored in files."""

    storage: Storage
    shard: int
    epoch: int
    metas: tuple[SegmentMetadata, ...]

    def with_segments(self, metas: tuple[SegmentMetadata, ...]) -> FileShard:
        return replace(self, metas=metas)

    def reader(self, logic: KeyedStateLayout) -> SegmentReader:
        return SegmentReader(list_segments(self.storage, self.metas), logic.state_schema)

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMetadata, ...]:
        """Write `rows` as the newest segment, drop expired segments, and return the segments; see `ShardState.stage`.

        If the background merge lags behind, this method merges segments itself. `before` is not used.
        """
        metas = list(self.metas)
        while metas and metas[0].dead <= watermark:
            metas.pop(0)
        if rows.height:
            metas.append(self._write(logic, rows))
        segments = tuple(metas)
        for merge in self.with_segments(segments).merges(logic, watermark, MOST):
            segments = merge.apply(segments, watermark)
        return segments

    @singledispatchmethod
    def merges(self, logic: StateLayout, watermark: int, fan: int) -> list[SegmentMerge]:
        """Merge the newest segments if there are `fan` segments of one size class, and return the merges.

        `watermark`: the current watermark in microseconds; rows that have expired are dropped if possible.
        """
        raise_unregistered(logic, "slackwater.state.files.shard.FileShard.merges")

    @merges.register
    def _(self, logic: KeyedStateLayout, watermark: int, fan: int) -> list[SegmentMerge]:
        count = count_segments_to_merge(self.metas, fan)
        if not count:
            return []
        merged = self._merge(logic, self.metas[-count:], oldest=count == len(self.metas), watermark=watermark)
        return [SegmentMerge(self.metas[-count:], (self._write(logic, merged),) if merged.height else ())]

    @merges.register
    def _(self, logic: CompiledJoin, watermark: int, fan: int) -> list[SegmentMerge]:
        return self._writer(logic).merges(self.metas, watermark, fan)

    @merges.register
    def _(self, logic: NoState, watermark: int, fan: int) -> list[SegmentMerge]:
        return []

    def buffers(self, logic: CompiledJoin) -> FileJoinBuffers:
        return FileJoinBuffers(self.storage, self.metas, logic)

    def write_changes(self, logic: CompiledJoin, changes: Changes, watermark: int) -> tuple[SegmentMetadata, ...]:
        return self._writer(logic).stage(self.metas, changes, watermark)

    def replace_buffers(self, logic: CompiledJoin, changes: Changes) -> tuple[SegmentMetadata, ...]:
        return self._writer(logic).stage((), changes, NO_WATERMARK)

    def _writer(self, logic: CompiledJoin) -> JoinWriter:
        return JoinWriter(self.storage, self.shard, self.epoch, logic)

    def replace_rows(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame | None = None
    ) -> tuple[SegmentMetadata, ...]:
        """Write `rows` as the only segment, and return it; see `ShardState.replace_rows`. `before` is not used."""
        return (self._write(logic, rows),) if rows.height else ()

    def write_output(self, frame: pl.DataFrame) -> OutputMetadata:
        name = f"outputs/{self.epoch:09d}-{self.shard:03d}-{uuid.uuid4().hex[:12]}.arrow"
        _, digest = self.storage.write(name, frame)
        return OutputMetadata(file=name, rows=frame.height, checksum=digest)

    def _write(self, logic: KeyedStateLayout, rows: pl.DataFrame) -> SegmentMetadata:
        """Write a new segment under a unique name, because a task may run twice."""
        name = f"segments/{self.epoch:09d}-{self.shard:03d}-{uuid.uuid4().hex[:12]}.arrow"
        size, digest = self.storage.write(name, rows)
        stats = logic.stats(rows)
        return SegmentMetadata(file=name, rows=rows.height, bytes=size, checksum=digest, **stats._asdict())

    def _merge(
        self, logic: KeyedStateLayout, metas: tuple[SegmentMetadata, ...], oldest: bool, watermark: int
    ) -> pl.DataFrame:
        """Merge segments into one frame.

        `oldest`: whether the shard has no older segments. Expired rows are dropped only in this case. Otherwise, their
        previous versions in an older segment would become visible again.
        """
        if oldest:
            return sort_by_unit(logic.drop_expired(self.with_segments(metas).reader(logic).scan(), watermark))
        opened = [Segment(self.storage, m) for m in metas]
        rows = [logic.add_revision_columns(s.all_rows()) for s in opened]
        frames = [f.select(list(logic.state_schema)) for f in rows]
        frame = pl.concat(newest_units(frames))
        return sort_by_unit(frame.cast(logic.state_schema))  # type: ignore[arg-type]


class BackgroundMerger:
    """Merges the segments of one store in a background thread. Its methods must be called from one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._logics: dict[int, StateLayout] = {}  # by stage number
        self._watermarks: list[int] = []  # by stage number, as of the latest commit
        self._thread: ThreadPoolExecutor | None = None
        # merges with the epoch in the names of the files that they write
        self._running: dict[StageShard, tuple[int, Future[list[SegmentMerge]]]] = {}
        self._done: dict[StageShard, tuple[int, list[SegmentMerge]]] = {}

    def add_stage(self, stage: int, logic: StateLayout) -> None:
        """Register the logic of a stage. Only registered stages are merged."""
        self._logics[stage] = logic

    @property
    def epochs(self) -> Collection[int]:
        """Return the epochs whose files must not be deleted, because a merge may have written them."""
        return {epoch for epoch, _ in (*self._running.values(), *self._done.values())}

    def apply_merges(self, stage: int, shard: int, metas: tuple[SegmentMetadata, ...]) -> tuple[SegmentMetadata, ...]:
        """Return the segments of a shard, with finished merges applied. Raises the error of a failed merge."""
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
        """Start the merges that a new commit needs, and forget the merges that it already contains.

        Errors of merges are raised later, by `apply_merges`.
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

    def _start_merge(self, commit: Commit, stage_shard: StageShard, metas: tuple[SegmentMetadata, ...]) -> None:
        if len(metas) < FAN:
            return
        stage, number = stage_shard
        shard, watermark = FileShard(self._storage, number, commit.epoch, metas), self._watermarks[stage]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="slackwater-merge")
        self._running[stage_shard] = (
            commit.epoch,
            self._thread.submit(shard.merges, self._logics[stage], watermark, FAN),
        )

    def close(self) -> None:
        """Wait for the merge in progress to end, because another runner may take over the state afterward."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._running.clear()
        self._done.clear()
