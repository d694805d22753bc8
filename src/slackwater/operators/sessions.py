"""The operator of session windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from slackwater.core.humanize import plural
from slackwater.core.lateness_histogram import NEVER, build_lateness_histogram
from slackwater.core.sorted_arrays import distinct_hashes
from slackwater.errors import CapExceededError
from slackwater.operators.base import Recount, ShardTask
from slackwater.operators.dead_letters import (
    BAD_GAP,
    LATE,
    ORIGIN,
    build_bad_row_letters,
    build_late_letters,
    find_late_letters,
    stage_letters,
    tag_rows,
)
from slackwater.operators.reports import EmitReport, IngestReport, StageCounts
from slackwater.operators.window_base import WindowOperator
from slackwater.state.commit import Hold
from slackwater.windows import session_emission
from slackwater.windows.session_intervals import CompiledSessionWindow


@dataclass(frozen=True)
class SessionOperator(CompiledSessionWindow, WindowOperator):
    """Merges rows into the sessions of a shard, and emits sessions when they close, are cut, or change."""

    @property
    def last_instant_us(self) -> int:
        return 0  # an event exactly one gap after the last event still joins the session

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return session_emission.find_lowest_hold(holds, watermark, self.reach_us)

    def read_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        return self.find_shard_holds(task.state.reader(self).scan().sort("__h", maintain_order=True))

    def find_shard_holds(self, rows: pl.DataFrame) -> tuple[Hold, ...]:
        return session_emission.bound_holds(session_emission.find_holds(self, rows))

    def find_changed_holds(self, task: ShardTask, state: pl.DataFrame) -> tuple[Hold, ...] | None:
        if task.holds is None or state.is_empty():
            return None
        return session_emission.replace_holds(self, task.holds, state)

    @property
    def reasons(self) -> Sequence[str]:
        return (*super().reasons, "cap")

    def late_before(self, watermark: int) -> int:
        return watermark

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Merge an epoch's rows into the sessions of a shard.

        `rows` has `__kh`, `__ts`, the keys, the accumulators, and `__end` if each row has its own gap.
        """
        from slackwater.windows import session_ingest  # its loops are compiled

        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        rows = tag_rows(task, rows, origins)
        bad = rows.clear()
        if self.dynamic:
            usable = rows["__end"].is_not_null()
            rows, bad = rows.filter(usable), rows.filter(~usable)
        before = task.state.reader(self).units(distinct_hashes(rows["__kh"].to_numpy()))
        room = None if task.group_limit is None else max(task.group_limit - task.groups, 0)
        done = session_ingest.ingest_session_rows(self, rows, before, task.watermark, room)
        alone = None
        if self.window.late_data == "standalone" and done.late.height:
            alone = session_emission.emit_late_rows_as_sessions(self, done.late)
        task.staging("before")
        report = self.ingest_report(task, done, before, alone)
        letters = {LATE: find_late_letters(task, done.late, origins)}
        if task.keeps_bad and origins is not None and bad.height:
            bad_rows = bad.with_columns(pl.col("__ts").alias("__start"), origins[bad["__row"]].alias(ORIGIN))
            letters[BAD_GAP] = [build_bad_row_letters(bad_rows, pl.lit(BAD_GAP), task.state.epoch, self.pipeline)]
        report |= {"rows": rows.height, "letters": stage_letters(task, letters)}
        task.staging("after")
        return IngestReport(**report, bad=bad.height, bad_sample=self.sample(bad, "__ts"))

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        missed = pl.Series(np.ones(rows.height, dtype=np.int64))  # each row missed one session
        return build_late_letters(task, rows, missed, keys=self.keys)

    def emit(self, task: ShardTask) -> EmitReport:
        due = self.read_due_units(task)
        if due.is_empty():
            return EmitReport(shard=task.shard, segments=task.state.metas)
        done = session_emission.emit_sessions(self, due, task.since, task.watermark, task.early)
        return self.emit_report(task, done, due)

    def count_late_by_step(self, late: pl.DataFrame, watermark: int) -> dict[str, int]:
        """Count late rows by the additional lateness that would have been enough in any case.

        A row may need less: an earlier row is not late if it joins an open session.
        """
        start = late["__start"].to_numpy()
        if self.has_forgotten(watermark) or self.rows_from_us > int(start.min()):
            return {NEVER: late.height}
        return build_lateness_histogram(self.horizon(watermark) - start)

    # -- in the commit -------------------------------------------------------------------------------------------

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return sum(counts.windows), sum(counts.groups)

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise CapExceededError if too many keys have open sessions. The counts are exact."""
        bound, open_keys = self.fails_above, sum(counts.groups)
        if bound is not None and open_keys > bound:
            raise CapExceededError(
                f"{self.pipeline}: {plural(open_keys, 'key has open sessions', 'keys have open sessions')}, but "
                f'max_groups_per_window is {bound}; raise it, or set on_state_cap = "drop_new_groups"; this epoch was '
                "not committed"
            )
