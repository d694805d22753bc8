"""Simulated shards and brokers for `benchmarks.driver_cost_per_epoch`. They answer immediately, in the real format, and have no rows.

The driver's work is real: it parses the answers, merges them, commits, and reads the staged output.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import polars as pl

from slackwater.config.connection import KafkaConnection
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.connectors.source import Batch
from slackwater.engine.engine_interface import IngestOutcome
from slackwater.operators.base import Operator, ShardTask
from slackwater.operators.reports import EmitReport, IngestReport
from slackwater.state.commit import SegmentMetadata
from slackwater.state.files.segments import count_segments_to_merge

TOPIC = "events"
BYTES_PER_ROW, EMITTED = 72, 40  # bytes of a session in a file; rows that a shard emits per epoch
_FOREVER = 1 << 60


class DriverPartTimer:
    """Meter of CPU seconds (this process, all threads) and wall-clock seconds, by the part that runs."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self._name, self._cpu, self._clock = "", time.process_time(), time.monotonic()

    def switch_to(self, name: str) -> str:
        """Count time for this part from now on. Return the previous part."""
        cpu, clock = time.process_time(), time.monotonic()
        before = self.parts.get(self._name, (0.0, 0.0))
        self.parts[self._name] = (before[0] + cpu - self._cpu, before[1] + clock - self._clock)
        was, self._name, self._cpu, self._clock = self._name, name, cpu, clock
        return was

    @contextmanager
    def measure_part(self, name: str) -> Iterator[None]:
        was = self.switch_to(name)
        try:
            yield
        finally:
            self.switch_to(was)


@dataclass(frozen=True)
class SimulatedBroker(KafkaBroker):
    """Broker with a topic of `count` partitions. Each request finds `more` new records in each partition."""

    meter: DriverPartTimer = field(default_factory=DriverPartTimer)
    count: int = 1
    more: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)

    def partitions(self, query: str, where: str) -> dict[str, list[int]]:
        return {TOPIC: list(range(self.count))}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {}

    def offset_ranges(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        with self.meter.measure_part("broker"):
            return {p: (0, self.ends.get(p, 0)) for p in partitions}

    def readable_ends(self, partitions: Sequence[tuple[str, int]], isolation: str) -> dict[tuple[str, int], int]:
        with self.meter.measure_part("broker"):
            self.ends.update({p: self.ends.get(p, 0) + self.more for p in partitions})
            return {p: self.ends[p] for p in partitions}


def build_broker(meter: DriverPartTimer, partitions: int, more: int) -> SimulatedBroker:
    return SimulatedBroker(KafkaConnection(bootstrap_servers="none"), meter=meter, count=partitions, more=more)


def simulate_segment_row_counts(keys: int, delta: int) -> list[int]:
    """Return the rows of a shard's segments, oldest first, after `keys` keys arrived in epochs of `delta` each."""
    sizes: list[int] = []
    for _ in range(-(-keys // delta)):
        sizes = merge_segment_rows([*sizes, delta], keys)
    return sizes


def merge_segment_rows(rows: Sequence[int], keys: int) -> list[int]:
    """Return the rows of the segments after the merge that is due, if any."""
    count = count_segments_to_merge([SimpleNamespace(rows=n) for n in rows])  # type: ignore[misc]
    return [*rows[: len(rows) - count], min(sum(rows[len(rows) - count :]), keys)] if count else list(rows)


def build_segment_metadata(epoch: int, shard: int, rows: int) -> SegmentMetadata:
    return SegmentMetadata(
        file=f"segments/{epoch:09d}-{shard:03d}-{uuid.uuid4().hex[:12]}.arrow",
        rows=rows,
        bytes=rows * BYTES_PER_ROW,
        first_due=0,
        last_due=_FOREVER,
        close=_FOREVER,
        dead=_FOREVER,
        checksum=uuid.uuid4().hex[:16],
    )


@dataclass(frozen=True)
class SimulatedEngine:
    """Engine whose shards return the reports of a window as text, as workers do. `keys` is the number of keys per shard."""

    operator: Operator
    meter: DriverPartTimer
    keys: int
    rows: int  # per shard and epoch
    source_stats: Any  # Mapping[str, int] -> SourceStats: the statistics of the source that the job returns

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, Any]:
        """Return nothing, because Kafka records must be read first."""
        return {}

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        with self.meter.measure_part("workers"):
            answers = [self._ingest_report(t).model_dump_json() for t in tasks]
        reports = [IngestReport.model_validate_json(a) for a in answers]
        return IngestOutcome(reports, {n: self.source_stats(batch.partitions[n]) for n in batch.payload})

    def _ingest_report(self, task: ShardTask) -> IngestReport:
        state: Any = task.state
        before = list(state.metas)
        merged_sizes = merge_segment_rows([*(m.rows for m in before), self.rows], self.keys)
        same = len(merged_sizes) - 1
        metas = (*before[:same], build_segment_metadata(state.epoch, task.shard, merged_sizes[-1]))
        return IngestReport(shard=task.shard, segments=metas, rows=self.rows, used=self.rows)

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        with self.meter.measure_part("workers"):
            answers = [self._emit_report(t).model_dump_json() for t in tasks]
        return [EmitReport.model_validate_json(a) for a in answers]

    def _emit_report(self, task: ShardTask) -> EmitReport:
        columns = {f.name: pl.Series([None] * EMITTED, dtype=f.polars) for f in self.operator.output}
        rows = pl.DataFrame({**columns, "__reason": pl.Series(["close"] * EMITTED)})
        state: Any = task.state
        return EmitReport(
            shard=task.shard, segments=state.metas, outputs=(task.state.write_output(rows),), reasons={"close": EMITTED}
        )

    def count(self, tasks: Sequence[ShardTask], question: object) -> Mapping[int, int]:
        return {}

    def payload(self, rows: pl.DataFrame) -> Any:
        return rows

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: object = None) -> pl.DataFrame:
        raise NotImplementedError

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        raise NotImplementedError
