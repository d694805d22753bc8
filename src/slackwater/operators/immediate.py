"""Base class of operators that emit each row in the epoch that reads it. Nothing is pending, so no row is late.

Packages that dispatch on the operator's class register `ImmediateOperator` once for all of its subclasses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.operators.dead_letters import build_late_letters
from slackwater.operators.non_window_base import NonWindowOperator
from slackwater.operators.reports import EmitReport
from slackwater.watermark import NO_WATERMARK

if TYPE_CHECKING:
    import polars as pl

    from slackwater.operators.base import ShardTask, StageCounts
    from slackwater.state.commit import SegmentMeta


class ImmediateOperator(NonWindowOperator):
    """An operator that is finished with its rows as soon as it has ingested them."""

    @abstractmethod
    def state_text(self, counts: StageCounts) -> str:
        """Describe the stored state in a short phrase, for users."""

    def late_before(self, watermark: int) -> int:
        return NO_WATERMARK

    @property
    def emits_late_rows(self) -> bool:
        return True

    def input_index(self, source: str) -> int:
        return 0

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        return False

    def is_due(self, task: ShardTask) -> bool:
        return False

    def emit(self, task: ShardTask) -> EmitReport:
        return EmitReport(shard=task.shard, segments=task.state.metas)

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return build_late_letters(task, rows)

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        return before
