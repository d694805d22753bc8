"""Block "Who holds the watermark?": a lane for each source and partition, and the lag behind the clock in each commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.query.why_report import ClockReport, WhyReport
from slackwater.state.commit import Commit
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class WatermarkLane:
    """A source (`partition` is None), one of its partitions, or an input stage (`of_stage`). Times are in µs.

    Args:
        newest_us: The newest event time.
        quiet_us: How long the input has had no rows.
        since_us: When the last row of the input was read, by the engine's clock.
        holds: Whether the input holds the watermark.
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
    """The lag of the watermark behind the clock at one commit (µs); None if there is no watermark yet."""

    epoch: int
    committed_us: int
    behind_us: int | None


@dataclass(frozen=True)
class WatermarkBlock:
    """The block "Who holds the watermark?". `behind`: the lag at each commit that is kept."""

    watermark_us: int | None
    lanes: tuple[WatermarkLane, ...]
    behind: tuple[LagPoint, ...]


def build_watermark(report: WhyReport, commits: Sequence[Commit]) -> WatermarkBlock:
    """Build the watermark block of one stage, or of all sources, from a report and the kept commits, oldest first."""
    return WatermarkBlock(
        _watermark(report, commits),
        tuple(_lane(c, report) for c in _shown_clocks(report)),
        tuple(LagPoint(m.epoch, m.committed_us, _behind(m)) for m in commits),
    )


def _shown_clocks(report: WhyReport) -> tuple[ClockReport, ...]:
    """Return the clocks of the inputs of a report about one stage.

    For a report about several stages, return each source's clock in the first stage that reads it.
    """
    if not report.stages:
        return report.clocks
    readers: dict[str, str] = {}
    clocks = [(s.stage, c) for s in report.stages for c in s.clocks if not c.of_stage]
    return tuple(c for stage, c in clocks if readers.setdefault(c.source, stage) == stage)


def _watermark(report: WhyReport, commits: Sequence[Commit]) -> int | None:
    if not report.stages or not commits:
        return report.watermark_us
    return None if commits[-1].watermark_us <= NO_WATERMARK else commits[-1].watermark_us


def _holds(clock: ClockReport, report: WhyReport) -> bool:
    """Return whether the watermark waits for this input.

    In a report about several stages, only the source at the end of the chain of waiting stages holds the watermark.
    """
    if clock.of_stage:
        return report.through[:1] == (clock.source,)
    return clock == report.holder and (bool(report.stages) or not report.through)


def _lane(clock: ClockReport, report: WhyReport) -> WatermarkLane:
    return WatermarkLane(
        clock.source,
        clock.partition,
        clock.max_event_us,
        clock.lateness_us,
        clock.watermark_us,
        clock.idle,
        clock.quiet_us,
        report.committed_us - clock.quiet_us,
        _holds(clock, report),
        clock.of_stage,
    )


def _behind(commit: Commit) -> int | None:
    watermark = commit.watermark_us
    return None if watermark <= NO_WATERMARK else commit.committed_us - watermark
