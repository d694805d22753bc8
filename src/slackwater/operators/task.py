"""What a shard is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from slackwater.core.capacity import ANYTHING, Capacity
from slackwater.joins.logic import JoinLogic
from slackwater.state.protocol import OutputMeta, Record, SegmentMeta, ShardState
from slackwater.windows.logic import Logic


@dataclass(frozen=True)
class LateLetters:
    """`late_data = "dlq"`: what the letters of late rows say of their epoch. `held_by`: the source that held the watermark."""

    pipeline: str
    held_by: str | None


@dataclass(frozen=True)
class ShardTask:
    """What a shard needs to know; `metas` is its state as of the previous commit (or step)."""

    logic: Logic | JoinLogic
    state: ShardState  # as of the previous commit, or the previous step
    shard: int
    watermark: int  # ingest: of the previous epoch; emit: the new one
    since: int  # of the previous epoch, in both
    idle_sources: tuple[int, ...] = ()
    bound: int | None = None  # drop_new_groups: this shard's part of max_groups_per_window
    groups: int = 0  # sessions: keys that are open now
    pane_groups: Mapping[int, int] | None = None  # panes: groups per pane now
    flush: bool = False
    telling: bool = False  # emit = "updates": open windows that were changed are emitted now
    late: LateLetters | None = None  # late rows become letters
    keeps_bad: bool = False  # so do rows that bring no usable gap
    capacity: Capacity = ANYTHING  # what the target and the state can hold of a row
    hit: Callable[[str], None] | None = None  # called before and after staging: see engine.faults

    @property
    def windows(self) -> Logic:
        """The logic, of windows."""
        assert isinstance(self.logic, Logic)
        return self.logic

    @property
    def join(self) -> JoinLogic:
        """The logic, of a join."""
        assert isinstance(self.logic, JoinLogic)
        return self.logic


class StagedLetters(Record):
    """Dead letters put aside, and how many of them for which reason."""

    output: OutputMeta
    reasons: Mapping[str, int]


class SideReport(Record):
    """What a shard did with the rows of one side of a join."""

    buffered: int = 0
    late: int = 0
    null_keys: int = 0
    keyless: int = 0
    matched: int = 0
    unmatched: int = 0
    evicted: int = 0
    crowd: tuple[int, str] | None = None  # a key with many rows: how many, its values


class Overflows(Record):
    """Results that did not fit their type and came out as NULL (`on_overflow`): how many, and a few of them."""

    count: int = 0
    sample: tuple[dict[str, Any], ...] = ()  # keys, `aggregation`, `event_us`: the start of the window


class IngestReport(Record):
    """What a shard did with its rows."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    rows: int = 0
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
    letters: StagedLetters | None = None
    sides: tuple[SideReport, ...] = ()  # of a join: left, right
    overflows: Overflows = Overflows()


class EmitReport(Record):
    """What a shard emitted."""

    shard: int
    segments: tuple[SegmentMeta, ...]
    outputs: tuple[OutputMeta, ...] = ()
    reasons: Mapping[str, int] = Field(default_factory=dict)
    groups: int = 0
    windows: int = 0
    last_end_us: int | None = None
    unmatched: tuple[int, int] = (0, 0)  # of a join: left, right
    overflows: Overflows = Overflows()


def plain(value: object) -> object:
    """A value as a report carries it."""
    return value if isinstance(value, int | str | None) else str(value)
