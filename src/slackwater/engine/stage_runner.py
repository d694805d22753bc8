"""One stage of a pipeline, which takes rows and returns results and its new state. It commits nothing itself.

rows of sources, ─▶ late? merge, cut ─▶ watermark ─▶ due results ─▶ results ─▶ the stages that read them
results of stages   staged state        of its inputs  staged                  or a target
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.source import Batch
from slackwater.core.column_names import EVENT_TIME
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.engine import next_commit, row_policies
from slackwater.engine.engine_interface import NO_STATS, Engine, IngestOutcome, SourceStats
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.publishing import split_deletes
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.operators.base import EpochWatermark, LateDeadLetterContext, Operator, ShardTask
from slackwater.operators.reports import EmitReport
from slackwater.state.commit import OutputMetadata, StageState
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
    """The output of a stage in an epoch, for the stages that read it.

    `watermark_us`: the output watermark. `idle`: whether the stage is idle. `emits_late_rows`: see `Operator`.
    """

    rows: pl.DataFrame | None
    watermark_us: int
    idle: bool = False
    emits_late_rows: bool = False


@dataclass(frozen=True)
class EpochContext:
    """The inputs that all stages share in an epoch.

    `quiet_us`: how long (µs) the polled sources had no rows; None if they were not polled. `carried`: the watermarks to
    which idle stages are carried; see `engine.epoch_driver`.
    """

    epoch: int
    clock_us: int
    batch: Batch = NO_ROWS
    quiet_us: int | None = None
    flush: bool = False
    carried: Mapping[str, int] = field(default_factory=dict)

    @property
    def advances_watermarks(self) -> bool:
        """Return whether watermarks may move. A replay of dead letters never moves them."""
        return self.batch.replayed is None


@dataclass(frozen=True)
class StageInput:
    """The input of one stage in an epoch.

    Args:
        context: The epoch.
        before: The state of the stage in the last commit.
        clocks: The clocks of the inputs before the rows of this epoch, including uncommitted quiet times.
        upstream: The output of the stages that this stage reads.
    """

    context: EpochContext
    before: StageState
    clocks: Mapping[str, SourceClock]
    upstream: Mapping[str, StageOutput] = field(default_factory=dict)

    @property
    def overtaken_by_source(self) -> dict[str, Sequence[str]]:
        """Return the partitions that the watermark passed while they were idle and that still lag behind, by source."""
        overtaken = {n: c.overtaken_partitions(self.before.watermark_us) for n, c in self.clocks.items()}
        return {n: partitions for n, partitions in overtaken.items() if partitions}

    def advance_clocks(self, rows: Mapping[str, SourceStats] | None) -> Mapping[str, SourceClock]:
        """Return the clocks after reading rows with these statistics, or after silence if `rows` is None."""
        quiet_us = self.context.quiet_us
        if rows is not None and self.context.advances_watermarks:
            return {
                n: advance_clock(c, rows.get(n, NO_STATS).activity, 0 if n in self.upstream else quiet_us or 0)
                for n, c in self.clocks.items()
            }
        if quiet_us is None:
            return self.clocks
        polled = {n: c for n, c in self.clocks.items() if n not in self.upstream}
        return {**self.clocks, **{n: advance_clock(c, NO_STATS.activity, quiet_us) for n, c in polled.items()}}


@dataclass(frozen=True)
class StageResult:
    """The outcome of an epoch for one stage, not committed yet."""

    state: StageState
    output: tuple[OutputMetadata, ...] = ()
    letters: tuple[OutputMetadata, ...] = ()
    outcome: IngestOutcome | None = None  # None if there were no rows
    reports: Sequence[EmitReport] = ()
    idle: bool = False


@dataclass(frozen=True)
class StageRunner:
    """Runs one stage of a pipeline. `number`: its position in the pipeline, from 0.

    `pipeline` describes only this stage: its sources are the inputs of the stage, which may be other stages. `is_read`:
    whether other stages read this stage.
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

    def advance(self, stage_input: StageInput, timer: PhaseTimer) -> StageResult:
        """Add the rows of an epoch, advance the watermark, and stage the results that are due.

        Raises SlackwaterError if the epoch must not be committed.
        """
        before, context = stage_input.before, stage_input.context
        batch, late = self._rows(stage_input)
        outcome, tasks = None, list[ShardTask]()
        if batch.payload:
            with timer.phase("read"):
                known_watermark = self._watermark_before_read(stage_input, batch)
                tasks = self.tasks(before, stage_input.clocks, context.epoch, known_watermark)
            with timer.phase("ingest"):
                outcome = self._read(stage_input, batch, tasks)
        clocks, outcome = self._advance_clocks(stage_input, outcome)
        watermark = self._watermark(stage_input, clocks)
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
        return replace(done, idle=self._is_idle(clocks, stage_input.upstream))

    def raise_watermark(self, done: StageResult, watermark: int, context: EpochContext) -> StageResult:
        """Raise the watermark in `done` to the `watermark` of a flush, and stage the results that become due."""
        before = done.state
        if before.watermark_us < watermark:
            more = self._emit(before, before.model_copy(update={"watermark_us": watermark}), context, None)
            output, reports = (*done.output, *more.output), (*done.reports, *more.reports)
            done = replace(done, state=more.state, output=output, reports=reports)
        promised = output_watermark(done.state.promised_us, watermark, self.operator.watermark_hold_us(watermark, ()))
        flushed = {"output_watermark_us": promised, "flushed_us": watermark}
        return replace(done, state=done.state.model_copy(update=flushed))

    def _rows(self, stage_input: StageInput) -> tuple[Batch, int]:
        """Return a batch with the rows for this stage, and the number of late results from other stages."""
        batch, watermark = stage_input.context.batch, stage_input.before.watermark_us
        payload, late = {n: rows for n, rows in batch.payload.items() if n in self.inputs}, 0
        stage_rows = dict.fromkeys(stage_input.upstream, 0)
        for name, results in stage_input.upstream.items():
            rows = results.rows
            if rows is None or not rows.height:
                continue
            if not results.emits_late_rows:
                rows, behind = _split_late(rows, watermark)
                late += behind.height
                row_policies.log_late_results(
                    self.pipeline, self.name, stage_input.context.epoch, name, behind, watermark
                )
            payload[name], stage_rows[name] = self.engine.payload(rows), rows.height
        return replace(batch, payload=payload, stage_rows=stage_rows), late

    def _read(self, stage_input: StageInput, batch: Batch, tasks: Sequence[ShardTask]) -> IngestOutcome:
        """Add the rows of a batch to the shards. Apply the policies for unusable rows, and log these rows."""
        before, epoch = stage_input.before, stage_input.context.epoch
        outcome = self.engine.ingest(batch, tasks, stage_input.context.clock_us, stage_input.overtaken_by_source)
        row_policies.enforce_row_policies(self.pipeline, before, epoch, outcome)
        row_policies.log_losses(self.pipeline, before, epoch, batch, outcome)
        if self.skew_warnings is not None:
            self.skew_warnings.check_late_rows(before, stage_input.clocks, epoch, outcome)
        return outcome

    def _advance_clocks(
        self, stage_input: StageInput, outcome: IngestOutcome | None
    ) -> tuple[Mapping[str, SourceClock], IngestOutcome | None]:
        """Return the clocks after the rows of an epoch, and the outcome with the time spans that the clocks needed."""
        if outcome is None or not stage_input.context.advances_watermarks:
            return stage_input.advance_clocks(None), outcome
        outcome = next_commit.add_time_spans(outcome, stage_input.clocks)
        clocks = stage_input.advance_clocks(outcome.sources)
        if self.skew_warnings is not None:
            self.skew_warnings.check_jumps(clocks, stage_input.context.epoch, outcome)
        return clocks, outcome

    def _watermark(self, stage_input: StageInput, clocks: Mapping[str, SourceClock]) -> int:
        if not stage_input.context.advances_watermarks:
            return stage_input.before.watermark_us
        return self.watermark(
            stage_input.before.watermark_us, clocks, stage_input.upstream, stage_input.context.carried.get(self.name)
        )

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
        """Return the output watermark at `watermark`, assuming that the rows leave the watermark holds unchanged.

        `since`: the previous output watermark, by default the committed one.
        """
        hold = self.operator.watermark_hold_us(watermark, (h for of_shard in before.holds or () for h in of_shard))
        return output_watermark(before.promised_us if since is None else since, watermark, hold)

    def _watermark_before_read(self, stage_input: StageInput, batch: Batch) -> EpochWatermark | None:
        """Return the watermark after the rows of this epoch if it is known before they are read; otherwise None.

        It is known if each row comes from another stage, or from a source that provides statistics beforehand.
        """
        context, read = stage_input.context, batch.payload.keys() - stage_input.upstream.keys()
        stats = self.engine.statistics_before_read(batch, context.clock_us) if read else {}
        if context.flush or not read <= stats.keys():
            return None
        if any(c.needs_spans(stats.get(n, NO_STATS).activity) for n, c in stage_input.clocks.items()):
            return None
        early = self.operator.updates and self.may_emit_early(stage_input.before, context.clock_us)
        return EpochWatermark(self._watermark(stage_input, stage_input.advance_clocks(stats)), early)

    def _emit(
        self, before: StageState, state: StageState, context: EpochContext, outcome: IngestOutcome | None
    ) -> StageResult:
        """Stage the results that are emitted between the watermarks of two states."""
        early = self.operator.updates and (context.flush or self.may_emit_early(before, context.clock_us))
        folded = outcome.reports if outcome is not None else ()
        reports = [r.emitted for r in folded if r.emitted is not None]  # emitted in the same pass as the rows
        if len(reports) < state.shards:
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

    def tasks(
        self,
        state: StageState,
        clocks: Mapping[str, SourceClock],
        epoch: int,
        known_watermark: EpochWatermark | None = None,
    ) -> list[ShardTask]:
        """Return the tasks of an epoch. `clocks`: the clocks of the inputs, including uncommitted quiet times.

        `known_watermark`: the watermark after the rows of the epoch, if it is known before they are read.
        """
        # rows are tagged with the index of their source; the indexes of idle partitions follow (see spark.engine)
        count, of_stages = len(clocks), {s.name for s in self.pipeline.sources if s.is_stage_output}
        source_clocks = [
            (i, c) for i, (n, c) in enumerate(clocks.items()) if n not in of_stages and not state.is_flushed
        ]
        overtaken = (i for i, c in source_clocks if c.was_overtaken(state.watermark_us))
        idle, late, cap = (*overtaken, *range(count, 2 * count)), None, self.operator.group_limit
        if self.pipeline.keeps_late_rows:
            held_by = watermark_holder(next_commit.input_clocks(self.pipeline, state))
            late = LateDeadLetterContext(self.pipeline.name, held_by, next_commit.late_cause(state))
        return [
            replace(
                task,
                idle_sources=idle,
                group_limit=None if cap is None else row_policies.divide_group_limit(cap, state.shards, task.shard),
                groups=state.groups[task.shard],
                pane_groups={p: g[task.shard] for p, g in state.panes.items()} if cap is not None else None,
                late=late,
                keeps_bad=self.pipeline.transform.on_error == "dlq",
                capacity=self.capacity,
                epoch_watermark=known_watermark,
                hit=self.in_worker(epoch),
            )
            for task in self.all_tasks(state, epoch)
        ]

    def all_tasks(
        self, state: StageState, epoch: int, since: int | None = None, flush: bool = False, early: bool = False
    ) -> list[ShardTask]:
        """Return tasks for all shards, to advance from the watermark `since` to that of the state."""
        watermark, shards = state.watermark_us, state.shards
        return [
            ShardTask(
                self.operator,
                self.store.shard(shard, shards, epoch, metas, self.number),
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

    def has_due_result(self, state: StageState, epoch: int, watermark: int) -> bool:
        """Return whether a result becomes due as the watermark advances to `watermark`.

        This reads the shards that may have due results.
        """
        ahead = state.model_copy(update={"watermark_us": watermark})
        return any(
            self.operator.is_due(task) for task in self.due_tasks(ahead, epoch, state.watermark_us, False, False)
        )

    def may_emit_early(self, state: StageState, clock_us: int) -> bool:
        """Return whether it is time to emit open windows again (emit = "updates").

        The result is also True if the clock was set back.
        """
        return not 0 <= clock_us - state.emitted_us < self.operator.early_emission_interval_us


def _split_late(rows: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return all results, with late event times raised to the watermark, and the late results, unchanged.

    Late results occur if a config change makes a stage emit results that are behind its previous output watermark.
    """
    least = pl.lit(watermark, pl.Int64).cast(pl.Datetime("us", "UTC"))
    behind = rows.filter(pl.col(EVENT_TIME) < least)
    if behind.is_empty():
        return rows, behind
    return rows.with_columns(pl.max_horizontal(EVENT_TIME, least).alias(EVENT_TIME)), behind
