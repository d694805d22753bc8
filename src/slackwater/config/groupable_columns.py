"""By which columns the rows that a SQL text reads may be put together, though each epoch sees only its own rows.

    results of a window ─▶ one epoch has all of the same bounds ─▶ GROUP BY window_start is exact
    rows of a source    ─▶ an epoch has those that were read     ─▶ GROUP BY is refused

All tumbling and hopping windows with the same bounds close by one watermark, so they come out in one epoch, of all keys.
Sessions do not: one that is cut at `max_session_duration_ms` closes before one of another key that ends there by its gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.config.join import Join
from slackwater.config.message_format import format_value
from slackwater.config.step_spec import StepSpec
from slackwater.config.window import Window

AGGREGATE = "an aggregate (GROUP BY, count(), …)"
WINDOW = "a window function (OVER)"


@dataclass(frozen=True)
class GroupableColumns:
    """`names`: columns by any of which rows may be grouped; none of them: rows are taken one by one, `why` says why."""

    names: frozenset[str] = frozenset()
    reason: str = ""

    def advice_for(self, non_row_wise: set[str]) -> str:
        """What is to be said behind what was found to look beyond the row; nothing where that is all."""
        if not non_row_wise & {AGGREGATE, WINDOW}:
            return ""
        if self.names:
            shown = " or ".join(format_value(name) for name in sorted(self.names))
            return (
                f"; the results of a window may be put together by its bounds: name {shown} in GROUP BY or PARTITION BY"
            )
        return f"; {self.reason}" if self.reason else ""


ROW_BY_ROW = GroupableColumns()
SEVERAL = GroupableColumns(
    reason="it has several inputs and runs over each of them by itself, so no run has all of a group"
)


def groupable_columns_of(step: StepSpec) -> GroupableColumns:
    """By what the results of a step may be put together in the epoch that brings them."""
    if isinstance(step, Join):
        return GroupableColumns(
            reason="joined rows come out with the epoch that completes them, so no epoch has all of a group"
        )
    if not isinstance(step, Window):
        return ROW_BY_ROW
    if step.kind == "session":
        return GroupableColumns(
            reason="sessions with the same bounds may come out in two epochs: one that is cut at max_session_duration closes "
            "before one that ends there"
        )
    if step.emit != "final" and (step.emit != "on_close" or step.late_data not in ("drop", "dlq")):
        return GroupableColumns(reason='these windows come out more than once; with emit = "final" each comes once')
    return GroupableColumns(frozenset((step.window_start_column, step.window_end_column)))
