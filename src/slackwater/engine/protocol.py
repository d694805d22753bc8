"""What the driver asks of an engine: run shard tasks over a batch's rows, and over the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import polars as pl

from slackwater.core.capacity import ANYTHING, ValueLimits
from slackwater.operators.base import Question, ShardTask
from slackwater.operators.reports import EmitReport, IngestReport, LetterFile
from slackwater.sources.base import Batch
from slackwater.watermark import SourceActivity, Span


@dataclass(frozen=True)
class SourceStats:
    """What one source delivered: all rows, those with a usable event time, the largest of these, and the bad ones."""

    rows: int = 0
    usable: int = 0
    max_event_us: int | None = None
    undecodable: int = 0
    future: int = 0
    partitions: Mapping[str, SourceActivity] = field(default_factory=dict)  # every partition there is
    outside: int = 0  # with a time outside of the years 1 to 9999
    spans: tuple[Span, ...] = ()  # of its newest rows, where they were asked for
    place: str | None = None  # where the row with the largest time is, for people
    unit_hint: str | None = None  # of the first rows: the unit that was meant

    @property
    def bad(self) -> int:
        return self.rows - self.usable


class UnstorableRows(NamedTuple):
    """Rows of a source that come out of the SQL and cannot be held, see `operators.fitting`: how many for which reason, a few in words."""

    source: str
    reasons: Mapping[str, int]
    samples: Sequence[str]

    @property
    def rows(self) -> int:
        return sum(self.reasons.values())


@dataclass(frozen=True)
class IngestOutcome:
    reports: Sequence[IngestReport]
    sources: Mapping[str, SourceStats]
    bad_samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unfit: Sequence[UnstorableRows] = ()
    staged: Sequence[LetterFile] = ()  # dead letters, beside those that the shards report
    # the event times of a source's newest rows, for a bound of jumps (µs): of all ("") and of each partition
    spans: Callable[[str, int], Mapping[str, tuple[Span, ...]]] = lambda source, jump_us: {}

    @property
    def letters(self) -> list[LetterFile]:
        """All dead letters of the epoch."""
        return [*self.staged, *(r.letters for r in self.reports if r.letters is not None)]


class Engine(Protocol):
    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        """What `ingest` will tell of a batch's sources, of those of which it is known before a row is read."""
        ...

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Fold a batch's rows into the shards. `idle`: per source the partitions that are counted idle."""
        ...

    def payload(self, rows: pl.DataFrame) -> Any:
        """Rows that another stage emitted (its output columns, `_event_ts` among them), as a batch brings them."""
        ...

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        """Rows of dead letters once more through event time and SQL; they come with `__letter`, a number.

        Gives `__letter`, `__kh`, `__ts`, and of windows keys and accumulators, per row that comes out; bad rows do not, nor
        what is beyond `capacity`.
        """
        ...

    def validate_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        """Rows of dead letters read once more: `__letter` and `__bad`, NULL for a usable row, else why it is not."""
        ...

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]: ...

    def count(self, tasks: Sequence[ShardTask], question: Question) -> Mapping[int, int]:
        """What the shards answer, added up."""
        ...
