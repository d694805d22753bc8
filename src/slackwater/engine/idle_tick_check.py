"""Decide whether an idle tick needs a commit: only if it changed something that users can see or that affects rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.config.pipeline import Pipeline
from slackwater.engine.idle_stages import Clocks, find_idle_stages, limit_idle_watermarks
from slackwater.engine.stage_runner import StageOutput, StageRunner
from slackwater.state.commit import Commit
from slackwater.watermark import global_watermark


@dataclass(frozen=True)
class IdleTickCheck:
    """Compares the current clocks with those of the last commit to decide whether an idle tick needs a commit.

    Args:
        clocks: The current clocks.
        committed: The clocks in the last commit.
        quiet_us: How long (µs) the sources have been polled without returning rows.
        clock_us: Wall clock, in µs UTC.
    """

    clocks: Clocks
    committed: Clocks
    quiet_us: int
    clock_us: int

    def needs_commit(self, pipeline: Pipeline, stages: Sequence[StageRunner], state: Commit) -> bool:
        """Return whether the tick needs a commit.

        A commit is needed immediately if sources moved a watermark, a source became idle, an idle stage is carried
        along, windows become due, or it is time to emit changed windows. If the watermark advances only because the
        input is silent, it is committed once per checkpoint interval.
        """
        reached, results = dict[str, int](), dict[str, StageOutput]()
        idle, carried = (
            find_idle_stages(stages, self.clocks),
            limit_idle_watermarks(stages, self.committed, state.promised),
        )
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
            stage.becomes_due(before, state.epoch + 1, reached[stage.name])
            for stage, before in zip(stages, state.stages, strict=True)
            if reached[stage.name] != before.watermark_us
        )
