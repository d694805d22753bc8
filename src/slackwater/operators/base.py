"""An operator: the stateful part of a stage, a window or a join, as the driver and the engines see it.

    class Panes(PaneLogic)          operators/panes.py            tumbling and hopping windows
    class Sessions(SessionLogic)    operators/sessions.py
    class IntervalJoin(JoinLogic)   operators/interval_join.py

An operator is a pure logic of `windows` or `joins`, and what that does on a shard. What only one room asks of it, as a
store its columns or `why` its open windows, that room knows by class (`functools.singledispatch`); an operator that is not
registered there is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from slackwater.core.capacity import ANYTHING, ValueLimits
from slackwater.core.schema import Field
from slackwater.operators.reports import EmitReport, IngestReport
from slackwater.state.commit import Hold, SegmentMeta
from slackwater.state.protocol import ShardState

SIDES = ("left", "right")

Question = Callable[["ShardTask"], Mapping[int, int]]  # to one shard; it goes to workers, so it can be pickled
Recount = Callable[[Question], Mapping[int, int]]  # asks all shards, as they are after the rows, and adds up


@dataclass(frozen=True)
class StageCounts:
    """What a commit counts of the state of a stage, so that no shard need be opened: each operator fills in its own part.

    `groups`, `windows`: per shard, keys with open sessions and open sessions. `panes`: start -> keys per shard, while not
    forgotten. `sides`: of a join, what became of the rows of each.
    """

    groups: tuple[int, ...]
    windows: tuple[int, ...]
    panes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Operator(Protocol):
    """Frozen, and it can be pickled: it goes to workers within its tasks. Times in µs; it has no clock and opens nothing."""

    @property
    def pipeline(self) -> str: ...

    @property
    def output(self) -> Sequence[Field]:
        """The columns of what it emits."""
        ...

    @property
    def identity(self) -> tuple[str, ...] | None:
        """The output columns that tell rows apart; None: results are a multiset."""
        ...

    @property
    def retraction(self) -> tuple[str, ...]:
        """The output columns that a superseded row still has."""
        ...

    @property
    def reasons(self) -> Sequence[str]:
        """Why its rows come out, as metrics show it before any did."""
        ...

    @property
    def updates(self) -> bool:
        """Whether what is open is emitted too, when it has changed."""
        ...

    @property
    def early_us(self) -> int:
        """How long after that it may be emitted again."""
        ...

    @property
    def group_limit(self) -> int | None:
        """The bound beyond which new groups are dropped, to be divided over the shards; None where they are not."""
        ...

    @property
    def is_preaggregated(self) -> bool:
        """Whether rows are folded together before a shard sees them: then what came late is found by reading once more."""
        ...

    def late_before(self, watermark: int) -> int:
        """Only rows before this time may be late at this watermark; all of them where they are folded."""
        ...

    def input_index(self, source: str) -> int:
        """Which of its inputs the rows of a source are: 0 where it has but one."""
        ...

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows it emitted, in the order of the contract."""
        ...

    @property
    def row_columns(self) -> Sequence[Field]:
        """The columns of its results as rows of the next stage, `_event_ts` among them."""
        ...

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Its results as rows of the next stage."""
        ...

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        """Return the lowest event time that a result may still have at this watermark. `holds`: of all shards."""
        ...

    @property
    def passes_late(self) -> bool:
        """Whether rows behind the watermark come out as late as they are: then their readers judge them."""
        ...

    def holds_in(self, task: ShardTask) -> tuple[Hold, ...]:
        """Return what may still come out of a shard behind the watermark; reads the shard."""
        ...

    # -- on a shard ----------------------------------------------------------------------------------------------

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Fold an epoch's rows into a shard and stage its new state.

        `origins`: where each row came from (see `operators.dead_letters`), where late rows become letters here.
        """
        ...

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        """Whether a shard may have something to emit between two watermarks, as far as is known without reading it."""
        ...

    def is_due(self, task: ShardTask) -> bool:
        """Whether a shard has something to emit; reads it."""
        ...

    def emit(self, task: ShardTask) -> EmitReport:
        """Stage what comes out of a shard between two watermarks, and the state that changes with it."""
        ...

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        """The dead letters of late rows: `__start` (event time), `_origin`, its keys, and `__idle` where sources may be idle."""
        ...

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a state depends on, `kind` among it; a change of any of it needs a new state. Readable, part of every commit."""
        ...

    @property
    def emission(self) -> dict[str, Any]:
        """How results are emitted, as far as the state shows it; a change of it needs no new state, but an epoch of `evolution.migrate`."""
        ...

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What a commit says of it, from which a state is read without a config. `data`: the keys of its step, see `config.data`."""
        ...

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        """The counts after an epoch's rows."""
        ...

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        """The counts after what was due came out, without what is over."""
        ...

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        """How many windows are open, of how many groups."""
        ...

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """The segments of a shard without those that are over, also where no new row touched the shard.

        `since`: the watermark that the epoch before committed, at which nothing needs what is over any more.
        """
        ...

    def check_bounds(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise CapExceededError if an epoch's rows made the state larger than allowed; `watermark`: of the epoch before."""
        ...


@dataclass(frozen=True)
class LateLetterContext:
    """`late_data = "dlq"`: what the letters of late rows say of their epoch. `held_by`: the source that held the watermark.

    `cause`: why rows are late whose source was not idle.
    """

    pipeline: str
    held_by: str | None
    cause: str = "lateness"


@dataclass(frozen=True)
class KnownWatermark:
    """Where the watermark goes in this epoch, as far as that is known before its rows are read."""

    watermark: int
    early: bool


@dataclass(frozen=True)
class ShardTask:
    """What a shard needs to know of an epoch."""

    operator: Operator
    state: ShardState  # as of the previous commit, or the previous step
    shard: int
    watermark: int  # ingest: of the previous epoch; emit: the new one
    since: int  # of the previous epoch, in both
    idle_sources: tuple[int, ...] = ()
    bound: int | None = None  # drop_new_groups: this shard's part of max_groups_per_window
    groups: int = 0  # sessions: keys that are open now
    pane_groups: Mapping[int, int] | None = None  # panes: groups per pane now
    flush: bool = False
    early: bool = False  # emit = "updates": open windows that were changed are emitted now
    late: LateLetterContext | None = None  # late rows become letters
    keeps_bad: bool = False  # so do rows that bring no usable gap
    capacity: ValueLimits = ANYTHING  # what the target and the state can hold of a row
    known_watermark: KnownWatermark | None = None  # ingest: what is due there comes out in the same pass
    holds: tuple[Hold, ...] | None = None  # of the shard; None where no stage reads this one
    hit: Callable[[str], None] | None = None  # called before and after staging: see engine.kill_points

    def staging(self, when: str) -> None:
        """Say that staging begins ("before") or is over ("after")."""
        if self.hit:
            self.hit(f"stage.{when}")


def with_idle(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that tell whether their source or partition is idle, where they told which it is."""
    if "__src" not in rows.columns:
        return rows
    return rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle")).drop("__src")


def is_over(meta: SegmentMeta, since: int) -> bool:
    """Whether a file holds only what is over. In Postgres there is none: the commit deletes what is over from the table."""
    return meta.dead <= since and "/" in meta.file
