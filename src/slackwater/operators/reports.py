"""What a shard reports of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from slackwater.state.commit import CommitModel, Hold, OutputMeta, SegmentMeta


class LetterFile(CommitModel):
    """Dead letters put aside, and how many of them for which reason."""

    output: OutputMeta
    reasons: Mapping[str, int]


class SideReport(CommitModel):
    """What a shard did with the rows of one side of a join."""

    buffered: int = 0
    late: int = 0
    null_keys: int = 0
    keyless: int = 0
    matched: int = 0
    unmatched: int = 0
    evicted: int = 0
    hot_key: tuple[int, str] | None = None  # a key with many rows: how many, its values


class OverflowCounts(CommitModel):
    """Results that did not fit their type and came out as NULL (`on_overflow`): how many, and a few of them."""

    count: int = 0
    sample: tuple[dict[str, Any], ...] = ()  # keys, `aggregation`, `event_us`: the start of the window


class EmitReport(CommitModel):
    """What a shard emitted."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    outputs: tuple[OutputMeta, ...] = ()
    reasons: Mapping[str, int] = Field(default_factory=dict)
    groups: int = 0
    windows: int = 0
    last_end_us: int | None = None
    unmatched: tuple[int, int] = (0, 0)  # of a join: left, right
    holds: tuple[Hold, ...] | None = None  # of the shard from now on; None: as they were
    overflows: OverflowCounts = OverflowCounts()


class IngestReport(CommitModel):
    """What a shard did with its rows."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    rows: int = 0
    panes: int = 0  # of groups, into which these rows were folded
    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    late_by: Mapping[str, int] = Field(default_factory=dict)  # late rows by step, see `core.lateness`
    partly_late: int = 0  # late for some of their windows, not for all
    refused: int = 0
    groups: int = 0
    windows: int = 0
    new_groups: Mapping[int, int] = Field(default_factory=dict)
    late_sample: tuple[dict[str, Any], ...] = ()
    outputs: tuple[OutputMeta, ...] = ()  # late rows as results of their own; what a join makes of the rows
    reasons: Mapping[str, int] = Field(default_factory=dict)  # of these
    bad: int = 0  # rows whose gap is none
    bad_sample: tuple[dict[str, Any], ...] = ()
    letters: LetterFile | None = None
    sides: tuple[SideReport, ...] = ()  # of a join: left, right
    overflows: OverflowCounts = OverflowCounts()
    holds: tuple[Hold, ...] | None = None  # of the shard from now on; None: as they were
    emitted: EmitReport | None = None  # what came out in the same pass, see `operators.one_pass`


def plain_value(value: object) -> object:
    """A value as a report carries it."""
    return value if isinstance(value, int | str | None) else str(value)
