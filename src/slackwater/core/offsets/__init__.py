"""Offsets of a source as a commit stores them.

    files   {"segments": ["offsets/000000007-…jsonl"], "count": 3, "changed": {"count": 1, "last": ["/in/a.json"]}}
    Kafka   {"clicks": {"0": 1200, "1": 1180}}
    tables  {"table": "8a1c…", "version": 12}                                     version 12 and all earlier ones
            {"table": "8a1c…", "version": 12, "files": 3, "content": true}        three files of the content of version 12

A source that only Spark's checkpoint can resume has no offsets here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.core.offsets.base import NEEDS_FILE, ChangedFiles, OffsetChange, OffsetLookup, Offsets
from slackwater.core.offsets.files import FileOffsets
from slackwater.core.offsets.kafka import ByTopic, KafkaOffsets, group_by_topic
from slackwater.core.offsets.tables import TableOffsets

KINDS: tuple[type[Offsets], ...] = (
    TableOffsets,
    FileOffsets,
    KafkaOffsets,
)  # Kafka's keys are topic names, so it must be tried last


def parse_offsets(stored: Any) -> Offsets | None:
    """Return the offsets that a commit stores.

    The state is not trusted: raises ValueError for anything that a commit cannot contain.
    """
    if stored is None or isinstance(stored, Offsets):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError("offsets are not a table")
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
    "group_by_topic",
    "parse_offsets",
]
