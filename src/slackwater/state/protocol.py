"""The protocol that the engine requires of a state store.

Commits have two phases: workers write in parallel, and then the driver makes the epoch visible in one step:

    workers   shard.stage(rows) ─▶ SegmentMetadata       not visible yet
    driver    store.commit(Commit)                   one atomic step; fenced: the previous epoch must be the latest
    driver    store.mark_delivered(epoch, target)    once one of several targets holds its output
    driver    store.mark_published(epoch)            once all targets hold their output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import polars as pl

from slackwater.errors import StateError, Topic
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Buffers, Changes, EmptyBuffers
from slackwater.state.commit import Commit, OutputMetadata, SegmentMetadata
from slackwater.state.run_history import Run
from slackwater.windows.state_layout import DueRowFilter, Int64s, KeyedStateLayout

if TYPE_CHECKING:
    import polars as pl

    from slackwater.joins.compiled_join import CompiledJoin
    from slackwater.joins.join_buffers import Buffers
    from slackwater.windows.state_layout import KeyedStateLayout


ASIDE = ".before-"  # part of the name of each state that was put aside
OUTLINE = ("__h", "__kind", "__start", "__due")  # columns that `StateReader.outline` returns


class StateLayout(Protocol):
    """The compiled logic of a stage: a window, a join or `NoState`. Its class determines how stores keep its rows."""

    @property
    def pipeline(self) -> str: ...


class NoState:
    """The logic of a stage that stores no rows."""

    pipeline: str


class StateReader(Protocol):
    """A reader of the state rows of one shard. All rows with the same `__h` form a unit."""

    def units(self, hashes: Int64s) -> pl.DataFrame:
        """Return all rows whose `__h` is one of these hashes (sorted, unique)."""

    def due(self, when: DueRowFilter) -> pl.DataFrame:
        """Return all rows of each unit that has at least one due row."""

    def nearest(self, after: int, count: int) -> Int64s | None:
        """Return the `count` smallest values of `__due` (µs) that are greater than `after`.

        The result may include values of replaced rows. It is None if the store would have to read all rows.
        """

    def scan(self) -> pl.DataFrame:
        """Return all rows of the shard."""

    def outline(self) -> pl.DataFrame:
        """Return the OUTLINE columns of all rows of the shard, without keys and accumulators."""


@dataclass(frozen=True)
class Snapshot:
    """One commit and its state rows, for readers that do not hold the lock.

    Args:
        commit: The commit.
        published: The last epoch whose output all targets hold, or -1 if there is none.
        rows_of: A function of the shard, the logic and the stage number that returns a reader of state rows.
        read_list: A function that returns the lines of a list to which the commit refers.
        buffers_of: A function of the shard, the logic and the stage number that returns the buffers of a join.
        reached: The names of the targets that received this epoch after the commit.
        check: A function that raises StateError if another program has changed the tables of the state.
    """

    commit: Commit
    published: int
    rows_of: Callable[[int, KeyedStateLayout, int], StateReader]
    read_list: Callable[[str], list[str]] = lambda name: []
    buffers_of: Callable[[int, CompiledJoin, int], Buffers] = lambda shard, logic, stage: EmptyBuffers()
    reached: frozenset[str] = frozenset()
    check: Callable[[], None] = lambda: None

    @property
    def missing(self) -> list[str]:
        """Return the recipients that do not hold this epoch yet; see `Commit.recipients`."""
        return [] if self.published >= self.commit.epoch else self.commit.missing(self.reached)

    def buffers(self, shard: int, logic: CompiledJoin, stage: int = 0) -> Buffers:
        """Return the buffers of one shard of a join. `logic`: the join. `stage`: the number of its stage."""
        return self.buffers_of(shard, logic, stage)

    def reader(self, shard: int, logic: KeyedStateLayout, stage: int = 0) -> StateReader:
        """Return a reader of the state rows of one shard. `logic`: the logic of the stage. `stage`: its number."""
        return self.rows_of(shard, logic, stage)


class StoredRecord(NamedTuple):
    """The record of a commit before any migration, and the number of its format."""

    version: int
    record: dict[str, Any]


class ShardState(Protocol):
    """The state of one shard of a stage, for reading and staging rows. Instances can be pickled for workers."""

    @property
    def metas(self) -> tuple[SegmentMetadata, ...]:
        """Return the segments that readers of this shard see."""

    @property
    def epoch(self) -> int:
        """Return the epoch for which rows are staged."""

    def with_segments(self, metas: tuple[SegmentMetadata, ...]) -> ShardState:
        """Return a copy of this shard with other segments."""

    def reader(self, logic: KeyedStateLayout) -> StateReader:
        """Return a reader of the state rows."""

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMetadata, ...]:
        """Stage new versions of units (rows with the same `__h`), and return the segments of the shard.

        The rows become visible when a commit references the returned segments. Repeated calls in an epoch are harmless.

        Args:
            logic: The logic of the stage.
            rows: The new versions, sorted by `__h`; a TOMBSTONE row deletes a unit.
            before: All previous rows of these units.
            watermark: The current watermark, in microseconds; expired segments may be dropped.
        """

    def replace_rows(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame | None = None
    ) -> tuple[SegmentMetadata, ...]:
        """Replace all rows of the shard after a reshard or a migration, and return its segments.

        Args:
            logic: The logic of the stage.
            rows: The new rows of the shard, sorted by `__h`.
            before: The previous rows of these keys, sorted by `__h`; None if the rows have not changed.
        """

    def write_output(self, frame: pl.DataFrame) -> OutputMetadata:
        """Stage output rows of the epoch, and return their metadata."""

    def buffers(self, logic: CompiledJoin) -> Buffers:
        """Return the buffers of a join."""

    def write_changes(self, logic: CompiledJoin, changes: Changes, watermark: int) -> tuple[SegmentMetadata, ...]:
        """Stage the changes of an epoch to the buffers of a join, and return the segments of the shard.

        The changes become visible when a commit references the returned segments.

        Args:
            logic: The join.
            changes: The changes by side.
            watermark: The current watermark, in microseconds; expired rows may be dropped.
        """

    def replace_buffers(self, logic: CompiledJoin, changes: Changes) -> tuple[SegmentMetadata, ...]:
        """Replace the buffers of a join with the rows of `changes` after a reshard, and return the segments."""


class TransactionalTarget(Protocol):
    """A target that can write in the transaction of a commit, because it is in the same database as the state."""

    def publish_within(
        self, connection: Any, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = ""
    ) -> None:
        """Write the results of an epoch in the open transaction of a connection.

        Args:
            connection: The connection of the state store.
            epoch: The number of the epoch.
            rows: The results.
            superseded: Earlier results to delete.
            commit: The id of the commit, for the marker.
        """


Publish = Callable[[Any], None]  # writes output to targets; its argument is the connection of the state store


class StateStore(Protocol):
    """Durable state of one pipeline. Methods raise LockHeldError and StateError.

    Call `open` first. Only `peek`, `epochs`, `read_commit_record`, `runner`, `runs`, `pipelines`, `fork`, and methods that
    read rows or outputs work without it.
    """

    @property
    def checkpoint(self) -> Path:
        """Return the directory for Spark's checkpoints."""

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        """Open a commit for reading within the block. Yield None if there is no state.

        This takes no lock, does not block a runner and changes nothing. Raises StartError or StateError.

        `epoch`: the epoch of the commit, which must be one of `epochs`; None for the latest.
        """

    def epochs(self) -> list[int]:
        """Return the epochs of all commits that can be opened, ascending."""

    def read_commit_record(self) -> StoredRecord | None:
        """Return the latest commit in its stored format, or None if there is no commit. Raises StateError."""

    def runner(self) -> str | None:
        """Return the name of the process that runs the pipeline, or None if it is not running."""

    def runs(self) -> tuple[Run, ...]:
        """Return the recorded runs, oldest first. Damaged entries are skipped. Raises StateError."""

    def save_run(self, run: Run) -> None:
        """Add a run to the history, or replace its entry. Raises SlackwaterError."""

    def open(self) -> Commit | None:
        """Take the lock, and return the latest commit, or None for a new pipeline."""

    def start_over(self) -> str | None:
        """Take the lock, and begin with an empty state. Call this instead of `open`.

        An existing state, readable or not, is put aside. Return its new location, or None if there was no state.
        """

    def pipelines(self) -> list[str]:
        """Return the names of the pipelines with a state in this location. Raises StartError.

        States that were put aside are omitted.
        """

    def put_aside(self) -> str:
        """Rename the state, so that the pipeline no longer has one. Return the new location."""

    def prepare(self, logic: StateLayout, stage: int = 0, begins: bool = False) -> None:
        """Prepare the storage of a stage before the first epoch of a run.

        Args:
            logic: The logic of the stage.
            stage: The number of the stage.
            begins: Whether the stage is missing from the latest commit, because it is new.
        """

    def drop_stages(self, stages: range) -> None:
        """Delete the storage of the stages with these numbers, which the latest commit no longer contains."""

    def shard(
        self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMetadata, ...], stage: int = 0
    ) -> ShardState:
        """Return a shard for reading and staging rows in an epoch.

        Args:
            shard: The number of the shard.
            shards: The number of shards of the state.
            epoch: The epoch for which rows are staged.
            metas: The segments of the shard.
            stage: The number of the stage.
        """

    def outputs(self, metas: Sequence[OutputMetadata]) -> list[pl.DataFrame]:
        """Read staged output, and return one frame per entry."""

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        """Stage a list of text lines, and return the name by which the commit of this epoch refers to it."""

    def read_list(self, name: str) -> list[str]:
        """Return the lines of a list. Raises StateError."""

    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        """Commit an epoch atomically, and return the stored commit.

        If the store merged staged rows, the segments of the stored commit differ from those of `commit`.

        Args:
            commit: The commit of the next epoch. `commit.reached` names the targets to which `publish` writes.
            publish: A function that writes output to targets in the transaction of the commit. Pass it only if
                `shares_transaction` is true; other stores ignore it. If a target rejects the rows, nothing is written
                to the targets, and the epoch is committed with an empty `reached`.

        Raises:
            FencedError: The epoch does not follow the latest one, or another runner has taken over.
            EpochError: The epoch was not committed, or its outcome is unknown.
        """

    def fork(self, name: str, epoch: int | None = None, renames: bool = False) -> Commit | None:
        """Copy a commit to a new state of another pipeline, and return the commit of the copy; see `state.fork`.

        Return None if the output of the commit is unpublished, because both pipelines would publish it.

        Args:
            name: The name of the other pipeline.
            epoch: The epoch of the commit; None for the latest.
            renames: Whether the copy replaces this pipeline under a new name, and thus keeps its targets.

        Raises:
            StateError: The commit does not exist, or `name` already has a state.
            LockHeldError: The pipeline `name` is running.
        """

    def shares_transaction(self, target: object) -> bool:
        """Return whether `commit` can publish to this target in its transaction; see `TransactionalTarget`."""

    def published_epoch(self) -> int:
        """Return the last epoch whose output all targets hold, or -1 if there is none."""

    def mark_published(self, epoch: int) -> None:
        """Record that all targets hold this epoch."""

    def delivered_targets(self) -> frozenset[str]:
        """Return the names of the targets that are recorded as holding the latest epoch."""

    def mark_delivered(self, epoch: int, target: str) -> None:
        """Record that one of several targets holds the latest epoch, so that it is not written there again."""

    def discard_attempt(self, epoch: int) -> None:
        """Delete the staged files of an epoch that failed. Do nothing if the epoch was committed."""

    def collect_garbage(self) -> None:
        """Delete old commits, and the files or rows that no remaining commit references."""

    def remove(self) -> None:
        """Delete the state, and release the lock. Call `open` and `prepare` first."""

    def close(self) -> None:
        """Release the lock."""


