"""The reports of a shard about an epoch, and the stage counts that the driver adds up from these reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from slackwater.state.commit import Hold, OutputMetadata, SegmentMetadata
from slackwater.state.commit_record_fields import CommitModel


class DeadLetterFile(CommitModel):
    """A staged file of dead letters, with the number of letters by reason."""

    output: OutputMetadata
    reasons: Mapping[str, int]


class SideReport(CommitModel):
    """Row counts of one side of a join, for one shard and epoch."""

    buffered: int = 0
    late: int = 0
    null_keys: int = 0
    keyless: int = 0  # rows with NULL keys that were dropped, because the side is not outer
    matched: int = 0  # rows that got their first partner
    unmatched: int = 0  # rows of an outer side that were emitted without a partner
    evicted: int = 0  # rows that were dropped at the limit on rows per key
    hot_key: tuple[int, str] | None = None  # a key with many rows: the number of rows, and the key as text


class OverflowCounts(CommitModel):
    """The number of results that overflowed their type and were emitted as NULL (`on_overflow`), and a few samples."""

    count: int = 0
    sample: tuple[dict[str, Any], ...] = ()  # the keys, `aggregation`, and the window start as `event_us`


class EmitReport(CommitModel):
    """Report of a shard about the results that it emitted in an epoch."""

    shard: int
    segments: tuple[SegmentMetadata, ...]
    outputs: tuple[OutputMetadata, ...] = ()
    reasons: Mapping[str, int] = Field(default_factory=dict)
    groups: int = 0  # change in the number of groups
    windows: int = 0  # change in the number of open windows
    last_end_us: int | None = None  # the latest end of an emitted window
    unmatched: tuple[int, int] = (0, 0)  # joins: left, right
    holds: tuple[Hold, ...] | None = None  # the new watermark holds of the shard; None if unchanged
    overflows: OverflowCounts = OverflowCounts()


class IngestReport(CommitModel):
    """Report of a shard about the rows that it read in an epoch."""

    shard: int
    segments: tuple[SegmentMetadata, ...]
    rows: int = 0
    panes: int = 0  # number of lifted panes into which these rows were aggregated
    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    late_by: Mapping[str, int] = Field(default_factory=dict)  # late rows by step (see `core.lateness_histogram`)
    partly_late: int = 0  # rows that were late for some of their windows, but not for all
    refused: int = 0  # rows of new groups over the limit
    duplicates: int = 0  # used rows that were dropped, because another row of their key is emitted instead
    groups: int = 0  # change in the number of groups
    windows: int = 0  # change in the number of open windows
    new_groups: Mapping[int, int] = Field(default_factory=dict)  # number of new groups by the start of the pane
    late_sample: tuple[dict[str, Any], ...] = ()
    outputs: tuple[OutputMetadata, ...] = ()  # late rows as separate results, or the pairs of a join
    reasons: Mapping[str, int] = Field(default_factory=dict)  # number of output rows by reason
    bad: int = 0  # rows without a usable gap
    bad_sample: tuple[dict[str, Any], ...] = ()
    letters: DeadLetterFile | None = None
    sides: tuple[SideReport, ...] = ()  # joins: left, right
    overflows: OverflowCounts = OverflowCounts()
    holds: tuple[Hold, ...] | None = None  # the new watermark holds of the shard; None if unchanged
    emitted: EmitReport | None = None  # results of the same pass (see `operators.base.ingest_and_emit`)


@dataclass(frozen=True)
class StageCounts:
    """Counts of a stage's state. The commit stores them, so that they can be read without opening a shard.

    Each operator uses only some of the fields.
    """

    groups: tuple[int, ...]  # per shard: keys with open sessions (session windows), or keys (keyed stages)
    windows: tuple[int, ...]  # per shard: open sessions (session windows), or rows of state (keyed stages)
    panes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # groups per shard, by the start of the pane
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # joins: the counts of `SideReport`, by side

    def add(self, reports: Sequence[IngestReport | EmitReport]) -> StageCounts:
        """Return the counts, updated with the changes in `groups` and `windows` from these reports."""
        groups, windows = list(self.groups), list(self.windows)
        for report in reports:
            groups[report.shard] += report.groups
            windows[report.shard] += report.windows
        return replace(self, groups=tuple(groups), windows=tuple(windows))


def to_report_value(value: object) -> object:
    """Convert a value to a form that reports can contain: an integer, a string or None."""
    return value if isinstance(value, int | str | None) else str(value)
