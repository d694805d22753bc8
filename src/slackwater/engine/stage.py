"""One stateful step of a pipeline: rows in, results out, and what becomes of its state. It commits nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.capacity import ANYTHING, Capacity
from slackwater.engine import accounting, bounds, fold
from slackwater.engine.protocol import Engine, IngestOutcome
from slackwater.operators.base import LateLetters, Operator, ShardTask
from slackwater.operators.task import EmitReport
from slackwater.sources.base import Batch
from slackwater.state.protocol import Manifest, StateStore
from slackwater.watermark import NO_WATERMARK, SourceClock, holder, listen


@dataclass(frozen=True)
class Stage:
    """A window or a join, with what it runs on. `number`: its place in the pipeline, from 0.

    `pipeline` describes this step alone: a later stage's has one source, the stage before it.
    """

    pipeline: Pipeline
    logic: Operator
    store: StateStore
    engine: Engine
    in_worker: Callable[[int], Callable[[str], None] | None]
    number: int = 0
    capacity: Capacity = ANYTHING  # of the state, and of the target where its results go

    def tasks(self, state: Manifest, clocks: Mapping[str, SourceClock]) -> list[ShardTask]:
        """The work of the next epoch; `clocks`: of the sources, quiet times that are not committed among them."""
        epoch = state.epoch + 1
        # rows are tagged with their source's place; those of idle partitions come after all sources (see engine.spark)
        count = len(clocks)
        overtaken = (i for i, c in enumerate(clocks.values()) if c.was_overtaken(state.watermark_us))
        idle = (*overtaken, *range(count, 2 * count))
        committed = fold.clocks(self.pipeline, state)
        late = LateLetters(self.pipeline.name, holder(committed)) if self.pipeline.keeps_late else None
        cap = self.logic.admits
        return [
            ShardTask(
                self.logic,
                self.store.shard(shard, state.shards, epoch, metas, self.number),
                shard,
                watermark=state.watermark_us,
                since=state.watermark_us,
                idle_sources=idle,
                bound=None if cap is None else bounds.share(cap, state.shards, shard),
                groups=state.groups[shard],
                pane_groups={p: g[shard] for p, g in state.panes.items()} if cap is not None else None,
                late=late,
                keeps_bad=self.pipeline.transform.on_error == "dlq",
                capacity=self.capacity,
                hit=self.in_worker(epoch),
            )
            for shard, metas in enumerate(state.segments)
        ]

    def due_tasks(self, ingested: Manifest, since: int, flush: bool, telling: bool) -> list[ShardTask]:
        """The shards that may have something to say between two watermarks."""
        watermark = ingested.watermark_us
        return [
            ShardTask(
                self.logic,
                self.store.shard(shard, ingested.shards, ingested.epoch, metas, self.number),
                shard,
                watermark,
                since,
                flush=flush,
                telling=telling,
            )
            for shard, metas in enumerate(ingested.segments)
            if self.logic.touched(metas, since, watermark, telling)
        ]

    def closes(self, state: Manifest, watermark: int) -> bool:
        """Whether anything becomes due on the way to a watermark; reads the state of the shards that may have it."""
        ahead = state.model_copy(update={"watermark_us": watermark})
        return any(self.logic.is_due(task) for task in self.due_tasks(ahead, state.watermark_us, False, False))

    def read(
        self,
        before: Manifest,
        batch: Batch,
        tasks: Sequence[ShardTask],
        clock_us: int,
        idle: Mapping[str, Sequence[str]],
    ) -> IngestOutcome:
        """Fold a batch's rows into the shards. Raises SlackwaterError if the epoch may not be committed with them."""
        outcome = self.engine.ingest(batch, tasks, clock_us, idle)
        accounting.judge(self.pipeline, before, before.epoch + 1, outcome)
        return outcome

    def emit(
        self, ingested: Manifest, since: int, clock_us: int, flush: bool, telling: bool
    ) -> tuple[Manifest, Sequence[EmitReport]]:
        """Stage what comes out between two watermarks."""
        due = self.due_tasks(ingested, since, flush, telling)
        reports = self.engine.emit(due) if due else ()
        accounting.tell_overflows(self.pipeline, ingested.epoch, reports)
        return fold.emitted(ingested, reports, self.logic, clock_us, telling, since), reports

    def may_tell(self, state: Manifest, clock_us: int) -> bool:
        """emit = "updates": whether windows that are open may be emitted again by now."""
        return clock_us - state.told_us >= self.logic.early_us


@dataclass(frozen=True)
class Following:
    """A stage that reads what the one before it emits. `hold_us`: how far its watermark stays behind that one's."""

    stage: Stage
    hold_us: int

    @property
    def source(self) -> str:
        return self.stage.pipeline.sources[0].name

    def follow(
        self, before: Manifest, rows: pl.DataFrame | None, watermark_us: int, clock_us: int, flush: bool
    ) -> tuple[Manifest, Sequence[EmitReport]]:
        """The next state, not committed, after the rows that the stage before emitted up to its watermark."""
        stage, outcome = self.stage, IngestOutcome((), {})
        clocks = fold.clocks(stage.pipeline, before)
        batch = Batch(None, {}, None)
        tasks = stage.tasks(before, clocks)
        if rows is not None and rows.height:
            batch = Batch(None, {}, {self.source: stage.engine.payload(rows)})
            outcome = stage.read(before, batch, tasks, clock_us, {})
            accounting.tell(stage.pipeline, before, before.epoch + 1, batch, outcome)
            clocks = {name: listen(c, fold.heard(outcome.sources.get(name)), 0) for name, c in clocks.items()}
        watermark = before.watermark_us
        if watermark_us != NO_WATERMARK:
            watermark = max(watermark, watermark_us - self.hold_us)
        ingested = fold.ingested(stage.logic, before, before.epoch + 1, batch, outcome, clocks, watermark)
        bounds.check(stage.logic, stage.engine, before, ingested, tasks)
        if flush:
            close = max((m.close for shard in ingested.segments for m in shard), default=watermark)
            ingested = ingested.model_copy(update={"watermark_us": max(watermark, close)})
        telling = stage.logic.updates and (flush or stage.may_tell(before, clock_us))
        return stage.emit(ingested, before.watermark_us, clock_us, flush, telling)
