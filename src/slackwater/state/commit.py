"""The record of a commit: the state of each stage, the offsets of the sources, and the output to publish.

Commit ─┬─ stages           name, description, input clocks, watermark, segments per shard, counters
        ├─ sources          the offsets at which reading continues
        ├─ output, letters  staged results and dead letters, published in the transaction of the commit or after it
        ├─ targets          the stage and the location of each target
        └─ reached          the targets that already hold this epoch
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, StrictBool, StrictInt, ValidationError, model_validator

from slackwater.core.offset_base import Offsets
from slackwater.core.offsets import offsets_to_json, parse_offsets
from slackwater.state import migrations
from slackwater.state.commit_record_fields import (
    Amount,
    CommitModel,
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
    describe_invalid_field,
)
from slackwater.state.migrations import FORMAT as FORMAT
from slackwater.watermark import NO_WATERMARK, SourceClock

Hold = tuple[StrictInt | None, Time, Time]  # see `windows.session_emission`
LETTERS = "[dead_letter]"  # stands for dead letters among the names of targets; no target can have this name


def _encode_offsets(offsets: Offsets | None) -> Mapping[str, Any] | None:
    return None if offsets is None else offsets_to_json(offsets)


class SegmentMetadata(CommitModel):
    """The metadata of a segment, which is an immutable file with state rows of one shard. Times are µs since 1970 UTC.

    In Postgres, `file` is the token of staged rows, or empty for rows in the state table.
    """

    file: Name
    rows: Amount
    bytes: Amount
    first_due: Time  # the lowest watermark at which a row may be emitted
    last_due: Time  # the highest watermark at which a row may be emitted
    close: Time  # the watermark that closes the last open window
    dead: Time  # the watermark at which all rows have expired
    checksum: Id = ""  # see `storage.arrow_files.file_checksum`
    # joins: "left" for rows of the left side, "left+" for ids of matched rows, "left-" for ids of evicted rows
    kind: SegmentKind = ""
    most: Amount = 0  # joins: the largest number of rows with the same key

    @model_validator(mode="after")
    def _check_rows(self) -> SegmentMetadata:
        if "/" in self.file and not self.rows:
            raise ValueError("a file without rows is never written")
        return self


class OutputMetadata(CommitModel):
    """The metadata of staged output: result columns and `__reason` in Arrow format. `stage` is "" for dead letters."""

    file: Name
    rows: Amount
    checksum: Id = ""
    stage: str = ""


class TargetMarker(CommitModel):
    """The marker that a target stores with its rows.

    Args:
        state: The `lineage` of the last commit that wrote to the target.
        epoch: The last epoch written to the target.
        commit: The id of that commit; empty if an earlier version wrote the marker.
    """

    state: Id
    epoch: Annotated[StrictInt, Field(ge=-1, lt=10**18)]
    commit: Id = ""


Markers = Annotated[tuple[TargetMarker, ...], Field(max_length=2)]


class TargetDestination(CommitModel):
    """Where and how the results of a stage are written. A committed epoch can be published only there.

    Args:
        stage: The name of the stage.
        writer: The name under which the target stores its marker.
        place: The path, table and topic of the target; at most one of them is set.
        columns: The columns of the results; None if unknown.
        upserts: Whether results replace earlier rows; None if unknown.
        marks: The last marker written to the target, followed by the marker of this commit if it has rows for the
            target. Empty in states of earlier versions.
    """

    stage: str
    writer: str
    place: Annotated[tuple[str | None, ...], Field(max_length=3)]
    columns: tuple[str, ...] | None = None
    upserts: StrictBool | None = None
    marks: Markers = ()


class PartitionRecord(CommitModel):
    """The clock of one partition of a source; see `watermark.SourceClock`."""

    max_event_us: Time | None = None
    quiet_us: Amount = 0
    idle: StrictBool = False
    spans: tuple[tuple[Time, Time, Amount], ...] = ()  # only with `max_jump_ms`


class ClockRecord(PartitionRecord):
    """The clock of one input of a stage at the end of an epoch, with the number of rows and how many were usable."""

    partitions: Mapping[str, PartitionRecord] = Field(default_factory=dict)
    rows: Amount = 0
    usable: Amount = 0
    newest_at: str | None = None  # for display: where the row with the newest event time was read

    def clock(self, lateness_us: int, idleness_us: int, jump_us: int | None = None) -> SourceClock:
        """Return the clock of the input, with settings from the config.

        Args:
            lateness_us: The lateness, in microseconds.
            idleness_us: The time without rows after which a partition is idle, in microseconds.
            jump_us: The largest jump of event times, in microseconds; None for no limit.
        """
        partitions = {
            name: SourceClock(
                lateness_us, idleness_us, p.max_event_us, p.quiet_us, p.idle, jump_us=jump_us, spans=p.spans
            )
            for name, p in self.partitions.items()
        }
        arguments = (lateness_us, idleness_us, self.max_event_us, self.quiet_us, self.idle, partitions)
        return SourceClock(*arguments, jump_us=jump_us, spans=self.spans)


class SourceRecord(CommitModel):
    """The committed offsets of one source, and its schema when it was first read.

    `offsets` is None if only Spark's checkpoint records them.
    """

    offsets: Annotated[Offsets | None, PlainValidator(parse_offsets), PlainSerializer(_encode_offsets)] = None
    columns: str | None = None  # the schema, in Spark's JSON format


class BatchId(CommitModel):
    """The id of Spark's checkpoint, and the number of a batch in it."""

    checkpoint: Id
    batch: Amount


