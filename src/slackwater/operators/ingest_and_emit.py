"""One pass over a shard: ingest rows and emit what is due, if the new watermark is known before the rows are read.

The new watermark is known if the rows are results of other stages, or come from files whose footers contain the newest
time.

    rows ─▶ ingest ─▶ new state ─▶ emit      one task; otherwise the driver advances the clocks and sends a second task
"""

from __future__ import annotations

import polars as pl

from slackwater.operators.base import ShardTask
from slackwater.operators.reports import EmitReport, IngestReport


def ingest_and_emit(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Run `Operator.ingest`, followed by `Operator.emit` if the task has the new watermark."""
    report = task.operator.ingest(task, rows, origins)
    if task.epoch_watermark is None:
        return report
    epoch_watermark, state = task.epoch_watermark, task.state.with_metas(report.segments)
    emitted = EmitReport(shard=task.shard, segments=report.segments)
    if task.operator.may_be_due(report.segments, task.since, epoch_watermark.watermark, epoch_watermark.early):
        holds = task.holds if report.holds is None else report.holds
        due = ShardTask(
            task.operator,
            state,
            task.shard,
            epoch_watermark.watermark,
            task.since,
            early=epoch_watermark.early,
            holds=holds,
        )
        emitted = task.operator.emit(due)
    return report.model_copy(update={"emitted": emitted})
