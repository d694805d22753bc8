"""Whether rows of tumbling and hopping windows are folded before the shuffle, by Spark, or behind it, by their shard.

before   rows ─▶ partial aggregates ─▶ shuffle ─▶ aggregates ─▶ shuffle ─▶ panes ─▶ shard      many rows a pane: few of them travel
behind   rows ─▶ shuffle ─▶ rows ─▶ shard: panes                                               few rows a pane: one shuffle, no aggregation

Results are the same. Which is less work follows from the epoch before: how many rows a pane of a group had in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater.operators.base import Operator
from slackwater.operators.reports import IngestReport
from slackwater.spark import shard_columns

MANY_ROWS_PER_PANE = 32  # rows a pane, measured: with more of them it is less work to fold them before
SKEW = 1.5  # times its part, chosen: a shard with so many rows would keep the others waiting if it folded them alone


@dataclass
class PreaggregationPolicy:
    """Of one engine. The first epoch folds before: nothing is known of its keys, and a hot one does no harm there."""

    _after_shuffle: bool = False
    _converted: tuple[Operator, Operator] | None = field(
        default=None, repr=False
    )  # as it was given, as it goes to the shards

    def operator_for_epoch(self, operator: Operator) -> Operator:
        """The operator as this epoch's rows come to it."""
        if not self._after_shuffle:
            return operator
        if self._converted is None or self._converted[0] is not operator:
            self._converted = operator, shard_columns.without_preaggregation(operator)
        return self._converted[1]

    def observe(self, reports: Sequence[IngestReport]) -> None:
        """What the shards made of an epoch's rows."""
        rows, panes = [r.rows for r in reports], sum(r.panes for r in reports)
        if panes:
            self._after_shuffle = sum(rows) < MANY_ROWS_PER_PANE * panes and max(rows) * len(rows) < SKEW * sum(rows)
