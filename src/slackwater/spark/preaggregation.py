"""Decide whether rows of tumbling and hopping windows are preaggregated by Spark, or only aggregated by their shard.

preaggregated   rows ─▶ partial aggregates ─▶ shuffle ─▶ aggregates ─▶ shuffle ─▶ panes ─▶ shard   better for many rows a pane
by shard        rows ─▶ shuffle ─▶ rows ─▶ shard: panes                                            better for few: one shuffle

The results are equal. The choice follows from the previous epoch: how many rows per pane and key it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater.operators.base import Operator
from slackwater.operators.reports import IngestReport
from slackwater.spark import shard_columns

MANY_ROWS_PER_PANE = 32  # measured: from here on preaggregation is faster
SKEW = 1.5  # times the average shard, chosen: a larger shard would delay the others without preaggregation


@dataclass
class PreaggregationPolicy:
    """The choice for the epochs of one engine.

    The first epoch preaggregates, because its keys are unknown and preaggregation is safe with a hot key.
    """

    _after_shuffle: bool = False
    _converted: tuple[Operator, Operator] | None = field(
        default=None, repr=False
    )  # the operator, and its variant without preaggregation

    def operator_for_epoch(self, operator: Operator) -> Operator:
        """Return the operator to use for this epoch: with or without preaggregation."""
        if not self._after_shuffle:
            return operator
        if self._converted is None or self._converted[0] is not operator:
            self._converted = operator, shard_columns.without_preaggregation(operator)
        return self._converted[1]

    def observe(self, reports: Sequence[IngestReport]) -> None:
        """Choose for the next epoch, from the reports of the shards about this one."""
        rows, panes = [r.rows for r in reports], sum(r.panes for r in reports)
        if panes:
            self._after_shuffle = sum(rows) < MANY_ROWS_PER_PANE * panes and max(rows) * len(rows) < SKEW * sum(rows)
