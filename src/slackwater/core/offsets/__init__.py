"""Offsets of a source as a commit stores them.

    files   {"segments": ["offsets/000000007-…jsonl"], "count": 3, "changed": {"count": 1, "last": ["/in/a.json"]}}
    Kafka   {"clicks": {"0": 1200, "1": 1180}}
    tables  {"table": "8a1c…", "version": 12}                                     version 12 and all earlier ones
            {"table": "8a1c…", "version": 12, "files": 3, "content": true}        three of the files of version 12
    others  {"#connector": "journal", …}                                          as the connector writes them

A source that only Spark's checkpoint can resume has no offsets here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.core.connector_table import TABLE, BrokenConnectorError
from slackwater.core.offsets.base import NEEDS_FILE, ChangedFiles, OffsetChange, OffsetLookup, Offsets
from slackwater.core.offsets.files import FileOffsets
from slackwater.core.offsets.kafka import ByTopic, KafkaOffsets, group_by_topic
from slackwater.core.offsets.tables import TableOffsets

KINDS: tuple[type[Offsets], ...] = (
    TableOffsets,
    FileOffsets,
    KafkaOffsets,
)  # recognised by their keys; Kafka's keys are topic names, so it must be tried last
CONNECTOR = "#connector"  # the key with the name of the connector; no topic has this name


def parse_offsets(stored: Any) -> Offsets | None:
    """Return the offsets that a commit stores.

    Raises ValueError for anything that a commit cannot contain, because the state is not trusted.
    """
    if stored is None or isinstance(stored, Offsets):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError("offsets are not a table")
    if CONNECTOR in stored:
        return _parse_named(stored)
    return next(offsets for kind in KINDS if (offsets := kind.from_json(stored)) is not None)


def _parse_named(stored: Mapping[str, Any]) -> Offsets:
    kind = stored[CONNECTOR]
    try:
        offsets_class: type[Offsets] | None = TABLE[kind].offsets if isinstance(kind, str) else None
    except (KeyError, BrokenConnectorError) as error:
        reason = "no installed package has it" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"offsets of the connector {str(kind)[:100]!r} cannot be read: {reason}") from None
    offsets = (
        None if offsets_class is None else offsets_class.from_json({k: v for k, v in stored.items() if k != CONNECTOR})
    )
    if offsets is None:
        raise ValueError(f"{str(kind)[:100]!r} is not a connector with such offsets")
    return offsets


def offsets_to_json(offsets: Offsets) -> dict[str, Any]:
    """Return offsets as a commit stores them, with the name of their connector unless their keys identify it."""
    return {**({CONNECTOR: offsets.connector} if offsets.connector else {}), **offsets.to_json()}


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
    "offsets_to_json",
    "parse_offsets",
]
