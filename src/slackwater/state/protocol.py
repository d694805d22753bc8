"""What the engine asks of a state store, and the record of one commit.

Commits are two-phase, so that workers write in parallel and the driver publishes once:

    workers   shard.stage(rows) ─▶ SegmentMeta         nothing is visible yet
    driver    store.commit(Manifest)                   one atomic step; fenced: the previous epoch must be the expected one
    driver    store.note_published(epoch)              after the target took the staged output
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import polars as pl
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from slackwater.errors import StateError
from slackwater.joins.buffer import Buffers, Changes, NoBuffers
from slackwater.joins.logic import JoinLogic
from slackwater.state.migrations import FORMAT as FORMAT
from slackwater.watermark import NO_WATERMARK, SourceClock
from slackwater.windows.logic import Int64s, Logic, Visit

# What a record may hold. A state may be damaged, or made by somebody else: a name of it must not lead out of its directory,
# and no number may be one that the engine could never have written.
Time = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]  # microseconds; all infinities are within
Amount = Annotated[int, Field(ge=0, lt=1 << 63)]
Name = Annotated[str, Field(pattern=r"^$|^([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)]  # of a file or row
Id = Annotated[str, Field(pattern=r"^[\w-]*$", max_length=64)]


def _counted(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Counters: numbers, or tables of them."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            _counted(value)
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is no count")
    return found


def _offsets(found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Where a source goes on: lists are named, and lie beside the state."""
    listed = (found or {}).get("segments", [])
    if isinstance(listed, list):
        for name in listed:
            if not isinstance(name, str) or not re.fullmatch(r"([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"{str(name)[:100]!r} is no name of a list")
    return found


def _fingerprint(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """What tells one step from another; its bounds are times that the engine counts with."""
    for value in found.values():
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and abs(number) > 1 << 62:
                raise ValueError("a number is too large")
    return found


def _described(found: Mapping[str, Any]) -> Mapping[str, Any]:
    columns = found.get("columns", {})
    if not isinstance(columns, Mapping) or not all(isinstance(type_, str) for type_ in columns.values()):
        raise ValueError("columns are no names with types")
    return found


def _emission(found: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(found.get("updates", False), bool):
        raise ValueError("updates is neither true nor false")
    retain = found.get("retain_us", 0)
    if isinstance(retain, bool) or not isinstance(retain, int) or not 0 <= retain <= 1 << 62:
        raise ValueError("retain_us is no duration")
    return found


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SegmentMeta(Record):
    """One immutable file of state rows of one shard, sorted by `__h`. Times in microseconds UTC."""

    file: Name
    rows: Amount
    bytes: Amount
    first_due: Time  # smallest watermark at which a row of it may emit
    last_due: Time  # largest such watermark: nothing is due after it
    close: Time  # the watermark that closes the last of its open windows
    dead: Time  # all its rows are forgotten once the watermark is at or above this
    checksum: Id = ""  # of a file's content, see `state.files.arrow.checksum`
    kind: str = ""  # joins: "left", "right", and with "+" and "-" which of these rows found a partner or had to go
    most: Amount = 0  # joins: the most rows that one key has in it

    @model_validator(mode="after")
    def _holds_something(self) -> SegmentMeta:
        if "/" in self.file and not self.rows:
            raise ValueError("a file without rows is never written")
        return self


class OutputMeta(Record):
    """One staged output file (Arrow), columns of the target plus `__reason`."""

    file: Name
    rows: Amount
    checksum: Id = ""


class PartitionRecord(Record):
    """The clock of one partition of a source."""

    max_event_us: Time | None = None
    quiet_us: Amount = 0
    idle: bool = False
    spans: tuple[tuple[Time, Time, Amount], ...] = ()


class SourceRecord(Record):
    """One source at the end of an epoch: its clock, and how to continue reading (None: by Spark's checkpoint only)."""

    max_event_us: Time | None = None
    quiet_us: Amount = 0
    idle: bool = False
    partitions: Mapping[str, PartitionRecord] = Field(default_factory=dict)
    rows: Amount = 0
    usable: Amount = 0
    offsets: Annotated[Mapping[str, Any] | None, AfterValidator(_offsets)] = None
    spans: tuple[tuple[Time, Time, Amount], ...] = ()  # with `max_jump_ms`, see `watermark`
    newest_at: str | None = None  # where the row with the newest event time was read, for people

    def clock(self, lateness_us: int, idleness_us: int, jump_us: int | None = None) -> SourceClock:
        partitions = {
            name: SourceClock(
                lateness_us, idleness_us, p.max_event_us, p.quiet_us, p.idle, jump_us=jump_us, spans=p.spans
            )
            for name, p in self.partitions.items()
        }
        own = (lateness_us, idleness_us, self.max_event_us, self.quiet_us, self.idle, partitions)
        return SourceClock(*own, jump_us=jump_us, spans=self.spans)


class BatchId(Record):
    """A Spark batch: the checkpoint's id and the batch's number."""

    checkpoint: Id
    batch: Amount


class Manifest(Record):
    """One commit: everything the next epoch, the targets and the metrics need."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT)
    pipeline: str
    state_id: Id = ""  # of the state's first start: targets tell a state that was started over by it
    epoch: Annotated[int, Field(ge=-1, lt=10**18)]
    fingerprint: Annotated[Mapping[str, Any], AfterValidator(_fingerprint)]
    emission: Annotated[Mapping[str, Any], AfterValidator(_emission)] = Field(
        default_factory=dict
    )  # how it was emitted, as far as the state shows it
    described: Annotated[Mapping[str, Any], AfterValidator(_described)] = Field(
        default_factory=dict
    )  # the window, so that the state can be read without a config
    texts: Mapping[str, str] = Field(default_factory=dict)  # hashes of what may hold secrets: SQL, queries of sources
    committed_us: Time
    watermark_us: Time = NO_WATERMARK
    gone_us: Time = NO_WATERMARK  # what former configs have forgotten, see `windows.changed`
    rows_from_us: Time = NO_WATERMARK
    revised: bool = False
    shards: Annotated[int, Field(ge=1, le=1 << 20)]
    segments: tuple[tuple[SegmentMeta, ...], ...]  # per shard, oldest first
    groups: tuple[Amount, ...]  # per shard: keys with open sessions
    windows: tuple[Amount, ...]  # per shard: open sessions
    panes: Mapping[Time, tuple[Amount, ...]] = Field(
        default_factory=dict
    )  # start -> keys per shard, while not forgotten
    sources: Mapping[str, SourceRecord] = Field(default_factory=dict)
    schemas: Mapping[str, str] = Field(default_factory=dict)  # source -> DDL it was first read with
    batch: BatchId | None = None  # the latest Spark batch that is part of the state
    output: tuple[OutputMeta, ...] = ()
    letters: tuple[OutputMeta, ...] = ()
    destination: Mapping[str, Any] = Field(default_factory=dict)  # of output and letters
    emitted: Amount = 0
    told_us: Time = 0  # emit = "updates": when changed windows were emitted last, by the epoch's clock
    waiting: bool = False  # and whether some were changed since
    replayed: tuple[Name, ...] = ()  # names of staged lists: the dead letters that were applied, see `replay.replay`
    tried: tuple[Name, ...] = ()  # the list of those that were tried and left, with how often, see `replay.tries`
    counters: Annotated[Mapping[str, Any], AfterValidator(_counted)] = Field(default_factory=dict)
    then: Manifest | None = None  # of the stage that reads what this one emits; the output above is that one's

    @model_validator(mode="after")
    def _of_all_shards(self) -> Manifest:
        for name, found in (("segments", self.segments), ("groups", self.groups), ("windows", self.windows)):
            if len(found) != self.shards:
                raise ValueError(f"{name} of {len(found)} shards, there are {self.shards}")
        if any(len(groups) != self.shards for groups in self.panes.values()):
            raise ValueError(f"a pane has groups of another number of shards than {self.shards}")
        if self.then is not None and (self.then.then is not None or self.then.shards != self.shards):
            raise ValueError("a stage that no pipeline has")
        return self

    @property
    def stages(self) -> list[Manifest]:
        """This stage, and the one after it."""
        return [self, *([] if self.then is None else self.then.stages)]

    @property
    def staged(self) -> bool:
        """Whether something waits to be published."""
        return bool(self.output or self.letters)

    @property
    def state_bytes(self) -> int:
        return sum(s.bytes for stage in self.stages for shard in stage.segments for s in shard)


OUTLINE = ("__h", "__kind", "__start", "__due")


class Units(Protocol):
    """The state rows of one shard, found by unit."""

    def units(self, hashes: Int64s) -> pl.DataFrame:
        """All rows of the units with these hashes (sorted, unique)."""
        ...

    def due(self, visit: Visit) -> pl.DataFrame:
        """All rows of the units that have a row that wants a visit."""
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

    `published`: the last epoch whose output reached the target, -1 for none. `rows_of`: see `reader`. `read_list`: the lines
    of a list that the commit names.
    """

    manifest: Manifest
    published: int
    rows_of: Callable[[int, Logic, int], Units]
    read_list: Callable[[str], list[str]] = lambda name: []
    buffers_of: Callable[[int, JoinLogic, int], Buffers] = lambda shard, logic, stage: NoBuffers()

    def buffers(self, shard: int, logic: JoinLogic, stage: int = 0) -> Buffers:
        """The rows that one shard of a join has buffered."""
        return self.buffers_of(shard, logic, stage)

    def reader(self, shard: int, logic: Logic, stage: int = 0) -> Units:
        """The rows of one shard of a stage."""
        return self.rows_of(shard, logic, stage)


class Written(NamedTuple):
    """The latest commit as it lies there: its format, and its record before any migration."""

    version: int
    record: dict[str, Any]


class ShardState(Protocol):
    """One shard's state as of a commit, or of a step of the epoch in progress; goes to workers, so it can be pickled."""

    @property
    def metas(self) -> tuple[SegmentMeta, ...]: ...

    @property
    def epoch(self) -> int: ...

    def at(self, metas: tuple[SegmentMeta, ...]) -> ShardState:
        """The same shard as of another step."""
        ...

    def reader(self, logic: Logic) -> Units: ...

    def stage(self, logic: Logic, rows: pl.DataFrame, before: pl.DataFrame, watermark: int) -> tuple[SegmentMeta, ...]:
        """Put aside new versions of units: `rows`, sorted by `__h`, DEAD for units that go; `before`: all rows they had.

        Nothing is visible before a commit that names what this returns; it may run twice.
        """
        ...

    def adopt(self, logic: Logic, rows: pl.DataFrame, before: pl.DataFrame | None = None) -> tuple[SegmentMeta, ...]:
        """Hold exactly `rows`, sorted by `__h`: the state was spread over another number of shards.

        `before`: what these keys had so far, sorted likewise, if that was anything else.
        """
        ...

    def stage_output(self, frame: pl.DataFrame) -> OutputMeta: ...

    def buffers(self, logic: JoinLogic) -> Buffers:
        """The rows that a join has buffered."""
        ...

    def stage_changes(self, logic: JoinLogic, changes: Changes, watermark: int) -> tuple[SegmentMeta, ...]:
        """Put aside what an epoch does to the buffers; like `stage`. Rows that `watermark` has expired may go."""
        ...

    def adopt_buffers(self, logic: JoinLogic, changes: Changes) -> tuple[SegmentMeta, ...]:
        """Hold exactly the rows of these changes: like `adopt`, the state was rewritten."""
        ...


class Joining(Protocol):
    """A target that can write within the store's transaction, if both are in one database."""

    def publish_within(
        self, connection: Any, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None
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

    def written(self) -> Written | None:
        """The latest commit as it is stored, of any format; None for no state yet. Needs no `open`. Raises StateError."""
        ...

    def runner(self) -> str | None:
        """Who runs the pipeline now; None for nobody."""
        ...

    def open(self) -> Manifest | None:
        """Take the lock and return the latest commit, None for a new pipeline."""
        ...

    def start_over(self) -> str | None:
        """Instead of `open`: take the lock, put what is there aside, readable or not, and begin with nothing.

        Returns where it is now; None if there was nothing.
        """
        ...

    def prepare(self, logic: Logic | JoinLogic, stage: int = 0) -> None:
        """Make room for the state of this window or join, before the first epoch."""
        ...

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...], stage: int = 0) -> ShardState:
        """A shard as of these segments, for the work of an epoch."""
        ...

    def output(self, meta: OutputMeta) -> pl.DataFrame:
        """Staged output."""
        ...

    def stage_list(self, epoch: int, lines: Sequence[str]) -> str:
        """Put aside lines of text that a source's offsets refer to; returns their name."""
        ...

    def read_list(self, name: str) -> list[str]: ...

    def commit(self, manifest: Manifest, publish: Publish | None = None) -> Manifest:
        """Publish a manifest atomically, and the output with it if `publish` is given; returns it as it will be read back.

        Raises FencedError if its epoch is taken or its predecessor is not the latest.
        """
        ...

    def fork(self, name: str, epoch: int | None = None) -> Manifest | None:
        """Copy the latest commit, or that of `epoch`, to be the state of the pipeline `name`; needs no `open`.

        None while the output of that commit is not published: it would be the output of both. See `state.fork`.
        Raises StateError if there is no such commit, or `name` has a state; LockHeldError if it has a runner.
        """
        ...

    def joins(self, target: object) -> bool:
        """Whether `commit` can publish to this target in the same transaction (see `Joining`)."""
        ...

    def published(self) -> int:
        """The last epoch whose output reached the target, -1 for none."""
        ...

    def note_published(self, epoch: int) -> None: ...

    def collect_garbage(self) -> None:
        """Remove epochs, segments and outputs that nothing refers to any more."""
        ...

    def remove(self) -> None:
        """Take the pipeline's state away, and give the lock back; after `open` and `prepare`."""
        ...

    def close(self) -> None:
        """Give the lock back."""
        ...


def misfit(error: ValidationError) -> str:
    """What does not fit about a record, in words."""
    first, count = error.errors(include_url=False)[0], error.error_count()
    where = ".".join(map(str, first["loc"]))[:100]
    what = str(first["msg"]).removeprefix("Value error, ")[:200]
    return f"{count} field{'s do' if count > 1 else ' does'} not fit ({where + ': ' if where else ''}{what})"


def not_kept(epoch: int, kept: Sequence[int], place: str) -> StateError:
    """The error for a commit that is not there (any more)."""
    known = f"epochs {kept[0]} to {kept[-1]}" if kept[1:] else f"epoch {kept[0]}" if kept else "no state yet"
    return StateError(f"epoch {epoch} is not kept in {place}; there is {known}")
