"""Inspect one stage of a snapshot: what holds back its watermark, which windows are open, and what would close them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.lateness_histogram import compute_lateness_stats
from slackwater.engine import next_commit
from slackwater.errors import StartError, Topic, raise_unregistered
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.query import state_inspection
from slackwater.query.state_inspection import to_plain_key
from slackwater.query.state_locator import narrow_snapshot
from slackwater.query.why_report import (
    JoinSideReport,
    KeyReport,
    OpenWindow,
    RequiredEvent,
    StageReport,
    WatermarkReport,
    find_slowest_watermark,
    report_watermarks,
    watermark_or_none,
)
from slackwater.state.commit import StageState
from slackwater.state.protocol import Snapshot
from slackwater.watermark import NO_WATERMARK, SourceClock, watermark_holder
from slackwater.windows import pane_windows
from slackwater.windows.compiled_session_window import IntervalBatch

NEXT = 5  # the number of windows listed in a report


class StageInspector:
    """Inspects one stage of a snapshot.

    Args:
        pipeline: The pipeline, reduced to this stage.
        snapshot: The snapshot, with all stages.
        number: The index of the stage in the commit.
        read: The inspectors of the input stages, by name.
    """

    def __init__(self, pipeline: Pipeline, snapshot: Snapshot, number: int, read: Mapping[str, StageInspector]) -> None:
        self.pipeline, self.snapshot, self.number = pipeline, narrow_snapshot(snapshot, number), number
        self.state: StageState = self.snapshot.commit.stages[0]
        self.name, self.read = self.state.name, read
        self.operator: Operator = state_inspection.rebuild_operator(pipeline, self.snapshot.commit)
        source_names = [s.name for s in pipeline.sources if not s.is_stage_output]
        input_clocks = next_commit.input_clocks(pipeline, self.state)
        self.clocks: Mapping[str, SourceClock] = {n: input_clocks[n] for n in source_names}

    @property
    def key_names(self) -> list[str]:
        return self.operator.key_names if isinstance(self.operator, WindowOperator | KeyedOperator) else []

    def report(self) -> StageReport:
        """Return the report on this stage as of the commit, without `read_by` and `key`."""
        idle_close_ms = self.pipeline.transform.step.idle_close_ms
        holder_clock, through = self.find_watermark_holder()
        histogram = self.state.counters.get("lateness", {})
        report = StageReport(
            stage=self.name,
            reads=(*self.clocks, *self.read),
            read_by=(),
            kind=self.operator.fingerprint["kind"],
            watermark_us=watermark_or_none(self.state.watermark_us),
            clocks=(
                *(c for name, clock in self.clocks.items() for c in report_watermarks(name, clock)),
                *(self._stage_clock(name) for name in self.read),
            ),
            holder=holder_clock,
            through=through,
            held_back_us=max(self._hold_us(through[0]) - self._delay_us(through[0]), 0) if through else 0,
            idle_close_us=None if idle_close_ms is None else 1000 * idle_close_ms,
            open_windows=0,
            open_keys=None,
            next=(),
            key=None,
            lateness=compute_lateness_stats(histogram, next_commit.final_wait_us(self.pipeline)),
        )
        return self._with_open_state(self.operator, report)

    # -- the holder of the watermark -----------------------------------------------------------------------------

    def _output_watermark(self, name: str) -> int:
        """Return the output watermark (µs) of an input stage."""
        return self.read[name].state.promised_us

    def _hold_us(self, name: str) -> int:
        """Return how far the output watermark of an input stage is behind the watermark of the stage (µs)."""
        return self.read[name].state.watermark_us - self._output_watermark(name)

    def _delay_us(self, name: str) -> int:
        return 1000 * self.read[name].pipeline.watermark_delay_ms

    def _stage_clock(self, name: str) -> WatermarkReport:
        """Return the clock of an input stage."""
        record = self.state.clocks.get(self.read[name].name)
        newest = None if record is None else record.max_event_us
        watermark = watermark_or_none(self._output_watermark(name))
        return WatermarkReport(name, None, newest, self._hold_us(name), watermark, False, 0, None, of_stage=True)

    def find_watermark_holder(self) -> tuple[WatermarkReport | None, tuple[str, ...]]:
        """Return the clock that holds back the watermark, and the stages on the way to it.

        The clock is None if all sources are idle. The stages are the input stages between this stage and the source of
        the clock, nearest first.
        """
        source = watermark_holder(self.clocks)
        slowest = min(self.read, key=self._output_watermark, default=None)
        if slowest is not None:
            # if all sources are idle, the watermark does not move
            current_us = self.state.watermark_us if source is None and self.clocks else None
            least = current_us if source is None else self.clocks[source].watermark_us
            if (
                least is None
                or self._output_watermark(slowest) < least
                or (source is None and self._output_watermark(slowest) <= least)
            ):
                clock, through = self.read[slowest].find_watermark_holder()
                return clock, (slowest, *through)
        if source is None:
            return None, ()
        return find_slowest_watermark(report_watermarks(source, self.clocks[source])), ()

    # -- open windows --------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _with_open_state(self, operator: Operator, report: StageReport) -> StageReport:
        """Add the open windows, buffered rows or rows of state of this stage to the report."""
        raise_unregistered(operator, "slackwater.query.stage_inspector")

    @_with_open_state.register
    def _(self, operator: PaneWindowOperator, report: StageReport) -> StageReport:
        """Count the open windows, based on the group counts per pane in the commit."""
        groups = {pane: sum(of_shards) for pane, of_shards in self.state.panes.items()}
        totals = pane_windows.count_groups_by_window(operator, groups, self.state.watermark_us)
        windows = [(s, n) for s, n in sorted(totals.items()) if n]
        next_windows = (
            self._open_window(None, s, None, s + operator.duration_us, "close", None, n) for s, n in windows[:NEXT]
        )
        return replace(report, open_windows=len(windows), next=tuple(next_windows))

    @_with_open_state.register
    def _(self, operator: SessionWindowOperator, report: StageReport) -> StageReport:
        rows = state_inspection.find_next_sessions(self.snapshot, operator, NEXT)
        count = rows.height if rows.height < NEXT else sum(self.state.windows)
        next_windows = self._sessions(operator, rows.head(NEXT))
        return replace(report, open_windows=count, open_keys=sum(self.state.groups), next=next_windows)

    @_with_open_state.register
    def _(self, operator: IntervalJoinOperator, report: StageReport) -> StageReport:
        spec = self.pipeline.transform.join
        assert spec is not None
        sides = []
        for side, source in zip(operator.sides, (spec.left_source, spec.right_source), strict=True):
            metas = [m for m in self.state.metas if m.kind == side.name and m.rows]
            over, rows = max((m.dead for m in metas), default=None), sum(m.rows for m in metas)
            sides.append(JoinSideReport(side.name, source, rows, side.keep_us, over, side.outer))
        return replace(report, sides=tuple(sides))

    @_with_open_state.register
    def _(self, operator: KeyedOperator, report: StageReport) -> StageReport:
        counts = next_commit.read_stage_counts(self.state)
        rows = state_inspection.find_next_sessions(self.snapshot, operator, NEXT).head(NEXT)
        next_timers, contents = self._timers(operator, rows), operator.state_text(counts)
        return replace(report, open_keys=sum(counts.groups), next=next_timers, kept=contents)

    @_with_open_state.register
    def _(self, operator: StatelessOperator, report: StageReport) -> StageReport:
        counts = next_commit.read_stage_counts(self.state)
        return replace(
            report, open_keys=operator.count_open_groups(counts)[1] or None, kept=operator.state_text(counts)
        )

    # -- one key -------------------------------------------------------------------------------------------------

    def key_report(self, texts: state_inspection.Texts) -> KeyReport:
        """Return the report on a key in the state. Raises StartError if the key is invalid or the stage has no keys."""
        operator = self.operator
        if isinstance(operator, StatelessOperator):
            raise StartError(
                f"{self.pipeline.name}: --key: the stage has no keys, because it only runs SQL and keeps no "
                "state; omit --key",
                Topic.NO_WINDOWS,
            )
        if isinstance(operator, IntervalJoinOperator):
            raise StartError(
                f"{self.pipeline.name}: --key: a join has no windows to look up by key; omit --key", Topic.VALUE
            )
        assert isinstance(operator, WindowOperator | KeyedOperator)
        key = state_inspection.parse_key(operator, texts, "--key")
        rows = state_inspection.read_key_rows(self.snapshot, operator, key)
        windows = state_inspection.list_open_windows(operator, rows, self.state.watermark_us)
        plain_key = to_plain_key(key.row(0, named=True), operator.key_names)
        report = self._key_report(operator, plain_key, rows, windows)
        # the results of a stage are never late in a downstream stage
        return report if self.clocks else replace(report, late_before_us=None)

    @singledispatchmethod
    def _key_report(
        self, operator: Operator, key: dict[str, Any], rows: pl.DataFrame, windows: pl.DataFrame
    ) -> KeyReport:
        """Return the report on a key.

        Args:
            operator: The operator of the stage.
            key: The key columns.
            rows: The state rows of the key.
            windows: The open windows of the key.
        """
        raise_unregistered(operator, "slackwater.query.stage_inspector")

    @_key_report.register
    def _(
        self, operator: PaneWindowOperator, key: dict[str, Any], rows: pl.DataFrame, windows: pl.DataFrame
    ) -> KeyReport:
        before, watermark = None, self.state.watermark_us
        if watermark > NO_WATERMARK:
            before = pane_windows.last_closed_window(operator, operator.horizon(watermark)) + operator.hop_us
        return KeyReport(key, self._windows_of(operator, windows), None, before)

    @_key_report.register
    def _(
        self, operator: SessionWindowOperator, key: dict[str, Any], rows: pl.DataFrame, windows: pl.DataFrame
    ) -> KeyReport:
        unit, horizon = IntervalBatch.from_frame(operator, rows), operator.horizon(self.state.watermark_us)
        floor = watermark_or_none(int(unit.floors(operator.reach_us, horizon)[0])) if unit.keys else None
        before = None if self.state.watermark_us <= NO_WATERMARK else horizon - operator.gap_us
        return KeyReport(key, self._sessions(operator, windows, rows), floor, before)

    @_key_report.register
    def _(self, operator: KeyedOperator, key: dict[str, Any], rows: pl.DataFrame, windows: pl.DataFrame) -> KeyReport:
        refuses_late_rows = "late_data" in self.pipeline.transform.step.KEYS
        before = watermark_or_none(self.state.watermark_us) if refuses_late_rows else None
        return KeyReport(key, self._timers(operator, windows), None, before)

    def _sessions(
        self, logic: SessionWindowOperator, sessions: pl.DataFrame, state: pl.DataFrame | None = None
    ) -> tuple[OpenWindow, ...]:
        """Return reports on open sessions. `state`: all state rows of the key, if all sessions have the same key."""
        return self._windows_of(logic, sessions, lambda row: self._last_event_us(logic, row, state))

    def _timers(self, operator: KeyedOperator, rows: pl.DataFrame) -> tuple[OpenWindow, ...]:
        """Return reports on the rows of state that wait for a timer."""
        windows = []
        for row in rows.iter_rows(named=True):
            key, times = to_plain_key(row, operator.key_names), (row["__start"], row["__last"], row["__closes"])
            windows.append(self._open_window(key, *times, row["__reason"], None, None))
        return tuple(windows)

    def _windows_of(
        self, logic: WindowOperator, rows: pl.DataFrame, last: Callable[[Mapping[str, Any]], int | None] | None = None
    ) -> tuple[OpenWindow, ...]:
        """Return reports on open windows. `last`: a function that returns a window's last event time (µs), if known."""
        count = next((a for a in logic.aggs if a.spec.agg == "count" and not a.columns), None)
        counts = [None] * rows.height if count is None else count.finish(rows).to_list()
        windows = []
        for row, n in zip(rows.iter_rows(named=True), counts, strict=True):
            key, last_us = to_plain_key(row, logic.key_names), None if last is None else last(row)
            windows.append(self._open_window(key, row["__start"], last_us, row["__closes"], row["__reason"], n, None))
        return tuple(windows)

    def _last_event_us(
        self, logic: SessionWindowOperator, row: Mapping[str, Any], state: pl.DataFrame | None
    ) -> int | None:
        """Return the last event time of a session (µs); None if it is unknown because `state` is missing."""
        if row["__reason"] == "close" and not logic.dynamic:
            return int(row["__end"]) - logic.gap_us
        if state is None:
            return None
        inside = state.filter(pl.col("__start").is_between(row["__start"], row["__end"], closed="left"))
        last = inside["__last"].max()
        return last if isinstance(last, int) else None

    def _open_window(
        self,
        key: Mapping[str, Any] | None,
        start: int,
        last: int | None,
        closes: int,
        reason: str,
        rows: int | None,
        groups: int | None,
    ) -> OpenWindow:
        needs, silence_us = self.find_required_events(closes), self.compute_closing_silence(closes)
        return OpenWindow(key, start, last, closes, reason, rows, groups, needs, silence_us)

    # -- what a window waits for ---------------------------------------------------------------------------------------

    def find_required_events(self, closes: int) -> tuple[RequiredEvent, ...]:
        """Return the events that would move the watermark to `closes` (µs).

        Each source whose watermark is lower must return an event, including the sources of input stages. If all sources
        of a stage are idle, an event from any of them is enough.
        """
        events = list(self._required_of_sources(closes))
        for name in self.read:
            if self._output_watermark(name) < closes:
                events += self.read[name].find_required_events(closes + self._delay_us(name))
        latest: dict[tuple[str, int | None], RequiredEvent] = {}
        for need in events:
            other = latest.setdefault((need.source, need.choice), need)
            # a later event also meets an earlier requirement
            parts = tuple(dict.fromkeys((*other.partitions, *need.partitions)))
            latest[need.source, need.choice] = replace(max(other, need, key=lambda n: n.event_us), partitions=parts)
        return tuple(latest.values())

    def _required_of_sources(self, closes: int) -> list[RequiredEvent]:
        awake = {n: c for n, c in self.clocks.items() if not c.idle}
        choice = None if awake else self.number
        events = []
        for name, clock in (awake or self.clocks).items():
            parts = tuple(p for p, c in clock.partitions.items() if not c.idle and c.watermark_us < closes)
            if not awake or parts or clock.watermark_us < closes:
                events.append(RequiredEvent(name, parts, closes + clock.lateness_us, choice))
        return events

    def compute_closing_silence(self, closes: int) -> int | None:
        """Return how much longer all sources must be silent until `idle_close_ms` moves the watermark to `closes` (µs).

        None means that silence never moves the watermark that far.
        """
        behind = [n for n in self.read if self._output_watermark(n) < closes]
        silences = [self.read[n].compute_closing_silence(closes + self._delay_us(n)) for n in behind]
        if self.clocks:
            silences.append(self._closing_silence_of_sources(closes))
        finite = [us for us in silences if us is not None]
        return max(finite) if finite and len(finite) == len(silences) else None

    def _closing_silence_of_sources(self, closes: int) -> int | None:
        idle_close_ms = self.pipeline.transform.step.idle_close_ms
        watermarks = [c.watermark_us for c in self.clocks.values() if c.max_event_us is not None]
        if idle_close_ms is None or not watermarks:
            return None
        quiet = min(c.quiet_us for c in self.clocks.values())
        return max(closes - max(watermarks), 1000 * idle_close_ms) - quiet
