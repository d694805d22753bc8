"""The interface of an operator: the work of one stage on one shard, as the driver and the engines see it.

    PaneOperator(PaneLogic, WindowOperator)                operators/panes.py           tumbling and hopping windows
    SessionOperator(SessionLogic, WindowOperator)          operators/sessions.py        session windows
    IntervalJoinOperator(JoinLogic, NonWindowOperator)     operators/interval_join.py   stream-stream joins
    KeyedOperator(KeyedState, ImmediateOperator)           operators/keyed.py           base of operators with a row per key
    StatelessOperator(NoState, ImmediateOperator)          operators/stateless.py       SQL alone

A window or a join combines pure logic of `windows` or `joins` with its use on a shard. A question that only one package
asks, such as the columns of a store, is answered in that package by class (`functools.singledispatch`). An operator
that is not registered in that package is an error.
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

Question = Callable[["ShardTask"], Mapping[int, int]]  # asked of one shard; it is sent to workers, so it can be pickled
Recount = Callable[[Question], Mapping[int, int]]  # asks all shards after the rows were added, and sums the answers


@dataclass(frozen=True)
class StageCounts:
    """Counts of a stage's state in a commit, so that no shard has to be opened. Each operator fills in its own fields.

    `groups` and `windows`: keys with open sessions, and open sessions, per shard. `panes`: start to keys per shard,
    until the pane expires. `sides`: for a join, counts of what became of the rows of each side.
    """

    groups: tuple[int, ...]
    windows: tuple[int, ...]
    panes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Operator(Protocol):
    """The work of one stage on one shard. Times are in µs.

    It is frozen and can be pickled, since it is sent to workers in its tasks. It has no clock and opens no files.
    """

    @property
    def pipeline(self) -> str: ...

    @property
    def output(self) -> Sequence[Field]:
        """Return the columns of the results."""
        ...

    @property
    def identity(self) -> tuple[str, ...] | None:
        """Return the output columns that identify a row; None if results are a multiset."""
        ...

    @property
    def retraction(self) -> tuple[str, ...]:
        """Return the output columns that a superseded row still has."""
        ...

    @property
    def reasons(self) -> Sequence[str]:
        """Return the reasons for which rows are emitted; metrics show them before the first row."""
        ...

    @property
    def updates(self) -> bool:
        """Return whether open windows that have changed are emitted as well."""
        ...

    @property
    def early_us(self) -> int:
        """Return the least time (µs) between two emissions of open windows."""
        ...

    @property
    def group_limit(self) -> int | None:
        """Return the limit beyond which new groups are dropped, which is divided over the shards; None if they are not
        dropped.
        """
        ...

    @property
    def is_preaggregated(self) -> bool:
        """Return whether rows are pre-aggregated before a shard gets them.

        Then the batch is read a second time to find late rows.
        """
        ...

    def late_before(self, watermark: int) -> int:
        """Return the time before which rows may be late at this watermark.

        With pre-aggregation, all rows before that time are late.
        """
        ...

    def input_index(self, source: str) -> int:
        """Return the index of the input that the rows of a source belong to; 0 if there is only one."""
        ...

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort emitted rows in the documented order."""
        ...

    @property
    def row_columns(self) -> Sequence[Field]:
        """Return the columns of the results as rows of the next stage, including `_event_ts`."""
        ...

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Return the results as rows of the next stage."""
        ...

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        """Return the lowest event time that a result may still have at this watermark.

        `holds` are those of all shards.
        """
        ...

    @property
    def passes_late(self) -> bool:
        """Return whether rows behind the watermark are emitted with their original event time.

        Then the stages that read them decide whether they are late.
        """
        ...

    def holds_in(self, task: ShardTask) -> tuple[Hold, ...]:
        """Read a shard and return the holds for what it may still emit behind the watermark."""
        ...

    # -- on a shard ----------------------------------------------------------------------------------------------

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Add an epoch's rows to a shard and stage its new state.

        `origins` has the origin of each row (see `operators.dead_letters`), if late rows become dead letters here.
        """
        ...

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        """Return whether a shard may have something to emit between two watermarks, judged without reading it."""
        ...

    def is_due(self, task: ShardTask) -> bool:
        """Read a shard and return whether it has something to emit."""
        ...

    def emit(self, task: ShardTask) -> EmitReport:
        """Stage what a shard emits between two watermarks, and the state that changes with it."""
        ...

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the dead letters of late rows: `__start` (event time), `_origin`, its keys, and `__idle` if sources may
        be idle.
        """
        ...

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Return what a state depends on, with its `kind`.

        A change of it needs a new state. It is readable and part of every commit.
        """
        ...

    @property
    def emission(self) -> dict[str, Any]:
        """Return how results are emitted, as far as it affects the state.

        A change of it does not need a new state, but a migration (`evolution.migrate`).
        """
        ...

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description for the commit, from which a state can be read without a config.

        `data`: the keys of the step, see `config.serialization`.
        """
        ...

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        """Return the counts after an epoch's rows."""
        ...

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        """Return the counts after emission, without what has expired."""
        ...

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        """Return (number of open windows, number of their groups)."""
        ...

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """Return the segments of a shard without the expired ones, also if no new row reached the shard.

        `since` is the watermark that the previous epoch committed; at it, nothing needs expired segments any more.
        """
        ...

    def check_bounds(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise CapExceededError if an epoch's rows made the state larger than allowed.

        `watermark` is that of the previous epoch. `recount` counts in all shards again.
        """
        ...


@dataclass(frozen=True)
class LateLetterContext:
    """What the letters of late rows say about their epoch (`late_data = "dlq"`).

    `held_by`: the source that held the watermark. `cause`: why rows of a source that was not idle are late.
    """

    pipeline: str
    held_by: str | None
    cause: str = "lateness"


@dataclass(frozen=True)
class KnownWatermark:
    """The watermark of this epoch, if it is known before its rows are read."""

    watermark: int
    early: bool


@dataclass(frozen=True)
class ShardTask:
    """The task of a shard in an epoch."""

    operator: Operator
    state: ShardState  # as of the previous commit, or the previous step
    shard: int
    watermark: int  # µs; ingest: of the previous epoch; emit: the new one
    since: int  # µs; the watermark of the previous epoch, for ingest and emit
    idle_sources: tuple[int, ...] = ()
    group_limit: int | None = None  # drop_new_groups: this shard's share of max_groups_per_window
    groups: int = 0  # sessions: number of keys with open sessions
    pane_groups: Mapping[int, int] | None = None  # panes: current number of groups per pane
    flush: bool = False
    early: bool = False  # emit = "updates": changed open windows are emitted now
    late: LateLetterContext | None = None  # set if late rows become letters
    keeps_bad: bool = False  # rows without a usable gap become letters
    capacity: ValueLimits = ANYTHING  # the values that the target and the state can store
    known_watermark: KnownWatermark | None = None  # ingest: results due at it are emitted in the same pass
    holds: tuple[Hold, ...] | None = None  # holds of the shard; None if no stage reads this one
    hit: Callable[[str], None] | None = None  # called before and after staging: see engine.kill_points

    def staging(self, when: str) -> None:
        """Report that staging begins ("before") or has ended ("after")."""
        if self.hit:
            self.hit(f"stage.{when}")


def with_idle(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the tag of each row's source or partition (`__src`) with whether it is idle (`__idle`)."""
    if "__src" not in rows.columns:
        return rows
    return rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle")).drop("__src")


def is_expired(meta: SegmentMeta, since: int) -> bool:
    """Return whether a segment file has only expired rows.

    In Postgres this is always false, since the commit deletes expired rows from the table.
    """
    return meta.dead <= since and "/" in meta.file
