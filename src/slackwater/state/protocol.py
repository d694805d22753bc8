"""What the engine asks of a state store.

Commits are two-phase, so that workers write in parallel and the driver publishes once:

    workers   shard.stage(rows) ─▶ SegmentMeta         nothing is visible yet
    driver    store.commit(Commit)                   one atomic step; fenced: the previous epoch must be the expected one
    driver    store.note_reached(epoch, target)        after one of several targets took its part of the staged output
    driver    store.note_published(epoch)              after the last one did
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from slackwater.errors import StateError
from slackwater.joins.buffer import Buffers, Changes, NoBuffers
from slackwater.joins.logic import JoinLogic
from slackwater.state.commit import Commit, OutputMeta, SegmentMeta
from slackwater.state.runs import Run
from slackwater.windows.state_rows import DueQuery, Int64s, KeyedState

ASIDE = ".before-"  # in the name of a state that was put aside
OUTLINE = ("__h", "__kind", "__start", "__due")


class StageLogic(Protocol):
    """What a stage is: a window's or a join's logic, or `NoState`. Each store knows by its class how to keep it."""

    @property
    def pipeline(self) -> str: ...


class NoState:
    """What keeps no rows, though it is one of the stages: no store has a row of it, and what is asked about rows has one answer."""

    pipeline: str


class StateReader(Protocol):
    """The state rows of one shard, found by unit."""

    def units(self, hashes: Int64s) -> pl.DataFrame:
        """All rows of the units with these hashes (sorted, unique)."""
        ...

    def due(self, when: DueQuery) -> pl.DataFrame:
        """All rows of the units that have a row that wants a visit."""
        ...

    def nearest(self, after: int, count: int) -> Int64s | None:
        """The `count` smallest `__due` beyond a time, of what newer versions replaced, too; None where it would read all for that."""
        ...

    def scan(self) -> pl.DataFrame:
        """Every row."""
        ...

    def outline(self) -> pl.DataFrame:
        """The columns OUTLINE of every row: what is open and until when, without keys and accumulators."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """One commit and the state rows as of it, for people and tools beside a runner.

    `published`: the last epoch whose output reached all targets, -1 for none. `rows_of`: see `reader`. `read_list`: the lines
    of a list that the commit names. `reached`: the targets that have their part of this commit since. `check`: raises StateError
    as a start would, if somebody else changed where the rows lie.
    """

    commit: Commit
    published: int
    rows_of: Callable[[int, KeyedState, int], StateReader]
    read_list: Callable[[str], list[str]] = lambda name: []
    buffers_of: Callable[[int, JoinLogic, int], Buffers] = lambda shard, logic, stage: NoBuffers()
    reached: frozenset[str] = frozenset()
    check: Callable[[], None] = lambda: None

    @property
    def missing(self) -> list[str]:
        """Who does not have its part of this commit yet (see `Commit.parts`)."""
        return [] if self.published >= self.commit.epoch else self.commit.missing(self.reached)

    def buffers(self, shard: int, logic: JoinLogic, stage: int = 0) -> Buffers:
        """The rows that one shard of a join has buffered."""
        return self.buffers_of(shard, logic, stage)

    def reader(self, shard: int, logic: KeyedState, stage: int = 0) -> StateReader:
        """The rows of one shard of a stage."""
        return self.rows_of(shard, logic, stage)


class StoredRecord(NamedTuple):
    """The latest commit as it lies there: its format, and its record before any migration."""

    version: int
    record: dict[str, Any]


class ShardState(Protocol):
    """One shard's state as of a commit, or of a step of the epoch in progress; goes to workers, so it can be pickled."""

    @property
    def metas(self) -> tuple[SegmentMeta, ...]: ...

    @property
    def epoch(self) -> int: ...

    def with_metas(self, metas: tuple[SegmentMeta, ...]) -> ShardState:
        """The same shard as of another step."""
        ...

    def reader(self, logic: KeyedState) -> StateReader: ...

    def stage(
        self, logic: KeyedState, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMeta, ...]:
        """Put aside new versions of units: `rows`, sorted by `__h`, TOMBSTONE for units that go; `before`: all rows they had.

        Nothing is visible before a commit that names what this returns; it may run twice.
        """
        ...

    def adopt(
        self, logic: KeyedState, rows: pl.DataFrame, before: pl.DataFrame | None = None
    ) -> tuple[SegmentMeta, ...]:
        """Hold exactly `rows`, sorted by `__h`: the state was spread over another number of shards.

        `before`: what these keys had so far, sorted likewise, if that was anything else.
        """
        ...

    def write_output(self, frame: pl.DataFrame) -> OutputMeta: ...

    def buffers(self, logic: JoinLogic) -> Buffers:
        """The rows that a join has buffered."""
        ...

    def write_changes(self, logic: JoinLogic, changes: Changes, watermark: int) -> tuple[SegmentMeta, ...]:
        """Put aside what an epoch does to the buffers; like `stage`. Rows that `watermark` has expired may go."""
        ...

    def adopt_buffers(self, logic: JoinLogic, changes: Changes) -> tuple[SegmentMeta, ...]:
        """Hold exactly the rows of these changes: like `adopt`, the state was rewritten."""
        ...


