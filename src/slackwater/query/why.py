"""Why is there no output yet: what a commit says about its watermark, about who holds it, and about what is open.

newest event ── lateness ──▶ watermark of each source ── minimum ──▶ global ──▶ closes what it has reached
                             holder: the least of those not idle                the next one needs events at or after …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any, NamedTuple

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.dispatch import unregistered
from slackwater.core.lateness import NOTHING, Lateness, lateness
from slackwater.core.notebook import Shown
from slackwater.core.offsets import FilesRead
from slackwater.engine import fold
from slackwater.errors import StartError, StateError
from slackwater.evolution import compare
from slackwater.evolution.description import step_in
from slackwater.operators.at_once import AtOnce
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoin
from slackwater.operators.panes import Panes
from slackwater.operators.sessions import Sessions
from slackwater.operators.windowed import Windowed
from slackwater.query import inspect
from slackwater.state.commit import Commit, StageState
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.watermark import NO_WATERMARK, SourceClock, holder
from slackwater.windows import panes
from slackwater.windows.intervals import Unit

NEXT = 5  # windows that are listed


@dataclass(frozen=True)
class Clock:
    """A source, or one of its partitions, at the commit; µs. `idle_in_us`: more quiet until it counts as idle, None: it does."""

    source: str
    partition: str | None
    max_event_us: int | None
    lateness_us: int
    watermark_us: int | None
    idle: bool
    quiet_us: int
    idle_in_us: int | None


@dataclass(frozen=True)
class Need:
    """What a window waits for: an event at or after this time on a source, or on these partitions of it."""

    source: str
    partitions: tuple[str, ...]
    event_us: int


@dataclass(frozen=True)
class Open:
    """An open window or session; µs. `closes_us`: the watermark that closes it; `reason`: close, or cap (it is cut there).

    `rows`: of a count(*) in it; `groups`: keys in a window, at most. `silence_us`: more quiet that would close it.
    """

    key: Mapping[str, Any] | None
    start_us: int
    last_us: int | None
    closes_us: int
    reason: str
    rows: int | None
    groups: int | None
    needs: tuple[Need, ...]
    silence_us: int | None


@dataclass(frozen=True)
class OfKey:
    """One key. `floor_us`: rows at or below are late; `late_before_us`: rows before it are late if they join nothing open."""

    key: Mapping[str, Any]
    open: tuple[Open, ...]
    floor_us: int | None
    late_before_us: int | None


@dataclass(frozen=True)
class Side:
    """One side of a join, with the rows that are on disk; µs. `outer`: those that find no partner come out.

    `keep_us`: a row is over once the watermark is past its time plus this; `over_us`: the watermark at which all of them are.
    """

    side: str
    source: str
    rows: int
    keep_us: int
    over_us: int | None
    outer: bool


@dataclass(frozen=True)
class Why(Shown):
    """The answer, as of one commit. `holder` is None while all sources are idle: then any of an `Open`'s needs will do.

    Of a join (`kind`) `sides` says what waits, and no window is open; `then_us`: the watermark of the window over its rows.

    `open_windows`: among many sessions, pieces that the cap may yet separate count one by one.
    """

    pipeline: str
    kind: str
    now_us: int
    runner: str | None
    epoch: int
    committed_us: int
    is_published: bool
    watermark_us: int | None
    clocks: tuple[Clock, ...]
    holder: Clock | None
    idle_close_us: int | None
    open_windows: int
    open_keys: int | None
    next: tuple[Open, ...]
    key: OfKey | None
    sides: tuple[Side, ...] = ()
    then_us: int | None = None
    changed_files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # per source: how many, the last ones
    lateness: Lateness = NOTHING  # of the rows of the first stage
    kept: str | None = None  # where rows come out as they come in and nothing waits: what is in the state


def why(pipeline: Pipeline, store: StateStore, now_us: int, key: inspect.Texts = ()) -> Why:
    """Look into the latest commit. Raises StateError if there is none or it is another window's, StartError for a wrong key."""
    runner = store.runner()
    with store.peek() as snapshot:
        if snapshot is None:
            raise StateError(
                f"{pipeline.name}: there is no state yet"
                + (
                    f"; {runner} runs and has not committed its first epoch"
                    if runner
                    else "; start it with: slackwater run"
                )
            )
        return why_of(pipeline, snapshot, runner, now_us, key)


def why_of(pipeline: Pipeline, snapshot: Snapshot, runner: str | None, now_us: int, key: inspect.Texts = ()) -> Why:
    """The same, of a commit that somebody looks into already."""
    return _Look(pipeline, snapshot).answer(runner, now_us, key)


