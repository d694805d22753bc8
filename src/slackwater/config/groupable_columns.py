"""Columns by which SQL may group rows, although each epoch sees only its own rows.

    results of a window ─▶ one epoch has all results of one time range ─▶ GROUP BY window_start is exact
    rows of a source    ─▶ an epoch has only the rows that it read     ─▶ GROUP BY is an error

All tumbling and hopping windows with the same start and end close at the same watermark, so they are emitted in the
same epoch, for all keys. Sessions with the same start and end can close in different epochs: a session that is cut at
`max_session_duration_ms` closes before a session of another key that ends at the same time by its gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.config.join import Join
from slackwater.config.message_format import format_value
from slackwater.config.step_base import StepBase
from slackwater.config.window import Window

AGGREGATE = "an aggregate (GROUP BY, count(), …)"
WINDOW = "a window function (OVER)"


@dataclass(frozen=True)
class GroupableColumns:
    """Columns by which rows may be grouped (`names`). If there are none, SQL must be row-wise; `reason` may say why."""

    names: frozenset[str] = frozenset()
    reason: str = ""

    def advice_for(self, non_row_wise: set[str]) -> str:
        """Return the advice to append to a list of constructs in the SQL that are not row-wise; may be empty."""
        if not non_row_wise & {AGGREGATE, WINDOW}:
            return ""
        if self.names:
            shown = " or ".join(format_value(name) for name in sorted(self.names))
            return f"; results of a window may be grouped by its start or end; name {shown} in GROUP BY or PARTITION BY"
        return f"; {self.reason}" if self.reason else ""


ROW_BY_ROW = GroupableColumns()
SEVERAL = GroupableColumns(
    reason="it has several inputs and runs over each of them separately, so no run has all rows of a group"
)


def find_groupable_columns(step: StepBase) -> GroupableColumns:
    """Return the columns by which a step's results may be grouped in the epoch that emits them."""
    if isinstance(step, Join):
        return GroupableColumns(
            reason="each joined row is emitted by the epoch that completes it, so no epoch has all rows of a group"
        )
    if not isinstance(step, Window):
        return ROW_BY_ROW
    if step.kind == "session":
        return GroupableColumns(
            reason="sessions with the same start and end may be emitted in two epochs: one that is cut at max_session_duration closes "
            "before one that ends there"
        )
    if step.emit != "final" and (step.emit != "on_close" or step.late_data not in ("drop", "dlq")):
        return GroupableColumns(
            reason='these windows are emitted more than once; with emit = "final" each is emitted once'
        )
    return GroupableColumns(frozenset((step.window_start_column, step.window_end_column)))
