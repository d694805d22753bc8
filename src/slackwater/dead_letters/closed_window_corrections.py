"""Correct windows that have left the state: merge late rows with the results that the target stores.

Corrections are computed in this process, shard by shard, because they involve far fewer rows than an epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import singledispatch

import polars as pl

from slackwater.connectors.target import ReadableTarget
from slackwater.core.hashing import key_hash, shard_of
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.errors import raise_unregistered
from slackwater.operators.base import Operator, ShardTask
from slackwater.operators.reports import EmitReport
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.state.commit import OutputMetadata
from slackwater.windows import expired_window_corrections as windows
from slackwater.windows.aggregations import find_unrestorable_aggregations, normalize_columns, restore_accumulators
from slackwater.windows.compiled_window import CompiledWindow


class Corrections:
    """Corrections of stored windows by late rows, computed by shard.

    `refused` lists each row that cannot be applied, by `__group`, with the reason in the column `refused`.

    Args:
        logic: The operator of the windows.
        driver: The driver, which provides the state and the state store.
        target: The target that stores the windows.
        rows: The late rows with keys, accumulators and `__group`; see `Engine.replay_rows`.
    """

    def __init__(self, logic: WindowOperator, driver: EpochDriver, target: ReadableTarget, rows: pl.DataFrame) -> None:
        state = driver.state
        self.logic, self.store = logic, driver.store
        stored = _stored_windows(self.logic, target, windows.find_touched_ranges(self.logic, rows))
        lost = _unmergeable_reason(self.logic)
        owner, other = (shard_of(f["__kh"].to_numpy(), state.shards) for f in (rows, stored))
        refused: list[pl.DataFrame] = []
        self.repairs: dict[int, tuple[windows.ExpiredWindowCorrection, pl.DataFrame]] = {}
        for shard, metas in enumerate(state.stages[0].segments):
            shard_rows = rows.filter(pl.Series(owner == shard))
            if shard_rows.is_empty():
                continue
            reader = self.store.shard(shard, state.shards, state.epoch + 1, metas).reader(self.logic)
            units = reader.units(windows.find_touched_units(self.logic, shard_rows))
            done = windows.correct_expired_windows(
                self.logic, shard_rows, units, stored.filter(pl.Series(other == shard)), state.watermark_us, lost
            )
            self.repairs[shard] = (done, units)
            refused.append(shard_rows.select("__group", done.refused).filter(pl.col("refused").is_not_null()))
        empty = pl.DataFrame(schema={"__group": pl.Int64, "refused": pl.String})
        self.refused = pl.concat([empty, *refused])

    @property
    def reasons(self) -> Counter[str]:
        """Return the number of windows to write and to supersede, by reason."""
        totals: Counter[str] = Counter()
        for repair, _ in self.repairs.values():
            totals.update(_reasons(repair))
        return totals

    def stage_reports(self, tasks: Sequence[ShardTask]) -> list[EmitReport]:
        """Stage the output and the state of all shards that change. Return their reports."""
        reports = []
        for task in tasks:
            if task.shard not in self.repairs:
                continue
            repair, units = self.repairs[task.shard]
            done = repair.done
            outputs: tuple[OutputMetadata, ...] = ()
            if task.hit:
                task.hit("stage.before")
            if done.rows.height or done.superseded.height:
                outputs = (task.state.write_output(self.logic.output_frame(done)),)
            segments = task.state.metas
            if done.state.height:
                segments = task.state.stage(self.logic, done.state, units, task.since)
            if task.hit:
                task.hit("stage.after")
            report = EmitReport(shard=task.shard, segments=segments, outputs=outputs, reasons=_reasons(repair))
            reports.append(report.model_copy(update={"groups": done.groups, "windows": done.windows}))
        return reports


def _reasons(repair: windows.ExpiredWindowCorrection) -> dict[str, int]:
    counts = Counter(dict(repair.done.rows["__reason"].value_counts().iter_rows()))
    counts.update(supersede=repair.done.superseded.height)
    return {why: n for why, n in counts.items() if n}


@singledispatch
def compute_corrections(
    operator: Operator, driver: EpochDriver, target: ReadableTarget, rows: pl.DataFrame
) -> Corrections:
    """Compute how late rows correct the windows that the target stores. See `Corrections` for the arguments."""
    raise_unregistered(operator, "slackwater.dead_letters.closed_window_corrections")


@compute_corrections.register(WindowOperator)
def _(operator: WindowOperator, driver: EpochDriver, target: ReadableTarget, rows: pl.DataFrame) -> Corrections:
    return Corrections(operator, driver, target, rows)


def _unmergeable_reason(operator: WindowOperator) -> str | None:
    """Return why stored windows cannot be merged with more rows; None if they can be merged."""
    if operator.ends:
        return "its session left the state, and the last event of a session with a gap per row is not stored"
    lost = find_unrestorable_aggregations(operator.aggs)
    if not lost:
        return None
    return f"its window left the state, and the accumulators of {', '.join(lost)} are not stored"


def _stored_windows(logic: CompiledWindow, target: ReadableTarget, ranges: pl.DataFrame) -> pl.DataFrame:
    """Read the windows in these ranges from the target, in the form that `correct_expired_windows` expects."""
    window = logic.window
    rows = target.read_ranges(ranges.drop("__kh"), window.window_start_column)
    rows = normalize_columns(rows, list(logic.keys))
    start, end = (pl.col(c).dt.timestamp("us") for c in (window.window_start_column, window.window_end_column))
    revision = pl.col("_revision") if window.emit_metadata else pl.lit(1, pl.Int64)
    times = rows.select(start.alias("__start"), end.alias("__end"), revision.alias("__rev"))
    parts = [rows.select(logic.key_names), times, restore_accumulators(logic.aggs, rows)]
    frame = pl.concat([p for p in parts if p.width], how="horizontal")
    return frame.select(key_hash(frame, logic.keys), pl.all())
