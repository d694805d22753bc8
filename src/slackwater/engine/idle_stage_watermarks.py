"""Idle stages, and idle ticks without rows: a stage is idle while all sources of its rows are idle.

Active stages carry its watermark along:

    a (active) ────────────────────▶ r        r takes the minimum of its inputs, so it would wait for s forever
    b (idle)  ─▶ s (idle, silent) ─▶ r        s is carried to the watermark of a: its open windows close,
                                              and later rows of b are late at s

The minimum ignores an idle source if another one is active. It cannot ignore an idle stage, since the stage's later
results would then be late for its reader. The watermark of the idle stage itself is moved instead. Rows that arrive
too late are then late in the idle stage, not in its reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slackwater.config.pipeline import Pipeline
from slackwater.engine.stage_runner import StageOutput, StageRunner
from slackwater.state.commit import Commit
from slackwater.watermark import SourceClock, global_watermark

Clocks = Mapping[str, Mapping[str, SourceClock]]  # for each stage, the clocks of its inputs


def _find_idle_stages(stages: Sequence[StageRunner], clocks: Clocks) -> dict[str, bool]:
    """Return whether each stage is idle."""
    idle: dict[str, bool] = {}
    for stage in stages:
        idle[stage.name] = all(idle[n] if n in idle else clocks[stage.name][n].idle for n in stage.inputs)
    return idle


def advance_idle_watermarks(
    stages: Sequence[StageRunner], clocks: Clocks, promised: Mapping[str, int]
) -> dict[str, int]:
    """Return how far each idle stage's watermark may be carried: to the minimum of the active inputs of its readers.

    All arguments must be from the same commit. `promised`: the output watermark of each stage. Stages that are not
    carried are omitted.
    """
    idle, carried = _find_idle_stages(stages, clocks), dict[str, int]()
    for stage in reversed(stages):
        if not idle[stage.name]:
            continue
        limits = []
        for reader in (r for r in stages if stage.name in r.inputs):
            if idle[reader.name]:
                limits += [carried[reader.name]] if reader.name in carried else []
            else:
                limits.append(_active_minimum(reader, clocks[reader.name], idle, promised))
        if limits:
            carried[stage.name] = min(limits)
    return carried


def _active_minimum(
    reader: StageRunner, clocks: Mapping[str, SourceClock], idle: Mapping[str, bool], promised: Mapping[str, int]
) -> int:
    """Return the minimum watermark of a stage's active inputs, of which there must be at least one."""
    of_stages = [promised[n] for n in reader.inputs if n in idle and not idle[n]]
    source_stages = [clocks[n].watermark_us for n in reader.inputs if n not in idle and not clocks[n].idle]
    return min(of_stages + source_stages)


def idle_tick_needs_commit(
    pipeline: Pipeline,
    stages: Sequence[StageRunner],
    state: Commit,
    clocks: Clocks,
    committed: Clocks,
    quiet_us: int,
    clock_us: int,
) -> bool:
    """Return whether an idle tick changed something that users can see or that affects rows.

    A commit is needed immediately if sources moved a watermark, a source became idle, an idle stage is carried along,
    windows become due, or it is time to emit changed windows. If the watermark advances only because the input is
    silent, it is committed once per checkpoint interval.

    Args:
        pipeline: The pipeline.
        stages: Its stages.
        state: The last commit.
        clocks: The current clocks.
        committed: The clocks in the last commit.
        quiet_us: How long (µs) the sources have been polled without returning rows.
        clock_us: Wall clock, in µs UTC.
    """
    reached, results, counts_on = dict[str, int](), dict[str, StageOutput](), False
    idle, carried = _find_idle_stages(stages, clocks), advance_idle_watermarks(stages, committed, state.promised)
    for stage, before in zip(stages, state.stages, strict=True):
        current, last = clocks[stage.name], committed[stage.name]
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
        counts_on = counts_on or watermark != before.watermark_us or undecided
    store = pipeline.state_store
    if counts_on and quiet_us >= 1000 * (store.checkpoint_interval_ms if store else 60_000):
        return True
    return any(
        stage.becomes_due(before, state.epoch + 1, reached[stage.name])
        for stage, before in zip(stages, state.stages, strict=True)
        if reached[stage.name] != before.watermark_us
    )