class TableRecord(CommitModel):
    """The number of rows and the column types that a commit records for the Postgres table of a stage."""

    rows: Amount
    columns: Mapping[str, str] = Field(default_factory=dict)


class StageState(CommitModel):
    """The state of one stage after a commit: its progress, its segments and its counters."""

    name: str
    # identity
    fingerprint: Fingerprint
    emission: Emission = Field(default_factory=dict)  # emission settings that the state depends on
    # its window, join or other step, so that the state can be read without a config
    described: Description = Field(default_factory=dict)
    # hashes of texts that may contain secrets: SQL, queries of sources
    texts: Mapping[str, str] = Field(default_factory=dict)
    # progress in event time
    clocks: Mapping[str, ClockRecord] = Field(default_factory=dict)  # by input: a source or a stage
    watermark_us: Time = NO_WATERMARK
    output_watermark_us: Time | None = None  # None in states that are older than this field
    flushed_us: Time = NO_WATERMARK  # the watermark that --flush set
    gone_us: Time = NO_WATERMARK  # the horizon that earlier configs reached, see `windows.compiled_window`
    rows_from_us: Time = NO_WATERMARK
    revised: StrictBool = False
    # contents
    segments: tuple[tuple[SegmentMetadata, ...], ...]  # per shard, oldest first
    groups: tuple[Amount, ...]  # per shard: number of keys with open sessions
    windows: tuple[Amount, ...]  # per shard: number of open sessions
    # number of keys per shard, by the start of each pane that has not expired
    panes: Mapping[PaneStart, tuple[Amount, ...]] = Field(default_factory=dict)
    holds: tuple[tuple[Hold, ...], ...] | None = None  # watermark holds per shard; None if no stage reads this one
    table: TableRecord | None = None  # Postgres only; None in states that are older than this field
    # emission and counters
    emitted_us: Time = 0  # emit = "updates": the processing time at which changed windows were last emitted
    waiting: StrictBool = False  # emit = "updates": whether windows have changed since then
    counters: Counted = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_shards(self) -> StageState:
        shards = len(self.segments)
        for name, counts in (("groups", self.groups), ("windows", self.windows)):
            if len(counts) != shards:
                raise ValueError(f"{name} has {len(counts)} shards, expected {shards}")
        if any(len(groups) != shards for groups in self.panes.values()):
            raise ValueError(f"a pane does not have {shards} shards")
        if self.holds is not None and len(self.holds) != shards:
            raise ValueError(f"holds has {len(self.holds)} shards, expected {shards}")
        return self

    @property
    def shards(self) -> int:
        return len(self.segments)

    @property
    def promised_us(self) -> int:
        """Return the output watermark: no later result of this stage has an earlier event time."""
        return self.watermark_us if self.output_watermark_us is None else self.output_watermark_us

    @property
    def is_flushed(self) -> bool:
        """Return whether `--flush` set the current watermark and no event has advanced it since."""
        return NO_WATERMARK < self.flushed_us == self.watermark_us

    @property
    def metas(self) -> list[SegmentMetadata]:
        """Return all segments of all shards."""
        return [meta for shard in self.segments for meta in shard]


