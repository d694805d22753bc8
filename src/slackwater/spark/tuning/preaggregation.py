"""Decide whether Spark pre-aggregates rows of tumbling and hopping windows, or sends them to their shard as they are.

    pre-aggregated  rows ─▶ partial aggregates ─▶ shuffle ─▶ aggregates ─▶ shuffle ─▶ panes ─▶ shard
    by shard        rows ─▶ shuffle ─▶ rows ─▶ shard: panes

Both give equal results. Pre-aggregation is faster if there are many rows per pane and key; without it, one shuffle is
enough. The choice depends on the number of rows per pane and key in the previous epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater.operators.base import Operator
from slackwater.operators.reports import IngestReport
from slackwater.spark import operator_rows
from slackwater.tunings import is_enabled

MANY_ROWS_PER_PANE = 32  # measured: pre-aggregation is faster from here on
SKEW = 1.5  # in average shards (an estimate): without pre-aggregation, a larger shard would delay the others


@dataclass
class PreaggregationPolicy:
    """Decides, for each epoch of one engine, whether rows are pre-aggregated.

    The first epoch is pre-aggregated, because its keys are unknown and pre-aggregation handles hot keys well.
    """

    _after_shuffle: bool = False
    _converted: tuple[Operator, Operator] | None = field(
        default=None, repr=False
    )  # the operator, and its variant without pre-aggregation

    def operator_for_epoch(self, operator: Operator) -> Operator:
        """Return the operator to use for this epoch: with or without pre-aggregation."""
        if not self._after_shuffle:
            return operator
        if self._converted is None or self._converted[0] is not operator:
            self._converted = operator, operator_rows.without_preaggregation(operator)
        return self._converted[1]

    def observe(self, reports: Sequence[IngestReport]) -> None:
        """Decide for the next epoch, based on the reports of the shards about the current one."""
        if not is_enabled("preaggregation"):
            return
        rows, panes = [r.rows for r in reports], sum(r.panes for r in reports)
        if panes:
            self._after_shuffle = sum(rows) < MANY_ROWS_PER_PANE * panes and max(rows) * len(rows) < SKEW * sum(rows)
