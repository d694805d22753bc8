"""The clocks of sources and their partitions, as shown in reports."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.query.why_report import ClockReport
from slackwater.watermark import NO_WATERMARK, SourceClock


def time_or_none(us: int) -> int | None:
    """Return a watermark (µs), or None if it is not set yet."""
    return None if us <= NO_WATERMARK else us


def report_clocks(name: str, clock: SourceClock) -> list[ClockReport]:
    """Return the report of a source, followed by those of its partitions."""
    return [_clock_report(name, None, clock), *(_clock_report(name, p, c) for p, c in clock.partitions.items())]


def _clock_report(name: str, partition: str | None, c: SourceClock) -> ClockReport:
    idle_in_us = None if c.idle else max(c.idleness_us - c.quiet_us, 0)
    return ClockReport(
        name, partition, c.max_event_us, c.lateness_us, time_or_none(c.watermark_us), c.idle, c.quiet_us, idle_in_us
    )


def slowest_clock(clocks: Sequence[ClockReport]) -> ClockReport:
    """Return the slowest partition that is not idle, or the source if there is no such partition.

    `clocks`: the clock of the source, followed by those of its partitions.
    """
    awake = [c for c in clocks[1:] if not c.idle]
    return min(awake, key=lambda c: NO_WATERMARK if c.watermark_us is None else c.watermark_us, default=clocks[0])
