"""Idle stages: a stage is idle while all sources that its rows can come from are. It is carried along with those that are awake.

    a (awake) ─────────────────────▶ r        r takes the least of what it reads, so without more it would wait for s for ever
    b (idle)  ─▶ s (idle, silent) ─▶ r        s is carried to where a is: its open windows close, and later rows of b are late at s

An idle source next to an awake one is left out of the minimum. A stage cannot be left out: its results would then be late for its
reader. So its own watermark moves, and what comes late is late where it comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slackwater.watermark import SourceClock

Clocks = Mapping[str, Mapping[str, SourceClock]]  # of each stage, by its name, those of its inputs


class IdleReader(Protocol):
    """A stage, by its name, and what it reads: sources, and stages before it."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> list[str]: ...


def idle_stages(stages: Sequence[IdleReader], clocks: Clocks) -> dict[str, bool]:
    """Return for each stage whether it is idle."""
    idle: dict[str, bool] = {}
    for stage in stages:
        idle[stage.name] = all(idle[n] if n in idle else clocks[stage.name][n].idle for n in stage.inputs)
    return idle


def carry_limits(stages: Sequence[IdleReader], clocks: Clocks, promised: Mapping[str, int]) -> dict[str, int]:
    """Return how far the idle stages may be carried: to the least of what is awake among the inputs of their readers.

    All of it as of one commit. `promised`: the output watermarks. A stage that is not carried is left out.
    """
    idle, carried = idle_stages(stages, clocks), dict[str, int]()
    for stage in reversed(stages):
        if not idle[stage.name]:
            continue
        limits = []
        for reader in (r for r in stages if stage.name in r.inputs):
            if idle[reader.name]:
                limits += [carried[reader.name]] if reader.name in carried else []
            else:
                limits.append(_awake(reader, clocks[reader.name], idle, promised))
        if limits:
            carried[stage.name] = min(limits)
    return carried


def _awake(
    reader: IdleReader, clocks: Mapping[str, SourceClock], idle: Mapping[str, bool], promised: Mapping[str, int]
) -> int:
    """Return the least of the inputs of a stage that are awake; one of them is."""
    of_stages = [promised[n] for n in reader.inputs if n in idle and not idle[n]]
    source_stages = [clocks[n].watermark_us for n in reader.inputs if n not in idle and not clocks[n].idle]
    return min(of_stages + source_stages)


__all__ = ["Clocks", "carry_limits", "idle_stages"]
