"""The work of a stage without state on one shard: what came out of the SQL goes on, in the epoch that read it.

rows of a task ─▶ SQL ─▶ output        no key, so no shuffle: they are put aside where they were read; nothing waits, nothing is late
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import polars as pl

from slackwater.core.schema import Field
from slackwater.operators.base import ShardTask, StageCounts
from slackwater.operators.immediate import ImmediateOperator
from slackwater.operators.reports import EmitReport, IngestReport
from slackwater.state.commit import SegmentMeta, StageState
from slackwater.state.protocol import NoState

ROW = "row"  # why a row comes out
MOST = 500_000  # rows of one output


@dataclass(frozen=True)
class StatelessOperator(NoState, ImmediateOperator):
    """Rows as the SQL lets them out: `fields` are the columns that it selects, in order."""

    pipeline: str
    fields: tuple[Field, ...]

    @property
    def output(self) -> Sequence[Field]:
        return self.fields

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """As they were read."""
        return frame

    @property
    def reasons(self) -> Sequence[str]:
        return (ROW,)

    # -- on a shard ----------------------------------------------------------------------------------------------

    def slot(self, position: int) -> str:
        """What a column is called on its way: a user's may have any name, one of ours too."""
        return f"c{position}"

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """`rows`: the columns of the output, each under its `slot`."""
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=())
        columns = [rows[self.slot(i)].cast(f.polars).alias(f.name) for i, f in enumerate(self.fields)]
        why = pl.Series("__reason", [ROW]).new_from_index(0, rows.height)
        frame = pl.DataFrame([*columns, why])
        task.staging("before")
        outputs = tuple(task.state.write_output(part) for part in frame.iter_slices(MOST))
        task.staging("after")
        return IngestReport(
            shard=task.shard,
            segments=(),
            rows=rows.height,
            used=rows.height,
            outputs=outputs,
            reasons={ROW: rows.height},
        )

    def emit(self, task: ShardTask) -> EmitReport:
        return EmitReport(shard=task.shard, segments=())

    def state_text(self, counts: StageCounts) -> str:
        return "no state"

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "rows"}  # nothing is kept that could depend on more

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"columns": {f.name: f.type for f in self.fields}}

    @classmethod
    def from_state(cls, pipeline: str, state: StageState) -> Self:
        return cls(pipeline, tuple(Field(n, t) for n, t in state.described.get("columns", {}).items()))

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        return before

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        return ()