class Commit(CommitModel):
    """The commit of one epoch, for all stages of a pipeline."""

    format: StrictInt = Field(default=FORMAT, ge=1, le=FORMAT)
    pipeline: str
    state_id: Id = ""  # set at the first start, so that targets recognize a state that was started over
    branch: Id = ""  # set when a restored copy continues separately: replaces `state_id` for targets
    commit_id: Id = ""  # distinguishes commits of the same epoch after histories have diverged
    epoch: Annotated[StrictInt, Field(ge=-1, lt=10**18)]
    committed_us: Time
    shards: Annotated[StrictInt, Field(ge=1, le=1 << 20)]
    # in topological order: each stage follows the stages that it reads
    stages: Annotated[tuple[StageState, ...], Field(min_length=1, max_length=1000)]
    sources: Mapping[str, SourceRecord] = Field(default_factory=dict)
    batch: BatchId | None = None  # the latest Spark batch in the state
    output: tuple[OutputMetadata, ...] = ()
    letters: tuple[OutputMetadata, ...] = ()
    targets: Mapping[str, TargetDestination] = Field(default_factory=dict)  # by name; empty before the first epoch
    # destination of dead letters, in the form of `TargetDestination.place`, and their markers
    letters_to: Annotated[tuple[str | None, ...], Field(max_length=3)] | None = None
    letters_marks: Markers = ()
    reached: tuple[str, ...] = ()  # names of targets that already hold this epoch; may include LETTERS
    emitted: Amount = 0
    replayed: tuple[Name, ...] = ()  # names of lists of replayed dead letters, see `dead_letters.replay`
    # names of lists of dead letters whose replay failed, see `dead_letters.dead_letter_reader`
    tried: tuple[Name, ...] = ()
    counters: Counted = Field(default_factory=dict)  # counters that do not belong to a stage

    @model_validator(mode="before")
    @classmethod
    def _migrate_targets(cls, record: Any) -> Any:
        try:
            return migrations.with_targets(record) if isinstance(record, dict) else record
        except (LookupError, TypeError, AttributeError):
            raise ValueError("the targets do not fit the format of an earlier version") from None

    @model_validator(mode="after")
    def _check_shards(self) -> Commit:
        for stage in self.stages:
            if stage.shards != self.shards:
                raise ValueError(f"segments has {stage.shards} shards, expected {self.shards}")
        if len({stage.name for stage in self.stages}) != len(self.stages):
            raise ValueError("two stages have the same name")
        return self

    @property
    def lineage(self) -> str:
        """Return the id by which targets recognize the state."""
        return self.branch or self.state_id

    @property
    def marker(self) -> TargetMarker:
        """Return the marker that targets store with the rows of this commit."""
        return TargetMarker(state=self.lineage, epoch=self.epoch, commit=self.commit_id)

    @property
    def staged(self) -> bool:
        """Return whether the commit has output or dead letters to publish."""
        return bool(self.output or self.letters)

    @property
    def published_stages(self) -> list[StageState]:
        """Return the stages whose results are written to targets, or the last stage if no target is recorded."""
        target_stages = {t.stage for t in self.targets.values()}
        return [s for s in self.stages if s.name in target_stages] or [self.stages[-1]]

    def output_of(self, stage: str) -> tuple[OutputMetadata, ...]:
        """Return the staged output of a stage."""
        return tuple(o for o in self.output if o.stage == stage)

    @property
    def recipients(self) -> list[str]:
        """Return the names of the targets with output in this epoch, preceded by LETTERS if there are dead letters."""
        staged = {o.stage for o in self.output}
        return [*([LETTERS] if self.letters else []), *(n for n, t in self.targets.items() if t.stage in staged)]

    def rows_of(self, recipient: str) -> int:
        """Return how many rows this epoch has for a target, or how many dead letters if `recipient` is LETTERS."""
        outputs = self.letters if recipient == LETTERS else self.output_of(self.targets[recipient].stage)
        return sum(o.rows for o in outputs)

    def missing(self, reached: Collection[str]) -> list[str]:
        """Return the recipients that do not hold this epoch yet. `reached`: those that received it since the commit."""
        return [name for name in self.recipients if name not in self.reached and name not in reached]

    @property
    def source_stages(self) -> list[StageState]:
        """Return the stages that read sources."""
        return [s for s in self.stages if s.clocks.keys() & self.sources.keys()] or [self.stages[0]]

    @property
    def watermark_us(self) -> int:
        """Return the lowest watermark of the stages that read sources."""
        return min(s.watermark_us for s in self.source_stages)

    @property
    def promised(self) -> dict[str, int]:
        """Return the output watermark of each stage, by name."""
        return {s.name: s.promised_us for s in self.stages}

    @property
    def clocks(self) -> dict[str, ClockRecord]:
        """Return the clock of each source, by name. If stages share a source, the clock of the first one is used."""
        clocks = {n: c for s in reversed(self.stages) for n, c in s.clocks.items()}
        return {n: clocks.get(n, ClockRecord()) for n in self.sources}

    @property
    def offset_lists(self) -> list[str]:
        """Return the names of the lists to which the offsets of the sources refer."""
        return [name for s in self.sources.values() if s.offsets is not None for name in s.offsets.lists]

    @property
    def lists(self) -> list[str]:
        """Return the names of all lists to which the commit refers, without duplicates."""
        return list(dict.fromkeys([*self.offset_lists, *self.replayed, *self.tried]))

    @property
    def metas(self) -> list[SegmentMetadata]:
        """Return all segments of all stages."""
        return [meta for stage in self.stages for meta in stage.metas]

    @property
    def state_bytes(self) -> int:
        """Return the size of all segments in bytes."""
        return sum(m.bytes for m in self.metas)

    def successor(self, **changed: Any) -> Commit:
        """Return a commit of the next epoch with the same state and no output. `changed`: fields to override."""
        nothing = {"output": (), "letters": (), "reached": (), "emitted": 0}
        following = {"epoch": self.epoch + 1, "commit_id": new_commit_id(), **nothing}
        return self.model_copy(update={**following, **changed})


def new_commit_id() -> str:
    """Return a random id for `Commit.commit_id`."""
    return uuid.uuid4().hex


def parse_commit(record: Mapping[str, Any], version: int, label: str) -> Commit:
    """Parse the record of a commit.

    Args:
        record: The record, as parsed JSON.
        version: The format number of the record.
        label: The name of the record in messages.

    Raises:
        RecordError: A value is not valid.
        StateError: The format cannot be migrated.
    """
    try:
        check_json(record)
        return Commit.model_validate(migrations.migrate_record(dict(record), version, label))
    except ValidationError as error:
        raise RecordError(describe_invalid_field(error)) from None
    except RecursionError:
        raise RecordError("it is nested too deeply") from None
