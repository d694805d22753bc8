"""The interface of an operator: the work of one stage on one shard, as seen by the driver and the engines.

    PaneOperator(CompiledPaneWindow, WindowOperator)        operators/panes.py           tumbling and hopping windows
    SessionOperator(CompiledSessionWindow, WindowOperator)  operators/sessions.py        session windows
    IntervalJoinOperator(CompiledJoin, NonWindowOperator)   operators/interval_join.py   stream-stream joins
    KeyedOperator(TimedStateLayout, StateRowOperator, …)    operators/keyed.py           base of operators with timers per key
    DedupOperator(KeyedOperator)                            operators/dedup.py           one row of each key
    StatelessOperator(NoState, NonWindowOperator)           operators/stateless.py       SQL alone

A window or join operator combines pure logic from `windows` or `joins` with its execution on a shard. What only one
package needs, such as the columns of a store, is defined in that package, by dispatch on the operator's class
(`functools.singledispatch`). It is an error if an operator is not registered there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import polars as pl

from slackwater.core.schema import ANYTHING, Field, ValueLimits
from slackwater.operators.reports import EmitReport, IngestReport, StageCounts, to_report_value
from slackwater.state.commit import Hold, SegmentMeta
from slackwater.state.protocol import ShardState
from slackwater.windows.state_rows import KeyedStateLayout

SAMPLE = 3  # number of rows that a report shows

Question = Callable[["ShardTask"], Mapping[int, int]]  # asked of one shard; picklable, since it is sent to workers
Recount = Callable[[Question], Mapping[int, int]]  # asks all shards after the rows were added, and sums up the answers


class Operator(ABC):
    """The work of one stage on one shard. Times are in µs.

    Operators are immutable and can be pickled, since tasks carry them to workers. They read no clock and open no files.
    """

    pipeline: str

    @property
    @abstractmethod
    def output(self) -> Sequence[Field]:
        """Return the columns of the results."""

    @property
    def identity(self) -> tuple[str, ...] | None:
        """Return the output columns that identify a row; None if the results are a multiset."""
        return None

    @property
    def retraction(self) -> tuple[str, ...]:
        """Return the output columns that have values in a row that marks a result as superseded."""
        return ()

    @property
    @abstractmethod
    def reasons(self) -> Sequence[str]:
        """Return the possible reasons for emitting a row. Metrics list them even before the first row."""

    @property
    def updates(self) -> bool:
        """Return whether open windows are emitted again when they change."""
        return False

    @property
    def early_us(self) -> int:
        """Return the minimum time (µs) between two emissions of open windows."""
        return 0

    @property
    def group_limit(self) -> int | None:
        """Return the number of groups beyond which new ones are dropped; None if groups are never dropped.

        The limit is divided among the shards.
        """
        return None

    @property
    def is_preaggregated(self) -> bool:
        """Return whether rows are pre-aggregated before they reach a shard.

        If so, the batch is read a second time to find the late rows.
        """
        return False

    @abstractmethod
    def late_before(self, watermark: int) -> int:
        """Return the time before which rows may be late at this watermark.

        With pre-aggregation, every row before this time is late for at least one of its windows.
        """

    def input_index(self, source: str) -> int:
        """Return the index of the input that a source's rows belong to; 0 if there is only one."""
        return 0

    @abstractmethod
    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort emitted rows in the documented order."""

    @property
    def row_columns(self) -> Sequence[Field]:
        """Return the columns of the results when the next stage reads them as rows, including `_event_ts`."""
        return self.output

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Convert results to rows for the next stage."""
        return results

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        """Return the lowest event time that a result may still have at this watermark.

        `holds`: the watermark holds of all shards.
        """
        return watermark

    @property
    def emits_late_rows(self) -> bool:
        """Return whether rows behind the watermark are emitted with their original event time.

        If so, the stages that read these rows decide whether the rows are late.
        """
        return False

    def read_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        """Read a shard and return its watermark holds: those of results that it may still emit behind the watermark."""
        return ()

    # -- on a shard ----------------------------------------------------------------------------------------------

    @abstractmethod
    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Add an epoch's rows to a shard and stage its new state.

        `origins`: the origin of each row (see `operators.dead_letters`). Without it, late rows do not become dead
        letters.
        """

    @abstractmethod
    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        """Return whether a shard may have something to emit between two watermarks, without reading the shard."""

    @abstractmethod
    def is_due(self, task: ShardTask) -> bool:
        """Read a shard and return whether it has something to emit."""

    @abstractmethod
    def emit(self, task: ShardTask) -> EmitReport:
        """Stage the results that a shard emits between two watermarks, and the resulting changes to its state."""

    @abstractmethod
    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the dead letters of late rows.

        `rows` has `__start` (event time), `_origin`, the keys, and `__idle` if sources may be idle.
        """

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return what the stored state depends on, including the operator's `kind`.

        If the fingerprint changes, the state can no longer be used. Every commit contains the fingerprint in a form
        that people can read.
        """

    @property
    def emission(self) -> dict[str, Any]:
        """Return the parts of the emission mode that affect the state.

        If these parts change, the state is migrated (`evolution.state_migration`), not discarded.
        """
        return {"updates": False, "retain_us": 0}

    @abstractmethod
    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of the step for the commit, which allows the state to be read without a config.

        `data`: the step as plain data (see `config.spec_base.spec_to_data`).
        """

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        """Return the counts after an epoch's rows were added."""
        return before.add(reports)

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        """Return the counts after emission, excluding windows that have expired."""
        return before.add(reports)

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        """Return the number of open windows and the number of their groups. Buffered rows are not groups."""
        return 0, 0

    @abstractmethod
    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """Return the segments of a shard that are still needed. This is also called for shards that received no rows.

        `since` is the watermark that the previous epoch committed. Segments that have expired by then are no longer
        needed.
        """

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise CapExceededError if an epoch's rows made the number of groups exceed its limit.

        `watermark` is that of the previous epoch. `recount` asks all shards for exact counts and adds them up. Without
        groups, nothing is checked.
        """
        return


class NonWindowOperator(Operator):
    """An operator without windows. It emits each row exactly once: when it is read, or when the watermark passes it.

    Packages that dispatch on the operator's class register this class once for all of its subclasses. An operator that
    behaves differently is registered separately.
    """


class StateRowOperator(KeyedStateLayout, Operator):
    """An operator whose state consists of state rows (see `windows.state_rows`): a window or a keyed operator."""

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        due = self.due_between(since, watermark, early)
        return any(due.may_select(m.first_due, m.last_due) for m in metas)

    def is_due(self, task: ShardTask) -> bool:
        return not self.read_due_units(task).is_empty()

    def read_due_units(self, task: ShardTask) -> pl.DataFrame:
        """Return all state rows of the units in a shard that are due between the two watermarks of a task."""
        return task.state.reader(self).due(self.due_between(task.since, task.watermark, task.early))

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """Drop the expired segments before the first unexpired one. Dropping others would expose older row versions."""
        return tuple(dropwhile(lambda meta: is_segment_expired(meta, since), metas))

    def sample(self, rows: pl.DataFrame, time: str) -> tuple[dict[str, Any], ...]:
        """Return a few rows for the log: their keys, and their event times (µs) from the column `time`."""
        return sample_rows(rows, time, {name: name for name in self.key_names})


@dataclass(frozen=True)
class LateLetterContext:
    """Facts about an epoch that the dead letters of its late rows record (`late_data = "dlq"`).

    `held_by`: the source that held back the watermark. `cause`: why rows are late if their source was not idle.
    """

    pipeline: str
    held_by: str | None
    cause: str = "lateness"


@dataclass(frozen=True)
class EpochWatermark:
    """The watermark of this epoch, if it is known before the epoch's rows are read."""

    watermark: int
    early: bool