class _Waits(NamedTuple):
    """What is open, by its kind: how many windows of how many keys, the next ones; of a join what waits on each side.

    `kept`: where nothing ever waits, what there is all the same.
    """

    kind: str
    windows: int = 0
    keys: int | None = None
    next: tuple[Open, ...] = ()
    sides: tuple[Side, ...] = ()
    kept: str | None = None


class _Look:
    """One look at one snapshot."""

    def __init__(self, pipeline: Pipeline, snapshot: Snapshot) -> None:
        self.pipeline, self.snapshot = pipeline, snapshot
        self.commit: Commit = snapshot.commit
        self.state: StageState = snapshot.commit.stages[0]
        self.operator: Operator
        if pipeline.transform.window is not None:
            self.operator = inspect.logic_of(pipeline, self.commit)
        else:
            compare.compare(pipeline, self.commit).check()
            self.operator = step_in(self.commit)
        self.clocks: Mapping[str, SourceClock] = fold.clocks(pipeline, self.state)

    def answer(self, runner: str | None, now_us: int, key: inspect.Texts) -> Why:
        m, close = self.commit, self.pipeline.transform.step.idle_close_ms
        clocks = tuple(c for name, clock in self.clocks.items() for c in _clocks(name, clock))
        held = holder(self.clocks)
        of_key = self._of_key(self.operator, key) if key else None
        waits = self._waits(self.operator)
        return Why(
            pipeline=self.pipeline.name,
            kind=waits.kind,
            now_us=now_us,
            runner=runner,
            epoch=m.epoch,
            committed_us=m.committed_us,
            is_published=not m.staged or self.snapshot.published >= m.epoch,
            watermark_us=_known(self.state.watermark_us),
            clocks=clocks,
            holder=None if held is None else _slowest([c for c in clocks if c.source == held]),
            idle_close_us=None if close is None else 1000 * close,
            open_windows=waits.windows,
            open_keys=waits.keys,
            next=waits.next,
            key=of_key,
            sides=waits.sides,
            then_us=None if not m.stages[1:] else _known(m.stages[-1].watermark_us),
            changed_files={
                n: s.offsets.changed.stored()
                for n, s in m.sources.items()
                if isinstance(s.offsets, FilesRead) and s.offsets.changed is not None
            },
            kept=waits.kept,
            lateness=lateness(fold.counters(m).lateness, fold.waits_us(self.pipeline)),
        )

    # -- what is open --------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _waits(self, operator: Operator) -> _Waits:
        unregistered(operator, "slackwater.query.why")

    @_waits.register
    def _(self, operator: Panes) -> _Waits:
        """The windows, from the counts of groups per pane that are part of the commit."""
        groups = {pane: sum(of_shards) for pane, of_shards in self.state.panes.items()}
        totals = panes.window_totals(operator, groups, self.state.watermark_us)
        found = [(s, n) for s, n in sorted(totals.items()) if n]
        following = (self._open(None, s, None, s + operator.duration_us, "close", None, n) for s, n in found[:NEXT])
        return _Waits(operator.window.kind, len(found), None, tuple(following))

    @_waits.register
    def _(self, operator: Sessions) -> _Waits:
        rows = inspect.soonest(self.snapshot, operator, NEXT)
        count = rows.height if rows.height < NEXT else sum(self.state.windows)
        return _Waits("session", count, sum(self.state.groups), self._sessions(operator, rows.head(NEXT)))

    @_waits.register
    def _(self, operator: IntervalJoin) -> _Waits:
        spec = self.pipeline.transform.join
        assert spec is not None
        metas = list(self.state.metas)
        found = []
        for side, source in zip(operator.sides, (spec.left_source, spec.right_source), strict=True):
            mine = [m for m in metas if m.kind == side.name and m.rows]
            over = max((m.dead for m in mine), default=None)
            found.append(Side(side.name, source, sum(m.rows for m in mine), side.keep_us, over, side.outer))
        return _Waits("join", sides=tuple(found))

    @_waits.register
    def _(self, operator: AtOnce) -> _Waits:
        figures = fold.figures(self.state)
        kept = f"{operator.kept_text(figures)}: nothing waits, rows come out in the epoch that reads them"
        return _Waits(operator.fingerprint["kind"], keys=operator.size(figures)[1] or None, kept=kept)

    # -- one key -------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _of_key(self, operator: Operator, given: inspect.Texts) -> OfKey:
        unregistered(operator, "slackwater.query.why")

    @_of_key.register
    def _(self, operator: Panes, given: inspect.Texts) -> OfKey:
        watermark, key = self.state.watermark_us, inspect.key_of(operator, given, "--key")
        rows = inspect.rows_of(self.snapshot, operator, key)
        found = self._rows(operator, inspect.open_windows(operator, rows, watermark))
        before = None
        if watermark > NO_WATERMARK:
            before = panes.last_closed(operator, operator.horizon(watermark)) + operator.hop_us
        return OfKey(inspect.plain(key.row(0, named=True), operator.key_names), found, None, before)

    @_of_key.register
    def _(self, operator: Sessions, given: inspect.Texts) -> OfKey:
        watermark, key = self.state.watermark_us, inspect.key_of(operator, given, "--key")
        rows = inspect.rows_of(self.snapshot, operator, key)
        found = self._sessions(operator, inspect.open_windows(operator, rows, watermark), rows)
        unit, horizon = Unit.of(operator, rows), operator.horizon(watermark)
        floor = _known(int(unit.floors(operator.reach_us, horizon)[0])) if unit.keys else None
        before = None if watermark <= NO_WATERMARK else horizon - operator.gap_us
        return OfKey(inspect.plain(key.row(0, named=True), operator.key_names), found, floor, before)

    @_of_key.register
    def _(self, operator: IntervalJoin, given: inspect.Texts) -> OfKey:
        raise StartError(f"{self.pipeline.name}: --key: rows of a join have no window; leave it out")

    @_of_key.register
    def _(self, operator: AtOnce, given: inspect.Texts) -> OfKey:
        raise StartError(
            f"{self.pipeline.name}: --key: no row waits, they come out in the epoch that reads them; leave it out"
        )

    def _sessions(self, logic: Sessions, found: pl.DataFrame, state: pl.DataFrame | None = None) -> tuple[Open, ...]:
        """Open sessions; `state`: all state rows, if they are of one key."""
        return self._rows(logic, found, lambda row: self._last(logic, row, state))

    def _rows(
        self,
        logic: Windowed,
        found: pl.DataFrame,
        last: Callable[[Mapping[str, Any]], int | None] | None = None,
    ) -> tuple[Open, ...]:
        """Open windows of keys; `last`: the time of the last event of one, where that is known."""
        count = next((a for a in logic.aggs if a.spec.agg == "count" and a.column is None), None)
        counts = [None] * found.height if count is None else count.finish(found).to_list()
        return tuple(
            self._open(
                inspect.plain(r, logic.key_names),
                r["__start"],
                None if last is None else last(r),
                r["__closes"],
                r["__reason"],
                n,
                None,
            )
            for r, n in zip(found.iter_rows(named=True), counts, strict=True)
        )

    def _last(self, logic: Sessions, row: Mapping[str, Any], state: pl.DataFrame | None) -> int | None:
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
    ) -> Open:
        return Open(key, start, last, closes, reason, rows, groups, self._needs(closes), self._silence(closes))

    # -- what it waits for ---------------------------------------------------------------------------------------

    def _needs(self, closes: int) -> tuple[Need, ...]:
        """On each source that is behind and not idle; while all are idle, on any."""
        awake = {n: c for n, c in self.clocks.items() if not c.idle}
        found = []
        for name, clock in (awake or self.clocks).items():
            parts = tuple(p for p, c in clock.partitions.items() if not c.idle and c.watermark_us < closes)
            if not awake or parts or clock.watermark_us < closes:
                found.append(Need(name, parts, closes + clock.lateness_us))
        return tuple(found)

    def _silence(self, closes: int) -> int | None:
        """How much more quiet on all sources closes it (`idle_close_ms`)."""
        after = self.pipeline.transform.step.idle_close_ms
        heard = [c.watermark_us for c in self.clocks.values() if c.max_event_us is not None]
        if after is None or not heard:
            return None
        quiet = min(c.quiet_us for c in self.clocks.values())
        return max(closes - max(heard), 1000 * after) - quiet


def _known(us: int) -> int | None:
    return None if us <= NO_WATERMARK else us


def _clocks(name: str, clock: SourceClock) -> list[Clock]:
    return [_clock(name, None, clock), *(_clock(name, p, c) for p, c in clock.partitions.items())]


def _clock(name: str, partition: str | None, c: SourceClock) -> Clock:
    left = None if c.idle else max(c.idleness_us - c.quiet_us, 0)
    return Clock(name, partition, c.max_event_us, c.lateness_us, _known(c.watermark_us), c.idle, c.quiet_us, left)


def _slowest(clocks: Sequence[Clock]) -> Clock:
    """Of a source's clocks, itself first: the partition that holds it, or itself."""
    awake = [c for c in clocks[1:] if not c.idle]
    return min(awake, key=lambda c: NO_WATERMARK if c.watermark_us is None else c.watermark_us, default=clocks[0])
