"""Where a source goes on, as a commit keeps it: the files that were read, the next offset of each partition, a version of a table.

    files   {"segments": ["offsets/000000007-…jsonl"], "count": 3, "changed": {"count": 1, "last": ["/in/a.json"]}}
    Kafka   {"clicks": {"0": 1200, "1": 1180}}
    tables  {"table": "8a1c…", "version": 12}                                     all of version 12, and of those before it
            {"table": "8a1c…", "version": 12, "files": 3, "content": true}        three files of what version 12 holds

What a source reads that goes on by Spark's checkpoint alone has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.core.offsets.base import NEEDS_FILE, ChangedFiles, OffsetChange, OffsetLookup, Offsets
from slackwater.core.offsets.files import FileOffsets
from slackwater.core.offsets.kafka import ByTopic, KafkaOffsets, by_topic
from slackwater.core.offsets.tables import TableOffsets

KINDS: tuple[type[Offsets], ...] = (
    TableOffsets,
    FileOffsets,
    KafkaOffsets,
)  # Kafka's may have any names, so it is the last


def parse_offsets(stored: Any) -> Offsets | None:
    """Offsets as a commit holds them. Raises ValueError for what no commit holds: a state is not trusted."""
    if stored is None or isinstance(stored, Offsets):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError("offsets are no table")
    return next(offsets for kind in KINDS if (offsets := kind.from_json(stored)) is not None)


__all__ = [
    "NEEDS_FILE",
    "ByTopic",
    "ChangedFiles",
    "FileOffsets",
    "KafkaOffsets",
    "OffsetChange",
    "OffsetLookup",
    "Offsets",
    "TableOffsets",
    "by_topic",
    "parse_offsets",
]
