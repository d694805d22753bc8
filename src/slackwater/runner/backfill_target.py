"""The target of a backfill: it passes on the windows of the range and counts the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from slackwater.config.window import Window
from slackwater.connectors.target import TargetWriter
from slackwater.core.schema import find_value_limits
from slackwater.runner.backfill_plan import BackfillRange

NEVER = -(1 << 62)


@dataclass
class RangeCounts:
    """Counts of windows of one backfill.

    Args:
        windows: Windows written.
        before: Windows omitted because they start before the range.
        unfinished: Windows omitted because they were not over when the backfill started.
    """

    windows: int = 0
    before: int = 0
    unfinished: int = 0


@dataclass
class RangeFilterTarget:
    """A target writer that passes on only the windows of the range.

    Args:
        clock_us: When the backfill was started (µs UTC). Windows that end later are unfinished.
        partial: Also pass on windows that extend into the range or are unfinished.
        written: The counts, which `publish` updates.
    """

    target: TargetWriter
    window: Window
    span: BackfillRange
    clock_us: int
    partial: bool
    written: RangeCounts = field(default_factory=RangeCounts)

    def __post_init__(self) -> None:
        self.guarantee, self.upserts = self.target.guarantee, self.target.upserts
        self.description, self.capacity = self.target.description, find_value_limits(self.target)

    def open(self) -> None:
        self.target.open()

    def close(self) -> None:
        self.target.close()

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        """Publish the rows of the range. Superseded rows are selected by their start, since they have no end."""
        start = pl.col(self.window.window_start_column).dt.timestamp("us")
        end = pl.col(self.window.window_end_column).dt.timestamp("us")
        span = self.span
        flags = rows.select(
            (start < span.until_us).alias("due"),
            (start < span.since_us).alias("early"),
            (end <= span.since_us).fill_null(False).alias("over"),
            (end > self.clock_us).fill_null(False).alias("unfinished"),
        )
        due, early, over, unfinished = (flags[c] for c in flags.columns)
        reaching = due & early & ~over
        chosen = due & ~early & ~unfinished
        if self.partial:
            chosen = due & ~over
        else:
            self.written.before += int(reaching.sum())
            self.written.unfinished += int((due & ~early & unfinished).sum())
        if superseded is not None:
            superseded = superseded.filter(
                start.is_between(NEVER if self.partial else span.since_us, span.until_us - 1)
            )
        range_rows = rows.filter(chosen)
        if range_rows.height or (superseded is not None and superseded.height):
            self.target.publish(epoch, range_rows, superseded, commit)
        self.written.windows += range_rows.height
