"""What the engine asks of a state store, and the record of one commit.

Commits are two-phase, so that workers write in parallel and the driver publishes once:

    workers   writer.stage(rows) ─▶ SegmentMeta        nothing is visible yet
    driver    store.commit(Manifest)                   one atomic step; fenced: the previous epoch must be the expected one
    driver    store.note_published(epoch)              after the target took the staged output
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from slackwater.watermark import NO_WATERMARK, SourceClock

FORMAT = 1


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SegmentMeta(Record):
    """One immutable file of state rows of one shard, sorted by `__h`. Times in microseconds UTC."""

    file: str
    rows: int
    bytes: int
    first_due: int  # smallest watermark at which a row of it may emit
    last_due: int  # largest such watermark: nothing is due after it
    close: int  # the watermark that closes the last of its open windows
    dead: int  # all its rows are forgotten once the watermark is at or above this


class OutputMeta(Record):
    """One staged output file (Arrow), columns of the target plus `__reason`."""

    file: str
    rows: int


class SourceRecord(Record):
    """One source at the end of an epoch: its clock, and how to continue reading (None: by Spark's checkpoint only)."""

    max_event_us: int | None = None
    quiet_us: int = 0
    idle: bool = False
    rows: int = 0
    usable: int = 0
    offsets: Mapping[str, Any] | None = None

    def clock(self, lateness_us: int, idleness_us: int) -> SourceClock:
        return SourceClock(lateness_us, idleness_us, self.max_event_us, self.quiet_us, self.idle)


class BatchId(Record):
    """A Spark batch: the checkpoint's id and the batch's number."""

    checkpoint: str
    batch: int


class Manifest(Record):
    """One commit: everything the next epoch, the targets and the metrics need."""

    format: int = FORMAT
    pipeline: str
    epoch: int
    fingerprint: Mapping[str, Any]
    committed_us: int
    watermark_us: int = NO_WATERMARK
    shards: int
    segments: tuple[tuple[SegmentMeta, ...], ...]  # per shard, oldest first
    groups: tuple[int, ...]  # per shard: keys with open sessions
    windows: tuple[int, ...]  # per shard: open sessions
    panes: Mapping[int, tuple[int, ...]] = Field(default_factory=dict)  # start -> keys per shard, while not forgotten
    sources: Mapping[str, SourceRecord] = Field(default_factory=dict)
    schemas: Mapping[str, str] = Field(default_factory=dict)  # source -> DDL it was first read with
    batch: BatchId | None = None  # the latest Spark batch that is part of the state
    output: tuple[OutputMeta, ...] = ()
    emitted: int = 0
    counters: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def state_bytes(self) -> int:
        return sum(s.bytes for shard in self.segments for s in shard)


class StateStore(Protocol):
    """Durable state of one pipeline. `open` first; raises LockHeldError, StateError."""

    root: str

    def open(self) -> Manifest | None:
        """Take the lock and return the latest commit, None for a new pipeline."""
        ...

    def commit(self, manifest: Manifest) -> None:
        """Publish a manifest atomically. Raises FencedError if its epoch is taken or its predecessor is not the latest."""
        ...

    def published(self) -> int:
        """The last epoch whose output reached the target, -1 for none."""
        ...

    def note_published(self, epoch: int) -> None: ...

    def collect_garbage(self) -> None:
        """Remove epochs, segments and outputs that nothing refers to any more."""
        ...

    def close(self) -> None:
        """Give the lock back."""
        ...
