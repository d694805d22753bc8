"""Why is there no output yet: what a commit says about its watermark, about who holds it, and about what is open.

newest event ── lateness ──▶ watermark of each source ── minimum ──▶ global ──▶ closes what it has reached
                             holder: the least of those not idle                the next one needs events at or after …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.lateness import NOTHING, Lateness, lateness
from slackwater.engine import fold
from slackwater.errors import StartError, StateError
from slackwater.evolution import compare
from slackwater.evolution.description import step_in
from slackwater.joins.logic import JoinLogic
from slackwater.query import inspect
from slackwater.state.protocol import Manifest, Snapshot, StateStore
from slackwater.watermark import NO_WATERMARK, SourceClock, holder
from slackwater.windows import panes
from slackwater.windows.intervals import Unit
from slackwater.windows.logic import Logic

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
class Why:
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


class _Look:
    """One look at one snapshot."""

    def __init__(self, pipeline: Pipeline, snapshot: Snapshot) -> None:
        self.pipeline, self.snapshot = pipeline, snapshot
        self.manifest: Manifest = snapshot.manifest
        self.join: JoinLogic | None = None
        if pipeline.transform.join is None:
            self.logic: Logic = inspect.logic_of(pipeline, self.manifest)
        else:
            compare.compare(pipeline, self.manifest).check()
            found = step_in(self.manifest)
            assert isinstance(found, JoinLogic)
            self.join = found
        self.clocks: Mapping[str, SourceClock] = fold.clocks(pipeline, self.manifest)

    def answer(self, runner: str | None, now_us: int, key: inspect.Texts) -> Why:
        m, close = self.manifest, self.pipeline.transform.step.idle_close_ms
        clocks = tuple(c for name, clock in self.clocks.items() for c in _clocks(name, clock))
        held = holder(self.clocks)
        sides: tuple[Side, ...] = ()
        if self.join is None:
            kind = self.logic.window.kind
            of_key = self._of_key(key) if key else None
            count, keys, following = self._sessions() if self.logic.is_session else self._panes()
        else:
            if key:
                raise StartError(f"{self.pipeline.name}: --key: rows of a join have no window; leave it out")
            kind, sides = "join", self._sides(self.join)
            of_key, count, keys, following = None, 0, None, ()
        return Why(
            pipeline=self.pipeline.name,
            kind=kind,
            now_us=now_us,
            runner=runner,
            epoch=m.epoch,
            committed_us=m.committed_us,
            is_published=not m.staged or self.snapshot.published >= m.epoch,
            watermark_us=_known(m.watermark_us),
            clocks=clocks,
            holder=None if held is None else _slowest([c for c in clocks if c.source == held]),
            idle_close_us=None if close is None else 1000 * close,
            open_windows=count,
            open_keys=keys,
            next=following,
            key=of_key,
            sides=sides,
            then_us=None if m.then is None else _known(m.then.watermark_us),
            changed_files={
                n: s.offsets["changed"]
                for n, s in m.sources.items()
                if s.offsets and isinstance(s.offsets.get("segments"), list) and "changed" in s.offsets
            },
            lateness=lateness(fold.counters(m).lateness, fold.waits_us(self.pipeline)),
        )

    def _sides(self, join: JoinLogic) -> tuple[Side, ...]:
        spec = self.pipeline.transform.join
        assert spec is not None
        metas = [m for shard in self.manifest.segments for m in shard]
        found = []
        for side, source in zip(join.sides, (spec.left_source, spec.right_source), strict=True):
            mine = [m for m in metas if m.kind == side.name and m.rows]
            over = max((m.dead for m in mine), default=None)
            found.append(Side(side.name, source, sum(m.rows for m in mine), side.keep_us, over, side.outer))
        return tuple(found)

    # -- what is open --------------------------------------------------------------------------------------------

    def _panes(self) -> tuple[int, int | None, tuple[Open, ...]]:
        """The windows, from the counts of groups per pane that are part of the commit."""
        groups = {pane: sum(of_shards) for pane, of_shards in self.manifest.panes.items()}
        totals = panes.window_totals(self.logic, groups, self.manifest.watermark_us)
        found = [(s, n) for s, n in sorted(totals.items()) if n][:NEXT]
        return (
            sum(1 for n in totals.values() if n),
            None,
            tuple(self._open(None, s, None, s + self.logic.duration_us, "close", None, n) for s, n in found),
        )

    def _sessions(self) -> tuple[int, int | None, tuple[Open, ...]]:
        rows = inspect.soonest(self.snapshot, self.logic, NEXT)
        count = rows.height if rows.height < NEXT else sum(self.manifest.windows)
        return count, sum(self.manifest.groups), self._rows(rows.head(NEXT))

    def _of_key(self, given: inspect.Texts) -> OfKey:
        logic, watermark = self.logic, self.manifest.watermark_us
        key = inspect.key_of(logic, given, "--key")
        rows = inspect.rows_of(self.snapshot, logic, key)
        found = inspect.open_windows(logic, rows, watermark)
        floor, before = None, None
        if logic.is_session:
            unit = Unit.of(logic, rows)
            floor = _known(int(unit.floors(logic.reach_us, logic.horizon(watermark))[0])) if unit.keys else None
            before = None if watermark <= NO_WATERMARK else logic.horizon(watermark) - logic.gap_us
        elif watermark > NO_WATERMARK:
            before = panes.last_closed(logic, logic.horizon(watermark)) + logic.hop_us
        return OfKey(inspect.plain(key.row(0, named=True), logic.key_names), self._rows(found, rows), floor, before)

    def _rows(self, found: pl.DataFrame, state: pl.DataFrame | None = None) -> tuple[Open, ...]:
        """Open windows of keys; `state`: all state rows, if they are of one key."""
        count = next((a for a in self.logic.aggs if a.spec.agg == "count" and a.column is None), None)
        counts = [None] * found.height if count is None else count.finish(found).to_list()
        return tuple(
            self._open(
                inspect.plain(r, self.logic.key_names),
                r["__start"],
                self._last(r, state),
                r["__closes"],
                r["__reason"],
                n,
                None,
            )
            for r, n in zip(found.iter_rows(named=True), counts, strict=True)
        )

    def _last(self, row: Mapping[str, Any], state: pl.DataFrame | None) -> int | None:
        if not self.logic.is_session:
            return None
        if row["__reason"] == "close" and not self.logic.dynamic:
            return int(row["__end"]) - self.logic.gap_us
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
