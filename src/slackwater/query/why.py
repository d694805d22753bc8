"""Why is there no output yet: what a commit says about its watermarks, about who holds them, and about what is open.

newest event ── lateness ──▶ watermark of each source ── minimum ──▶ of the stage ──▶ closes what it has reached
                             holder: the least of those not idle     │                the next one needs events at or after …
                                                                     └─▶ minimum ──▶ of the stage that reads it ──▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any, NamedTuple

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.dispatch import unregistered
from slackwater.core.lateness_histogram import lateness_stats
from slackwater.engine import next_commit
from slackwater.errors import StartError, StateError
from slackwater.evolution import compare
from slackwater.evolution.stage_matching import match_stages
from slackwater.operators.base import Operator
from slackwater.operators.immediate import ImmediateOperator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.query import inspect
from slackwater.query.clock_reports import known_time, report_clocks, slowest_clock
from slackwater.query.stage_view import place_of, snapshot_of
from slackwater.query.why_report import (
    ClockReport,
    JoinSideReport,
    KeyReport,
    OpenWindow,
    RequiredEvent,
    StageReport,
    WhyReport,
    start_text,
)
from slackwater.state.commit import StageState
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.watermark import NO_WATERMARK, SourceClock, holder
from slackwater.windows import panes
from slackwater.windows.intervals import IntervalBatch

NEXT = 5  # windows that are listed


def why(
    pipeline: Pipeline,
    store: StateStore,
    now_us: int,
    key: inspect.Texts = (),
    stage: str | None = None,
    file: str | None = None,
) -> WhyReport:
    """Look into the latest commit. `stage`: tell of this one alone; `file`: its config, as a command names it; None: a Pipeline.

    Raises StateError if there is none or it is another window's, StartError for a wrong key, and for a stage that is not there.
    """
    runner = store.runner()
    with store.peek() as snapshot:
        if snapshot is None:
            begun = (
                f"{runner} runs and has not committed its first epoch"
                if runner
                else f"start it with: {start_text(file)}"
            )
            raise StateError(f"{pipeline.name}: there is no state yet; {begun}")
        return replace(why_of(pipeline, snapshot, runner, now_us, key, stage), file=file)


def why_of(
    pipeline: Pipeline,
    snapshot: Snapshot,
    runner: str | None,
    now_us: int,
    key: inspect.Texts = (),
    stage: str | None = None,
) -> WhyReport:
    """The same, of a commit that somebody looks into already."""
    m = snapshot.commit
    inspectors = _looks(pipeline, snapshot)
    if stage is not None and m.stages[1:]:
        number = place_of(m, stage)
        inspectors = [inspector for inspector in inspectors if inspector.number == number]
    keyed = _keyed(pipeline.name, inspectors, key) if key else {}
    read_by = {s.name: tuple(other.name for other in m.stages if s.name in other.clocks) for s in m.stages}
    reports = tuple(replace(i.answer(), key=keyed.get(i.name), read_by=read_by[i.name]) for i in inspectors)
    return WhyReport(
        **vars(reports[-1]),
        pipeline=pipeline.name,
        now_us=now_us,
        runner=runner,
        epoch=m.epoch,
        committed_us=m.committed_us,
        is_published=not m.staged or snapshot.published >= m.epoch,
        changed_files={
            n: s.offsets.changed.to_json()
            for n, s in m.sources.items()
            if s.offsets is not None and s.offsets.changed is not None
        },
        stages=reports if reports[1:] else (),
    )


def _looks(pipeline: Pipeline, snapshot: Snapshot) -> list[_StageInspector]:
    """One look at each stage of a snapshot that the config has, too. Raises StateError if that cannot go on with it."""
    commit = snapshot.commit
    compare.compare_config(pipeline, commit).check()
    names, inspectors = [s.name for s in commit.stages], dict[str, _StageInspector]()
    alone = pipeline.alone
    matched = match_stages(pipeline.former_names, commit).matched
    for (name, stage_pipeline), state in zip(alone.items(), matched, strict=True):
        if state is not None:
            read = {s.name: inspectors[s.name] for s in stage_pipeline.sources if s.of_stage and s.name in inspectors}
            inspectors[name] = _StageInspector(stage_pipeline, snapshot, names.index(state.name), read)
    return list(inspectors.values())


def _keyed(pipeline: str, inspectors: Sequence[_StageInspector], key: inspect.Texts) -> dict[str, KeyReport]:
    """What there is to tell of a key, by stage: of all whose windows have such keys. Raises StartError where none has."""
    reports, problems = dict[str, KeyReport](), list[StartError]()
    for inspector in inspectors:
        try:
            reports[inspector.name] = inspector.of_key(key)
        except StartError as error:
            problems.append(error)
    if reports:
        return reports
    if not problems[1:]:
        raise problems[0]
    listed = "; ".join(f"{inspector.name}: {', '.join(inspector.key_names) or 'none'}" for inspector in inspectors)
    raise StartError(f"{pipeline}: --key: no stage has windows with such keys; keys by stage: {listed}")


class _OpenState(NamedTuple):
    """What is open, by its kind: how many windows of how many keys, the next ones; of a join what waits on each side.

    `kept`: where nothing ever waits, what there is all the same.
    """

    kind: str
    windows: int = 0
    keys: int | None = None
    next: tuple[OpenWindow, ...] = ()
    sides: tuple[JoinSideReport, ...] = ()
    kept: str | None = None


class _StageInspector:
    """One look at one stage of a snapshot. `pipeline` describes it alone; `read`: the stages that it reads, by name."""

    def __init__(
        self, pipeline: Pipeline, snapshot: Snapshot, number: int, read: Mapping[str, _StageInspector]
    ) -> None:
        self.pipeline, self.snapshot, self.number = pipeline, snapshot_of(snapshot, number), number
        self.state: StageState = self.snapshot.commit.stages[0]
        self.name, self.read = self.state.name, read
        self.operator: Operator = inspect.operator_of(pipeline, self.snapshot.commit)
        of_sources = [s.name for s in pipeline.sources if not s.of_stage]
        every = next_commit.input_clocks(pipeline, self.state)
        self.clocks: Mapping[str, SourceClock] = {n: every[n] for n in of_sources}

    @property
    def key_names(self) -> list[str]:
        return self.operator.key_names if isinstance(self.operator, WindowOperator) else []

    def answer(self) -> StageReport:
        close = self.pipeline.transform.step.idle_close_ms
        held, through = self.held()
        waits = self._waits(self.operator)
        counted = self.state.counters.get("lateness", {})
        return StageReport(
            stage=self.name,
            reads=(*self.clocks, *self.read),
            read_by=(),
            kind=waits.kind,
            watermark_us=known_time(self.state.watermark_us),
            clocks=(
                *(c for name, clock in self.clocks.items() for c in report_clocks(name, clock)),
                *(self._clock_of(name) for name in self.read),
            ),
            holder=held,
            through=through,
            held_back_us=max(self._hold(through[0]) - self._delay(through[0]), 0) if through else 0,
            idle_close_us=None if close is None else 1000 * close,
            open_windows=waits.windows,
            open_keys=waits.keys,
            next=waits.next,
            key=None,
            sides=waits.sides,
            kept=waits.kept,
            lateness=lateness_stats(counted, next_commit.final_wait_us(self.pipeline)),
        )

    # -- who holds it --------------------------------------------------------------------------------------------

    def _reached(self, name: str) -> int:
        """The output watermark of a stage that it reads: no result comes before that time any more."""
        return self.read[name].state.promised_us

    def _hold(self, name: str) -> int:
        """How far a stage that it reads holds its results back behind its own watermark."""
        return self.read[name].state.watermark_us - self._reached(name)

    def _delay(self, name: str) -> int:
        return 1000 * self.read[name].pipeline.watermark_delay_ms

    def _clock_of(self, name: str) -> ClockReport:
        """A stage that it reads, as one of its inputs."""
        record = self.state.clocks.get(self.read[name].name)
        newest = None if record is None else record.max_event_us
        return ClockReport(
            name, None, newest, self._hold(name), known_time(self._reached(name)), False, 0, None, of_stage=True
        )

    def held(self) -> tuple[ClockReport | None, tuple[str, ...]]:
        """The source or partition that holds the watermark, and the stages on the way there; None while all are idle."""
        source = holder(self.clocks)
        slowest = min(self.read, key=self._reached, default=None)
        if slowest is not None:
            # sources that are all idle leave the watermark where it is
            current_us = self.state.watermark_us if source is None and self.clocks else None
            least = current_us if source is None else self.clocks[source].watermark_us
            if least is None or self._reached(slowest) < least or (source is None and self._reached(slowest) <= least):
                clock, through = self.read[slowest].held()
                return clock, (slowest, *through)
        if source is None:
            return None, ()
        return slowest_clock(report_clocks(source, self.clocks[source])), ()

    # -- what is open --------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _waits(self, operator: Operator) -> _OpenState:
        unregistered(operator, "slackwater.query.why")

    @_waits.register
    def _(self, operator: PaneOperator) -> _OpenState:
        """The windows, from the counts of groups per pane that are part of the commit."""
        groups = {pane: sum(of_shards) for pane, of_shards in self.state.panes.items()}
        totals = panes.window_totals(operator, groups, self.state.watermark_us)
        windows = [(s, n) for s, n in sorted(totals.items()) if n]
        following = (self._open(None, s, None, s + operator.duration_us, "close", None, n) for s, n in windows[:NEXT])
        return _OpenState(operator.window.kind, len(windows), None, tuple(following))

    @_waits.register
    def _(self, operator: SessionOperator) -> _OpenState:
        rows = inspect.next_sessions(self.snapshot, operator, NEXT)
        count = rows.height if rows.height < NEXT else sum(self.state.windows)
        return _OpenState("session", count, sum(self.state.groups), self._sessions(operator, rows.head(NEXT)))

    @_waits.register
    def _(self, operator: IntervalJoinOperator) -> _OpenState:
        spec = self.pipeline.transform.join
        assert spec is not None
        metas = list(self.state.metas)
        windows = []
        for side, source in zip(operator.sides, (spec.left_source, spec.right_source), strict=True):
            side_metas = [m for m in metas if m.kind == side.name and m.rows]
            over = max((m.dead for m in side_metas), default=None)
            windows.append(
                JoinSideReport(side.name, source, sum(m.rows for m in side_metas), side.keep_us, over, side.outer)
            )
        return _OpenState("join", sides=tuple(windows))

    @_waits.register
    def _(self, operator: ImmediateOperator) -> _OpenState:
        figures = next_commit.stage_counts(self.state)
        kept_text, keys = operator.kept_text(figures), operator.size(figures)[1] or None
        return _OpenState(operator.fingerprint["kind"], keys=keys, kept=kept_text)

    # -- one key -------------------------------------------------------------------------------------------------

    def of_key(self, texts: inspect.Texts) -> KeyReport:
        """What there is to tell of a key. Raises StartError for a wrong one, and where windows have none."""
        report = self._of_key(self.operator, texts)
        # what a stage emits is never late for those that read it
        return report if self.clocks else replace(report, late_before_us=None)

    @singledispatchmethod
    def _of_key(self, operator: Operator, texts: inspect.Texts) -> KeyReport:
        unregistered(operator, "slackwater.query.why")

    @_of_key.register
    def _(self, operator: PaneOperator, texts: inspect.Texts) -> KeyReport:
        watermark, key = self.state.watermark_us, inspect.key_of(operator, texts, "--key")
        rows = inspect.rows_of(self.snapshot, operator, key)
        windows = self._rows(operator, inspect.open_windows(operator, rows, watermark))
        before = None
        if watermark > NO_WATERMARK:
            before = panes.last_closed(operator, operator.horizon(watermark)) + operator.hop_us
        return KeyReport(inspect.plain_row(key.row(0, named=True), operator.key_names), windows, None, before)

    @_of_key.register
    def _(self, operator: SessionOperator, texts: inspect.Texts) -> KeyReport:
        watermark, key = self.state.watermark_us, inspect.key_of(operator, texts, "--key")
        rows = inspect.rows_of(self.snapshot, operator, key)
        windows = self._sessions(operator, inspect.open_windows(operator, rows, watermark), rows)
        unit, horizon = IntervalBatch.from_frame(operator, rows), operator.horizon(watermark)
        floor = known_time(int(unit.floors(operator.reach_us, horizon)[0])) if unit.keys else None
        before = None if watermark <= NO_WATERMARK else horizon - operator.gap_us
        return KeyReport(inspect.plain_row(key.row(0, named=True), operator.key_names), windows, floor, before)

    @_of_key.register
    def _(self, operator: IntervalJoinOperator, texts: inspect.Texts) -> KeyReport:
        raise StartError(f"{self.pipeline.name}: --key: rows of a join have no window; leave it out")

    @_of_key.register
    def _(self, operator: ImmediateOperator, texts: inspect.Texts) -> KeyReport:
        raise StartError(
            f"{self.pipeline.name}: --key: no row waits, they come out in the epoch that reads them; leave it out"
        )

    def _sessions(
        self, logic: SessionOperator, sessions: pl.DataFrame, state: pl.DataFrame | None = None
    ) -> tuple[OpenWindow, ...]:
        """Open sessions; `state`: all state rows, if they are of one key."""
        return self._rows(logic, sessions, lambda row: self._last(logic, row, state))

    def _rows(
        self, logic: WindowOperator, rows: pl.DataFrame, last: Callable[[Mapping[str, Any]], int | None] | None = None
    ) -> tuple[OpenWindow, ...]:
        """Open windows of keys; `last`: the time of the last event of one, where that is known."""
        count = next((a for a in logic.aggs if a.spec.agg == "count" and a.column is None), None)
        counts = [None] * rows.height if count is None else count.finish(rows).to_list()
        windows = []
        for row, n in zip(rows.iter_rows(named=True), counts, strict=True):
            key, last_us = inspect.plain_row(row, logic.key_names), None if last is None else last(row)
            windows.append(self._open(key, row["__start"], last_us, row["__closes"], row["__reason"], n, None))
        return tuple(windows)

    def _last(self, logic: SessionOperator, row: Mapping[str, Any], state: pl.DataFrame | None) -> int | None:
        if row["__reason"] == "close" and not logic.dynamic:
            return int(row["__end"]) - logic.gap_us
        if state is None:
            return None
        inside = state.filter(pl.col("__start").is_between(row["__start"], row["__end"], closed="left"))
        last = inside["__last"].max()
        return last if isinstance(last, int) else None

    def _open(
        self,
        key: Mapping[str, Any] | None,
        start: int,
        last: int | None,
        closes: int,
        reason: str,
        rows: int | None,
        groups: int | None,
    ) -> OpenWindow:
        return OpenWindow(key, start, last, closes, reason, rows, groups, self.needs(closes), self.silence(closes))

    # -- what it waits for ---------------------------------------------------------------------------------------

    def needs(self, closes: int) -> tuple[RequiredEvent, ...]:
        """On each source that is behind, through whatever stages; where all that a stage reads are idle, on any of these."""
        events = list(self._own_needs(closes))
        for name in self.read:
            if self._reached(name) < closes:
                events += self.read[name].needs(closes + self._delay(name))
        latest: dict[tuple[str, int | None], RequiredEvent] = {}
        for need in events:
            other = latest.setdefault((need.source, need.choice), need)
            # what is asked for later asks for all that is asked for earlier
            parts = tuple(dict.fromkeys((*other.partitions, *need.partitions)))
            latest[need.source, need.choice] = replace(max(other, need, key=lambda n: n.event_us), partitions=parts)
        return tuple(latest.values())

    def _own_needs(self, closes: int) -> list[RequiredEvent]:
        awake = {n: c for n, c in self.clocks.items() if not c.idle}
        choice = None if awake else self.number
        events = []
        for name, clock in (awake or self.clocks).items():
            parts = tuple(p for p, c in clock.partitions.items() if not c.idle and c.watermark_us < closes)
            if not awake or parts or clock.watermark_us < closes:
                events.append(RequiredEvent(name, parts, closes + clock.lateness_us, choice))
        return events

    def silence(self, closes: int) -> int | None:
        """How much more quiet on all sources closes it (`idle_close_ms`); None where none does."""
        silences = [self.read[n].silence(closes + self._delay(n)) for n in self.read if self._reached(n) < closes]
        if self.clocks:
            silences.append(self._own_silence(closes))
        finite = [us for us in silences if us is not None]
        return max(finite) if finite and len(finite) == len(silences) else None

    def _own_silence(self, closes: int) -> int | None:
        after = self.pipeline.transform.step.idle_close_ms
        heard = [c.watermark_us for c in self.clocks.values() if c.max_event_us is not None]
        if after is None or not heard:
            return None
        quiet = min(c.quiet_us for c in self.clocks.values())
        return max(closes - max(heard), 1000 * after) - quiet
