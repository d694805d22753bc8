"""Session windows on a shard: rows arrive one by one; sessions merge, are cut at the cap, and close after the gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from slackwater.core.humanize import plural
from slackwater.errors import CapExceededError
from slackwater.operators.base import Recount, ShardTask, StageCounts, flag_idle_sources
from slackwater.operators.dead_letters import BAD_GAP, LATE, ORIGIN, bad_gap_letters, build_late_letters
from slackwater.operators.reports import EmitReport, IngestReport, LetterFile
from slackwater.operators.window_base import WindowOperator, empty_report
from slackwater.state.commit import Hold
from slackwater.windows import session_emission, session_state, session_watermark_holds
from slackwater.windows.key_order import distinct_hashes
from slackwater.windows.session_intervals import CompiledSessionWindow


@dataclass(frozen=True)
class SessionOperator(CompiledSessionWindow, WindowOperator):
    """The operator of session windows."""

    @property
    def last_instant_us(self) -> int:
        return 0  # an event at the very end of the gap still joins

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return session_watermark_holds.find_lowest_hold(holds, watermark, self.reach_us)

    def read_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        return self.find_shard_holds(task.state.reader(self).scan().sort("__h", maintain_order=True))

    def find_shard_holds(self, rows: pl.DataFrame) -> tuple[Hold, ...]:
        return session_watermark_holds.bound_holds(session_watermark_holds.find_holds(self, rows))

    def find_changed_holds(self, task: ShardTask, state: pl.DataFrame) -> tuple[Hold, ...] | None:
        if task.holds is None or state.is_empty():
            return None
        return session_watermark_holds.replace_holds(self, task.holds, state)

    @property
    def reasons(self) -> Sequence[str]:
        return (*super().reasons, "cap")

    def late_before(self, watermark: int) -> int:
        return watermark

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Add rows to the sessions.

        `rows` has `__kh`, `__ts`, the keys, the accumulators, and `__end` if each row has its own gap.
        """
        if rows.is_empty():
            return empty_report(task)
        rows, origins, bad = self._split_by_gap(flag_idle_sources(task, rows), origins)
        if origins is not None:
            rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__row"))
        before = task.state.reader(self).units(distinct_hashes(rows["__kh"].to_numpy()))
        room = None if task.group_limit is None else max(task.group_limit - task.groups, 0)
        done = session_state.ingest_sessions(self, rows, before, task.watermark, room)
        alone = None
        if self.window.late_data == "standalone" and done.late.height:
            alone = session_emission.emit_standalone_sessions(self, done.late)
        task.staging("before")
        report = self.ingest_report(task, done, before, alone)
        letters = self._stage_letters(task, done.late, origins, bad)
        task.staging("after")
        report |= {"rows": rows.height, "letters": letters}
        return IngestReport(**report, bad=bad.height, bad_sample=self.sample(bad, "__ts"))

    def _split_by_gap(
        self, rows: pl.DataFrame, origins: pl.Series | None
    ) -> tuple[pl.DataFrame, pl.Series | None, pl.DataFrame]:
        """Return the rows with a usable gap, their origins, and the rows without a usable gap."""
        if not self.dynamic:
            return rows, origins, rows.clear()
        usable = rows["__end"].is_not_null()
        bad = rows.filter(~usable)
        if origins is None:
            return rows.filter(usable), None, bad
        return rows.filter(usable), origins.filter(usable), bad.with_columns(origins.filter(~usable).alias(ORIGIN))

    def _stage_letters(
        self, task: ShardTask, late: pl.DataFrame, origins: pl.Series | None, bad: pl.DataFrame
    ) -> LetterFile | None:
        """Stage the dead letters of a shard's late rows and of rows without a usable gap. None if there are neither."""
        frames, reasons = [], {}
        if origins is not None and task.late is not None and late.height:
            frames.append(self.late_letters(task, late.with_columns(origins[late["__row"]].alias(ORIGIN))))
            reasons[LATE] = late.height
        if task.keeps_bad and bad.height:
            frames.append(bad_gap_letters(bad, task.state.epoch, self.pipeline))
            reasons[BAD_GAP] = bad.height
        return LetterFile(output=task.state.write_output(pl.concat(frames)), reasons=reasons) if frames else None

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        missed = pl.Series(np.ones(rows.height, dtype=np.int64))  # each row missed one window: its session
        return build_late_letters(task, rows, missed, keys=self.keys)

    def emit(self, task: ShardTask) -> EmitReport:
        due = self.due(task)
        if due.is_empty():
            return EmitReport(shard=task.shard, segments=task.state.metas)
        done = session_emission.emit_sessions(self, due, task.since, task.watermark, task.early)
        return self.emit_report(task, done, due)

    # -- in the commit -------------------------------------------------------------------------------------------

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        return _add_counts(before, reports)

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        return _add_counts(before, reports)

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return sum(counts.windows), sum(counts.groups)

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise CapExceededError if too many keys have open sessions, counted exactly over all shards."""
        bound, open_keys = self.fails_above, sum(counts.groups)
        if bound is not None and open_keys > bound:
            raise CapExceededError(
                f"{self.pipeline}: {plural(open_keys, 'key has open sessions', 'keys have open sessions')}, but max_groups_per_window is {bound}; raise it, "
                'or set on_state_cap = "drop_new_groups"; this epoch was not committed'
            )


def _add_counts(before: StageCounts, reports: Sequence[IngestReport | EmitReport]) -> StageCounts:
    groups, windows = list(before.groups), list(before.windows)
    for r in reports:
        groups[r.shard] += r.groups
        windows[r.shard] += r.windows
    return replace(before, groups=tuple(groups), windows=tuple(windows))
