"""The work of a stage without state on one shard: what came out of the SQL goes on, in the epoch that read it.

rows of a task ─▶ SQL ─▶ output        no key, so no shuffle: they are put aside where they were read; nothing waits, nothing is late
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from slackwater.core.schema import Field
from slackwater.operators.base import Figures, ShardTask
from slackwater.operators.dead_letters import late_letters
from slackwater.operators.task import EmitReport, IngestReport
from slackwater.operators.windowless import Windowless
from slackwater.state.commit import SegmentMeta
from slackwater.state.protocol import Stateless
from slackwater.watermark import NO_WATERMARK

ROW = "row"  # why a row comes out
MOST = 500_000  # rows of one output


@dataclass(frozen=True)
class Rows(Stateless, Windowless):
    """Rows as the SQL lets them out: `fields` are the columns that it selects, in order."""

    pipeline: str
    fields: tuple[Field, ...]

    @property
    def output(self) -> Sequence[Field]:
        return self.fields

    def late_before(self, watermark: int) -> int:
        """No row is late: nothing closes."""
        return NO_WATERMARK

    def input_of(self, source: str) -> int:
        return 0

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """As they were read."""
        return frame

    # -- on a shard ----------------------------------------------------------------------------------------------

    def slot(self, place: int) -> str:
        """What a column is called on its way: a user's may have any name, one of ours too."""
        return f"c{place}"

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

    def touched(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        return False

    def is_due(self, task: ShardTask) -> bool:
        return False

    def emit(self, task: ShardTask) -> EmitReport:
        return EmitReport(shard=task.shard, segments=())

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return late_letters(task, rows)

    # -- in the commit -------------------------------------------------------------------------------------------

    def ingested(self, before: Figures, reports: Sequence[IngestReport]) -> Figures:
        return before

    def emitted(self, before: Figures, reports: Sequence[EmitReport], watermark: int) -> Figures:
        return before

    def living(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        return ()
