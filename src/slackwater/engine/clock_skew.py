"""Warnings about wrong clocks in the input: event times that jump ahead and are held back, or make other rows late.

This module only logs. It never changes how a row is treated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.config.message_format import format_config_duration
from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import format_iso
from slackwater.engine.engine_interface import IngestOutcome
from slackwater.state.commit import StageState
from slackwater.watermark import CONFIRMS, SourceClock, watermark_holder

log = logging.getLogger("slackwater")

FEW = 10  # with fewer late rows, there is no warning
APART_US = 3_600_000_000  # newest times that differ by less share one warning
ADVICE = "a clock in the input may be wrong: set max_jump to hold such rows back, correct them at the source, or raise lateness"


@dataclass
class ClockSkewWarnings:
    """Row counts since the watermark last moved, and the warnings that were already logged.

    The state contains neither, so warnings are logged again after a restart.
    """

    pipeline: Pipeline
    watermark_us: int | None = None
    rows: int = 0
    late: int = 0
    reported: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def check_late_rows(
        self, before: StageState, clocks: Mapping[str, SourceClock], epoch: int, outcome: IngestOutcome
    ) -> None:
        """Warn if most of the rows that were read since the watermark last moved are late."""
        if before.watermark_us != self.watermark_us:
            self.watermark_us, self.rows, self.late = before.watermark_us, 0, 0
        self.rows += sum(r.rows for r in outcome.reports)
        self.late += sum(r.late - r.late_idle for r in outcome.reports)
        if self.late < FEW or 2 * self.late <= self.rows:
            return
        newest_times = {name: c.max_event_us for name, c in clocks.items() if c.max_event_us is not None}
        name = watermark_holder(clocks) or max(newest_times, key=lambda n: newest_times[n], default=None)
        newest = newest_times.get(name or "")
        if name is None or newest is None or abs(newest - self.reported.get(name, newest - APART_US)) < APART_US:
            return
        self.reported[name] = newest
        record = before.clocks.get(name)
        location = f", read from {record.newest_at}" if record is not None and record.newest_at else ""
        log.warning(
            "%s: epoch %d: most rows are late (%d of %d), because the watermark is at %s: the newest event time of "
            'source "%s" is %s%s; %s',
            self.pipeline.name,
            epoch,
            self.late,
            self.rows,
            format_iso(before.watermark_us),
            name,
            format_iso(newest),
            location,
            ADVICE,
        )

    def check_jumps(self, clocks: Mapping[str, SourceClock], epoch: int, outcome: IngestOutcome) -> None:
        """Warn about event times that the clocks hold back, because they jump ahead by more than `max_jump`.

        Call this after the clocks have processed the epoch.
        """
        for source, clock in clocks.items():
            for name, partition_clock in {
                source: clock,
                **{f"{source}, {p}": c for p, c in clock.partitions.items()},
            }.items():
                ahead = partition_clock.held_spans if partition_clock.max_event_us is not None else ()
                newest = ahead[-1][1] if ahead else None
                if newest is None or newest == self.held.get(name):
                    continue
                self.held[name] = newest
                stats = outcome.sources.get(source)
                location = (
                    f" (read from {stats.place})" if stats and stats.place and stats.max_event_us == newest else ""
                )
                jump = self.pipeline.transform.step.max_jump_ms or 0
                log.warning(
                    '%s: epoch %d: source "%s" jumps from %s to %s%s, by more than max_jump (%s); these rows are '
                    "used, but do not advance the watermark of the source until there are %d of them (%d so far)",
                    self.pipeline.name,
                    epoch,
                    name,
                    format_iso(partition_clock.max_event_us or 0),
                    format_iso(newest),
                    location,
                    format_config_duration(jump),
                    CONFIRMS,
                    sum(count for _, _, count in ahead),
                )
