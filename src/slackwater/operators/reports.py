"""The reports that a shard returns for an epoch, and the counts of a stage that result from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from slackwater.state.commit import Hold, OutputMeta, SegmentMeta
from slackwater.state.commit_record_fields import CommitModel


class LetterFile(CommitModel):
    """A staged file of dead letters, and the number of letters by reason."""

    output: OutputMeta
    reasons: Mapping[str, int]


class SideReport(CommitModel):
    """Counts of what a shard did with the rows of one side of a join."""

    buffered: int = 0
    late: int = 0
    null_keys: int = 0
    keyless: int = 0
    matched: int = 0
    unmatched: int = 0
    evicted: int = 0
    hot_key: tuple[int, str] | None = None  # a key with many rows: their number, its values


class OverflowCounts(CommitModel):
    """The number of results that overflowed their type and were emitted as NULL (`on_overflow`), and a few samples."""

    count: int = 0
    sample: tuple[dict[str, Any], ...] = ()  # keys, `aggregation`, `event_us`: the start of the window


class EmitReport(CommitModel):
    """The report of a shard about the results that it emitted in an epoch."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    outputs: tuple[OutputMeta, ...] = ()
    reasons: Mapping[str, int] = Field(default_factory=dict)
    groups: int = 0
    windows: int = 0
    last_end_us: int | None = None
    unmatched: tuple[int, int] = (0, 0)  # joins: left, right
    holds: tuple[Hold, ...] | None = None  # the new holds of the shard; None if unchanged
    overflows: OverflowCounts = OverflowCounts()


class IngestReport(CommitModel):
    """The report of a shard about the rows that it read in an epoch."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    rows: int = 0
    panes: int = 0  # number of lifted panes into which these rows were aggregated
    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    late_by: Mapping[str, int] = Field(default_factory=dict)  # late rows by step, see `core.lateness_histogram`
    partly_late: int = 0  # rows late for some of their windows, but not for all
    refused: int = 0
    duplicates: int = 0  # used rows that were dropped because another row of their key stands for them
    groups: int = 0
    windows: int = 0
    new_groups: Mapping[int, int] = Field(default_factory=dict)
    late_sample: tuple[dict[str, Any], ...] = ()
    outputs: tuple[OutputMeta, ...] = ()  # late rows as separate results; the pairs of a join
    reasons: Mapping[str, int] = Field(default_factory=dict)  # number of output rows by reason
    bad: int = 0  # rows without a usable gap
    bad_sample: tuple[dict[str, Any], ...] = ()
    letters: LetterFile | None = None
    sides: tuple[SideReport, ...] = ()  # joins: left, right
    overflows: OverflowCounts = OverflowCounts()
    holds: tuple[Hold, ...] | None = None  # the new holds of the shard; None if unchanged
    emitted: EmitReport | None = None  # what was emitted in the same pass; see `operators.base.ingest_and_emit`


@dataclass(frozen=True)
class StageCounts:
    """Counts of a stage's state, stored in the commit so that no shard has to be opened.

    Each operator fills in its own fields. `groups` and `windows`: per shard, the number of keys with open sessions, and
    of open sessions; for keyed stages, of keys and of rows of state. `panes`: for each unexpired pane start, the number
    of keys per shard. `sides`: for a join, how many rows of each side were buffered, late, matched and so on.
    """

    groups: tuple[int, ...]
    windows: tuple[int, ...]
    panes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def add(self, reports: Sequence[IngestReport | EmitReport]) -> StageCounts:
        """Return the counts after these changes of `groups` and `windows`."""
        groups, windows = list(self.groups), list(self.windows)
        for report in reports:
            groups[report.shard] += report.groups
            windows[report.shard] += report.windows
        return replace(self, groups=tuple(groups), windows=tuple(windows))


def to_report_value(value: object) -> object:
    """Convert a value to the form that a report stores: an integer, a string or None."""
    return value if isinstance(value, int | str | None) else str(value)
