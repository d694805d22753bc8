"""The shard state for dry runs of an epoch, which read as usual, but stage nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from slackwater.state.commit import OutputMeta, SegmentMeta
from slackwater.state.protocol import ShardState, StateReader

if TYPE_CHECKING:
    import polars as pl

    from slackwater.joins.compiled_join import CompiledJoin
    from slackwater.joins.join_buffers import Buffers
    from slackwater.windows.state_rows import KeyedStateLayout


@dataclass(frozen=True)
class DryRunShardState:
    """Wraps a `ShardState`, and discards everything that an operator stages. Output rows are only counted."""

    state: ShardState

    @property
    def metas(self) -> tuple[SegmentMeta, ...]:
        return self.state.metas

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def with_metas(self, metas: tuple[SegmentMeta, ...]) -> DryRunShardState:
        return DryRunShardState(self.state.with_metas(metas))

    def reader(self, logic: KeyedStateLayout) -> StateReader:
        return self.state.reader(logic)

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMeta, ...]:
        return self.metas

    def write_output(self, frame: pl.DataFrame) -> OutputMeta:
        return OutputMeta(file="", rows=frame.height, checksum="")

    def buffers(self, logic: CompiledJoin) -> Buffers:
        return self.state.buffers(logic)

    def write_changes(self, logic: CompiledJoin, changes: object, watermark: int) -> tuple[SegmentMeta, ...]:
        return self.metas

    def replace_rows(self, *args: object) -> NoReturn:
        raise NotImplementedError("a dry run does not move state to other shards")

    replace_buffers = replace_rows
