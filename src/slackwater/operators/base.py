"""The interface of an operator, which runs one stage on one shard for the driver and the engines.

    PaneWindowOperator(CompiledPaneWindow, WindowOperator)        window_operators.py    tumbling and hopping windows
    SessionWindowOperator(CompiledSessionWindow, WindowOperator)  window_operators.py    session windows
    IntervalJoinOperator(CompiledJoin, NonWindowOperator)         interval_join.py       stream-stream joins
    KeyedOperator(TimerStateLayout, StateRowOperator, …)          keyed_operator_base.py base of operators with rows of state
    UserKeyedOperator(KeyedOperator)                              user_keyed_operator.py a user's class
    DedupOperator(KeyedOperator)                                  dedup.py               dropping duplicates
    StatelessOperator(NoState, NonWindowOperator)                 stateless.py           SQL alone

A window or join operator combines pure logic from `windows` or `joins` with its execution on a shard. A package defines
the details that only it needs, such as the columns of a store, by dispatch on the class of the operator
(`functools.singledispatch`). The dispatch raises an error for an operator that is not registered.
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
from slackwater.state.commit import Hold, SegmentMetadata
from slackwater.state.protocol import ShardState
from slackwater.windows.state_layout import KeyedStateLayout

SAMPLE = 3  # number of rows that a report shows

ShardCount = Callable[["ShardTask"], Mapping[int, int]]  # counts in one shard; picklable, since it is sent to workers
Recount = Callable[[ShardCount], Mapping[int, int]]  # runs the count in all shards, and adds up the results by key


class Operator(ABC):
    """Runs one stage on one shard. Times are in µs.

    Operators are immutable and picklable, since tasks carry them to workers. They do not read clocks or open files.
    """

    pipeline: str

    @property
    @abstractmethod
    def output(self) -> Sequence[Field]:
        """Return the columns of the results."""

    @property
    def identity(self) -> tuple[str, ...] | None:
        """Return the output columns that identify a result; None if results can be equal."""
        return None

    @property
    def retraction(self) -> tuple[str, ...]:
        """Return the output columns that are set in a row for a superseded result. All others are NULL."""
        return ()

    @property
    @abstractmethod
    def reasons(self) -> Sequence[str]:
        """Return all reasons for which rows are emitted. Metrics list them even before the first row."""

    @property
    def updates(self) -> bool:
        """Return whether open windows are emitted again when they change."""
        return False

    @property
    def early_emission_interval_us(self) -> int:
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

        If so, the engine reads the batch a second time to build the dead letters for late rows.
        """
        return False

    @abstractmethod
    def late_threshold(self, watermark: int) -> int:
        """Return the time before which rows may be late at this watermark.

        If rows are pre-aggregated, every row before this time is late for at least one of its windows.
        """

    def input_index(self, source: str) -> int:
        """Return the index of the operator input that reads this source; 0 if the operator has only one input."""
        return 0

    @abstractmethod
    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort emitted rows in the documented order."""

    @property
    def row_columns(self) -> Sequence[Field]:
        """Return the columns of `as_rows`, including `_event_ts`."""
        return self.output

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Convert results to rows for the next stage."""
        return results

    def watermark_hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        """Return the lowest event time that future results may have at this watermark.

        `holds`: the watermark holds of all shards.
        """
        return watermark

    @property
    def emits_late_rows(self) -> bool:
        """Return whether the operator emits rows behind the watermark. The next stages decide whether they are late."""
        return False

    def read_watermark_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        """Read a shard and return its watermark holds, one for each result that it may emit behind the watermark."""
        return ()

    # -- on a shard ----------------------------------------------------------------------------------------------

    @abstractmethod
    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Add an epoch's rows to a shard, and stage its new state.

        `origins`: the origin of each row (see `operators.dead_letters`). Without origins, late rows do not become dead
        letters.
        """

    @abstractmethod
    def may_be_due(self, metas: Sequence[SegmentMetadata], since: int, watermark: int, early: bool) -> bool:
        """Return whether a shard may have results to emit between two watermarks, judging by its segments alone."""

    @abstractmethod
    def is_due(self, task: ShardTask) -> bool:
        """Read a shard and return whether it has results to emit."""

    @abstractmethod
    def emit(self, task: ShardTask) -> EmitReport:
        """Stage the results that a shard emits between two watermarks, and the changes to its state."""

    @abstractmethod
    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the dead letters for late rows.

        `rows` has `__start` (event time), `_origin`, the keys, and `__idle` if sources may be idle.
        """

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return the part of the config that the stored state depends on, and the operator's `kind`.

        If the fingerprint changes, the state can no longer be used. Every commit contains the fingerprint in readable
        form.
        """

    @property
    def emission(self) -> dict[str, Any]:
        """Return the emission settings that the state depends on.

        If these settings change, the state is migrated, not discarded (see `evolution.state_migration`).
        """
        return {"updates": False, "retain_us": 0}

    @abstractmethod
    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return a description of the step to store in the commit, so that the state can be read without a config.

        `data`: the step as plain data (see `config.spec_base.spec_to_data`).
        """

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        """Return the counts of the stage after the shards have added an epoch's rows."""
        return before.add(reports)

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        """Return the counts of the stage after the shards have emitted results, without expired windows."""
        return before.add(reports)

    def count_open_groups(self, counts: StageCounts) -> tuple[int, int]:
        """Return the number of open windows, and the number of groups. Rows in join buffers do not count."""
        return 0, 0

    @abstractmethod
    def live_segments(self, metas: tuple[SegmentMetadata, ...], since: int) -> tuple[SegmentMetadata, ...]:
        """Return the segments of a shard that are still needed at the watermark `since` of the previous epoch.

        This method is also called for shards without new rows.
        """

    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None:
        """Raise LimitExceededError if the number of groups exceeds its limit after an epoch's rows were added.

        Args:
            counts: The counts after the rows were added.
            watermark: The watermark of the previous epoch.
            recount: A function that counts groups exactly in all shards, for counts that are only upper limits.
        """
        return


