"""Kafka records that workers read: each record of a range is read once, for any order of delivery.

partition 0   ...[ since ▓▓▓ gap ▓▓▓▓ until )▒▒▒ fetched, unused      consume() ─▶ a few records of any partition,
partition 1   ...[ since ▓▓▓▓▓▓▓ until )                                          or the event that a partition ends
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.connectors.kafka import worker_reader
from slackwater.connectors.kafka.worker_reader import OffsetRange, RangeConsumer, split_ranges
from slackwater.errors import EpochError


@dataclass
class FakeMessage:
    """A record, or an event if it has an error code."""

    place: tuple[str, int]
    number: int
    code: int | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.number

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


@dataclass
class FakeConsumer:
    """Delivers the records of each partition in order, and mixes partitions at random."""

    records: Mapping[tuple[str, int], list[int]]  # the offsets that exist
    rng: random.Random
    queues: dict[tuple[str, int], list[FakeMessage]] = field(default_factory=dict)

    def assign(self, places: list[Any]) -> None:
        for p in places:
            place = (p.topic, p.partition)
            offsets = self.records[place]
            messages = [FakeMessage(place, n) for n in offsets if n >= p.offset]
            self.queues[place] = [
                *messages,
                FakeMessage(place, max([*offsets, p.offset - 1]) + 3, KafkaError._PARTITION_EOF),
            ]

    def incremental_unassign(self, places: list[Any]) -> None:
        for p in places:
            if self.rng.random() < 0.5:  # otherwise, records that were fetched before are still delivered
                self.queues[p.topic, p.partition].clear()

    def consume(self, most: int, timeout: float) -> list[FakeMessage]:
        delivered: list[FakeMessage] = []
        for place in self.rng.sample(sorted(self.queues), len(self.queues)):
            count = self.rng.randrange(5)
            delivered += self.queues[place][:count]
            del self.queues[place][:count]
        return delivered


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_record_of_an_offset_range_is_read_once(seed: int) -> None:
    """Offsets without a record are markers of transactions and compacted records, also at the end of a partition."""
    rng = random.Random(seed)
    places = rng.sample([(topic, part) for topic in "ab" for part in range(3)], rng.randint(1, 4))
    records = {place: sorted(rng.sample(range(30), rng.randint(0, 20))) for place in places}
    ranges = []
    for place in places:
        since = rng.randrange(30)
        end = max([*records[place], since - 1]) + 3  # where FakeConsumer reports the end of the partition
        ranges.append(OffsetRange(*place, since, rng.randint(since + 1, end)))
    read = [
        ((topic, part), offset)
        for batch in RangeConsumer(FakeConsumer(records, rng), ranges)
        for topic, part, offset in zip(
            *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True
        )
    ]
    for r in ranges:
        place = (r.topic, r.partition)
        assert [n for where, n in read if where == place] == [n for n in records[place] if r.since <= n < r.until]


def scripted_consumer(*batches: list[FakeMessage]) -> Any:
    """Return a consumer that delivers these batches, and then nothing."""

    class Scripted:
        remaining: ClassVar = list(batches)

        def assign(self, places: list[Any]) -> None: ...

        def consume(self, most: int, timeout: float) -> list[FakeMessage]:
            return self.remaining.pop(0) if self.remaining else []

    return Scripted()


def read_offsets(*batches: list[FakeMessage]) -> list[int]:
    """Return the offsets that are read from ("t", 0), from 5 up to but not including 9."""
    range_consumer = RangeConsumer(scripted_consumer(*batches), [OffsetRange("t", 0, 5, 9)])
    return [int(offset) for records in range_consumer for offset in records.offsets]


def fake_message(number: int, code: int | None = None) -> FakeMessage:
    return FakeMessage(("t", 0), number, code)


def test_range_ends_at_a_later_record_or_the_end_of_the_partition() -> None:
    assert read_offsets([fake_message(5), fake_message(6)], [fake_message(12)]) == [5, 6]
    assert read_offsets([fake_message(5), fake_message(9, KafkaError._PARTITION_EOF)]) == [5]
    assert read_offsets(
        [fake_message(5), fake_message(6, KafkaError._PARTITION_EOF)], [fake_message(6), fake_message(8)]
    ) == [5, 6, 8], "the end of a partition moves on"


def test_deleted_records_fail_the_epoch() -> None:
    with pytest.raises(EpochError, match=r"t-0: records no longer exist .* on_data_loss"):
        read_offsets([fake_message(5)], [fake_message(6, KafkaError._AUTO_OFFSET_RESET)])


@pytest.mark.parametrize(
    "again", [[fake_message(5)], [fake_message(7), fake_message(6)], [fake_message(6), fake_message(6)]]
)
def test_records_that_are_received_twice_fail_the_epoch(again: list[FakeMessage]) -> None:
    with pytest.raises(EpochError, match=r"records of t-0 were received twice, .* start again"):
        read_offsets([fake_message(5)], again)


def test_consumer_errors_fail_the_epoch() -> None:
    with pytest.raises(EpochError, match="t-0: records cannot be read"):
        read_offsets([fake_message(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)])


def test_missing_records_fail_the_epoch_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reader, "_QUIET_S", 0.0)
    with pytest.raises(EpochError, match="t-0: no record arrived for 0 s, expected records up to offset 8"):
        read_offsets([fake_message(5)])


def test_slow_caller_does_not_trigger_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time in which no record arrives counts, not the time for which Spark does not ask for more."""
    now = [0.0]
    monkeypatch.setattr(worker_reader.time, "monotonic", lambda: now[0])
    consumer = RangeConsumer(scripted_consumer([fake_message(5)], [], [fake_message(8)]), [OffsetRange("t", 0, 5, 9)])
    offsets = []
    for records in consumer:
        offsets += records.offsets.tolist()
        now[0] += 10 * worker_reader._QUIET_S
    assert offsets == [5, 8]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.tuples(st.integers(0, 50), st.integers(0, 50))
    ),
    st.integers(1, 5),
)
def test_split_ranges_are_balanced_and_cover_each_offset_once(
    sizes: Mapping[tuple[str, int], tuple[int, int]], tasks: int
) -> None:
    ranges = {place: (since, since + size) for place, (since, size) in sizes.items()}
    shares = split_ranges(ranges, tasks)
    total = sum(size for _, size in sizes.values())
    assert len(shares) == min(tasks, total)
    offsets = [((r.topic, r.partition), n) for share in shares for r in share for n in range(r.since, r.until)]
    assert sorted(offsets) == sorted((place, n) for place, bounds in ranges.items() for n in range(*bounds))
    counts = [sum(r.until - r.since for r in share) for share in shares]
    assert not counts or max(counts) - min(counts) <= 1
    for share in shares:
        assert len({(r.topic, r.partition) for r in share}) == len(share)