class TransactionalTarget(Protocol):
    """A target that can write within the store's transaction, if both are in one database."""

    def publish_within(
        self, connection: Any, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None, commit: str = ""
    ) -> None: ...


Publish = Callable[[Any], None]  # takes the store's connection


class StateStore(Protocol):
    """Durable state of one pipeline. `open` first, but for `peek` and `runner`; raises LockHeldError, StateError."""

    @property
    def checkpoint(self) -> Path:
        """Where Spark's checkpoints are kept."""
        ...

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        """The latest commit, None for no state yet; it stays readable within the block, whatever a runner does.

        `epoch`: an earlier one, if it is still there (see `epochs`). Takes no lock, makes no runner wait, changes nothing.
        Raises StartError, StateError.
        """
        ...

    def epochs(self) -> list[int]:
        """The commits that can be looked at, ascending. Needs no `open`."""
        ...

    def written(self) -> StoredRecord | None:
        """The latest commit as it is stored, of any format; None for no state yet. Needs no `open`. Raises StateError."""
        ...

    def runner(self) -> str | None:
        """Who runs the pipeline now; None for nobody."""
        ...

    def runs(self) -> tuple[Run, ...]:
        """The noted runs, oldest first; empty where the note is damaged. Needs no `open`. Raises StateError."""
        ...

    def note_run(self, run: Run) -> None:
        """Add a run to the history, or replace its former note; after `open`. Raises SlackwaterError."""
        ...

    def open(self) -> Commit | None:
        """Take the lock and return the latest commit, None for a new pipeline."""
        ...

    def start_over(self) -> str | None:
        """Instead of `open`: take the lock, put what is there aside, readable or not, and begin with nothing.

        Returns where it is now; None if there was nothing.
        """
        ...

    def pipelines(self) -> list[str]:
        """The pipelines that have a state in this location, without those put aside. Needs no `open`. Raises StartError."""
        ...

    def put_aside(self) -> str:
        """Give the state another name, so that the pipeline has none; after `open`. Returns where it is now."""
        ...

    def prepare(self, logic: StageLogic, stage: int = 0, begins: bool = False) -> None:
        """Make room for the state of this window or join, before the first epoch. `begins`: it has none in the latest commit."""
        ...

    def forget(self, stages: range) -> None:
        """What is kept of these stages may go: the latest commit knows nothing of them."""
        ...

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...], stage: int = 0) -> ShardState:
        """A shard as of these segments, for the work of an epoch."""
        ...

    def output(self, meta: OutputMeta) -> pl.DataFrame:
        """Staged output."""
        ...

    def outputs(self, metas: Sequence[OutputMeta]) -> list[pl.DataFrame]:
        """What several shards have staged; of an object store several at once."""
        ...

    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        """Put aside lines of text that a source's offsets refer to; returns their name."""
        ...

    def read_list(self, name: str) -> list[str]: ...

    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        """Publish a manifest atomically, and the output with it if `publish` is given; returns it as it will be read back.

        `manifest.reached` says which targets `publish` writes to. If they refuse the rows, the commit is one without them.
        Raises FencedError if its epoch is taken or its predecessor is not the latest.
        """
        ...

    def fork(self, name: str, epoch: int | None = None, renames: bool = False) -> Commit | None:
        """Copy the latest commit, or that of `epoch`, to be the state of the pipeline `name`; needs no `open`.

        None while the output of that commit is not published: it would be the output of both. See `state.fork`.
        `renames`: its targets are those of the new name.
        Raises StateError if there is no such commit, or `name` has a state; LockHeldError if it has a runner.
        """
        ...

    def shares_transaction(self, target: object) -> bool:
        """Whether `commit` can publish to this target in the same transaction (see `TransactionalTarget`)."""
        ...

    def published(self) -> int:
        """The last epoch whose output reached all targets, -1 for none."""
        ...

    def note_published(self, epoch: int) -> None: ...

    def reached(self) -> frozenset[str]:
        """The targets that were noted to have their part of the latest commit."""
        ...

    def note_reached(self, epoch: int, target: str) -> None:
        """Note that one of several targets has its part of this epoch, the latest: it does not get it again."""
        ...

    def discard_attempt(self, epoch: int) -> None:
        """Remove what an epoch that failed before its commit has staged. Nothing where it was committed after all."""
        ...

    def collect_garbage(self) -> None:
        """Remove epochs, segments and outputs that nothing refers to any more."""
        ...

    def remove(self) -> None:
        """Take the pipeline's state away, and give the lock back; after `open` and `prepare`."""
        ...

    def close(self) -> None:
        """Give the lock back."""
        ...


def epoch_not_kept(epoch: int, epochs: Sequence[int], place: str) -> StateError:
    """The error for a commit that is not there (any more)."""
    available = (
        f"epochs {epochs[0]} to {epochs[-1]}" if epochs[1:] else f"epoch {epochs[0]}" if epochs else "no state yet"
    )
    return StateError(f"epoch {epoch} is not kept in {place}; there is {available}")