def missing_epoch_error(epoch: int, epochs: Sequence[int], place: str) -> StateError:
    """Return the error for an epoch whose commit is not stored.

    Args:
        epoch: The requested epoch.
        epochs: The epochs that are stored, ascending.
        place: The location of the state, for the message.
    """
    available = (
        f"epochs {epochs[0]} to {epochs[-1]}" if epochs[1:] else f"epoch {epochs[0]}" if epochs else "no state yet"
    )
    return StateError(f"epoch {epoch} is not kept in {place}; available: {available}", Topic.EPOCH_NOT_KEPT)


# -- dry runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DryRunShardState:
    """Wraps a `ShardState`, and discards everything that an operator stages. Output rows are only counted."""

    state: ShardState

    @property
    def metas(self) -> tuple[SegmentMetadata, ...]:
        return self.state.metas

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def with_segments(self, metas: tuple[SegmentMetadata, ...]) -> DryRunShardState:
        return DryRunShardState(self.state.with_segments(metas))

    def reader(self, logic: KeyedStateLayout) -> StateReader:
        return self.state.reader(logic)

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMetadata, ...]:
        return self.metas

    def write_output(self, frame: pl.DataFrame) -> OutputMetadata:
        return OutputMetadata(file="", rows=frame.height, checksum="")

    def buffers(self, logic: CompiledJoin) -> Buffers:
        return self.state.buffers(logic)

    def write_changes(self, logic: CompiledJoin, changes: object, watermark: int) -> tuple[SegmentMetadata, ...]:
        return self.metas

    def replace_rows(self, *args: object) -> NoReturn:
        raise NotImplementedError("a dry run does not move state to other shards")

    replace_buffers = replace_rows
