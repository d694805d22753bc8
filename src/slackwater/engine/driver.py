"""The driver: the only loop. It turns batches into epochs, and epochs into commits.

    batch ─▶ ingest (shards) ─▶ watermark ─▶ emit (shards) ─▶ COMMIT ─▶ publish ─▶ note
             late? merge, cut   per source,  what is due,     one       from the
             stage state        minimum      staged           record    staged files

A crash before COMMIT forgets the epoch; after it, `start` rolls it forward from the record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.capacity import capacity_of
from slackwater.engine import accounting, bounds, fold, outbox
from slackwater.engine.far_dates import FarDates
from slackwater.engine.kill_points import Faults, NoFaults
from slackwater.engine.observer import Waiting
from slackwater.engine.protocol import Engine, IngestOutcome
from slackwater.engine.stage import Following, Stage
from slackwater.engine.status import Status
from slackwater.errors import PublishError, StartError
from slackwater.evolution import compare, migrate, restore
from slackwater.operators.base import Step
from slackwater.operators.dead_letters import holding
from slackwater.operators.task import EmitReport, ShardTask
from slackwater.operators.unstaged import Unstaged
from slackwater.sources.base import Batch, Replayed
from slackwater.state.protocol import Joining, Manifest, Publish, StateStore
from slackwater.targets.base import Target
from slackwater.watermark import SourceClock, global_watermark, listen, run_on
from slackwater.windows.logic import Logic

log = logging.getLogger("slackwater")

GARBAGE_EVERY = 16  # epochs
PHASES = ("read", "ingest", "emit", "commit", "write", "note")  # of an epoch that are told of


@dataclass
class Hooks:
    """What the driver tells the outside, and what it asks of it. `clock_us`: wall clock, microseconds UTC."""

    clock_us: Callable[[], int]
    on_status: Callable[[Status], None] = lambda status: None
    on_notice: Callable[[str, str], None] = lambda level, line: None
    on_waiting: Callable[[Waiting | None], None] = lambda epoch: None
    faults: Faults = field(default_factory=NoFaults)


class Driver:
    """One pipeline on one engine. `start` first, then `run_batch`, `tick` and `flush` from one thread at a time."""

    def __init__(
        self,
        pipeline: Pipeline,
        logic: Step,
        store: StateStore,
        target: Target,
        engine: Engine,
        hooks: Hooks,
        letters: Target | None = None,
        then: Following | None = None,
    ) -> None:
        # configuration
        self.pipeline, self.logic, self.store, self.target = pipeline, logic, store, target
        self.engine, self.hooks, self.letters = engine, hooks, letters
        both = capacity_of(store) & capacity_of(target)
        of_first = both if then is None else capacity_of(store)
        self.stage = Stage(pipeline, logic, store, engine, hooks.faults.in_worker, capacity=of_first)
        self.then = None if then is None else replace(then, stage=replace(then.stage, capacity=both))
        # not checkpointed: quiet times of ticks that were not worth a commit
        self._clocks: dict[str, SourceClock] = {}
        self._uncommitted_us = 0
        self._far_dates = FarDates(pipeline)
        self._behind: dict[str, float] = {}  # seconds per phase of the latest epoch that its commit cannot tell of
        # checkpointed
        self.state: Manifest

    @property
    def last(self) -> Step:
        """The logic whose results the target gets."""
        return self.logic if self.then is None else self.then.stage.logic

    @property
    def windows(self) -> Logic:
        """The logic, of windows."""
        assert isinstance(self.logic, Logic)
        return self.logic

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, latest: Manifest | None, shards: int, schemas: Mapping[str, str], state_id: str = "") -> None:
        """Roll an unpublished epoch forward, then bring the state to this config's sources and shards.

        `latest` is what the store's `open` gave; `schemas`: per source, as Spark writes schemas in JSON; `state_id` names a
        state that begins here.
        """
        logics = [s.logic for s in self._stages]
        found = None
        if latest is not None:
            fold.counters(latest)  # told before anything is published
            found = compare.compare(self.pipeline, latest, steps=logics, shards=shards)
            found.check()
            for change in found.changes:
                self.hooks.on_notice(change.level, change.line)
            self._publish_if_needed(latest)
        self.state = latest or restore.first_manifest(logics, shards, self.hooks.clock_us(), state_id)
        migrates = found is not None and found.migrates
        self._remember(migrate.onward if migrates else migrate.limited)
        for stage in self._stages:
            self.store.prepare(stage.logic, stage.number)
        if found is not None and migrates:
            self._carry_out(found, shards)
        self.state = self._described(self.state)
        self.state = restore.with_sources(self.state, [s.name for s in self.pipeline.sources], schemas)
        if self.then is not None and self.state.then is not None:
            then = restore.with_sources(self.state.then, [self.then.source], {})
            self.state = self.state.model_copy(update={"then": then})
        self._load_clocks()

    @property
    def _stages(self) -> list[Stage]:
        return [self.stage, *([self.then.stage] if self.then else [])]

    def _carry_out(self, found: compare.Comparison, shards: int) -> None:
        """The state as this config goes on with it, as an epoch of its own."""
        clock, epoch = self.hooks.clock_us(), self.state.epoch
        timer = _Timer(self.hooks.faults, epoch + 1)
        with timer.phase("read"):
            stages = zip(self._stages, self.state.stages, strict=True)
            carried = [
                migrate.read(s.logic, self.store, m.model_copy(update={"epoch": epoch}), s.number) for s, m in stages
            ]
        with timer.phase("stage"):
            again = [c.manifest_of(self.store, shards, clock) for c in carried]
        with timer.phase("commit"):
            self._commit(self._described(again[0].model_copy(update={"then": again[1]}) if again[1:] else again[0]))

    def _described(self, state: Manifest) -> Manifest:
        return restore.with_descriptions(state, [(s.pipeline, s.logic) for s in self._stages])

    def _remember(self, made: Callable[[Step, Manifest], Step]) -> None:
        """Logics that know what former configs have forgotten; `made` from theirs and the state's."""
        first, *more = self.state.stages
        self.logic = made(self.logic, first)
        self.stage = replace(self.stage, logic=self.logic)
        if self.then is not None and more:
            self.then = replace(self.then, stage=replace(self.then.stage, logic=made(self.then.stage.logic, more[0])))

    def recovered(self) -> Status:
        """What the outside is told at a restart: the state as committed, nothing read or emitted yet."""
        found = fold.status(self.pipeline, self.state, self._clocks, None, {}, 0.0, self.hooks.clock_us(), None)
        return replace(found, emitted=0)

    def _load_clocks(self) -> None:
        self._clocks = self._committed_clocks()
        self._uncommitted_us = 0

    def _committed_clocks(self) -> dict[str, SourceClock]:
        return fold.clocks(self.pipeline, self.state)

    def anchor(self, offsets: Mapping[str, Mapping[str, Any]], files_changed: int = 0) -> None:
        """Commit where sources begin that were never read: what "latest" means is decided once.

        Or what they say about files that changed after they were read, and how many these are.
        """
        sources = {
            name: record.model_copy(update={"offsets": offsets[name]}) if name in offsets else record
            for name, record in self.state.sources.items()
        }
        update = {"epoch": self.state.epoch + 1, "sources": sources, "output": (), "letters": (), "emitted": 0}
        if files_changed:
            before = self.state.counters
            update["counters"] = {**before, "files_changed": before.get("files_changed", 0) + files_changed}
        self._settle()
        self._commit(self.state.model_copy(update={**update, "committed_us": self.hooks.clock_us()}))
        self._load_clocks()

    def _settle(self) -> None:
        """Publish the latest commit if that failed before: an epoch must never be overtaken by the next."""
        if self.state.staged and self.store.published() < self.state.epoch:
            self._publish(self.state)

    def _destination(self) -> dict[str, Any]:
        """Where output goes and how it looks: a committed epoch can only be published there."""
        target, letters = self.pipeline.target, self.pipeline.dead_letter
        return {
            "target": compare.place(target),
            "letters": compare.place(letters),
            "columns": [f.name for f in self.last.output],
            "upserts": self.target.upserts,
        }

    def _publish_if_needed(self, manifest: Manifest) -> None:
        if manifest.staged and self.store.published() < manifest.epoch:
            now = self._destination()
            former = {"upserts": now["upserts"], **manifest.destination}  # earlier records do not tell
            if former != now:
                changed = ", ".join(k for k in now if former.get(k) != now[k])
                raise StartError(
                    f"{self.pipeline.name}: epoch {manifest.epoch} was committed and not yet published, and the config has "
                    f"changed since ({changed}); start once with the former config, then change it"
                )
            self.hooks.on_notice(
                "info", f"publishing epoch {manifest.epoch}, which was committed and not yet published"
            )
            self._publish(manifest)

    # -- epochs --------------------------------------------------------------------------------------------------

    def run_batch(self, batch: Batch, quiet_us: int) -> None:
        """One data epoch: everything in `batch` becomes part of the state, or nothing. Skips a batch already committed."""
        if batch.id is not None and self.state.batch is not None and _covers(self.state, batch):
            return
        self._settle()
        began, epoch, clock = time.monotonic(), self.state.epoch + 1, self.hooks.clock_us()
        timer = _Timer(self.hooks.faults, epoch)
        with timer.phase("read"):
            tasks = self.stage.tasks(self.state, self._clocks)
        with timer.phase("ingest"):
            overtaken = {n: c.overtaken_partitions(self.state.watermark_us) for n, c in self._clocks.items()}
            outcome = self.stage.read(self.state, batch, tasks, clock, {n: p for n, p in overtaken.items() if p})
        accounting.tell(self.pipeline, self.state, epoch, batch, outcome)
        self._far_dates.judged(self.state, self._clocks, epoch, outcome)
        clocks, watermark = self._clocks, self.state.watermark_us
        if batch.replayed is None:
            outcome = fold.with_spans(outcome, clocks)
            clocks = {n: listen(c, fold.heard(outcome.sources.get(n)), quiet_us) for n, c in self._clocks.items()}
            watermark = self._silent(global_watermark(watermark, list(clocks.values())), clocks)
            self._far_dates.followed(clocks, epoch, outcome)
        ingested = fold.ingested(self.state, epoch, batch, outcome, clocks, watermark)
        if batch.replayed is not None:
            ingested = fold.with_replayed(ingested, batch.replayed)
        bounds.check(self.logic, self.engine, self.state, ingested, tasks)
        self._finish(ingested, outcome, timer, began, clock)

    def tick(self, quiet_us: int) -> bool:
        """An idle tick: all sources were asked for `quiet_us` and had nothing. Returns whether it committed.

        A watermark that only runs on with the silence (`idle_close_ms`) is committed when something becomes due, else once
        per checkpoint interval; rows are judged by committed watermarks alone, so a step that was not committed never was.
        """
        self._settle()
        self._clocks = {name: listen(c, fold.NOTHING, quiet_us) for name, c in self._clocks.items()}
        self._uncommitted_us += quiet_us
        since, committed = self.state.watermark_us, self._committed_clocks()
        settled = global_watermark(since, list(self._clocks.values()))
        watermark = self._silent(settled, self._clocks)
        flags = any(c.flags != committed[name].flags for name, c in self._clocks.items())
        changed = any(c.undecided_us != committed[name].undecided_us for name, c in self._clocks.items())
        interval = 1000 * (self.pipeline.state_store.checkpoint_interval_ms if self.pipeline.state_store else 60_000)
        telling = self._waits_to_tell()
        worth = settled != since or flags or telling
        worth = worth or ((changed or watermark != since) and self._uncommitted_us >= interval)
        if not worth and not (watermark != since and self._closes(watermark)):
            return False
        self._advance(watermark)
        return True

    def _silent(self, watermark: int, clocks: Mapping[str, SourceClock]) -> int:
        """The watermark, run on with the silence of all sources where `idle_close_ms` is set."""
        close = self.pipeline.transform.step.idle_close_ms
        return run_on(watermark, list(clocks.values()), None if close is None else 1000 * close)

    def _waits_to_tell(self) -> bool:
        """emit = "updates": whether windows were changed that may be emitted by now."""
        clock, then = self.hooks.clock_us(), self.state.then
        if self.then is not None and then is not None:
            return then.waiting and self.then.stage.may_tell(then, clock)
        return self.state.waiting and self.stage.may_tell(self.state, clock)

    def _closes(self, watermark: int) -> bool:
        """Whether anything becomes due on the way to a watermark."""
        then = self.state.then
        if self.then is not None and then is not None and self.then.stage.closes(then, watermark - self.then.hold_us):
            return True
        return self.stage.closes(self.state, watermark)

    def flush(self) -> None:
        """Move the watermark just past the latest close of the open windows, and commit that."""
        self._settle()
        close = max((m.close for shard in self.state.segments for m in shard), default=self.state.watermark_us)
        open_ = close > self.state.watermark_us or self.state.waiting
        if then := self.state.then:
            open_ = open_ or then.waiting or any(m.close > then.watermark_us for shard in then.segments for m in shard)
        if open_:
            self._advance(max(close, self.state.watermark_us), flush=True)

    def _advance(self, watermark: int, flush: bool = False) -> None:
        """An epoch without rows."""
        began, clock = time.monotonic(), self.hooks.clock_us()
        timer = _Timer(self.hooks.faults, self.state.epoch + 1)
        nothing = fold.ingested(
            self.state,
            self.state.epoch + 1,
            Batch(None, {}, None),
            IngestOutcome((), {}),
            self._clocks,
            watermark,
        )
        self._finish(nothing, None, timer, began, clock, flush)

    def _finish(
        self,
        ingested: Manifest,
        outcome: IngestOutcome | None,
        timer: _Timer,
        began: float,
        clock: int,
        flush: bool = False,
    ) -> None:
        """Emit what is due, commit, publish."""
        telling = self.logic.updates and (flush or self.stage.may_tell(self.state, clock))
        with timer.phase("emit"):
            manifest, reports = self.stage.emit(ingested, self.state.watermark_us, clock, flush, telling)
            if self.then is not None and self.state.then is not None:
                manifest, reports = self._followed(self.then, self.state.then, manifest, clock, flush)
        self._conclude(manifest, outcome, reports, timer, began, clock)

    def _followed(
        self, then: Following, before: Manifest, manifest: Manifest, clock: int, flush: bool
    ) -> tuple[Manifest, Sequence[EmitReport]]:
        """One commit for both stages: what the first emits goes through the second, whose results are published."""
        staged = [self.store.output(o) for o in manifest.output]
        rows = outbox.split(self.logic, staged, upserts=False)[0] if staged else None
        before = before.model_copy(update={"epoch": self.state.epoch})
        after, reports = then.follow(before, rows, manifest.watermark_us, clock, flush)
        update = {
            "then": after.model_copy(update={"output": (), "letters": ()}),
            "output": after.output,
            "letters": (*manifest.letters, *after.letters),
            "emitted": after.emitted,
        }
        return manifest.model_copy(update=update), reports

    def correct(self, corrections: Callable[[Sequence[ShardTask]], Sequence[EmitReport]], replayed: Replayed) -> None:
        """An epoch without rows of the sources: windows are corrected by dead letters (see `replay.replay`)."""
        began, clock = time.monotonic(), self.hooks.clock_us()
        timer = _Timer(self.hooks.faults, self.state.epoch + 1)
        with timer.phase("emit"):
            reports = corrections(self.stage.tasks(self.state, self._clocks))
        before = fold.with_replayed(fold.corrected(self.state, self.logic.updates), replayed)
        self._conclude(fold.emitted(before, reports, self.logic, clock), None, reports, timer, began, clock)

    def note(self, replayed: Replayed) -> None:
        """An epoch that says of dead letters that they were tried, and nothing else."""
        began, clock = time.monotonic(), self.hooks.clock_us()
        timer = _Timer(self.hooks.faults, self.state.epoch + 1)
        before = fold.with_replayed(fold.corrected(self.state, self.state.waiting), replayed)
        self._conclude(before.model_copy(update={"committed_us": clock}), None, (), timer, began, clock)

    def rehearse(self, batch: Batch) -> IngestOutcome:
        """What an epoch would make of this batch's rows, by the same steps; nothing is put aside, told or committed."""
        clock = self.hooks.clock_us()
        tasks = [replace(t, state=Unstaged(t.state)) for t in self.stage.tasks(self.state, self._clocks)]
        overtaken = {n: c.overtaken_partitions(self.state.watermark_us) for n, c in self._clocks.items()}
        return self.engine.ingest(batch, tasks, clock, {n: p for n, p in overtaken.items() if p})

    def _conclude(
        self,
        manifest: Manifest,
        outcome: IngestOutcome | None,
        reports: Sequence[EmitReport],
        timer: _Timer,
        began: float,
        clock: int,
    ) -> None:
        """Commit, publish, tell."""
        if manifest.staged:
            manifest = manifest.model_copy(update={"destination": self._destination()})
        manifest = fold.timed(manifest, {p: self._behind.get(p, 0) + timer.seconds.get(p, 0) for p in PHASES})
        before = set(timer.seconds)
        with timer.phase("commit"):
            self._commit(manifest)
        manifest = self.state
        self._load_clocks()
        if manifest.staged:
            if self.store.published() < manifest.epoch:
                with timer.phase("write"):
                    self._write(manifest)
            with timer.phase("note"):
                self._note_published(manifest.epoch)
        self._behind = {p: s for p, s in timer.seconds.items() if p not in before}
        if manifest.epoch % GARBAGE_EVERY == 0:
            self.store.collect_garbage()
        ends = [r.last_end_us for r in reports if r.last_end_us is not None]
        self.hooks.on_status(
            fold.status(
                self.pipeline,
                manifest,
                self._clocks,
                outcome,
                timer.seconds,
                time.monotonic() - began,
                clock,
                max(ends, default=None),
            )
        )

    def _commit(self, manifest: Manifest) -> None:
        manifest = manifest.model_copy(update={"committed_us": self.hooks.clock_us()})  # not the epoch's beginning
        joined = bool(manifest.output) and self.store.joins(self.target)
        self.state = self.store.commit(manifest, self._publish_within(manifest) if joined else None)

    def _publish_within(self, manifest: Manifest) -> Publish:
        """Write within the commit: what is a step of its own elsewhere is a step within the transaction here."""
        (rows, gone), target, hit = self._output(manifest), cast(Joining, self.target), self.hooks.faults.hit

        def publish(connection: object) -> None:
            hit("write.before", manifest.epoch)
            target.publish_within(connection, manifest.epoch, rows, gone)
            hit("write.after", manifest.epoch)

        return publish

    # -- publishing ----------------------------------------------------------------------------------------------

    def _publish(self, manifest: Manifest) -> None:
        self._write(manifest)
        self._note_published(manifest.epoch)

    def _note_published(self, epoch: int) -> None:
        self.store.note_published(epoch)
        self.hooks.on_waiting(None)

    def _write(self, manifest: Manifest) -> None:
        self.hooks.on_waiting(Waiting(manifest.epoch, manifest.committed_us))
        try:
            self._write_all(manifest)
        except PublishError as error:
            raise PublishError(f"{error}; if it never can be, see: slackwater outbox show") from error

    def _write_all(self, manifest: Manifest) -> None:
        if manifest.letters and self.letters is not None:
            letters = pl.concat([self.store.output(o) for o in manifest.letters])
            self.letters.publish(manifest.epoch, holding(letters, capacity_of(self.letters).times))
        if manifest.output:
            self.target.publish(manifest.epoch, *self._output(manifest))

    def _output(self, manifest: Manifest) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows to write and those that are gone."""
        return outbox.split(self.last, [self.store.output(o) for o in manifest.output], self.target.upserts)


def _covers(state: Manifest, batch: Batch) -> bool:
    assert state.batch is not None and batch.id is not None
    return state.batch.checkpoint == batch.id.checkpoint and state.batch.batch >= batch.id.batch


class _Timer:
    """Seconds per phase of an epoch; each phase begins and ends at a named step."""

    def __init__(self, faults: Faults, epoch: int) -> None:
        self.seconds: dict[str, float] = {}
        self._faults, self._epoch, self._name, self._began = faults, epoch, "", 0.0

    def phase(self, name: str) -> _Timer:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._faults.hit(f"{self._name}.before", self._epoch)
        self._began = time.monotonic()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.seconds[self._name] = time.monotonic() - self._began
        if kind is None:
            self._faults.hit(f"{self._name}.after", self._epoch)
