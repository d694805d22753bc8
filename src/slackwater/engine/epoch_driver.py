"""The driver: turns batches into epochs, and epochs into commits.

    batch ─▶ ingest (shards) ─▶ watermark ─▶ emit (shards) ─▶ COMMIT ─▶ publish ─▶ note
             late? merge, cut   per source,  what is due,     one       from the
             stage state        minimum      staged           record    staged files

A crash before COMMIT discards the epoch. A crash after COMMIT loses nothing: `start` publishes the committed epoch.

A stage is idle while all sources of its rows are idle. Active stages carry the watermark of an idle stage along:

    a (active) ────────────────────▶ r        r takes the minimum of its inputs, so it would wait for s forever
    b (idle)  ─▶ s (idle, silent) ─▶ r        s is carried to the watermark of a: the open windows of s close,
                                              and later rows of b are late at s

The minimum ignores an idle source if another one is active. It cannot ignore an idle stage, because later results of
that stage would then be late for its reader. Therefore, the watermark of the idle stage moves instead. Rows that arrive
too late are then late in the idle stage, not in its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.source import Batch, ReplayRecord
from slackwater.connectors.target import TargetWriter
from slackwater.core.offset_base import Offsets
from slackwater.core.schema import find_value_limits
from slackwater.engine import next_commit
from slackwater.engine.engine_interface import NO_STATS, IngestOutcome
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.observer import DriverCallbacks, Status
from slackwater.engine.publishing import Publisher, bind_targets
from slackwater.engine.stage_runner import NO_ROWS, EpochContext, StageInput, StageOutput, StageResult, StageRunner
from slackwater.engine.startup_recovery import StartupRecovery
from slackwater.errors import FencedError, StartError
from slackwater.operators.base import ShardTask
from slackwater.operators.reports import EmitReport
from slackwater.state.commit import Commit, TargetMarker
from slackwater.state.protocol import DryRunShardState, StateStore
from slackwater.watermark import SourceClock, advance_clock, global_watermark

Clocks = Mapping[str, Mapping[str, SourceClock]]  # for each stage, the clocks of its inputs
GARBAGE_EVERY = 16  # epochs between garbage collections
PHASES = ("plan", "read", "ingest", "emit", "commit", "write", "note")  # the phases of an epoch that are reported


class EpochDriver:
    """Runs one pipeline on one engine.

    Call `start` first, then `run_batch`, `tick` and `flush` from one thread at a time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: Sequence[StageRunner],
        store: StateStore,
        targets: Mapping[str, TargetWriter],
        hooks: DriverCallbacks,
        letters: TargetWriter | None = None,
        unavailable: Mapping[str, StartError] | None = None,
        held_markers: Mapping[str, TargetMarker | None] | None = None,
    ) -> None:
        # configuration
        self.pipeline, self.store, self.targets, self.hooks = pipeline, store, targets, hooks
        bindings = bind_targets(pipeline, {s.name: s.operator for s in stages}, targets)
        self.publishing = Publisher(pipeline, bindings, store, letters, hooks, unavailable or {}, held_markers or {})
        held = find_value_limits(store)
        read = {name for s in stages for name in s.inputs}
        self.stages = [
            replace(s, capacity=held & self.publishing.capacity(s.name), is_read=s.name in read) for s in stages
        ]
        # not checkpointed: quiet times of idle ticks that were not committed
        self._clocks: dict[str, dict[str, SourceClock]] = {}
        self._committed_clocks: dict[str, dict[str, SourceClock]] = {}
        self._uncommitted_us = 0
        # seconds per phase that the latest epoch spent after its commit; the next commit includes them
        self._unreported_seconds: dict[str, float] = {}
        # checkpointed
        self.state: Commit

    @property
    def stage(self) -> StageRunner:
        """Return the first stage, which processes replayed dead letters."""
        return self.stages[0]

    # -- start ---------------------------------------------------------------------------------------------------

    def start(
        self,
        latest: Commit | None,
        shards: int,
        schemas: Mapping[str, str],
        state_id: str = "",
        branches: bool = False,
    ) -> None:
        """Publish a pending epoch, then adapt the state to the sources and shards of this config.

        Args:
            latest: The commit that the store's `open` returned; None for a new state.
            shards: The number of shards.
            schemas: The schema of each source, in Spark's JSON format.
            state_id: The id of the state, if this run creates it.
            branches: Whether `latest` begins a branch. If so, it is committed at startup, even if there is nothing
                to migrate.
        """
        startup = StartupRecovery(self.pipeline, self.store, self.publishing, self.hooks)
        self.stages, self.state = startup.run(self.stages, latest, shards, schemas, state_id, branches)
        self._load_clocks()

    def status_at_start(self) -> Status:
        """Return the status to report at a restart: the committed state, with nothing read or emitted yet."""
        return replace(self._status({}, {}, 0.0, self.hooks.clock_us(), None), emitted=0, written={})

    def _status(
        self,
        outcomes: Mapping[str, IngestOutcome],
        phases: Mapping[str, float],
        seconds: float,
        clock: int,
        last_end: int | None,
    ) -> Status:
        clocks_by_source = {n: c for s in reversed(self.stages) for n, c in self._clocks[s.name].items()}
        clocks = {s.name: clocks_by_source[s.name] for s in self.pipeline.sources}
        operators = [s.operator for s in self.stages]
        return next_commit.build_status(
            self.pipeline, operators, self.state, clocks, outcomes, phases, seconds, clock, last_end
        )

    def _load_clocks(self) -> None:
        stages = zip(self.stages, self.state.stages, strict=True)
        self._committed_clocks = {s.name: next_commit.input_clocks(s.pipeline, before) for s, before in stages}
        self._clocks, self._uncommitted_us = {n: dict(clocks) for n, clocks in self._committed_clocks.items()}, 0

    def commit_start_offsets(self, offsets: Mapping[str, Offsets], files_changed: int = 0) -> None:
        """Commit the start positions of sources that have never been read, so that "latest" is resolved only once.

        Also commits new offsets for files that changed after they were read; `files_changed` counts such files.
        """
        counters = dict(self.state.counters)
        if files_changed:
            counters["files_changed"] = counters.get("files_changed", 0) + files_changed
        self.publishing.publish_pending(self.state)
        sources = next_commit.advance_offsets(self.state, Batch(None, offsets, {}))
        self._commit(self.state.successor(sources=sources, counters=counters))
        self._load_clocks()

    # -- epochs --------------------------------------------------------------------------------------------------

    def run_batch(self, batch: Batch, quiet_us: int) -> None:
        """Run a data epoch: either all of `batch` becomes part of the state, or none of it.

        A batch that was already committed is skipped. `quiet_us`: how long (µs) the polled sources had no rows before
        the batch.
        """
        if batch.id is not None and self.state.batch is not None and _is_committed(self.state, batch):
            return
        self.publishing.publish_pending(self.state)
        self._epoch(self._context(batch, quiet_us if batch.replayed is None else None))

    def tick(self, quiet_us: int) -> bool:
        """Run an idle tick once no source has had rows for `quiet_us` (µs). Return whether the tick was committed.

        If the watermark advances only because the input is silent (`idle_close_ms`), the advance is committed when something
        becomes due, and otherwise once per checkpoint interval. Only committed watermarks decide whether rows are late,
        so an uncommitted advance has no effect.
        """
        self.publishing.publish_pending(self.state)
        sources = {s.name for s in self.pipeline.sources}
        for clocks in self._clocks.values():
            clocks.update({n: advance_clock(c, NO_STATS.activity, quiet_us) for n, c in clocks.items() if n in sources})
        self._uncommitted_us += quiet_us
        if not self._idle_tick_needs_commit():
            return False
        self._epoch(self._context())
        return True

    def flush(self) -> None:
        """Close all open windows by committing, for all stages, a watermark just past the latest closing time."""
        self.publishing.publish_pending(self.state)
        if any(s.waiting or any(m.close > s.watermark_us for m in s.metas) for s in self.state.stages):
            self._epoch(replace(self._context(), flush=True))

    def _context(self, batch: Batch = NO_ROWS, quiet_us: int | None = None) -> EpochContext:
        return EpochContext(self.state.epoch + 1, self.hooks.clock_us(), batch, quiet_us, carried=self._carried())

    def _carried(self) -> dict[str, int]:
        """Return the watermark to which each idle stage is carried: the minimum over the active inputs of its readers.

        Stages that are not carried are omitted.
        """
        clocks, promised = self._committed_clocks, self.state.promised
        idle, carried = self._idle_stages(clocks), dict[str, int]()
        for stage in (s for s in reversed(self.stages) if idle[s.name]):
            limits = []
            for reader in (r for r in self.stages if stage.name in r.inputs):
                if idle[reader.name]:
                    limits += [carried[reader.name]] if reader.name in carried else []
                    continue
                limits += [promised[n] for n in reader.inputs if n in idle and not idle[n]]
                of_sources = [clocks[reader.name][n] for n in reader.inputs if n not in idle]
                limits += [c.watermark_us for c in of_sources if not c.idle]
            if limits:
                carried[stage.name] = min(limits)
        return carried

    def _idle_stages(self, clocks: Clocks) -> dict[str, bool]:
        """Return, for each stage, whether it is idle."""
        idle: dict[str, bool] = {}
        for stage in self.stages:
            idle[stage.name] = all(idle[n] if n in idle else clocks[stage.name][n].idle for n in stage.inputs)
        return idle

    def _idle_tick_needs_commit(self) -> bool:
        """Return whether an idle tick changed something that users can see or that affects rows.

        A commit is needed immediately if a source moved a watermark or became idle, an idle stage is carried along,
        windows become due, or it is time to emit changed windows. If the watermark advances only because the input is
        silent, it is committed once per checkpoint interval.
        """
        reached, results, advances = dict[str, int](), dict[str, StageOutput](), False
        idle, carried, clock_us = self._idle_stages(self._clocks), self._carried(), self.hooks.clock_us()
        for stage, before in zip(self.stages, self.state.stages, strict=True):
            current, last = self._clocks[stage.name], self._committed_clocks[stage.name]
            upstream = {n: results[n] for n in stage.inputs if n in results}
            watermark = stage.watermark(before.watermark_us, current, upstream, carried.get(stage.name))
            reached[stage.name] = watermark
            results[stage.name] = StageOutput(None, stage.output_watermark_at(before, watermark), idle[stage.name])
            settled = global_watermark(before.watermark_us, [c for n, c in current.items() if n not in upstream])
            moved = not upstream and max(settled, carried.get(stage.name, settled)) != before.watermark_us
            if moved or (before.waiting and stage.may_emit_early(before, clock_us)):
                return True
            if any(c.idle_flags != last[n].idle_flags for n, c in current.items()):
                return True
            undecided = any(c.undecided_us != last[n].undecided_us for n, c in current.items())
            advances = advances or watermark != before.watermark_us or undecided
        store = self.pipeline.state_store
        if advances and self._uncommitted_us >= 1000 * (store.checkpoint_interval_ms if store else 60_000):
            return True
        return any(
            stage.has_due_result(before, self.state.epoch + 1, reached[stage.name])
            for stage, before in zip(self.stages, self.state.stages, strict=True)
            if reached[stage.name] != before.watermark_us
        )

    def _epoch(self, context: EpochContext) -> None:
        """Run one epoch.

        If it fails, its staged files are removed immediately, so that a full disk has space for the next attempt.
        """
        try:
            self._advance(context)
        except Exception as error:
            if not isinstance(error, FencedError):
                with suppress(OSError):
                    self.store.discard_attempt(context.epoch)
            raise

    def _advance(self, context: EpochContext) -> None:
        """Run all stages in dataflow order, and commit them together."""
        timer = PhaseTimer(self.hooks.faults, context.epoch, context.batch.began)
        done: dict[str, StageResult] = {}
        for stage, before in zip(self.stages, self.state.stages, strict=True):
            read = [self._stage(n) for n in stage.inputs if n in done]
            upstream = {s.name: s.results(done[s.name]) for s in read}
            done[stage.name] = stage.advance(StageInput(context, before, self._clocks[stage.name], upstream), timer)
        if context.flush:
            points = self._flush_points(max(d.state.watermark_us for d in done.values()))
            done = {s.name: s.raise_watermark(done[s.name], points[s.name], context) for s in self.stages}
        published = [(name, d) for name, d in done.items() if name in self.publishing.stages]
        output = tuple(o.model_copy(update={"stage": name}) for name, d in published for o in d.output)
        commit = self.state.successor(
            stages=tuple(d.state for d in done.values()),
            sources=next_commit.advance_offsets(self.state, context.batch),
            batch=context.batch.id or self.state.batch,
            output=output,
            letters=tuple(o for d in done.values() for o in d.letters),
            emitted=sum(o.rows for o in output),
        )
        if context.batch.replayed is not None:
            commit = next_commit.add_replay_record(commit, context.batch.replayed)
        outcomes = {name: d.outcome for name, d in done.items() if d.outcome is not None}
        reports = [r for _, d in published for r in d.reports]
        self._conclude(commit, outcomes, reports, timer, context.clock_us)

    def _flush_points(self, furthest: int) -> dict[str, int]:
        """Return the watermark of each stage after a flush. `furthest`: the highest watermark of any stage.

        The watermark of a stage is never behind the watermarks of its readers. If the results of a stage can lag behind
        its watermark, as in a join, the stage is ahead of its readers by the maximum lag.
        """
        points: dict[str, int] = {}
        for stage in reversed(self.stages):
            readers = [points[s.name] for s in self.stages if stage.name in s.inputs]
            back = furthest - stage.operator.watermark_hold_us(furthest, ()) if readers else 0
            points[stage.name] = max(readers, default=furthest) + back
        return points

    def _stage(self, name: str) -> StageRunner:
        return next(s for s in self.stages if s.name == name)

    def commit_corrections(
        self, corrections: Callable[[Sequence[ShardTask]], Sequence[EmitReport]], replayed: ReplayRecord
    ) -> None:
        """Commit an epoch without source rows that only applies dead letters to windows as corrections; see `dead_letters.replay`."""
        context, stage, (before, *others) = self._context(), self.stage, self.state.stages
        timer = PhaseTimer(self.hooks.faults, context.epoch)
        with timer.phase("emit"):
            reports = corrections(stage.tasks(before, self._clocks[stage.name], context.epoch))
        before = before.model_copy(update={"waiting": stage.operator.updates})
        output = tuple(o.model_copy(update={"stage": stage.name}) for r in reports for o in r.outputs)
        commit = self.state.successor(
            stages=(next_commit.apply_emission(before, reports, stage.operator, context.clock_us), *others),
            output=output,
            emitted=sum(o.rows for o in output),
        )
        self._conclude(next_commit.add_replay_record(commit, replayed), {}, reports, timer, context.clock_us)

    def record_attempts(self, replayed: ReplayRecord) -> None:
        """Commit an epoch that only records which dead letters a replay has tried."""
        clock, timer = self.hooks.clock_us(), PhaseTimer(self.hooks.faults, self.state.epoch + 1)
        self._conclude(next_commit.add_replay_record(self.state.successor(), replayed), {}, (), timer, clock)

    def dry_run(self, batch: Batch) -> IngestOutcome:
        """Return the outcome of an epoch with this batch, without staging, logging or committing anything."""
        context, stage = self._context(batch), self.stage
        stage_input = StageInput(context, self.state.stages[0], self._clocks[stage.name])
        tasks = stage.tasks(stage_input.before, stage_input.clocks, context.epoch)
        dry_tasks = [replace(t, state=DryRunShardState(t.state)) for t in tasks]
        return stage.engine.ingest(batch, dry_tasks, context.clock_us, stage_input.overtaken_by_source)

    def _conclude(
        self,
        commit: Commit,
        outcomes: Mapping[str, IngestOutcome],
        reports: Sequence[EmitReport],
        timer: PhaseTimer,
        clock: int,
    ) -> None:
        """Commit and publish an epoch, and report the status."""
        commit = next_commit.add_phase_times(
            next_commit.add_target_counts(self.publishing.with_targets(commit)),
            {p: self._unreported_seconds.get(p, 0) + timer.seconds.get(p, 0) for p in PHASES},
        )
        before = set(timer.seconds)
        with timer.phase("commit"):
            self._commit(commit)
        commit = self.state
        self._load_clocks()
        self.publishing.publish(commit, timer)
        self._unreported_seconds = {p: s for p, s in timer.seconds.items() if p not in before}
        if commit.epoch % GARBAGE_EVERY == 0:
            self.store.collect_garbage()
        ends = [r.last_end_us for r in reports if r.last_end_us is not None]
        self.hooks.on_status(self._status(outcomes, timer.seconds, timer.total, clock, max(ends, default=None)))

    def _commit(self, commit: Commit) -> None:
        # the time of the commit, not of the start of the epoch
        commit = commit.model_copy(update={"committed_us": self.hooks.clock_us()})
        self.state = self.store.commit(*self.publishing.in_transaction(commit))


def _is_committed(state: Commit, batch: Batch) -> bool:
    assert state.batch is not None and batch.id is not None
    return state.batch.checkpoint == batch.id.checkpoint and state.batch.batch >= batch.id.batch