class NonWindowOperator(Operator):
    """Base class of operators without windows. Each result is emitted once and never revised.

    Packages that dispatch on the class of the operator register this class for all of its subclasses. Subclasses that
    need different behavior are registered separately.
    """


class StateRowOperator(KeyedStateLayout, Operator):
    """Base class of window and keyed operators, whose state consists of state rows (see `windows.state_layout`)."""

    def may_be_due(self, metas: Sequence[SegmentMetadata], since: int, watermark: int, early: bool) -> bool:
        due = self.due_between(since, watermark, early)
        return any(due.may_match_segment(m.first_due, m.last_due) for m in metas)

    def is_due(self, task: ShardTask) -> bool:
        return not self.read_due_units(task).is_empty()

    def read_due_units(self, task: ShardTask) -> pl.DataFrame:
        """Return all state rows of the units that are due between the two watermarks of a task."""
        return task.state.reader(self).due(self.due_between(task.since, task.watermark, task.early))

    def live_segments(self, metas: tuple[SegmentMetadata, ...], since: int) -> tuple[SegmentMetadata, ...]:
        """Drop the expired segments before the first unexpired one. Later segments may hide older versions of rows."""
        return tuple(dropwhile(lambda meta: is_segment_expired(meta, since), metas))

    def sample(self, rows: pl.DataFrame, time: str) -> tuple[dict[str, Any], ...]:
        """Return the keys and event times of a few rows for the log. `time`: the column with the event time (µs)."""
        return sample_rows(rows, time, {name: name for name in self.key_names})


@dataclass(frozen=True)
class LateDeadLetterContext:
    """Facts about an epoch to record in the dead letters of its late rows (`late_data = "dlq"`)."""

    pipeline: str
    held_by: str | None  # the source that held back the watermark
    cause: str = "lateness"  # why rows of sources that are not idle are late


