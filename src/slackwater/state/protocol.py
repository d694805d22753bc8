"""The protocol that the engine requires of a state store.

Commits have two phases: workers write in parallel, and then the driver makes the epoch visible in one step:

    workers   shard.stage(rows) ─▶ SegmentMeta       not visible yet
    driver    store.commit(Commit)                   one atomic step; fenced: the previous epoch must be the latest
    driver    store.mark_delivered(epoch, target)    after one of several targets holds its staged output
    driver    store.mark_published(epoch)            after the last target holds its output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from slackwater.errors import StateError, Topic
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Buffers, Changes, NoBuffers
from slackwater.state.commit import Commit, OutputMeta, SegmentMeta
from slackwater.state.run_history import Run
from slackwater.windows.state_rows import DueRowFilter, Int64s, KeyedStateLayout

ASIDE = ".before-"  # part of the name of a state that was put aside
OUTLINE = ("__h", "__kind", "__start", "__due")


class StateLayout(Protocol):
    """The logic of a stage: a window, a join or `NoState`. Stores choose the storage layout by its class."""

    @property
    def pipeline(self) -> str: ...


class NoState:
    """The logic of a stage that stores no rows."""

    pipeline: str


class StateReader(Protocol):
    """Reads the state rows of one shard. All rows with the same `__h` form a unit."""

    def units(self, hashes: Int64s) -> pl.DataFrame:
        """Return all rows whose `__h` is one of these hashes (sorted, unique)."""
        ...

    def due(self, when: DueRowFilter) -> pl.DataFrame:
        """Return all rows of each unit (rows with the same `__h`) that has at least one due row."""
        ...

    def nearest(self, after: int, count: int) -> Int64s | None:
        """Return the `count` smallest values of `__due` (µs) that are greater than `after`.

        Values of rows that have been replaced may be included. Returns None if the store would have to read all rows.
        """
        ...

    def scan(self) -> pl.DataFrame:
        """Return all rows."""
        ...

    def outline(self) -> pl.DataFrame:
        """Return the columns OUTLINE of all rows: what is open and until when, without keys and accumulators."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """One commit and its state rows, for readers that do not hold the runner's lock.

    Args:
        published: The last epoch whose output reached all targets, or -1 if there is none.
        rows_of: A function that returns readers; see `reader`.
        read_list: A function that returns the lines of a list that the commit references.
        buffers_of: A function that returns buffered rows; see `buffers`.
        reached: The targets that received this epoch after the commit.
        check: A function that raises StateError if another program has changed the state's tables.
    """

    commit: Commit
    published: int
    rows_of: Callable[[int, KeyedStateLayout, int], StateReader]
    read_list: Callable[[str], list[str]] = lambda name: []
    buffers_of: Callable[[int, CompiledJoin, int], Buffers] = lambda shard, logic, stage: NoBuffers()
    reached: frozenset[str] = frozenset()
    check: Callable[[], None] = lambda: None

    @property
    def missing(self) -> list[str]:
        """Return the targets that do not hold this epoch yet (see `Commit.recipients`)."""
        return [] if self.published >= self.commit.epoch else self.commit.missing(self.reached)

    def buffers(self, shard: int, logic: CompiledJoin, stage: int = 0) -> Buffers:
        """Return the buffered rows of one shard of a join."""
        return self.buffers_of(shard, logic, stage)

    def reader(self, shard: int, logic: KeyedStateLayout, stage: int = 0) -> StateReader:
        """Return a reader for one shard of a stage."""
        return self.rows_of(shard, logic, stage)


class StoredRecord(NamedTuple):
    """The latest commit as stored: its format, and its record before any migration."""

    version: int
    record: dict[str, Any]


class ShardState(Protocol):
    """The state of one shard as of a commit, or within the epoch in progress. It can be pickled and sent to workers."""

    @property
    def metas(self) -> tuple[SegmentMeta, ...]: ...

    @property
    def epoch(self) -> int: ...

    def with_metas(self, metas: tuple[SegmentMeta, ...]) -> ShardState:
        """Return this shard with these segments instead of its own."""
        ...

    def reader(self, logic: KeyedStateLayout) -> StateReader: ...

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMeta, ...]:
        """Stage new versions of units (rows with the same `__h`), and return the segments of the shard.

        Nothing is visible until a commit references the returned segments. This may run twice for the same epoch.

        Args:
            rows: New versions, sorted by `__h`; a TOMBSTONE row deletes a unit.
            before: All previous rows of these units.
            watermark: The current watermark, in microseconds; expired segments may be dropped.
        """
        ...

    def replace_rows(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame | None = None
    ) -> tuple[SegmentMeta, ...]:
        """Replace the contents of the shard with `rows`, sorted by `__h`, after a reshard or a migration.

        `before`: the previous rows of these keys, sorted by `__h`; None if they equal `rows`.
        """
        ...

    def write_output(self, frame: pl.DataFrame) -> OutputMeta:
        """Stage output rows of the epoch, and return their metadata."""
        ...

    def buffers(self, logic: CompiledJoin) -> Buffers:
        """Return the buffered rows of a join."""
        ...

    def write_changes(self, logic: CompiledJoin, changes: Changes, watermark: int) -> tuple[SegmentMeta, ...]:
        """Stage an epoch's changes to the buffers of a join, as `stage` does for state rows.

        Rows that have expired at `watermark` may be dropped.
        """
        ...

    def replace_buffers(self, logic: CompiledJoin, changes: Changes) -> tuple[SegmentMeta, ...]:
        """Replace the contents of the buffers of a join with the rows of these changes; see `replace_rows`."""
        ...


class TransactionalTarget(Protocol):
    """A target that can write within the store's transaction if both are in the same database."""

    def publish_within(
        self, connection: Any, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = ""
    ) -> None: ...


