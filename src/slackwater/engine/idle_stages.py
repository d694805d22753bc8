"""Idle stages: a stage is idle while all sources of its rows are idle. Active stages carry its watermark along.

    a (active) ────────────────────▶ r        r takes the minimum of its inputs, so it would wait for s forever
    b (idle)  ─▶ s (idle, silent) ─▶ r        s is carried to the watermark of a: its open windows close,
                                              and later rows of b are late at s

The minimum ignores an idle source if another one is active. It cannot ignore an idle stage, since the stage's later
results would then be late for its reader. The watermark of the idle stage itself is moved instead. Rows that arrive
too late are then late in the idle stage, not in its reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slackwater.watermark import SourceClock

Clocks = Mapping[str, Mapping[str, SourceClock]]  # for each stage, the clocks of its inputs


class StageInputs(Protocol):
    """A stage with its name and its inputs: sources and earlier stages."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> list[str]: ...


def find_idle_stages(stages: Sequence[StageInputs], clocks: Clocks) -> dict[str, bool]:
    """Return whether each stage is idle."""
    idle: dict[str, bool] = {}
    for stage in stages:
        idle[stage.name] = all(idle[n] if n in idle else clocks[stage.name][n].idle for n in stage.inputs)
    return idle


def limit_idle_watermarks(stages: Sequence[StageInputs], clocks: Clocks, promised: Mapping[str, int]) -> dict[str, int]:
    """Return how far each idle stage's watermark may be carried: to the minimum of the active inputs of its readers.

    All arguments must be from the same commit. `promised`: the output watermark of each stage. Stages that are not
    carried are omitted.
    """
    idle, carried = find_idle_stages(stages, clocks), dict[str, int]()
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
    reader: StageInputs, clocks: Mapping[str, SourceClock], idle: Mapping[str, bool], promised: Mapping[str, int]
) -> int:
    """Return the minimum watermark of a stage's active inputs, of which there must be at least one."""
    of_stages = [promised[n] for n in reader.inputs if n in idle and not idle[n]]
    source_stages = [clocks[n].watermark_us for n in reader.inputs if n not in idle and not clocks[n].idle]
    return min(of_stages + source_stages)


__all__ = ["Clocks", "find_idle_stages", "limit_idle_watermarks"]
