"""What is alike of all operators that are no windows: rows come out as they come in or when time proves something, and only once.

Rooms register what they answer for all of these once, for `NonWindowOperator`, as they do for `WindowOperator`; an operator that has another
answer registers its own beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.core.schema import Field

if TYPE_CHECKING:
    import polars as pl

    from slackwater.operators.base import Operator, Recount, ShardTask, StageCounts
    from slackwater.state.commit import Hold

    Base = Operator  # at run time its properties would stand in the way of the fields of a dataclass
else:
    Base = object


class NonWindowOperator(Base):
    """An operator without windows, but for what each does in its own way."""

    @property
    def identity(self) -> None:
        """Results are a multiset."""
        return

    @property
    def retraction(self) -> tuple[str, ...]:
        return ()

    @property
    def row_columns(self) -> Sequence[Field]:
        return self.output  # what comes out has its event time

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        return results

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark

    @property
    def passes_late(self) -> bool:
        return False

    def holds_in(self, task: ShardTask) -> tuple[Hold, ...]:
        return ()

    @property
    def updates(self) -> bool:
        """Nothing that comes out is said again."""
        return False

    @property
    def early_us(self) -> int:
        return 0

    @property
    def group_limit(self) -> None:
        """It has no groups to be counted."""
        return

    @property
    def is_preaggregated(self) -> bool:
        return False

    @property
    def emission(self) -> dict[str, Any]:
        return {"updates": False, "retain_us": 0}

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return 0, 0  # rows may wait; nothing is open

    def check_bounds(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """What it keeps is held within its bound row by row."""
