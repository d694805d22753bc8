"""The offset of the next record of each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slackwater.core.offsets.base import NEEDS_FILE, Ask, Change, Offsets, is_count
from slackwater.errors import StartError

ByTopic = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset, as Spark writes it
V = TypeVar("V")
_PARTITIONS = 8  # of a topic, told with their offsets


def by_topic(offsets: Mapping[tuple[str, int], V]) -> dict[str, dict[str, V]]:
    """What there is of each partition, as Spark writes it."""
    found: dict[str, dict[str, V]] = {}
    for (topic, part), offset in offsets.items():
        found.setdefault(topic, {})[str(part)] = offset
    return found


@dataclass(frozen=True)
class KafkaOffsets(Offsets):
    """The offset of the next record, by topic and partition."""

    topics: ByTopic = field(default_factory=dict)

    @classmethod
    def parsed(cls, stored: Mapping[str, Any]) -> KafkaOffsets:
        return cls({str(topic): _partitions(topic, parts) for topic, parts in stored.items()})

    def of(self, topic: str, partition: int | str) -> int | None:
        """None: the partition was not known yet."""
        return self.topics.get(topic, {}).get(str(partition))

    def each(self) -> Iterator[tuple[str, str, int]]:
        """Topic, partition and offset."""
        for topic, parts in self.topics.items():
            for partition, offset in parts.items():
                yield topic, partition, offset

    def stored(self) -> dict[str, Any]:
        return {topic: dict(parts) for topic, parts in self.topics.items()}

    def rows(self) -> dict[str, str]:
        return {f"{topic}-{partition}": str(offset) for topic, partition, offset in self.each()}

    def told(self) -> str:
        named = [f"{topic}-{part}:{at}" for topic, part, at in self.each()]
        more = len(named) - _PARTITIONS
        return "from offsets " + " ".join(named[:_PARTITIONS]) + (f" and {more} more partitions" if more > 0 else "")

    def changes(self, before: Offsets | None) -> list[Change]:
        known = KafkaOffsets.known(before)
        moved = sorted(self.each(), key=lambda to: (to[0], int(to[1])))
        return [_change(f"{topic}-{part}", known.of(topic, part), offset) for topic, part, offset in moved]

    def moved(self, where: str, wanted: object, ask: Ask | None) -> Offsets:
        if ask is None:
            raise StartError(f"{where}: a broker is to be asked where that is; {NEEDS_FILE}")
        assert isinstance(wanted, str | int)
        return ask(wanted)


def _change(partition: str, was: int | None, offset: int) -> Change:
    if was is None:
        return Change(partition, "never read", str(offset))
    if offset == was:
        return Change(partition, str(was), str(offset), "as it is")
    meaning = f"{was - offset:,} again" if offset < was else f"{offset - was:,} skipped"
    return Change(partition, str(was), str(offset), meaning, again=offset < was, skips=offset > was)


def _partitions(topic: Any, parts: Any) -> dict[str, int]:
    if not isinstance(parts, Mapping):
        raise ValueError(f"{str(topic)[:100]!r} has no offsets by partition")
    for partition, offset in parts.items():
        if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
            raise ValueError(f"{str(topic)[:100]}-{str(partition)[:20]} has no offset")
        if not is_count(offset):
            raise ValueError(f"{str(topic)[:100]}-{partition} has an offset that no topic has")
    return {str(partition): offset for partition, offset in parts.items()}
