"""Decide whether Spark pre-aggregates the rows of tumbling and hopping windows before it sends them to their shards.

    pre-aggregated  rows ─▶ partial aggregates ─▶ shuffle ─▶ aggregates ─▶ shuffle ─▶ panes ─▶ shard
    by shard        rows ─▶ shuffle ─▶ rows ─▶ shard: panes

Both variants give equal results. Pre-aggregation is faster if there are many rows per pane and key. Without it, one
shuffle is enough. The choice depends on the number of rows per pane and key in the previous epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater.operators.base import Operator
from slackwater.operators.reports import IngestReport
from slackwater.spark import operator_rows
from slackwater.tunings import is_enabled

MANY_ROWS_PER_PANE = 32  # the measured number from which pre-aggregation is faster
SKEW = 1.5  # maximum shard size, relative to the average, without pre-aggregation; an estimate


@dataclass
class PreaggregationPolicy:
    """Policy that decides for each epoch of one engine whether rows are pre-aggregated.

    The rows of the first epoch are pre-aggregated, because their keys are unknown and pre-aggregation handles hot keys.
    """

    _after_shuffle: bool = False
    _converted: tuple[Operator, Operator] | None = field(
        default=None, repr=False
    )  # the operator, and its variant without pre-aggregation

    def operator_for_epoch(self, operator: Operator) -> Operator:
        """Return the variant of `operator` to use for this epoch: with or without pre-aggregation."""
        if not self._after_shuffle:
            return operator
        if self._converted is None or self._converted[0] is not operator:
            self._converted = operator, operator_rows.without_preaggregation(operator)
        return self._converted[1]

    def observe(self, reports: Sequence[IngestReport]) -> None:
        """Decide for the next epoch. `reports`: the reports of all shards about the current epoch."""
        if not is_enabled("preaggregation"):
            return
        rows, panes = [r.rows for r in reports], sum(r.panes for r in reports)
        if panes:
            self._after_shuffle = sum(rows) < MANY_ROWS_PER_PANE * panes and max(rows) * len(rows) < SKEW * sum(rows)
