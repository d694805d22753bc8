"""The interface of an engine, which runs shard tasks over the rows of a batch and over the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import polars as pl

from slackwater.connectors.source import Batch
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.operators.base import ShardCount, ShardTask
from slackwater.operators.reports import DeadLetterFile, EmitReport, IngestReport
from slackwater.watermark import SourceActivity, Span


@dataclass(frozen=True)
class SourceStats:
    """Statistics on one source's rows in an epoch: row counts and the largest event time."""

    rows: int = 0
    usable: int = 0
    max_event_us: int | None = None
    undecodable: int = 0
    future: int = 0
    partitions: Mapping[str, SourceActivity] = field(default_factory=dict)  # every existing partition
    outside: int = 0  # rows with a time outside the years 1 to 9999
    spans: tuple[Span, ...] = ()  # the event times of the newest rows, if a clock needs them
    place: str | None = None  # the location of the row with the largest event time, for messages
    unit_hint: str | None = None  # advice for messages if the first rows suggest another time unit

    @property
    def bad(self) -> int:
        return self.rows - self.usable

    @property
    def activity(self) -> SourceActivity:
        return SourceActivity(self.rows, self.max_event_us, self.partitions, self.spans)


NO_STATS = SourceStats()


class UnstorableRows(NamedTuple):
    """Unstorable rows in the SQL output of one source: counts by reason, and samples.

    See `operators.unstorable_rows`.
    """

    source: str
    reasons: Mapping[str, int]
    samples: Sequence[str]

    @property
    def rows(self) -> int:
        return sum(self.reasons.values())


@dataclass(frozen=True)
class IngestOutcome:
    """The outcome of ingesting a batch."""

    reports: Sequence[IngestReport]
    sources: Mapping[str, SourceStats]
    bad_samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unstorable: Sequence[UnstorableRows] = ()
    staged: Sequence[DeadLetterFile] = ()  # dead letters in addition to those reported by the shards
    # returns the spans of a source's newest event times, for a jump limit (µs): by partition, and "" for all rows
    spans: Callable[[str, int], Mapping[str, tuple[Span, ...]]] = lambda source, jump_us: {}

    @property
    def letters(self) -> list[DeadLetterFile]:
        """Return all dead-letter files that the epoch staged."""
        return [*self.staged, *(r.letters for r in self.reports if r.letters is not None)]


class Engine(Protocol):
    """Runs shard tasks over the rows of a batch and over the state."""

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        """Return the statistics that `ingest` would return, for sources that provide them before rows are read."""
        ...

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Add the rows of a batch to the shards. `idle`: the idle partitions of each source."""
        ...

    def payload(self, rows: pl.DataFrame) -> Any:
        """Convert rows that another stage emitted (its output columns and `_event_ts`) to the payload of a batch."""
        ...

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        """Extract event times from the rows in dead letters, and run the SQL over these rows.

        Returns one row per row of the SQL's output, with `__letter` (the number of its dead letter), `__kh` and `__ts`,
        and, for a window, the keys and accumulators. Bad rows, and rows that exceed `capacity`, are omitted.
        """
        ...

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        """Read dead-letter rows again. For each row, return `__letter` and `__bad` (why the row is bad, or NULL)."""
        ...

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        """Emit the results that are due in each shard."""
        ...

    def count(self, tasks: Sequence[ShardTask], shard_count: ShardCount) -> Mapping[int, int]:
        """Run `shard_count` on each shard, and add up the results."""
        ...
