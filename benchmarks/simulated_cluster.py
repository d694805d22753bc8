"""Shards and brokers on paper, for `benchmarks.shards`: they answer as real ones do, at once, and hold no rows.

What a driver is asked to do with the answers is real: it parses them, folds them, commits the document, reads the staged output.
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
from slackwater.state.commit import SegmentMeta
from slackwater.state.files.segments import count_segments_to_merge

TOPIC = "events"
BYTES_PER_ROW, EMITTED = 72, 40  # of a session as it lies in a file; rows that a shard emits per epoch
_FOREVER = 1 << 60


class Meter:
    """Seconds by what is at work: of the processor (this process, all threads) and by the clock."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self._name, self._cpu, self._clock = "", time.process_time(), time.monotonic()

    def switch_to(self, name: str) -> str:
        """From now on this is at work; gives what was."""
        cpu, clock = time.process_time(), time.monotonic()
        before = self.parts.get(self._name, (0.0, 0.0))
        self.parts[self._name] = (before[0] + cpu - self._cpu, before[1] + clock - self._clock)
        was, self._name, self._cpu, self._clock = self._name, name, cpu, clock
        return was

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        was = self.switch_to(name)
        try:
            yield
        finally:
            self.switch_to(was)


@dataclass(frozen=True)
class PaperBroker(KafkaBroker):
    """A topic of so many partitions, each of which has got so many records since it was asked."""

    meter: Meter = field(default_factory=Meter)
    count: int = 1
    more: int = 0
    at_: dict[tuple[str, int], int] = field(default_factory=dict)

    def partitions(self, query: str, where: str) -> dict[str, list[int]]:
        return {TOPIC: list(range(self.count))}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {}

    def offset_ranges(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        with self.meter.part("broker"):
            return {p: (0, self.at_.get(p, 0)) for p in partitions}

    def readable_ends(self, partitions: Sequence[tuple[str, int]], isolation: str) -> dict[tuple[str, int], int]:
        with self.meter.part("broker"):
            self.at_.update({p: self.at_.get(p, 0) + self.more for p in partitions})
            return {p: self.at_[p] for p in partitions}


def broker(meter: Meter, partitions: int, more: int) -> PaperBroker:
    return PaperBroker(KafkaConnection(bootstrap_servers="none"), meter=meter, count=partitions, more=more)


def piled_up(keys: int, delta: int) -> list[int]:
    """The rows of a shard's segments, oldest first, after so many keys came in epochs of `delta` each."""
    sizes: list[int] = []
    for _ in range(-(-keys // delta)):
        sizes = merged([*sizes, delta], keys)
    return sizes


def merged(rows: Sequence[int], keys: int) -> list[int]:
    """After the merge that is due, if one is."""
    count = count_segments_to_merge([SimpleNamespace(rows=n) for n in rows])  # type: ignore[misc]
    return [*rows[: len(rows) - count], min(sum(rows[len(rows) - count :]), keys)] if count else list(rows)


def segment(epoch: int, shard: int, rows: int) -> SegmentMeta:
    return SegmentMeta(
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
class PaperEngine:
    """Shards that say what those of a window say after an epoch: as text, as it comes from workers. `keys`: of one shard."""

    operator: Operator
    meter: Meter
    keys: int
    rows: int  # per shard and epoch
    heard: Any  # Mapping[str, int] -> SourceStats: what the job said of the source

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, Any]:
        """Nothing: records of Kafka have to be read."""
        return {}

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        with self.meter.part("workers"):
            answers = [self._ingested(t).model_dump_json() for t in tasks]
        reports = [IngestReport.model_validate_json(a) for a in answers]
        return IngestOutcome(reports, {n: self.heard(batch.partitions[n]) for n in batch.payload})

    def _ingested(self, task: ShardTask) -> IngestReport:
        state: Any = task.state
        before = list(state.metas)
        merged_sizes = merged([*(m.rows for m in before), self.rows], self.keys)
        same = len(merged_sizes) - 1
        metas = (*before[:same], segment(state.epoch, task.shard, merged_sizes[-1]))
        return IngestReport(shard=task.shard, segments=metas, rows=self.rows, used=self.rows)

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        with self.meter.part("workers"):
            answers = [self._emitted(t).model_dump_json() for t in tasks]
        return [EmitReport.model_validate_json(a) for a in answers]

    def _emitted(self, task: ShardTask) -> EmitReport:
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

    def validate_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        raise NotImplementedError
