"""One stage of a pipeline: takes rows, returns results and its new state. It does not commit anything itself.

rows of sources, ─▶ late? merge, cut ─▶ watermark ─▶ due results ─▶ results ─▶ the stages that read them
results of stages   staged state        of its inputs  staged                  or a target
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.source import Batch
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.engine import next_commit, row_policies
from slackwater.engine.clock_skew import ClockSkewWarnings
from slackwater.engine.engine_interface import Engine, IngestOutcome, SourceStats
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.publishing import split_deletes
from slackwater.engine.row_policies import EVENT_TIME
from slackwater.operators.base import EpochWatermark, LateLetterContext, Operator, ShardTask
from slackwater.operators.reports import EmitReport
from slackwater.state.commit import OutputMeta, StageState
from slackwater.state.protocol import StateStore
from slackwater.watermark import (
    SourceClock,
    advance_clock,
    advance_while_idle,
    global_watermark,
    output_watermark,
    watermark_holder,
)

NO_ROWS = Batch(None, {}, {})


@dataclass(frozen=True)
class StageOutput:
    """The output of a stage in an epoch, for the stages that read it. `idle`: whether the stage is idle.

    `watermark_us`: the output watermark. `emits_late_rows`: see `Operator.emits_late_rows`.
    """

    rows: pl.DataFrame | None
    watermark_us: int
    idle: bool = False
    emits_late_rows: bool = False


@dataclass(frozen=True)
class EpochContext:
    """An epoch as seen by all its stages. `quiet_us`: how long (µs) polled sources had no rows; None if not polled.

    `carried`: the watermarks to which idle stages are carried (see `engine.idle_stages`).
    """

    epoch: int
    clock_us: int
    batch: Batch = NO_ROWS
    quiet_us: int | None = None
    flush: bool = False
    carried: Mapping[str, int] = field(default_factory=dict)

    @property
    def moves_clocks(self) -> bool:
        """Return whether watermarks may move. A replay of dead letters never moves them."""
        return self.batch.replayed is None


@dataclass(frozen=True)
class StageResult:
    """The outcome of an epoch for one stage, not committed yet."""

    state: StageState
    output: tuple[OutputMeta, ...] = ()
    letters: tuple[OutputMeta, ...] = ()
    outcome: IngestOutcome | None = None  # None if there were no rows
    reports: Sequence[EmitReport] = ()
    idle: bool = False


@dataclass(frozen=True)
class StageRunner:
    """A stage of a pipeline, with its operator, store and engine. `number`: its position in the pipeline, from 0.

    `pipeline` describes only this stage: its sources are the inputs of the stage, which may be other stages. `is_read`:
    whether other stages read this one.
    """

    # configuration
    name: str
    pipeline: Pipeline
    operator: Operator
    store: StateStore
    engine: Engine
    in_worker: Callable[[int], Callable[[str], None] | None]
    number: int = 0
    is_read: bool = False
    capacity: ValueLimits = ANYTHING  # values that the state and the targets of its results can store
    # not checkpointed
    skew_warnings: ClockSkewWarnings | None = None

    @property
    def inputs(self) -> list[str]:
        """Return the names of the sources and stages that this stage reads."""
        return [s.name for s in self.pipeline.sources]

    # -- an epoch ------------------------------------------------------------------------------------------------

    def advance(
        self,
        before: StageState,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        upstream: Mapping[str, StageOutput],
        timer: PhaseTimer,
    ) -> StageResult:
        """Add an epoch's rows, advance the watermark and stage what is due.

        `clocks`: the input clocks before this epoch's rows, including uncommitted quiet times. `upstream`: the output
        of the stages that this one reads.

        Raises SlackwaterError if the epoch must not be committed.
        """
        batch, late = self._rows(before, context, upstream)
        outcome, tasks = None, list[ShardTask]()
        if batch.payload:
            with timer.phase("read"):
                epoch_watermark = self._watermark_before_read(before, clocks, context, batch, upstream)
                tasks = [replace(t, epoch_watermark=epoch_watermark) for t in self.tasks(before, clocks, context.epoch)]
            with timer.phase("ingest"):
                outcome = self._read(before, clocks, context, batch, tasks)
        clocks, outcome = self._advance_clocks(clocks, context, upstream, outcome)
        watermark = self._watermark(before, clocks, context, upstream)
        state = next_commit.apply_ingest(
            self.operator, before, batch, outcome or IngestOutcome((), {}), clocks, watermark, late
        )
        if outcome is not None:
            row_policies.check_group_limit(self.operator, self.engine, before, state, tasks)
        if context.flush:  # just past the latest close of an open window
            close = max((m.close for m in state.metas), default=watermark)
            state = state.model_copy(update={"watermark_us": max(watermark, close)})
        with timer.phase("emit"):
            done = self._emit(before, state, context, outcome)
        return replace(done, idle=self._is_idle(clocks, upstream))

    def raise_watermark(self, done: StageResult, watermark: int, context: EpochContext) -> StageResult:
        """Raise the watermark of an epoch's result to that of a flush (`watermark`), and stage what becomes due."""
        before = done.state
        if before.watermark_us < watermark:
            more = self._emit(before, before.model_copy(update={"watermark_us": watermark}), context, None)
            output, reports = (*done.output, *more.output), (*done.reports, *more.reports)
            done = replace(done, state=more.state, output=output, reports=reports)
        promised = output_watermark(done.state.promised_us, watermark, self.operator.hold_us(watermark, ()))
        flushed = {"output_watermark_us": promised, "flushed_us": watermark}
        return replace(done, state=done.state.model_copy(update=flushed))

    def _rows(
        self, before: StageState, context: EpochContext, upstream: Mapping[str, StageOutput]
    ) -> tuple[Batch, int]:
        """Return a batch with the rows for this stage, and the number of late results among those from other stages."""
        payload, late = {n: rows for n, rows in context.batch.payload.items() if n in self.inputs}, 0
        for name, results in upstream.items():
            rows = results.rows
            if rows is None or not rows.height:
                continue
            if not results.emits_late_rows:
                rows, behind = _split_late(rows, before.watermark_us)
                late += behind.height
                row_policies.log_late_results(
                    self.pipeline, self.name, context.epoch, name, behind, before.watermark_us
                )
            payload[name] = self.engine.payload(rows)
        return replace(context.batch, payload=payload, stage_names=frozenset(upstream)), late

    def _read(
        self,
        before: StageState,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        batch: Batch,
        tasks: Sequence[ShardTask],
    ) -> IngestOutcome:
        """Add a batch's rows to the shards, apply the policies for unusable rows, and log those rows."""
        overtaken = {n: c.overtaken_partitions(before.watermark_us) for n, c in clocks.items()}
        outcome = self.engine.ingest(batch, tasks, context.clock_us, {n: p for n, p in overtaken.items() if p})
        row_policies.enforce_row_policies(self.pipeline, before, context.epoch, outcome)
        row_policies.log_losses(self.pipeline, before, context.epoch, batch, outcome)
        if self.skew_warnings is not None:
            self.skew_warnings.check_late_rows(before, clocks, context.epoch, outcome)
        return outcome

    def _advance_clocks(
        self,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        upstream: Mapping[str, StageOutput],
        outcome: IngestOutcome | None,
    ) -> tuple[Mapping[str, SourceClock], IngestOutcome | None]:
        """Return the clocks after an epoch's rows, and the outcome with the event-time spans that the clocks needed."""
        if outcome is None or not context.moves_clocks:
            return self._clocks_after(clocks, context, upstream, None), outcome
        outcome = next_commit.add_time_spans(outcome, clocks)
        heard = self._clocks_after(clocks, context, upstream, outcome.sources)
        if self.skew_warnings is not None:
            self.skew_warnings.check_jumps(heard, context.epoch, outcome)
        return heard, outcome

    def _clocks_after(
        self,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        upstream: Mapping[str, StageOutput],
        rows: Mapping[str, SourceStats] | None,
    ) -> Mapping[str, SourceClock]:
        """Return the clocks after rows with these statistics, or after silence if `rows` is None."""
        if rows is None or not context.moves_clocks:
            if context.quiet_us is None:
                return clocks
            polled = [n for n in clocks if n not in upstream]
            return {**clocks, **{n: advance_clock(clocks[n], next_commit.NOTHING, context.quiet_us) for n in polled}}
        return {
            n: advance_clock(c, next_commit.source_activity(rows.get(n)), 0 if n in upstream else context.quiet_us or 0)
            for n, c in clocks.items()
        }

    def _watermark(
        self,
        before: StageState,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        upstream: Mapping[str, StageOutput],
    ) -> int:
        if not context.moves_clocks:
            return before.watermark_us
        return self.watermark(before.watermark_us, clocks, upstream, context.carried.get(self.name))

    def watermark(
        self,
        since: int,
        clocks: Mapping[str, SourceClock],
        upstream: Mapping[str, StageOutput],
        carried: int | None = None,
    ) -> int:
        """Return the watermark of the stage: the minimum over its sources and upstream stages, but never below `since`.

        Idle sources are ignored if another input is active. If all are idle, their minimum is at least `carried`.
        """
        limits = [r.watermark_us for r in upstream.values()]
        read = [c for n, c in clocks.items() if n not in upstream]
        is_idle = self._is_idle(clocks, upstream)
        if read and (is_idle or not all(c.idle for c in read)):
            close = self.pipeline.transform.step.idle_close_ms
            least = advance_while_idle(global_watermark(since, read), read, None if close is None else 1000 * close)
            limits.append(max(least, carried) if is_idle and carried is not None else least)
        return max(since, min(limits))

    def _is_idle(self, clocks: Mapping[str, SourceClock], upstream: Mapping[str, StageOutput]) -> bool:
        """Return whether all inputs of the stage are idle."""
        return all(upstream[n].idle if n in upstream else c.idle for n, c in clocks.items())

    def output_watermark_at(self, before: StageState, watermark: int, since: int | None = None) -> int:
        """Return the output watermark at this watermark, assuming that no row changes the holds.

        `since`: the previous output watermark, by default the committed one.
        """
        hold = self.operator.hold_us(watermark, (h for of_shard in before.holds or () for h in of_shard))
        return output_watermark(before.promised_us if since is None else since, watermark, hold)

    def _watermark_before_read(
        self,
        before: StageState,
        clocks: Mapping[str, SourceClock],
        context: EpochContext,
        batch: Batch,
        upstream: Mapping[str, StageOutput],
    ) -> EpochWatermark | None:
        """Return the watermark after this epoch's rows, if it is known before they are read, else None.

        Rows from other stages do not affect it, and some sources provide statistics beforehand.
        """
        read = batch.payload.keys() - upstream.keys()
        stats = self.engine.statistics_before_read(batch, context.clock_us) if read else {}
        if (
            context.flush
            or not read <= stats.keys()
            or any(c.needs_spans(next_commit.source_activity(stats.get(n))) for n, c in clocks.items())
        ):
            return None
        early = self.operator.updates and self.may_emit_early(before, context.clock_us)
        heard = self._clocks_after(clocks, context, upstream, stats)
        return EpochWatermark(self._watermark(before, heard, context, upstream), early)

    def _emit(
        self, before: StageState, state: StageState, context: EpochContext, outcome: IngestOutcome | None
    ) -> StageResult:
        """Stage the results that are emitted between the watermarks of two states."""
        early = self.operator.updates and (context.flush or self.may_emit_early(before, context.clock_us))
        folded = outcome.reports if outcome is not None else ()
        reports = [r.emitted for r in folded if r.emitted is not None]  # emitted in the same pass as the rows
        passed = {r.shard for r in reports}
        due = self.due_tasks(state, context.epoch, before.watermark_us, context.flush, early)
        if remaining := [task for task in due if task.shard not in passed]:
            reports += self.engine.emit(remaining)
        row_policies.log_overflows(self.pipeline, context.epoch, reports)
        after = next_commit.apply_emission(state, reports, self.operator, context.clock_us, early, before.watermark_us)
        output = (*(o for r in folded for o in r.outputs), *(o for r in reports for o in r.outputs))
        letters = tuple(staged.output for staged in outcome.letters) if outcome is not None else ()
        return StageResult(after, output, letters, outcome, reports)

    def results(self, done: StageResult) -> StageOutput:
        """Return the results that an epoch has staged, for the stages that read this one."""
        staged = self.store.outputs(done.output)
        rows = self.operator.as_rows(split_deletes(self.operator, staged, upserts=False)[0]) if staged else None
        return StageOutput(rows, done.state.promised_us, done.idle, self.operator.emits_late_rows)

    # -- shards --------------------------------------------------------------------------------------------------

    def tasks(self, state: StageState, clocks: Mapping[str, SourceClock], epoch: int) -> list[ShardTask]:
        """Return the tasks of an epoch. `clocks` are the input clocks, including uncommitted quiet times."""
        # rows are tagged with the index of their source; indexes of idle partitions follow all sources (see spark.engine)
        count, of_stages = len(clocks), {s.name for s in self.pipeline.sources if s.is_stage_output}
        source_clocks = [
            (i, c) for i, (n, c) in enumerate(clocks.items()) if n not in of_stages and not state.is_flushed
        ]
        overtaken = (i for i, c in source_clocks if c.was_overtaken(state.watermark_us))
        idle = (*overtaken, *range(count, 2 * count))
        committed, late = next_commit.input_clocks(self.pipeline, state), None
        if self.pipeline.keeps_late_rows:
            late = LateLetterContext(self.pipeline.name, watermark_holder(committed), next_commit.late_cause(state))
        cap = self.operator.group_limit
        return [
            ShardTask(
                self.operator,
                self.store.shard(shard, state.shards, epoch, metas, self.number),
                shard,
                watermark=state.watermark_us,
                since=state.watermark_us,
                idle_sources=idle,
                group_limit=None if cap is None else row_policies.divide_group_limit(cap, state.shards, shard),
                groups=state.groups[shard],
                pane_groups={p: g[shard] for p, g in state.panes.items()} if cap is not None else None,
                late=late,
                keeps_bad=self.pipeline.transform.on_error == "dlq",
                capacity=self.capacity,
                holds=None if state.holds is None else state.holds[shard],
                hit=self.in_worker(epoch),
            )
            for shard, metas in enumerate(state.segments)
        ]

    def all_tasks(
        self, state: StageState, epoch: int, since: int | None = None, flush: bool = False, early: bool = False
    ) -> list[ShardTask]:
        """Return tasks for all shards, to advance from the watermark `since` to that of the state."""
        watermark = state.watermark_us
        return [
            ShardTask(
                self.operator,
                self.store.shard(shard, state.shards, epoch, metas, self.number),
                shard,
                watermark,
                watermark if since is None else since,
                flush=flush,
                early=early,
                holds=None if state.holds is None else state.holds[shard],
            )
            for shard, metas in enumerate(state.segments)
        ]

    def due_tasks(self, state: StageState, epoch: int, since: int, flush: bool, early: bool) -> list[ShardTask]:
        """Return tasks for the shards that may emit something between two watermarks."""
        tasks = self.all_tasks(state, epoch, since, flush, early)
        return [t for t in tasks if self.operator.may_be_due(t.state.metas, since, t.watermark, early)]

    def becomes_due(self, state: StageState, epoch: int, watermark: int) -> bool:
        """Return whether anything becomes due up to a watermark. Reads the shards that may have due windows."""
        ahead = state.model_copy(update={"watermark_us": watermark})
        return any(
            self.operator.is_due(task) for task in self.due_tasks(ahead, epoch, state.watermark_us, False, False)
        )

    def may_emit_early(self, state: StageState, clock_us: int) -> bool:
        """Return whether it is time to emit open windows again (emit = "updates"), or the wall clock was set back."""
        return not 0 <= clock_us - state.emitted_us < self.operator.early_us


def _split_late(rows: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return results as input rows for a stage at this watermark, and the original rows of those behind the watermark.

    Late results get the watermark as their event time. They occur if a config change makes a stage emit results that
    are behind its previous output watermark.
    """
    least = pl.lit(watermark, pl.Int64).cast(pl.Datetime("us", "UTC"))
    behind = rows.filter(pl.col(EVENT_TIME) < least)
    if behind.is_empty():
        return rows, behind
    return rows.with_columns(pl.max_horizontal(EVENT_TIME, least).alias(EVENT_TIME)), behind
