"""The driver: the only loop. It turns batches into epochs, and epochs into commits.

    batch ─▶ ingest (shards) ─▶ watermark ─▶ emit (shards) ─▶ COMMIT ─▶ publish ─▶ note
             late? merge, cut   per source,  what is due,     one       from the
             stage state        minimum      staged           record    staged files

A crash before COMMIT forgets the epoch; after it, `start` rolls it forward from the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.capacity import capacity_of
from slackwater.engine import fold, outbox
from slackwater.engine.kill_points import Faults, NoFaults
from slackwater.engine.observer import Waiting
from slackwater.engine.protocol import IngestOutcome
from slackwater.engine.stage import NO_ROWS, Advanced, Moment, Results, Stage
from slackwater.engine.status import Status
from slackwater.engine.timer import Timer
from slackwater.errors import PublishError, StartError
from slackwater.evolution import compare, migrate, restore
from slackwater.operators.base import Operator, ShardTask
from slackwater.operators.dead_letters import holding
from slackwater.operators.task import EmitReport
from slackwater.operators.unstaged import Unstaged
from slackwater.sources.base import Batch, Replayed
from slackwater.state.commit import Commit
from slackwater.state.protocol import Joining, Publish, StateStore
from slackwater.targets.base import Target
from slackwater.watermark import SourceClock, global_watermark, listen

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
        stages: Sequence[Stage],
        store: StateStore,
        target: Target,
        hooks: Hooks,
        letters: Target | None = None,
    ) -> None:
        # configuration
        self.pipeline, self.store, self.target = pipeline, store, target
        self.hooks, self.letters = hooks, letters
        *others, last = stages
        of_state, of_both = capacity_of(store), capacity_of(store) & capacity_of(target)
        self.stages = [*(replace(s, capacity=of_state) for s in others), replace(last, capacity=of_both)]
        # not checkpointed: quiet times of ticks that were not worth a commit
        self._clocks: dict[str, dict[str, SourceClock]] = {}
        self._uncommitted_us = 0
        self._behind: dict[str, float] = {}  # seconds per phase of the latest epoch that its commit cannot tell of
        # checkpointed
        self.state: Commit

    @property
    def stage(self) -> Stage:
        """The first stage: dead letters are its rows."""
        return self.stages[0]

    @property
    def last(self) -> Operator:
        """The operator whose results the target gets."""
        return self.stages[-1].operator

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, latest: Commit | None, shards: int, schemas: Mapping[str, str], state_id: str = "") -> None:
        """Roll an unpublished epoch forward, then bring the state to this config's sources and shards.

        `latest` is what the store's `open` gave; `schemas`: per source, as Spark writes schemas in JSON; `state_id` names a
        state that begins here.
        """
        operators = [s.operator for s in self.stages]
        found = None
        if latest is not None:
            fold.counters(latest)  # told before anything is published
            found = compare.compare(self.pipeline, latest, steps=operators, shards=shards)
            found.check()
            for change in found.changes:
                self.hooks.on_notice(change.level, change.line)
            self._publish_if_needed(latest)
        names = [s.name for s in self.stages]
        self.state = latest or restore.first_commit(names, operators, shards, self.hooks.clock_us(), state_id)
        migrates = found is not None and found.migrates
        self.stages = [
            replace(s, operator=(migrate.onward if migrates else migrate.limited)(s.operator, before))
            for s, before in zip(self.stages, self.state.stages, strict=True)
        ]
        for stage in self.stages:
            self.store.prepare(stage.operator, stage.number)
        if migrates:
            self._migrate(shards)
        self.state = self._described(self.state)
        self.state = restore.with_sources(
            self.state, [s.name for s in self.pipeline.sources], {s.name: s.inputs for s in self.stages}, schemas
        )
        self._load_clocks()

    def _migrate(self, shards: int) -> None:
        """The state as this config goes on with it, as an epoch of its own."""
        clock, epoch = self.hooks.clock_us(), self.state.epoch + 1
        timer = Timer(self.hooks.faults, epoch)
        with timer.phase("read"):
            stages = zip(self.stages, self.state.stages, strict=True)
            found = [migrate.read(s.operator, self.store, before, epoch, s.number) for s, before in stages]
        with timer.phase("stage"):
            after = tuple(one.spread(self.store, shards) for one in found)
        with timer.phase("commit"):
            self._commit(self._described(fold.following(self.state, shards=shards, stages=after, committed_us=clock)))

    def _described(self, state: Commit) -> Commit:
        return restore.with_descriptions(state, [(s.name, s.pipeline, s.operator) for s in self.stages])

    def recovered(self) -> Status:
        """What the outside is told at a restart: the state as committed, nothing read or emitted yet."""
        return replace(self._status((), {}, 0.0, self.hooks.clock_us(), None), emitted=0)

    def _status(
        self,
        outcomes: Sequence[IngestOutcome],
        phases: Mapping[str, float],
        seconds: float,
        clock: int,
        last_end: int | None,
    ) -> Status:
        known = {n: c for s in reversed(self.stages) for n, c in self._clocks[s.name].items()}
        clocks = {s.name: known[s.name] for s in self.pipeline.sources}
        return fold.status(self.pipeline, self.last, self.state, clocks, outcomes, phases, seconds, clock, last_end)

    def _load_clocks(self) -> None:
        self._clocks = self._committed_clocks()
        self._uncommitted_us = 0

    def _committed_clocks(self) -> dict[str, dict[str, SourceClock]]:
        stages = zip(self.stages, self.state.stages, strict=True)
        return {s.name: fold.clocks(s.pipeline, before) for s, before in stages}

    def anchor(self, offsets: Mapping[str, Mapping[str, Any]], files_changed: int = 0) -> None:
        """Commit where sources begin that were never read: what "latest" means is decided once.

        Or what they say about files that changed after they were read, and how many these are.
        """
        counters = dict(self.state.counters)
        if files_changed:
            counters["files_changed"] = counters.get("files_changed", 0) + files_changed
        self._settle()
        sources = fold.read_on(self.state, Batch(None, offsets, {}))
        self._commit(fold.following(self.state, sources=sources, counters=counters))
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

    def _publish_if_needed(self, latest: Commit) -> None:
        if latest.staged and self.store.published() < latest.epoch:
            now = self._destination()
            former = {"upserts": now["upserts"], **latest.destination}  # earlier records do not tell
            if former != now:
                changed = ", ".join(k for k in now if former.get(k) != now[k])
                raise StartError(
                    f"{self.pipeline.name}: epoch {latest.epoch} was committed and not yet published, and the config has "
                    f"changed since ({changed}); start once with the former config, then change it"
                )
            self.hooks.on_notice("info", f"publishing epoch {latest.epoch}, which was committed and not yet published")
            self._publish(latest)

    # -- epochs --------------------------------------------------------------------------------------------------

    def run_batch(self, batch: Batch, quiet_us: int) -> None:
        """One data epoch: everything in `batch` becomes part of the state, or nothing. Skips a batch already committed."""
        if batch.id is not None and self.state.batch is not None and _covers(self.state, batch):
            return
        self._settle()
        self._epoch(self._moment(batch, quiet_us if batch.replayed is None else None))

    def tick(self, quiet_us: int) -> bool:
        """An idle tick: all sources were asked for `quiet_us` and had nothing. Returns whether it committed.

        A watermark that only runs on with the silence (`idle_close_ms`) is committed when something becomes due, else once
        per checkpoint interval; rows are judged by committed watermarks alone, so a step that was not committed never was.
        """
        self._settle()
        sources = {s.name for s in self.pipeline.sources}
        for clocks in self._clocks.values():
            clocks.update({n: listen(c, fold.NOTHING, quiet_us) for n, c in clocks.items() if n in sources})
        self._uncommitted_us += quiet_us
        if not self._is_worth_a_commit():
            return False
        self._epoch(self._moment())
        return True

    def _is_worth_a_commit(self) -> bool:
        """Whether a tick has moved what others see, or what rows are judged by."""
        clock, committed, reached = self.hooks.clock_us(), self._committed_clocks(), dict[str, int]()
        changed = False
        for stage, before in zip(self.stages, self.state.stages, strict=True):
            clocks = self._clocks[stage.name]
            upstream = {n: reached[n] for n in stage.inputs if n in reached}
            watermark = reached[stage.name] = stage.watermark(before.watermark_us, clocks, upstream)
            settled = global_watermark(before.watermark_us, [c for n, c in clocks.items() if n not in upstream])
            if before.waiting and stage.may_tell(before, clock):
                return True
            if (not upstream and settled != before.watermark_us) or any(
                c.flags != committed[stage.name][n].flags for n, c in clocks.items()
            ):
                return True
            undecided = (c.undecided_us != committed[stage.name][n].undecided_us for n, c in clocks.items())
            changed = changed or watermark != before.watermark_us or any(undecided)
        store = self.pipeline.state_store
        if changed and self._uncommitted_us >= 1000 * (store.checkpoint_interval_ms if store else 60_000):
            return True
        epoch = self.state.epoch + 1
        return any(
            stage.closes(before, epoch, reached[stage.name])
            for stage, before in zip(self.stages, self.state.stages, strict=True)
            if reached[stage.name] != before.watermark_us
        )

    def flush(self) -> None:
        """Move the watermark just past the latest close of the open windows, and commit that."""
        self._settle()
        if any(s.waiting or any(m.close > s.watermark_us for m in s.metas) for s in self.state.stages):
            self._epoch(replace(self._moment(), flush=True))

    def _moment(self, batch: Batch = NO_ROWS, quiet_us: int | None = None) -> Moment:
        return Moment(self.state.epoch + 1, self.hooks.clock_us(), batch, quiet_us)

    def _epoch(self, moment: Moment) -> None:
        """All stages, in the order in which rows pass them; one commit for all of them."""
        timer = Timer(self.hooks.faults, moment.epoch)
        done: dict[str, Advanced] = {}
        for stage, before in zip(self.stages, self.state.stages, strict=True):
            read = [self._stage(n) for n in stage.inputs if n in done]
            upstream = {s.name: Results(s.results(done[s.name].output), done[s.name].state.watermark_us) for s in read}
            done[stage.name] = stage.advance(before, self._clocks[stage.name], moment, upstream, timer)
        last = done[self.stages[-1].name]
        commit = fold.following(
            self.state,
            stages=tuple(d.state for d in done.values()),
            sources=fold.read_on(self.state, moment.batch),
            batch=moment.batch.id or self.state.batch,
            output=last.output,
            letters=tuple(o for d in done.values() for o in d.letters),
            emitted=sum(o.rows for o in last.output),
        )
        if moment.batch.replayed is not None:
            commit = fold.with_replayed(commit, moment.batch.replayed)
        sources = {s.name for s in self.pipeline.sources}
        outcomes = [d.outcome for s, d in zip(self.stages, done.values(), strict=True) if sources & {*s.inputs}]
        self._conclude(commit, [o for o in outcomes if o is not None], last.reports, timer, moment.clock_us)

    def _stage(self, name: str) -> Stage:
        return next(s for s in self.stages if s.name == name)

    def correct(self, corrections: Callable[[Sequence[ShardTask]], Sequence[EmitReport]], replayed: Replayed) -> None:
        """An epoch without rows of the sources: windows are corrected by dead letters (see `replay.replay`)."""
        moment, stage, (before, *others) = self._moment(), self.stage, self.state.stages
        timer = Timer(self.hooks.faults, moment.epoch)
        with timer.phase("emit"):
            reports = corrections(stage.tasks(before, self._clocks[stage.name], moment.epoch))
        before = before.model_copy(update={"waiting": stage.operator.updates})
        output = tuple(o for r in reports for o in r.outputs)
        commit = fold.following(
            self.state,
            stages=(fold.emitted(before, reports, stage.operator, moment.clock_us), *others),
            output=output,
            emitted=sum(o.rows for o in output),
        )
        self._conclude(fold.with_replayed(commit, replayed), (), reports, timer, moment.clock_us)

    def note(self, replayed: Replayed) -> None:
        """An epoch that says of dead letters that they were tried, and nothing else."""
        clock, timer = self.hooks.clock_us(), Timer(self.hooks.faults, self.state.epoch + 1)
        self._conclude(fold.with_replayed(fold.following(self.state), replayed), (), (), timer, clock)

    def rehearse(self, batch: Batch) -> IngestOutcome:
        """What an epoch would make of this batch's rows, by the same steps; nothing is put aside, told or committed."""
        moment, before, clocks = self._moment(batch), self.state.stages[0], self._clocks[self.stage.name]
        tasks = [replace(t, state=Unstaged(t.state)) for t in self.stage.tasks(before, clocks, moment.epoch)]
        overtaken = {n: c.overtaken_partitions(before.watermark_us) for n, c in clocks.items()}
        return self.stage.engine.ingest(batch, tasks, moment.clock_us, {n: p for n, p in overtaken.items() if p})

    def _conclude(
        self,
        commit: Commit,
        outcomes: Sequence[IngestOutcome],
        reports: Sequence[EmitReport],
        timer: Timer,
        clock: int,
    ) -> None:
        """Commit, publish, tell."""
        if commit.staged:
            commit = commit.model_copy(update={"destination": self._destination()})
        commit = fold.timed(commit, {p: self._behind.get(p, 0) + timer.seconds.get(p, 0) for p in PHASES})
        before = set(timer.seconds)
        with timer.phase("commit"):
            self._commit(commit)
        commit = self.state
        self._load_clocks()
        if commit.staged:
            if self.store.published() < commit.epoch:
                with timer.phase("write"):
                    self._write(commit)
            with timer.phase("note"):
                self._note_published(commit.epoch)
        self._behind = {p: s for p, s in timer.seconds.items() if p not in before}
        if commit.epoch % GARBAGE_EVERY == 0:
            self.store.collect_garbage()
        ends = [r.last_end_us for r in reports if r.last_end_us is not None]
        self.hooks.on_status(self._status(outcomes, timer.seconds, timer.total, clock, max(ends, default=None)))

    def _commit(self, commit: Commit) -> None:
        commit = commit.model_copy(update={"committed_us": self.hooks.clock_us()})  # not the epoch's beginning
        joined = bool(commit.output) and self.store.joins(self.target)
        self.state = self.store.commit(commit, self._publish_within(commit) if joined else None)

    def _publish_within(self, commit: Commit) -> Publish:
        """Write within the commit: what is a step of its own elsewhere is a step within the transaction here."""
        (rows, gone), target, hit = self._output(commit), cast(Joining, self.target), self.hooks.faults.hit

        def publish(connection: object) -> None:
            hit("write.before", commit.epoch)
            target.publish_within(connection, commit.epoch, rows, gone)
            hit("write.after", commit.epoch)

        return publish

    # -- publishing ----------------------------------------------------------------------------------------------

    def _publish(self, commit: Commit) -> None:
        self._write(commit)
        self._note_published(commit.epoch)

    def _note_published(self, epoch: int) -> None:
        self.store.note_published(epoch)
        self.hooks.on_waiting(None)

    def _write(self, commit: Commit) -> None:
        self.hooks.on_waiting(Waiting(commit.epoch, commit.committed_us))
        try:
            self._write_all(commit)
        except PublishError as error:
            raise PublishError(f"{error}; if it never can be, see: slackwater outbox show") from error

    def _write_all(self, commit: Commit) -> None:
        if commit.letters and self.letters is not None:
            letters = pl.concat([self.store.output(o) for o in commit.letters])
            self.letters.publish(commit.epoch, holding(letters, capacity_of(self.letters).times))
        if commit.output:
            self.target.publish(commit.epoch, *self._output(commit))

    def _output(self, commit: Commit) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows to write and those that are gone."""
        return outbox.split(self.last, [self.store.output(o) for o in commit.output], self.target.upserts)


def _covers(state: Commit, batch: Batch) -> bool:
    assert state.batch is not None and batch.id is not None
    return state.batch.checkpoint == batch.id.checkpoint and state.batch.batch >= batch.id.batch
