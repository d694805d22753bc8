"""The record of one commit: what each stage left behind, where sources go on, what waits to be published. Values only.

Commit ─┬─ stages   name, what it is, clocks of its inputs, watermark, segments per shard, counters
        ├─ sources  where each goes on
        ├─ output   put aside, and dead letters: published within the commit or after it
        └─ targets  which stage's output each gets, where it writes it; those that have it already
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from slackwater.core.offsets import Offsets, parse_offsets
from slackwater.state import migrations
from slackwater.state.migrations import FORMAT as FORMAT
from slackwater.state.record_fields import (
    Amount,
    Counted,
    Description,
    Emission,
    Fingerprint,
    Id,
    Name,
    PaneStart,
    RecordError,
    SegmentKind,
    Time,
    check_json,
    describe_misfit,
)
from slackwater.watermark import NO_WATERMARK, SourceClock

Hold = tuple[StrictInt | None, Time, Time]  # see `windows.session_holds`
LETTERS = "[dead_letter]"  # among targets the place of dead letters: no target is called so


def _stored(offsets: Offsets | None) -> Mapping[str, Any] | None:
    return None if offsets is None else offsets.to_json()


class CommitModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SegmentMeta(CommitModel):
    """One immutable file of state rows of one shard, sorted by `__h`. Times in microseconds UTC."""

    file: Name
    rows: Amount
    bytes: Amount
    first_due: Time  # smallest watermark at which a row of it may emit
    last_due: Time  # largest such watermark: nothing is due after it
    close: Time  # the watermark that closes the last of its open windows
    dead: Time  # all its rows are forgotten once the watermark is at or above this
    checksum: Id = ""  # of a file's content, see `state.files.arrow.checksum`
    # joins: "left", "right", and with "+" and "-" which of these rows found a partner or had to go
    kind: SegmentKind = ""
    most: Amount = 0  # joins: the most rows that one key has in it

    @model_validator(mode="after")
    def _holds_something(self) -> SegmentMeta:
        if "/" in self.file and not self.rows:
            raise ValueError("a file without rows is never written")
        return self


class OutputMeta(CommitModel):
    """One staged output file (Arrow), columns of the results plus `__reason`. `stage`: whose results; empty for dead letters."""

    file: Name
    rows: Amount
    checksum: Id = ""
    stage: str = ""


class TargetMark(CommitModel):
    """What a target stores next to its rows: the last epoch written there, by which state, as which commit.

    `state`: the commit's `lineage`. `commit`: empty where an earlier version wrote it.
    """

    state: Id
    epoch: Annotated[StrictInt, Field(ge=-1, lt=10**18)]
    commit: Id = ""


Marks = Annotated[tuple[TargetMark, ...], Field(max_length=2)]


class TargetDestination(CommitModel):
    """Where the results of a stage go and how they look there: a committed epoch can only be published like this.

    `writer`: the name of the marker that is kept there. `place`: a path, a table and a topic, of which one is given at most.
    `columns`, `upserts`: None where that is not known. `marks`: the last mark written there; where this commit has rows for
    the target, the one before it and its own. Empty for states of earlier versions.
    """

    stage: str
    writer: str
    place: Annotated[tuple[str | None, ...], Field(max_length=3)]
    columns: tuple[str, ...] | None = None
    upserts: StrictBool | None = None
    marks: Marks = ()


class PartitionRecord(CommitModel):
    """The clock of one partition of a source."""

    max_event_us: Time | None = None
    quiet_us: Amount = 0
    idle: StrictBool = False
    spans: tuple[tuple[Time, Time, Amount], ...] = ()


class ClockRecord(CommitModel):
    """One input of a stage at the end of an epoch: how far it is in event time, and what came of it."""

    max_event_us: Time | None = None
    quiet_us: Amount = 0
    idle: StrictBool = False
    partitions: Mapping[str, PartitionRecord] = Field(default_factory=dict)
    rows: Amount = 0
    usable: Amount = 0
    spans: tuple[tuple[Time, Time, Amount], ...] = ()  # with `max_jump_ms`, see `watermark`
    newest_at: str | None = None  # where the row with the newest event time was read, for people

    def clock(self, lateness_us: int, idleness_us: int, jump_us: int | None = None) -> SourceClock:
        partitions = {
            name: SourceClock(
                lateness_us, idleness_us, p.max_event_us, p.quiet_us, p.idle, jump_us=jump_us, spans=p.spans
            )
            for name, p in self.partitions.items()
        }
        arguments = (lateness_us, idleness_us, self.max_event_us, self.quiet_us, self.idle, partitions)
        return SourceClock(*arguments, jump_us=jump_us, spans=self.spans)


class SourceRecord(CommitModel):
    """Where a source goes on (`offsets`; None: by Spark's checkpoint only), and the columns that it was first read with."""

    offsets: Annotated[Offsets | None, PlainValidator(parse_offsets), PlainSerializer(_stored)] = None
    columns: str | None = None  # as Spark writes schemas in JSON


class BatchId(CommitModel):
    """A Spark batch: the checkpoint's id and the batch's number."""

    checkpoint: Id
    batch: Amount


class TableRecord(CommitModel):
    """The table that holds the state of a stage in Postgres: its rows, and its columns with their types."""

    rows: Amount
    columns: Mapping[str, str] = Field(default_factory=dict)


class StageState(CommitModel):
    """What one stage left behind: how far it is, what it holds, what it counted."""

    name: str
    # what it is
    fingerprint: Fingerprint
    emission: Emission = Field(default_factory=dict)  # how it was emitted, as far as the state shows it
    described: Description = Field(default_factory=dict)  # its window or join: the state can be read without a config
    texts: Mapping[str, str] = Field(default_factory=dict)  # hashes of what may hold secrets: SQL, queries of sources
    # how far it is
    clocks: Mapping[str, ClockRecord] = Field(default_factory=dict)  # of its inputs: sources, or stages
    watermark_us: Time = NO_WATERMARK
    # no later result has an event time before it: what readers go by; None: of a state that is older than this field
    output_watermark_us: Time | None = None
    flushed_us: Time = NO_WATERMARK  # where --flush has put the watermark, if it did
    gone_us: Time = NO_WATERMARK  # what former configs have forgotten, see `windows.changed`
    rows_from_us: Time = NO_WATERMARK
    revised: StrictBool = False
    # what it holds
    segments: tuple[tuple[SegmentMeta, ...], ...]  # per shard, oldest first
    groups: tuple[Amount, ...]  # per shard: keys with open sessions
    windows: tuple[Amount, ...]  # per shard: open sessions
    panes: Mapping[PaneStart, tuple[Amount, ...]] = Field(
        default_factory=dict
    )  # start -> keys per shard, while not forgotten
    # per shard: what may still come out behind the watermark; None: nobody asked, as no stage reads this one
    holds: tuple[tuple[Hold, ...], ...] | None = None
    table: TableRecord | None = None  # in Postgres; None in files, and before the first commit that records it
    # what it emitted and counted
    emitted_us: Time = 0  # emit = "updates": when changed windows were emitted last, by the epoch's clock
    waiting: StrictBool = False  # and whether some were changed since
    counters: Counted = Field(default_factory=dict)

    @model_validator(mode="after")
    def _of_all_shards(self) -> StageState:
        shards = len(self.segments)
        for name, counts in (("groups", self.groups), ("windows", self.windows)):
            if len(counts) != shards:
                raise ValueError(f"{name} of {len(counts)} shards, there are {shards}")
        if any(len(groups) != shards for groups in self.panes.values()):
            raise ValueError(f"a pane has groups of another number of shards than {shards}")
        if self.holds is not None and len(self.holds) != shards:
            raise ValueError(f"holds of {len(self.holds)} shards, there are {shards}")
        return self

    @property
    def shards(self) -> int:
        return len(self.segments)

    @property
    def promised_us(self) -> int:
        """The output watermark: no later result of this stage has an event time before it."""
        return self.watermark_us if self.output_watermark_us is None else self.output_watermark_us

    @property
    def is_flushed(self) -> bool:
        """Whether the watermark stands where --flush has put it: no event has reached it."""
        return NO_WATERMARK < self.flushed_us == self.watermark_us

    @property
    def metas(self) -> Iterator[SegmentMeta]:
        """All segments of all shards."""
        return (meta for shard in self.segments for meta in shard)


class Commit(CommitModel):
    """One commit, which is one epoch of the whole pipeline: everything the next epoch, the targets and the metrics need."""

    format: StrictInt = Field(default=FORMAT, ge=1, le=FORMAT)
    pipeline: str
    state_id: Id = ""  # of the state's first start: targets tell a state that was started over by it
    branch: Id = ""  # set when a restored copy goes on by itself: from then on targets know the state by it
    commit_id: Id = ""  # tells this commit from one of another history with the same epoch
    epoch: Annotated[StrictInt, Field(ge=-1, lt=10**18)]
    committed_us: Time
    shards: Annotated[StrictInt, Field(ge=1, le=1 << 20)]
    stages: Annotated[
        tuple[StageState, ...], Field(min_length=1, max_length=1000)
    ]  # in the order in which rows pass them
    sources: Mapping[str, SourceRecord] = Field(default_factory=dict)
    batch: BatchId | None = None  # the latest Spark batch that is part of the state
    output: tuple[OutputMeta, ...] = ()
    letters: tuple[OutputMeta, ...] = ()
    targets: Mapping[str, TargetDestination] = Field(default_factory=dict)  # by name; empty before the first epoch
    letters_to: Annotated[tuple[str | None, ...], Field(max_length=3)] | None = None  # the place of letters
    letters_marks: Marks = ()  # see `TargetDestination.marks`
    reached: tuple[str, ...] = ()  # the targets that have their part of this epoch already, LETTERS for the letters
    emitted: Amount = 0
    replayed: tuple[Name, ...] = ()  # names of staged lists: the dead letters that were applied, see `replay.replay`
    tried: tuple[Name, ...] = ()  # the list of those that were tried and left, with how often, see `replay.tries`
    counters: Counted = Field(default_factory=dict)  # of no stage

    @model_validator(mode="before")
    @classmethod
    def _of_one_target(cls, record: Any) -> Any:
        try:
            return migrations.with_targets(record) if isinstance(record, dict) else record
        except (LookupError, TypeError, AttributeError):
            raise ValueError("its targets are not as an earlier version wrote them") from None

    @model_validator(mode="after")
    def _of_all_shards(self) -> Commit:
        for stage in self.stages:
            if stage.shards != self.shards:
                raise ValueError(f"segments of {stage.shards} shards, there are {self.shards}")
        if len({stage.name for stage in self.stages}) != len(self.stages):
            raise ValueError("two stages have one name")
        return self

    @property
    def lineage(self) -> str:
        """The id by which targets know the state."""
        return self.branch or self.state_id

    @property
    def mark(self) -> TargetMark:
        """The mark that a target stores when it has its part of this commit."""
        return TargetMark(state=self.lineage, epoch=self.epoch, commit=self.commit_id)

    @property
    def staged(self) -> bool:
        """Whether something waits to be published."""
        return bool(self.output or self.letters)

    @property
    def published_stages(self) -> list[StageState]:
        """The stages whose results a target gets."""
        named = {t.stage for t in self.targets.values()}
        return [s for s in self.stages if s.name in named] or [self.stages[-1]]

    def output_of(self, stage: str) -> tuple[OutputMeta, ...]:
        """What a stage has put aside."""
        return tuple(o for o in self.output if o.stage == stage)

    @property
    def recipients(self) -> list[str]:
        """Who gets something of this epoch: targets by name, and LETTERS, which go first."""
        staged = {o.stage for o in self.output}
        return [*([LETTERS] if self.letters else []), *(n for n, t in self.targets.items() if t.stage in staged)]

    def rows_of(self, part: str) -> int:
        """How many rows of this epoch somebody gets."""
        outputs = self.letters if part == LETTERS else self.output_of(self.targets[part].stage)
        return sum(o.rows for o in outputs)

    def missing(self, reached: Collection[str]) -> list[str]:
        """Who of them does not have it yet; `reached`: those that have it since the commit."""
        return [name for name in self.recipients if name not in self.reached and name not in reached]

    @property
    def source_stages(self) -> list[StageState]:
        """The stages that read sources."""
        return [s for s in self.stages if s.clocks.keys() & self.sources.keys()] or [self.stages[0]]

    @property
    def watermark_us(self) -> int:
        """How far all sources are: the least watermark of the stages that read them."""
        return min(s.watermark_us for s in self.source_stages)

    @property
    def promised(self) -> dict[str, int]:
        """The output watermarks of the stages, by name."""
        return {s.name: s.promised_us for s in self.stages}

    @property
    def clocks(self) -> dict[str, ClockRecord]:
        """How far each source is, as the first stage that reads it has it."""
        clocks = {n: c for s in reversed(self.stages) for n, c in s.clocks.items()}
        return {n: clocks.get(n, ClockRecord()) for n in self.sources}

    @property
    def offset_lists(self) -> list[str]:
        """The names of lists that say where sources go on."""
        return [name for s in self.sources.values() if s.offsets is not None for name in s.offsets.lists]

    @property
    def lists(self) -> list[str]:
        """The names of all lists that it refers to, each once."""
        return list(dict.fromkeys([*self.offset_lists, *self.replayed, *self.tried]))

    @property
    def metas(self) -> Iterator[SegmentMeta]:
        """All segments of all stages."""
        return (meta for stage in self.stages for meta in stage.metas)

    @property
    def state_bytes(self) -> int:
        return sum(m.bytes for m in self.metas)


def new_commit_id() -> str:
    return uuid.uuid4().hex


def parse_commit(record: Mapping[str, Any], version: int, label: str) -> Commit:
    """The commit that a record of a format holds. Raises RecordError for a value that does not fit, StateError for no way from
    its format to this one. `label`: it is of."""
    try:
        check_json(record)
        return Commit.model_validate(migrations.migrate_record(dict(record), version, label))
    except ValidationError as error:
        raise RecordError(describe_misfit(error)) from None
    except RecursionError:
        raise RecordError("it is nested too deeply") from None
