"""Offsets of Kafka sources: the next offset of each partition, and the id of each topic.

A topic that is deleted and recreated keeps its name, but gets another id. Offsets in the old topic mean nothing in the
new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slackwater.core.offsets.base import NEEDS_FILE, OffsetChange, OffsetLookup, Offsets, is_valid_count
from slackwater.errors import StartError, Topic

ByTopic = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset, as Spark writes it
V = TypeVar("V")
_PARTITIONS = 8  # the maximum number of partitions in a description
_IDS = "#ids"  # key in the stored form, next to the topics: no topic has this name


def group_by_topic(offsets: Mapping[tuple[str, int], V]) -> dict[str, dict[str, V]]:
    """Convert values keyed by (topic, partition) to one mapping per topic, the form that Spark writes."""
    topics: dict[str, dict[str, V]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


@dataclass(frozen=True)
class KafkaOffsets(Offsets):
    """The offset of the next record, by topic and partition. `ids`: ids of the topics, if the brokers provide them."""

    topics: ByTopic = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> KafkaOffsets:
        topics = {str(topic): _parse_partitions(topic, parts) for topic, parts in stored.items() if topic != _IDS}
        return cls(topics, _parse_ids(stored.get(_IDS, {})))

    def replaced_topics(self, ids: Mapping[str, str]) -> list[str]:
        """Return the topics whose ids here and in `ids` differ. Topics that lack an id in one of them are left out."""
        return sorted(t for t in self.topics if self.ids.get(t) and ids.get(t) and self.ids[t] != ids[t])

    def next_offset(self, topic: str, partition: int | str) -> int | None:
        """Return the offset of the next record; None if the partition is unknown."""
        return self.topics.get(topic, {}).get(str(partition))

    def entries(self) -> Iterator[tuple[str, str, int]]:
        """Yield topic, partition and offset."""
        for topic, parts in self.topics.items():
            for partition, offset in parts.items():
                yield topic, partition, offset

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, Any] = {topic: dict(parts) for topic, parts in self.topics.items()}
        return topics | ({_IDS: dict(self.ids)} if self.ids else {})

    def positions(self) -> dict[str, str]:
        return {f"{topic}-{partition}": str(offset) for topic, partition, offset in self.entries()}

    def describe(self) -> str:
        positions = [f"{topic}-{partition}:{offset}" for topic, partition, offset in self.entries()]
        more = len(positions) - _PARTITIONS
        return (
            "from offsets " + " ".join(positions[:_PARTITIONS]) + (f" and {more} more partitions" if more > 0 else "")
        )

    def changes(self, before: Offsets | None) -> list[OffsetChange]:
        previous = KafkaOffsets.coerce(before)
        entries, replaced = (
            sorted(self.entries(), key=lambda entry: (entry[0], int(entry[1]))),
            previous.replaced_topics(self.ids),
        )
        return [
            _change(f"{topic}-{partition}", previous.next_offset(topic, partition), offset, topic in replaced)
            for topic, partition, offset in entries
        ]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        if lookup is None:
            raise StartError(f"{prefix}: this position must be looked up on a broker; {NEEDS_FILE}", Topic.OFFSETS)
        assert isinstance(start, str | int)
        return lookup(start)


def _change(partition: str, was: int | None, offset: int, replaced: bool = False) -> OffsetChange:
    if was is None:
        return OffsetChange(partition, "never read", str(offset))
    if replaced:
        return OffsetChange(partition, f"{was} of the deleted topic", str(offset), "another topic of this name")
    if offset == was:
        return OffsetChange(partition, str(was), str(offset), "as it is")
    meaning = f"{was - offset:,} again" if offset < was else f"{offset - was:,} skipped"
    return OffsetChange(partition, str(was), str(offset), meaning, rereads=offset < was, skips_rows=offset > was)


def _parse_partitions(topic: Any, parts: Any) -> dict[str, int]:
    if not isinstance(parts, Mapping):
        raise ValueError(f"{str(topic)[:100]!r} has no offsets by partition")
    for partition, offset in parts.items():
        if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
            raise ValueError(f"{str(topic)[:100]}-{str(partition)[:20]} has no offset")
        if not is_valid_count(offset):
            raise ValueError(f"{str(topic)[:100]}-{partition} has an offset that no topic has")
    return {str(partition): offset for partition, offset in parts.items()}


def _parse_ids(stored: Any) -> dict[str, str]:
    if not isinstance(stored, Mapping) or not all(isinstance(id_, str) for id_ in stored.values()):
        raise ValueError("ids of topics are not texts by topic")
    return {str(topic)[:255]: id_[:64] for topic, id_ in stored.items()}
