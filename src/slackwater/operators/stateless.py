"""The operator of stateless stages, which emits the output of the SQL in the epoch that reads the rows.

rows of a task ─▶ SQL ─▶ output        without keys and shuffle: rows are staged where they are read, and never late
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import polars as pl

from slackwater.core.schema import Field
from slackwater.operators.base import NonWindowOperator, ShardTask
from slackwater.operators.dead_letters import build_late_dead_letters
from slackwater.operators.reports import EmitReport, IngestReport, StageCounts
from slackwater.state.commit import SegmentMetadata, StageState
from slackwater.state.protocol import NoState
from slackwater.watermark import NO_WATERMARK

ROW = "row"  # the reason for every emitted row
MOST = 500_000  # maximum number of rows per output file


@dataclass(frozen=True)
class StatelessOperator(NoState, NonWindowOperator):
    """Emits rows as the SQL returns them. `fields`: the output columns of the SQL, in order."""

    pipeline: str
    fields: tuple[Field, ...]

    @property
    def output(self) -> Sequence[Field]:
        return self.fields

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows in the order in which they were read."""
        return frame

    @property
    def reasons(self) -> Sequence[str]:
        return (ROW,)

    def late_threshold(self, watermark: int) -> int:
        return NO_WATERMARK

    @property
    def emits_late_rows(self) -> bool:
        return True

    # -- on a shard ----------------------------------------------------------------------------------------------

    def slot(self, position: int) -> str:
        """Return the name under which a column is sent to a shard. A user's column may have a reserved name."""
        return f"c{position}"

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Stage `rows`, which has the output columns under the names of `slot`."""
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=())
        columns = [rows[self.slot(i)].cast(f.polars).alias(f.name) for i, f in enumerate(self.fields)]
        why = pl.Series("__reason", [ROW]).new_from_index(0, rows.height)
        frame = pl.DataFrame([*columns, why])
        task.staging("before")
        outputs = tuple(task.state.write_output(part) for part in frame.iter_slices(MOST))
        task.staging("after")
        count = rows.height
        return IngestReport(
            shard=task.shard, segments=(), rows=count, used=count, outputs=outputs, reasons={ROW: count}
        )

    def may_be_due(self, metas: Sequence[SegmentMetadata], since: int, watermark: int, early: bool) -> bool:
        return False

    def is_due(self, task: ShardTask) -> bool:
        return False

    def emit(self, task: ShardTask) -> EmitReport:
        return EmitReport(shard=task.shard, segments=())

    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return build_late_dead_letters(task, rows)

    def state_text(self, counts: StageCounts) -> str:
        """Describe the size of the state in a short phrase for users."""
        return "no state"

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "rows"}  # without state, the config can change freely

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"columns": {f.name: f.type for f in self.fields}}

    @classmethod
    def from_state(cls, pipeline: str, state: StageState) -> Self:
        return cls(pipeline, tuple(Field(n, t) for n, t in state.described.get("columns", {}).items()))

    def live_segments(self, metas: tuple[SegmentMetadata, ...], since: int) -> tuple[SegmentMetadata, ...]:
        return ()
