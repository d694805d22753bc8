"""Base class of all operators other than windows.

Each row is emitted exactly once: when it is read, or when the watermark passes it.

Packages that dispatch on the operator's class register `NonWindowOperator` once for all of its subclasses. An operator
that behaves differently is registered separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.core.schema import Field

if TYPE_CHECKING:
    import polars as pl

    from slackwater.operators.base import Operator, Recount, ShardTask, StageCounts
    from slackwater.state.commit import Hold

    Base = Operator  # at run time its properties would hide the fields of a dataclass
else:
    Base = object


class NonWindowOperator(Base):
    """An operator without windows; subclasses add what is specific to them."""

    @property
    def identity(self) -> None:
        """Return None: results are a multiset."""
        return

    @property
    def retraction(self) -> tuple[str, ...]:
        return ()

    @property
    def row_columns(self) -> Sequence[Field]:
        return self.output  # the output includes the event time

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        return results

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark

    @property
    def emits_late_rows(self) -> bool:
        return False

    def read_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        return ()

    @property
    def updates(self) -> bool:
        """Return False: no result is emitted again."""
        return False

    @property
    def early_us(self) -> int:
        return 0

    @property
    def group_limit(self) -> None:
        """Return None: there are no groups to count."""
        return

    @property
    def is_preaggregated(self) -> bool:
        return False

    @property
    def emission(self) -> dict[str, Any]:
        return {"updates": False, "retain_us": 0}

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return 0, 0  # rows may be buffered, but no window is open

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Do nothing: the limits are enforced row by row during ingestion."""
