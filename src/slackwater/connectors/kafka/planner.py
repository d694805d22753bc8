"""Plan Kafka sources without Spark: a batch extends from the current position to the end that the brokers report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.source import SelfPlannedSource, SourceBatch, SourceUnavailableError
from slackwater.core.offsets import ByTopic, group_by_topic
from slackwater.errors import EpochError, StartError
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets = Mapping[tuple[str, int], int]

# options of Spark's Kafka stream; Spark plans a source that sets one of them
_SPARK_STREAM_OPTIONS = frozenset(
    {
        "assign",
        "maxoffsetspertrigger",
        "maxtriggerdelay",
        "minoffsetspertrigger",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "subscribe",
        "subscribepattern",
    }
)
_PARTITIONS_FOR_S = 1.0  # how long a list of partitions is cached, in seconds


@dataclass(frozen=True)
class OffsetRanges:
    """The records of each partition from offset `start` up to but not including offset `end`."""

    source: KafkaSource
    start: ByTopic
    end: ByTopic

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        return self.source.read_between(session, self.start, self.end, record)


class KafkaPlanner:
    """Planner for a Kafka source. It resumes from the offsets in `record`.

    Raises StartError or EpochError if the brokers do not respond.
    """

    def __init__(self, source: KafkaSource, record: SourceRecord) -> None:
        self._source, self._max_records = source, source.spec.max_offsets_per_trigger
        self._position: Offsets = _by_partition(source.start_offsets(record))
        self._end: Offsets | None = None  # the end of the input, once `stop_at_current_end` was called
        self._partitions: list[tuple[str, int]] = []
        self._partitions_at = -math.inf

    @property
    def unplanned_files(self) -> int:
        """Always 0: Kafka has no files."""
        return 0

    def stop_at_current_end(self) -> None:
        self._end = self._latest()

    def next(self) -> OffsetRanges | None:
        try:
            latest = self._latest() if self._end is None else self._end
        except (StartError, EpochError) as error:
            raise SourceUnavailableError(error) from None
        if latest == self._position:
            return None
        start, self._position = self._position, limit_offsets(self._position, latest, self._max_records)
        return OffsetRanges(self._source, group_by_topic(start), group_by_topic(self._position))

    def _latest(self) -> Offsets:
        """Return the offset up to which each partition can be read. New partitions start at their first record."""
        if time.monotonic() - self._partitions_at > _PARTITIONS_FOR_S:
            self._partitions, self._partitions_at = self._source.partitions(), time.monotonic()
        latest = self._source.broker.readable_ends(self._partitions, self._source.isolation)
        new = [p for p in latest if p not in self._position]
        if new:
            self._position = {
                **self._position,
                **{p: low for p, (low, _) in self._source.broker.offset_ranges(new).items()},
            }
        behind = [p for p, end in latest.items() if end < self._position[p]]
        if behind:  # there is an open transaction, or the topic was recreated
            bounds = self._source.broker.offset_ranges(behind)
            latest |= {p: self._position[p] for p in behind if self._position[p] <= bounds[p][1]}
        return latest


def limit_offsets(start: Offsets, end: Offsets, max_records: int | None) -> Offsets:
    """Return the offsets at which an epoch with about `max_records` records ends.

    Each partition with new records advances in proportion to their number, and by at least one record.

    Args:
        start: The offset of each partition at which the epoch begins.
        end: The end offset of each partition.
        max_records: The limit on the number of records. None means no limit.
    """
    sizes = {p: until - start.get(p, until) for p, until in end.items()}
    total = sum(size for size in sizes.values() if size > 0)
    if max_records is None or total <= max_records:
        return end
    return {p: end[p] if size <= 0 else start[p] + max(max_records * size // total, 1) for p, size in sizes.items()}


def _by_partition(offsets: ByTopic) -> dict[tuple[str, int], int]:
    return {(topic, int(part)): offset for topic, parts in offsets.items() for part, offset in parts.items()}


class PlannedKafkaSource(KafkaSource, SelfPlannedSource):
    """A Kafka source that the run plans itself, unless it uses options of Spark's Kafka stream."""

    @property
    def plans_without_spark(self) -> bool:
        return not _SPARK_STREAM_OPTIONS & {name.lower() for name in self.spec.options}

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> KafkaPlanner:
        return KafkaPlanner(self, record)
