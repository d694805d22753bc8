"""Segments that have piled up are merged beside the epochs, by a thread of the driver's process.

    commit 12   [a][b][c][d][e][f][g][h]       eight of a size: the thread writes [m]
    epoch  13   [a][b][c][d][e][f][g][h][i]    goes on meanwhile
    epoch  14   [m][i][j]                      a shard that is opened later finds [m] in their place

What was merged counts once a commit names it; one that nobody takes is garbage. Where the thread falls behind, the task that
writes a shard merges itself (`FilesShard.stage`), at twice the pile.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import singledispatch

from slackwater.core.dispatch import unregistered
from slackwater.joins.logic import JoinLogic
from slackwater.state.commit import Commit, SegmentMeta
from slackwater.state.files.buffers import JoinWriter
from slackwater.state.files.merging import FAN, SegmentMerge
from slackwater.state.files.segments import FilesShard
from slackwater.state.files.storage import Storage
from slackwater.state.protocol import NoState, StageLogic
from slackwater.windows.state_rows import KeyedState

Spot = tuple[int, int]  # number of a stage, shard


@singledispatch
def merge_segments(logic: StageLogic, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    """What has piled up in a shard, merged."""
    unregistered(logic, "slackwater.state.files.background_merge.merge_segments")


@merge_segments.register
def _(logic: KeyedState, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return shard.merges(logic, watermark, FAN)


@merge_segments.register
def _(logic: JoinLogic, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return JoinWriter(shard.place, shard.shard, shard.epoch, logic).merges(shard.metas, watermark, FAN)


@merge_segments.register
def _(logic: NoState, shard: FilesShard, watermark: int) -> list[SegmentMerge]:
    return []


class BackgroundMerger:
    """The merges of one store. Asked from the driver's thread alone; one thread of its own merges."""

    def __init__(self, place: Storage) -> None:
        # configuration
        self._place = place
        self._logics: dict[int, StageLogic] = {}  # by the number of their stage
        # as it goes
        self._watermarks: list[int] = []  # of the stages, in the latest commit
        self._thread: ThreadPoolExecutor | None = None
        self._running: dict[Spot, tuple[int, Future[list[SegmentMerge]]]] = {}  # with the epoch whose files they write
        self._done: dict[Spot, tuple[int, list[SegmentMerge]]] = {}

    def keeps(self, stage: int, logic: StageLogic) -> None:
        """What the rows of a stage are: without it they are not merged."""
        self._logics[stage] = logic

    @property
    def epochs(self) -> Collection[int]:
        """Files of these epochs may be merged ones that no commit names yet: they are no garbage."""
        return {epoch for epoch, _ in (*self._running.values(), *self._done.values())}

    def taken(self, stage: int, shard: int, metas: tuple[SegmentMeta, ...]) -> tuple[SegmentMeta, ...]:
        """The segments of a shard, merged ones in the place of what they were merged from. Raises what merging them raised."""
        for merge in self._finished((stage, shard)):
            metas = merge.applied(metas, self._watermarks[stage])
        return metas

    def _finished(self, spot: Spot) -> list[SegmentMerge]:
        if spot in self._running and self._running[spot][1].done():
            epoch, future = self._running.pop(spot)
            if merges := future.result():
                self._done[spot] = (epoch, merges)
        return self._done.get(spot, (0, []))[1]

    def committed(self, commit: Commit) -> None:
        """A commit was made: what it has taken is done, and what has piled up in it is merged from now on. Raises nothing: what merging
        met is told when the shard is opened, and no commit is in doubt for it."""
        self._watermarks = [stage.watermark_us for stage in commit.stages]
        segments = {
            (number, shard): metas
            for number, stage in enumerate(commit.stages)
            for shard, metas in enumerate(stage.segments)
        }
        for spot, (_, merges) in [*self._done.items()]:
            metas, watermark = segments.get(spot, ()), self._watermarks[spot[0]]
            if all(merge.applied(metas, watermark) == metas for merge in merges):  # taken, or too late for it
                del self._done[spot]
        for spot, metas in segments.items():
            if spot[0] in self._logics and spot not in self._running and spot not in self._done:
                self._merge(commit, spot, metas)

    def _merge(self, commit: Commit, spot: Spot, metas: tuple[SegmentMeta, ...]) -> None:
        if len(metas) < FAN:
            return
        stage, number = spot
        shard, watermark = FilesShard(self._place, number, commit.epoch, metas), self._watermarks[stage]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="slackwater-merge")
        self._running[spot] = (commit.epoch, self._thread.submit(merge_segments, self._logics[stage], shard, watermark))

    def close(self) -> None:
        """Wait for what is being merged: it writes to a state that is somebody else's from then on."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._running.clear()
        self._done.clear()