Publish = Callable[[Any], None]  # its argument is the store's connection


class StateStore(Protocol):
    """Durable state of one pipeline. Methods raise LockHeldError and StateError.

    Call `open` first. Only `peek`, `epochs`, `stored_record`, `runner`, `runs`, `pipelines`, `fork`, and reading rows
    or outputs work without it.
    """

    @property
    def checkpoint(self) -> Path:
        """Return the directory of Spark's checkpoints."""
        ...

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        """Open the latest commit for reading within the block; None if there is no state.

        This takes no lock, does not block a runner and changes nothing. Raises StartError or StateError. `epoch`: open
        the commit of this epoch instead, if it is still kept (see `epochs`).
        """
        ...

    def epochs(self) -> list[int]:
        """Return the epochs of the commits that are kept, ascending."""
        ...

    def stored_record(self) -> StoredRecord | None:
        """Return the latest commit as stored, in any supported format; None if there is none. Raises StateError."""
        ...

    def runner(self) -> str | None:
        """Return the name of the process that runs the pipeline, or None if it is not running."""
        ...

    def runs(self) -> tuple[Run, ...]:
        """Return the recorded runs, oldest first, without damaged entries. Raises StateError if they cannot be read."""
        ...

    def save_run(self, run: Run) -> None:
        """Add a run to the history, or replace its entry. Raises SlackwaterError."""
        ...

    def open(self) -> Commit | None:
        """Take the lock and return the latest commit; None for a new pipeline."""
        ...

    def start_over(self) -> str | None:
        """Take the lock and begin with an empty state. Call this instead of `open`.

        An existing state is put aside, whether readable or not. Return its new location, or None if there was none.
        """
        ...

    def pipelines(self) -> list[str]:
        """Return the pipelines with a state in this location, except states that were put aside. Raises StartError."""
        ...

    def put_aside(self) -> str:
        """Rename the state, so that the pipeline no longer has one. Return the new location."""
        ...

    def prepare(self, logic: StateLayout, stage: int = 0, begins: bool = False) -> None:
        """Prepare the storage of a stage before the first epoch of a run.

        `begins`: whether the stage is new although the state is not, so that the latest commit does not contain it.
        """
        ...

    def drop_stages(self, stages: range) -> None:
        """Delete the storage of stages that the latest commit no longer contains."""
        ...

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...], stage: int = 0) -> ShardState:
        """Return a shard with these segments, for use in an epoch."""
        ...

    def outputs(self, metas: Sequence[OutputMeta]) -> list[pl.DataFrame]:
        """Read the staged output of several shards, in parallel if the state is in an object store."""
        ...

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        """Stage a list of text lines for this epoch, and return the name by which a commit refers to it."""
        ...

    def read_list(self, name: str) -> list[str]:
        """Return the lines of a list. Raises StateError."""
        ...

    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        """Commit an epoch atomically, and return the commit as it is stored.

        If staged rows were merged, the stored commit has other segments than `commit`.

        Args:
            commit: The commit of the next epoch. `commit.reached` names the targets to which `publish` writes.
            publish: A function that writes output to targets in the store's transaction. Pass it only if
                `shares_transaction` is true; other stores ignore it. If a target rejects the rows, the epoch is
                committed with an empty `reached`, and nothing is written to the targets.

        Raises:
            FencedError: The epoch does not follow the latest one, or another runner committed it or took over.
            EpochError: The epoch was not committed, or its outcome is unknown.
        """
        ...

    def fork(self, name: str, epoch: int | None = None, renames: bool = False) -> Commit | None:
        """Copy the latest commit, or the one of `epoch`, to the state of the pipeline `name`. See `state.fork`.

        Return None if the output of that commit is unpublished, because both pipelines would publish it. Raises
        StateError if the commit does not exist or `name` already has a state, and LockHeldError if `name` is running.
        `renames`: whether the copy keeps the targets, because it replaces this pipeline under a new name.
        """
        ...

    def shares_transaction(self, target: object) -> bool:
        """Return whether `commit` can publish to this target in the same transaction (see `TransactionalTarget`)."""
        ...

    def published_epoch(self) -> int:
        """Return the last epoch whose output reached all targets, or -1 if there is none."""
        ...

    def mark_published(self, epoch: int) -> None:
        """Record that all targets hold this epoch."""
        ...

    def delivered_targets(self) -> frozenset[str]:
        """Return the targets that are recorded to hold the latest epoch."""
        ...

    def mark_delivered(self, epoch: int, target: str) -> None:
        """Record that one of several targets holds the latest epoch, so that it is not written there again."""
        ...

    def discard_attempt(self, epoch: int) -> None:
        """Delete the staged files of an epoch that failed before its commit. Does nothing if the epoch was committed."""
        ...

    def collect_garbage(self) -> None:
        """Delete commits, segments and outputs that are no longer referenced."""
        ...

    def remove(self) -> None:
        """Delete the pipeline's state and release the lock. Requires `open` and `prepare`."""
        ...

    def close(self) -> None:
        """Release the lock."""
        ...


def missing_epoch_error(epoch: int, epochs: Sequence[int], place: str) -> StateError:
    """Return the error for a commit that is not, or no longer, among the `epochs` kept in `place`."""
    available = (
        f"epochs {epochs[0]} to {epochs[-1]}" if epochs[1:] else f"epoch {epochs[0]}" if epochs else "no state yet"
    )
    return StateError(f"epoch {epoch} is not kept in {place}; available: {available}", Topic.EPOCH_NOT_KEPT)
