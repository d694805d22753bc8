"""The operators of tumbling, hopping and session windows. Rows of tumbling and hopping windows arrive as panes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from slackwater.core.hashing import mix_bits
from slackwater.core.humanize import format_iso, plural
from slackwater.core.lateness_histogram import NEVER, build_lateness_histogram
from slackwater.core.sorted_arrays import distinct_hashes, distinct_values, is_in_sorted, repeat_positions
from slackwater.errors import LimitExceededError
from slackwater.operators.base import Recount, ShardTask, flag_idle_sources
from slackwater.operators.dead_letters import (
    BAD_GAP,
    LATE,
    ORIGIN,
    build_bad_row_dead_letters,
    build_late_dead_letters,
    find_late_dead_letters,
    stage_dead_letters,
    tag_rows,
)
from slackwater.operators.reports import EmitReport, IngestReport, StageCounts
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.state.commit import Hold
from slackwater.windows import pane_emission, pane_windows, session_emission
from slackwater.windows.compiled_session_window import CompiledSessionWindow
from slackwater.windows.pane_windows import CompiledPaneWindow
from slackwater.windows.state_layout import Int64s

WINDOWS_SHOWN = 100  # the number of missed windows that a dead letter lists


@dataclass(frozen=True)
class PaneWindowOperator(CompiledPaneWindow, WindowOperator):
    """Merges panes into the state of a shard, and emits windows when they close or change."""

    @property
    def is_preaggregated(self) -> bool:
        return True

    @property
    def last_instant_us(self) -> int:
        return 1  # the end is not part of a window

    def late_threshold(self, watermark: int) -> int:
        """Return the time (µs) before which a row is late for at least one of its windows."""
        return pane_windows.last_closed_window(self, self.horizon(watermark)) + self.duration_us

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Merge an epoch's panes (see `windows.pane_windows.lift_rows`) into the state.

        A pane stands for several rows and has no origin. Therefore, the engine stages the dead letters for late rows.
        """
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        units = mix_bits(rows["__kh"].to_numpy(), rows["__start"].to_numpy())
        rows = flag_idle_sources(task, rows).with_columns(pl.Series("__h", units))
        total, lifted = int(rows["__n"].sum()), rows.height
        behind = int(rows["__n"].filter(rows["__start"] < self.late_threshold(task.watermark)).sum())
        reader, refused = task.state.reader(self), 0
        if task.group_limit is not None and self._may_exceed(task, rows):
            live_panes = self.drop_expired(reader.scan(), task.watermark)
            rows, refused = _admit_groups(self, rows, live_panes, task.watermark, task.group_limit)
        before = reader.units(distinct_values(rows["__h"].to_numpy()))
        done = pane_windows.ingest_panes(self, rows, before, task.watermark)
        alone = None
        if self.window.late_data == "standalone":
            alone = pane_emission.emit_standalone_windows(self, rows, task.watermark)
        task.staging("before")
        report = self.ingest_report(task, done, before, alone)
        task.staging("after")
        report |= {"rows": total, "panes": lifted, "refused": refused, "partly_late": behind - done.counts.late}
        return IngestReport(**report)

    def emit(self, task: ShardTask) -> EmitReport:
        due = self.read_due_units(task)
        if due.is_empty():
            return EmitReport(shard=task.shard, segments=task.state.metas)
        if self.revises:
            more = pane_emission.sibling_units(self, due, task.since, task.watermark)
            more = more[~is_in_sorted(more, distinct_values(due["__h"].to_numpy()))]
            due = pl.concat([due, task.state.reader(self).units(more)])
        done = pane_emission.emit_windows(self, due, task.since, task.watermark, task.early)
        return self.emit_report(task, done, due)

    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        first, count = pane_windows.find_missed_windows(self, rows["__start"].to_numpy(), task.watermark)
        return build_late_dead_letters(
            task, rows, pl.Series(count), _window_lists(first, count, self.hop_us), self.keys
        )

    def count_late_by_step(self, late: pl.DataFrame, watermark: int) -> dict[str, int]:
        """Count late rows by the additional lateness that they would have needed.

        A row of a pane is late once the last window of the pane has left the state.
        """
        start, rows = late["__start"].to_numpy(), late["__n"].to_numpy()
        if self.has_forgotten(watermark):
            return {NEVER: int(rows.sum())}
        last = pane_windows.last_window_of_pane(self, start) + self.duration_us
        return build_lateness_histogram(self.horizon(watermark) - last + 1, rows)

    # -- in the commit -------------------------------------------------------------------------------------------

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        counts = {pane: list(groups) for pane, groups in before.panes.items()}
        for r in reports:
            for pane, n in r.new_groups.items():
                counts.setdefault(pane, [0] * len(before.groups))[r.shard] += n
        return replace(before, panes={pane: tuple(groups) for pane, groups in counts.items()})

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        living = {
            p: groups
            for p, groups in before.panes.items()
            if pane_windows.count_groups_by_window(self, {p: 1}, watermark)
        }
        return replace(before, panes=living)

    def count_open_groups(self, counts: StageCounts) -> tuple[int, int]:
        groups = sum(sum(of_shards) for of_shards in counts.panes.values())
        return groups, groups

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise LimitExceededError if a window has too many groups.

        The sum over the panes of a hopping window may count a group more than once. If the sum exceeds the limit, the
        groups are counted exactly in the state.
        """
        bound = self.fails_above
        if bound is None:
            return
        totals = pane_windows.count_groups_by_window(
            self, {p: sum(groups) for p, groups in counts.panes.items()}, watermark
        )
        suspects = sorted(w for w, groups in totals.items() if groups > bound)
        if suspects and pane_windows.is_overlapping(self):
            exact = recount(partial(self.count_groups_in, tuple(suspects)))
            totals = {w: exact.get(w, 0) for w in suspects}
            suspects = [w for w in suspects if totals[w] > bound]
        if suspects:
            window = suspects[0]
            raise LimitExceededError(
                f"{self.pipeline}: the window from {format_iso(window)} to {format_iso(window + self.duration_us)} has "
                f"{totals[window]} groups, but max_groups_per_window is {bound}; raise it, or set "
                'on_state_cap = "drop_new_groups"; this epoch was not committed'
            )

    def count_groups_in(self, windows: Sequence[int], task: ShardTask) -> Mapping[int, int]:
        """Return the exact number of groups in a shard by window start. `windows`: the starts of the windows."""
        state, keys, start = task.state.reader(self).scan(), ["__kh", *self.key_names], pl.col("__start")
        panes = (state.filter(start.is_between(w, w + self.duration_us, closed="left")) for w in windows)
        return {w: rows.select(keys).unique().height for w, rows in zip(windows, panes, strict=True)}

    def _may_exceed(self, task: ShardTask, rows: pl.DataFrame) -> bool:
        """Return whether an open window could exceed the limit if every pane in `rows` were a new group."""
        counts = dict(task.pane_groups or {})
        for start, n in rows["__start"].value_counts().iter_rows():
            counts[start] = counts.get(start, 0) + n
        totals = pane_windows.count_groups_by_window(self, counts, task.watermark)
        return max(totals.values(), default=0) > (task.group_limit or 0)


@dataclass(frozen=True)
class SessionWindowOperator(CompiledSessionWindow, WindowOperator):
    """Merges rows into the sessions of a shard, and emits sessions when they close, are cut, or change."""

    @property
    def last_instant_us(self) -> int:
        return 0  # an event exactly one gap after the last event still joins the session

    def watermark_hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return session_emission.find_lowest_watermark_hold(holds, watermark, self.reach_us)

    def read_watermark_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        return self.find_shard_watermark_holds(task.state.reader(self).scan().sort("__h", maintain_order=True))

    def find_shard_watermark_holds(self, rows: pl.DataFrame) -> tuple[Hold, ...]:
        return session_emission.limit_watermark_holds(session_emission.find_watermark_holds(self, rows))

    def find_changed_watermark_holds(self, task: ShardTask, state: pl.DataFrame) -> tuple[Hold, ...] | None:
        if task.holds is None or state.is_empty():
            return None
        return session_emission.replace_watermark_holds(self, task.holds, state)

    @property
    def reasons(self) -> Sequence[str]:
        return (*super().reasons, "cap")

    def late_threshold(self, watermark: int) -> int:
        return watermark

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Merge an epoch's rows into the sessions of a shard.

        `rows` has `__kh`, `__ts`, the keys, the accumulators, and `__end` if each row has its own gap.
        """
        from slackwater.windows import session_ingest  # imported on use, because it imports Numba

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
        letters = {LATE: find_late_dead_letters(task, done.late, origins)}
        if task.keeps_bad and origins is not None and bad.height:
            bad_rows = bad.with_columns(pl.col("__ts").alias("__start"), origins[bad["__row"]].alias(ORIGIN))
            letters[BAD_GAP] = [build_bad_row_dead_letters(bad_rows, pl.lit(BAD_GAP), task.state.epoch, self.pipeline)]
        report |= {"rows": rows.height, "letters": stage_dead_letters(task, letters)}
        task.staging("after")
        return IngestReport(**report, bad=bad.height, bad_sample=self.sample(bad, "__ts"))

    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        missed = pl.Series(np.ones(rows.height, dtype=np.int64))  # each row missed one session
        return build_late_dead_letters(task, rows, missed, keys=self.keys)

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

    def count_open_groups(self, counts: StageCounts) -> tuple[int, int]:
        return sum(counts.windows), sum(counts.groups)

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise LimitExceededError if too many keys have open sessions. The counts are exact."""
        bound, open_keys = self.fails_above, sum(counts.groups)
        if bound is not None and open_keys > bound:
            raise LimitExceededError(
                f"{self.pipeline}: {plural(open_keys, 'key has open sessions', 'keys have open sessions')}, but "
                f'max_groups_per_window is {bound}; raise it, or set on_state_cap = "drop_new_groups"; this epoch was '
                "not committed"
            )


def _window_lists(first: Int64s, count: Int64s, hop: int) -> pl.Series:
    """Return, for each row, a JSON list with the starts of `count` windows as ISO times.

    `first`: the start of the first window. `hop`: the time (µs) between two starts. A list has at most `WINDOWS_SHOWN`
    elements.
    """
    shown = np.minimum(count, WINDOWS_SHOWN)
    row, nth = repeat_positions(shown)
    spread = pl.DataFrame({"row": row, "start": first[row] + nth * hop})
    text = pl.col("start").cast(pl.Datetime("us")).dt.strftime('"%Y-%m-%dT%H:%M:%S%.fZ"')
    joined = spread.group_by("row", maintain_order=True).agg(text.str.join(", "))["start"]
    return "[" + joined + "]"


def _admit_groups(
    logic: CompiledPaneWindow, rows: pl.DataFrame, existing: pl.DataFrame, watermark: int, limit: int
) -> tuple[pl.DataFrame, int]:
    """Apply `on_state_cap = "drop_new_groups"`: return the admitted panes, and the number of refused raw rows.

    A group counts toward the limit of every open window that contains its pane. Groups are admitted in order of (first
    event time, key), and only if all these windows have room. The loop is not vectorized, and is needed only near the
    limit.

    Args:
        logic: The window.
        rows: The panes of the epoch's rows.
        existing: All live panes of the shard (`__kh`, `__start`, keys).
        watermark: The watermark (µs) of the previous epoch.
        limit: The maximum number of groups per window in this shard.
    """
    names = logic.key_names
    members: dict[int, set[tuple[object, ...]]] = {}
    first_open = pane_windows.last_closed_window(logic, logic.horizon(watermark)) + logic.hop_us

    def windows_of(pane: int) -> range:
        starts = np.array([pane])
        low = max(int(pane_windows.first_window_of_pane(logic, starts)[0]), first_open)
        return range(low, int(pane_windows.last_window_of_pane(logic, starts)[0]) + 1, logic.hop_us)

    for *key, pane in existing.select(*names, "__start").iter_rows():
        for window in windows_of(pane):
            members.setdefault(window, set()).add(tuple(map(_hashable, key)))
    ordered = rows.with_row_index("__row").sort(["__first", *names], nulls_last=False)
    admitted: list[int] = []
    refused = 0
    for row, *key, pane, n in ordered.select("__row", *names, "__start", "__n").iter_rows():
        group = tuple(map(_hashable, key))
        held = [members.setdefault(w, set()) for w in windows_of(pane)]
        if all(group in m or len(m) < limit for m in held):
            admitted.append(row)
            for m in held:
                m.add(group)
        elif held:
            refused += n
        else:
            admitted.append(row)  # late for all its windows: counted as late, not as refused
    return rows[sorted(admitted)], refused


def _hashable(value: object) -> object:
    return "NaN" if isinstance(value, float) and value != value else value
