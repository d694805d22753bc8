"""The stateful step of a pipeline, windows or a join, as the driver and the engines see it."""

from __future__ import annotations

import polars as pl

from slackwater.joins.logic import JoinLogic
from slackwater.operators import interval_join, windows
from slackwater.operators.task import EmitReport, IngestReport, ShardTask
from slackwater.state.protocol import SegmentMeta
from slackwater.windows.family import family
from slackwater.windows.logic import Logic

Step = Logic | JoinLogic


def ingest(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Fold an epoch's rows into a shard."""
    work = interval_join.ingest if isinstance(task.logic, JoinLogic) else windows.ingest
    return work(task, rows, origins)


def emit(task: ShardTask) -> EmitReport:
    """Stage what comes out of a shard between two watermarks."""
    return interval_join.emit(task) if isinstance(task.logic, JoinLogic) else windows.emit(task)


def touched(logic: Step, metas: tuple[SegmentMeta, ...], since: int, watermark: int, telling: bool) -> bool:
    """Whether a shard may have something to say between two watermarks, as far as is known without reading it."""
    if isinstance(logic, JoinLogic):
        return interval_join.touched(metas, since, watermark)
    visit = family(logic).visit(logic, since, watermark, telling)
    return any(visit.touches(m.first_due, m.last_due) for m in metas)


def is_due(task: ShardTask) -> bool:
    """Whether it has."""
    return interval_join.is_due(task) if isinstance(task.logic, JoinLogic) else windows.is_due(task)