@dataclass(frozen=True)
class EpochWatermark:
    """The new watermark of an epoch, if it is known before the epoch's rows are read."""

    watermark: int  # µs
    early: bool  # emit = "updates": whether to emit changed open windows


@dataclass(frozen=True)
class ShardTask:
    """A task for one shard in one epoch: to ingest rows or to emit results."""

    operator: Operator
    state: ShardState  # as of the previous commit, or of the previous task of this epoch
    shard: int
    watermark: int  # µs; the watermark of the previous epoch (ingest), or the new watermark (emit)
    since: int  # µs; the watermark of the previous epoch
    idle_sources: tuple[int, ...] = ()  # tags (`__src`) of idle sources and partitions
    group_limit: int | None = None  # drop_new_groups: this shard's share of max_groups_per_window
    groups: int = 0  # sessions: number of keys with open sessions
    pane_groups: Mapping[int, int] | None = None  # panes: current number of groups per pane
    flush: bool = False
    early: bool = False  # emit = "updates": emit changed open windows now
    late: LateDeadLetterContext | None = None  # set if late rows become dead letters
    keeps_bad: bool = False  # whether rows without a usable gap become dead letters
    capacity: ValueLimits = ANYTHING  # the values that both the target and the state can store
    epoch_watermark: EpochWatermark | None = None  # ingest: also emit the results that are due at this watermark
    holds: tuple[Hold, ...] | None = None  # watermark holds of the shard; None if no other stage reads this stage
    hit: Callable[[str], None] | None = None  # called before and after staging (see `engine.kill_points`)

    def staging(self, when: str) -> None:
        """Report the kill point "before" or "after" staging."""
        if self.hit:
            self.hit(f"stage.{when}")


def ingest_and_emit(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Run `Operator.ingest`, and then `Operator.emit` if the task already has the new watermark.

    If the rows are results of other stages, or come from files whose footers contain the newest time, the driver knows
    the new watermark before the rows are read. Otherwise, it computes the new watermark and sends a second task.
    """
    report, known_watermark = task.operator.ingest(task, rows, origins), task.epoch_watermark
    if known_watermark is None:
        return report
    watermark, early = known_watermark.watermark, known_watermark.early
    emitted = EmitReport(shard=task.shard, segments=report.segments)
    if task.operator.may_be_due(report.segments, task.since, watermark, early):
        state, holds = task.state.with_segments(report.segments), task.holds if report.holds is None else report.holds
        due = ShardTask(task.operator, state, task.shard, watermark, task.since, early=early, holds=holds)
        emitted = task.operator.emit(due)
    return report.model_copy(update={"emitted": emitted})


def flag_idle_sources(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the source tag of each row (`__src`) with a flag (`__idle`) for rows of idle sources and partitions."""
    if "__src" not in rows.columns:
        return rows
    return rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle")).drop("__src")


def count_idle(late: pl.DataFrame) -> int:
    """Return the number of late rows that come from idle sources."""
    return int(late["__idle"].sum()) if "__idle" in late.columns else 0


def sample_rows(rows: pl.DataFrame, time: str, names: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """Return a few rows for a report.

    `time`: the column with the event time (µs). `names`: the other columns to include, by their name in the report.
    """
    some = rows.head(SAMPLE).select(pl.col(time).alias("event_us"), *(pl.col(c).alias(n) for n, c in names.items()))
    return tuple({k: to_report_value(v) for k, v in row.items()} for row in some.iter_rows(named=True))


def is_segment_expired(meta: SegmentMetadata, since: int) -> bool:
    """Return whether all rows of a segment have expired at the watermark `since`.

    The result is always False for Postgres, where each commit deletes expired rows.
    """
    return meta.dead <= since and "/" in meta.file
