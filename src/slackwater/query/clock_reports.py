"""The clocks of a source, and of its partitions, as a report shows them."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.query.why_report import ClockReport
from slackwater.watermark import NO_WATERMARK, SourceClock


def known_time(us: int) -> int | None:
    """Return a watermark in microseconds, or None where there is none yet."""
    return None if us <= NO_WATERMARK else us


def report_clocks(name: str, clock: SourceClock) -> list[ClockReport]:
    """Return the report of a source, then those of its partitions."""
    return [_clock(name, None, clock), *(_clock(name, p, c) for p, c in clock.partitions.items())]


def _clock(name: str, partition: str | None, c: SourceClock) -> ClockReport:
    idle_in_us = None if c.idle else max(c.idleness_us - c.quiet_us, 0)
    return ClockReport(
        name, partition, c.max_event_us, c.lateness_us, known_time(c.watermark_us), c.idle, c.quiet_us, idle_in_us
    )


def slowest_clock(clocks: Sequence[ClockReport]) -> ClockReport:
    """Return the partition that holds a source back, or the source; `clocks`: the source's, then those of its partitions."""
    awake = [c for c in clocks[1:] if not c.idle]
    return min(awake, key=lambda c: NO_WATERMARK if c.watermark_us is None else c.watermark_us, default=clocks[0])
