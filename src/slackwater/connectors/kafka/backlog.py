"""Count the unread records of Kafka topics."""

from __future__ import annotations

from slackwater.config.source import Source
from slackwater.connectors.backlog import Answer, Backlog
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.core.offsets import KafkaOffsets
from slackwater.state.protocol import Snapshot


def unread_records(broker: KafkaBroker, source: Source) -> Answer:
    """Request the range of offsets of each partition, and return a function that counts the unread records."""
    partitions = broker.partitions(source.query or "", f'source "{source.name}"')
    bounds = broker.offset_ranges([(t, p) for t, parts in partitions.items() for p in parts])

    def answer(snapshot: Snapshot) -> Backlog:
        record = snapshot.commit.sources.get(source.name)
        read = KafkaOffsets.coerce(None if record is None else record.offsets)
        # Without a committed offset, a partition counts from its start. Records may expire before they are read.
        count = sum(max(end - max(read.next_offset(*part) or low, low), 0) for part, (low, end) in bounds.items())
        return Backlog(source.name, "records", count, count)

    return answer
