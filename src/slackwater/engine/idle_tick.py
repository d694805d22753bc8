"""Whether a silence has moved anything that others see, or that rows are judged by: only then is it worth a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.config.pipeline import Pipeline
from slackwater.engine.idle_stages import Clocks, carry_limits, idle_stages
from slackwater.engine.stage import StageOutput, StageRunner
from slackwater.state.commit import Commit
from slackwater.watermark import global_watermark


@dataclass(frozen=True)
class IdleTick:
    """What has passed since the last commit, in which the sources were asked and had nothing.

    `clocks`: now; `committed`: as of that commit; `quiet_us`: for so long; `clock_us`: wall clock, microseconds UTC.
    """

    clocks: Clocks
    committed: Clocks
    quiet_us: int
    clock_us: int

    def is_worth_a_commit(self, pipeline: Pipeline, stages: Sequence[StageRunner], state: Commit) -> bool:
        """At once: a watermark that sources moved, a source that became idle, a stage that is carried along, changed windows that may
        be emitted by now, and windows that become due. What only counts on: once per checkpoint interval.
        """
        reached, results = dict[str, int](), dict[str, StageOutput]()
        idle, carried = idle_stages(stages, self.clocks), carry_limits(stages, self.committed, state.promised)
        counts_on = False
        for stage, before in zip(stages, state.stages, strict=True):
            clocks, committed = self.clocks[stage.name], self.committed[stage.name]
            upstream = {n: results[n] for n in stage.inputs if n in results}
            watermark = stage.watermark(before.watermark_us, clocks, upstream, carried.get(stage.name))
            reached[stage.name] = watermark
            results[stage.name] = StageOutput(None, stage.output_watermark_at(before, watermark), idle[stage.name])
            settled = global_watermark(before.watermark_us, [c for n, c in clocks.items() if n not in upstream])
            moved = not upstream and max(settled, carried.get(stage.name, settled)) != before.watermark_us
            if moved or (before.waiting and stage.may_emit_early(before, self.clock_us)):
                return True
            if any(c.idle_flags != committed[n].idle_flags for n, c in clocks.items()):
                return True
            undecided = any(c.undecided_us != committed[n].undecided_us for n, c in clocks.items())
            counts_on = counts_on or watermark != before.watermark_us or undecided
        store = pipeline.state_store
        if counts_on and self.quiet_us >= 1000 * (store.checkpoint_interval_ms if store else 60_000):
            return True
        return any(
            stage.closes(before, state.epoch + 1, reached[stage.name])
            for stage, before in zip(stages, state.stages, strict=True)
            if reached[stage.name] != before.watermark_us
        )
