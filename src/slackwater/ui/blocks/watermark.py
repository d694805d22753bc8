"""Who holds the watermark? A lane per source and partition, and how far the watermark was behind the clock, commit by commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.query.why_report import ClockReport, WhyReport
from slackwater.state.commit import Commit
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class WatermarkLane:
    """A source (`partition` is None), one of its partitions, or a stage that is read (`of_stage`); µs.

    `since_us`: when its last row was, by the engine's clock.
    """

    source: str
    partition: str | None
    newest_us: int | None
    lateness_us: int
    watermark_us: int | None
    idle: bool
    quiet_us: int
    since_us: int
    holds: bool
    of_stage: bool = False


@dataclass(frozen=True)
class LagPoint:
    """A kept commit: the clock at it, and how far the watermark was behind that; None before there is a watermark."""

    epoch: int
    committed_us: int
    behind_us: int | None


@dataclass(frozen=True)
class WatermarkBlock:
    """The block."""

    watermark_us: int | None
    lanes: tuple[WatermarkLane, ...]
    behind: tuple[LagPoint, ...]


def build_watermark(why: WhyReport, commits: Sequence[Commit]) -> WatermarkBlock:
    """From the answer of `why`, and the kept commits, oldest first: of one stage, or of all sources."""
    return WatermarkBlock(
        _watermark(why, commits),
        tuple(_lane(c, why) for c in shown_clocks(why)),
        tuple(LagPoint(m.epoch, m.committed_us, _behind(m)) for m in commits),
    )


def shown_clocks(why: WhyReport) -> tuple[ClockReport, ...]:
    """The inputs of the stage that it is about; where it tells of several, the sources, as the first that reads each has it."""
    if not why.stages:
        return why.clocks
    readers: dict[str, str] = {}
    every = [(s.stage, c) for s in why.stages for c in s.clocks if not c.of_stage]
    return tuple(c for stage, c in every if readers.setdefault(c.source, stage) == stage)


def _watermark(why: WhyReport, commits: Sequence[Commit]) -> int | None:
    if not why.stages or not commits:
        return why.watermark_us
    return None if commits[-1].watermark_us <= NO_WATERMARK else commits[-1].watermark_us


def _holds(c: ClockReport, why: WhyReport) -> bool:
    """Whether the watermark waits for it: the stage that is read, or the source; of several stages the source at the end."""
    if c.of_stage:
        return why.through[:1] == (c.source,)
    return c == why.holder and (bool(why.stages) or not why.through)


def _lane(c: ClockReport, why: WhyReport) -> WatermarkLane:
    return WatermarkLane(
        c.source,
        c.partition,
        c.max_event_us,
        c.lateness_us,
        c.watermark_us,
        c.idle,
        c.quiet_us,
        why.committed_us - c.quiet_us,
        _holds(c, why),
        c.of_stage,
    )


def _behind(commit: Commit) -> int | None:
    watermark = commit.watermark_us
    return None if watermark <= NO_WATERMARK else commit.committed_us - watermark