@dataclass(frozen=True)
class ShardTask:
    """The task of one shard in one epoch."""

    operator: Operator
    state: ShardState  # as of the previous commit, or of the previous step
    shard: int
    watermark: int  # µs; ingest: that of the previous epoch; emit: the new one
    since: int  # µs; the watermark of the previous epoch, for ingest and emit
    idle_sources: tuple[int, ...] = ()
    group_limit: int | None = None  # drop_new_groups: this shard's share of max_groups_per_window
    groups: int = 0  # sessions: number of keys with open sessions
    pane_groups: Mapping[int, int] | None = None  # panes: current number of groups per pane
    flush: bool = False
    early: bool = False  # emit = "updates": emit changed open windows now
    late: LateLetterContext | None = None  # set if late rows become dead letters
    keeps_bad: bool = False  # rows without a usable gap become dead letters
    capacity: ValueLimits = ANYTHING  # the values that both the target and the state can store
    epoch_watermark: EpochWatermark | None = None  # ingest: results due at this watermark are emitted in the same pass
    holds: tuple[Hold, ...] | None = None  # holds of the shard; None if no stage reads this one
    hit: Callable[[str], None] | None = None  # called before and after staging: see engine.kill_points

    def staging(self, when: str) -> None:
        """Signal that staging begins ("before") or has ended ("after")."""
        if self.hit:
            self.hit(f"stage.{when}")


def ingest_and_emit(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Run `Operator.ingest`, followed by `Operator.emit` if the task has the new watermark.

    The new watermark is known before the rows are read if the rows are results of other stages, or come from files
    whose footers contain the newest time. Otherwise, the driver advances the clocks and sends a second task.
    """
    report, known_watermark = task.operator.ingest(task, rows, origins), task.epoch_watermark
    if known_watermark is None:
        return report
    watermark, early = known_watermark.watermark, known_watermark.early
    emitted = EmitReport(shard=task.shard, segments=report.segments)
    if task.operator.may_be_due(report.segments, task.since, watermark, early):
        state, holds = task.state.with_metas(report.segments), task.holds if report.holds is None else report.holds
        due = ShardTask(task.operator, state, task.shard, watermark, task.since, early=early, holds=holds)
        emitted = task.operator.emit(due)
    return report.model_copy(update={"emitted": emitted})


def flag_idle_sources(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the tag of each row's source (`__src`) with whether the source or partition is idle (`__idle`)."""
    if "__src" not in rows.columns:
        return rows
    return rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle")).drop("__src")


def count_idle(late: pl.DataFrame) -> int:
    """Return how many of these late rows are of idle sources."""
    return int(late["__idle"].sum()) if "__idle" in late.columns else 0


def sample_rows(rows: pl.DataFrame, time: str, names: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """Return a few rows for a report: event times (µs) from the column `time`, and the columns `names`, by new name."""
    some = rows.head(SAMPLE).select(pl.col(time).alias("event_us"), *(pl.col(c).alias(n) for n, c in names.items()))
    return tuple({k: to_report_value(v) for k, v in row.items()} for row in some.iter_rows(named=True))


def is_segment_expired(meta: SegmentMeta, since: int) -> bool:
    """Return whether all rows of a segment file have expired at the watermark `since`.

    This is always false for Postgres, where the commit deletes expired rows from the table.
    """
    return meta.dead <= since and "/" in meta.file
