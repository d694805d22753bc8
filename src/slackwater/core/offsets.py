"""Offsets of a source as a commit stores them.

    files   {"segments": ["offsets/000000007-…jsonl"], "count": 3, "changed": {"count": 1, "last": ["/in/a.json"]}}
    Kafka   {"clicks": {"0": 1200, "1": 1180}}
    tables  {"table": "8a1c…", "version": 12}                                     version 12 and all earlier ones
            {"table": "8a1c…", "version": 12, "files": 3, "content": true}        three of the files of version 12
    others  {"#connector": "journal", …}                                          as the connector writes them

A source that only Spark's checkpoint can resume has no offsets here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slackwater.core.connector_registry import TABLE, BrokenConnectorError
from slackwater.core.humanize import plural
from slackwater.core.offset_base import (
    NEEDS_FILE,
    ChangedFiles,
    OffsetChange,
    OffsetLookup,
    Offsets,
    is_valid_count,
    parse_file_count,
)
from slackwater.errors import StartError, Topic

ByTopic = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset, as Spark writes it
V = TypeVar("V")
_PARTITIONS = 8  # the maximum number of partitions in a description
_IDS = "#ids"  # key in the stored form, next to the topics: no topic has this name
_LIST = re.compile(r"([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*")


# -- Kafka -------------------------------------------------------------------------------------------------------------


def group_by_topic(offsets: Mapping[tuple[str, int], V]) -> dict[str, dict[str, V]]:
    """Convert values keyed by (topic, partition) to one mapping per topic, the form that Spark writes."""
    topics: dict[str, dict[str, V]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


@dataclass(frozen=True)
class KafkaOffsets(Offsets):
    """The offset of the next record of each partition. `ids`: the ids of the topics, if the brokers provide them."""

    topics: ByTopic = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> KafkaOffsets:
        topics = {str(topic): _parse_partitions(topic, parts) for topic, parts in stored.items() if topic != _IDS}
        return cls(topics, _parse_ids(stored.get(_IDS, {})))

    def replaced_topics(self, ids: Mapping[str, str]) -> list[str]:
        """Return the topics whose id differs from that in `ids`. Topics without an id on either side are omitted."""
        return sorted(t for t in self.topics if self.ids.get(t) and ids.get(t) and self.ids[t] != ids[t])

    def next_offset(self, topic: str, partition: int | str) -> int | None:
        """Return the offset of the next record; None if the partition is unknown."""
        return self.topics.get(topic, {}).get(str(partition))

    def entries(self) -> Iterator[tuple[str, str, int]]:
        """Yield (topic, partition, offset) for each partition."""
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
            raise StartError(
                f"{prefix}: this position must be looked up on a broker, which requires the config; {NEEDS_FILE}",
                Topic.OFFSETS,
            )
        assert isinstance(start, str | int)
        return lookup(start)


def _change(partition: str, was: int | None, offset: int, replaced: bool = False) -> OffsetChange:
    if was is None:
        return OffsetChange(partition, "never read", str(offset))
    if replaced:
        return OffsetChange(partition, f"{was} of the deleted topic", str(offset), "another topic of this name")
    if offset == was:
        return OffsetChange(partition, str(was), str(offset), "unchanged")
    meaning = f"{was - offset:,} again" if offset < was else f"{offset - was:,} skipped"
    return OffsetChange(partition, str(was), str(offset), meaning, rereads=offset < was, skips_rows=offset > was)


def _parse_partitions(topic: Any, parts: Any) -> dict[str, int]:
    if not isinstance(parts, Mapping):
        raise ValueError(f"{str(topic)[:100]!r} has no offsets by partition")
    for partition, offset in parts.items():
        if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
            raise ValueError(f"{str(topic)[:100]}-{str(partition)[:20]} has no offset")
        if not is_valid_count(offset):
            raise ValueError(f"{str(topic)[:100]}-{partition} has an invalid offset")
    return {str(partition): offset for partition, offset in parts.items()}


def _parse_ids(stored: Any) -> dict[str, str]:
    if not isinstance(stored, Mapping) or not all(isinstance(id_, str) for id_ in stored.values()):
        raise ValueError("expected a string as the id of each topic")
    return {str(topic)[:255]: id_[:64] for topic, id_ in stored.items()}


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileOffsets(Offsets):
    """The files that were read. `lists`: the lists that name these files. `count`: the number of files."""

    lists: tuple[str, ...] = ()
    count: int = 0
    changed: ChangedFiles | None = None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> FileOffsets | None:
        if not isinstance(stored.get("segments"), list):
            return None
        changed = stored.get("changed")
        return cls(
            tuple(map(_parse_list_name, stored["segments"])),
            parse_file_count(stored.get("count", 0)),
            None if changed is None else _parse_changed_files(changed),
        )

    def to_json(self) -> dict[str, Any]:
        changed = {} if self.changed is None else {"changed": self.changed.to_json()}
        return {"segments": list(self.lists), "count": self.count, **changed}

    def positions(self) -> dict[str, str]:
        return {"files": str(self.count)}

    def describe(self) -> str:
        return f"after {plural(self.count, 'file')}"

    def changes(self, before: Offsets | None) -> list[OffsetChange]:
        read = FileOffsets.coerce(before).count
        meaning = f"{plural(read, 'file')} again" if read else "unchanged"
        return [OffsetChange("files", f"{plural(read, 'file')} read", "none read", meaning, rereads=read > 0)]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> FileOffsets:
        if start != "earliest":
            raise StartError(
                f'{prefix}: this source reads files, which have no offsets to continue from; expected "earliest" '
                "(all files are read again)",
                Topic.OFFSETS,
            )
        return FileOffsets()

    def with_list_names(self, listed: Callable[[str], str]) -> FileOffsets:
        return replace(self, lists=tuple(map(listed, self.lists)))


def _parse_list_name(name: Any) -> str:
    if not isinstance(name, str) or not _LIST.fullmatch(name):
        raise ValueError(f"{str(name)[:100]!r} is not the name of a list")
    return name


def _parse_changed_files(stored: Any) -> ChangedFiles:
    last = stored.get("last", []) if isinstance(stored, Mapping) else None
    if not isinstance(last, list) or not all(isinstance(name, str) for name in last):
        raise ValueError("changed files are not names")
    return ChangedFiles(parse_file_count(stored.get("count", 0)), tuple(last))


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LakeTableOffsets(Offsets):
    """The position up to which a table was read, in the sequence of its versions.

    Args:
        table: The id of the table; "" to read the table from its first row.
        version: The version of a Delta table, or the id of an Iceberg snapshot; -1 before the first.
        sequence: The sequence number of an Iceberg snapshot.
        files: The number of files that were read; None for all.
        content: Whether `files` counts all files of the version. Otherwise, it counts the files that the version added.
    """

    table: str = ""
    version: int = -1
    sequence: int | None = None
    files: int | None = None
    content: bool = False

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LakeTableOffsets | None:
        if not isinstance(stored.get("table"), str):
            return None
        if unknown := stored.keys() - {"table", "version", "sequence", "files", "content"}:
            raise ValueError(f"unknown key {str(min(map(str, unknown)))[:100]!r} in the offsets of a table")
        version, content = stored.get("version"), stored.get("content", False)
        if isinstance(version, bool) or not isinstance(version, int) or not -1 <= version < 1 << 63:
            raise ValueError(f"{str(version)[:100]!r} is not a version of a table")
        if not isinstance(content, bool):
            raise ValueError("content is neither true nor false")
        sequence, files = (
            None if stored.get(k) is None else parse_file_count(stored[k]) for k in ("sequence", "files")
        )
        return cls(stored["table"][:1000], version, sequence, files, content)

    @property
    def is_unread(self) -> bool:
        """Return whether nothing has been read yet. Reading then begins with the current content of the table."""
        return not self.table

    @property
    def fully_read(self) -> LakeTableOffsets:
        """Return the offsets after all files of this version are read."""
        return replace(self, files=None, content=False)

    def to_json(self) -> dict[str, Any]:
        optional = {"sequence": self.sequence, "files": self.files, "content": self.content or None}
        return {"table": self.table, "version": self.version} | {k: v for k, v in optional.items() if v is not None}

    def positions(self) -> dict[str, str]:
        return {"version": str(self.version), "files": "all" if self.files is None else str(self.files)}

    def describe(self) -> str:
        return f"after {self}" if self.version >= 0 else f"from {self}"

    def changes(self, before: Offsets | None) -> list[OffsetChange]:
        was = str(before) if isinstance(before, LakeTableOffsets) else "never read"
        if not self.is_unread:
            return [OffsetChange("versions", was, f"after {self}", skips_rows=before != self)]
        again = before is not None
        return [OffsetChange("versions", was, "current content", "all rows again" if again else "", rereads=again)]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        """Return the offsets for "earliest" (the content at the next run) or "latest" (changes from now on)."""
        if start == "earliest":
            return LakeTableOffsets(files=0, content=True)
        if start != "latest":
            raise StartError(
                f'{prefix}: this source reads a table; expected "earliest" (all rows) or "latest" (new rows only)',
                Topic.TABLE_HISTORY,
            )
        if lookup is None:
            raise StartError(
                f"{prefix}: the latest version must be looked up in the table, which requires the config; {NEEDS_FILE}",
                Topic.TABLE_HISTORY,
            )
        return lookup("latest")

    def __str__(self) -> str:
        """Format the position: `version 12`, or `3 files of version 12`."""
        if self.version < 0:
            return "its first version" if self.table else "nothing"
        version = f"version {self.version}" if self.sequence is None else f"snapshot {self.version} ({self.sequence})"
        if self.files is None:
            return version
        container = f"the content of {version}" if self.content else version
        return f"{plural(self.files, 'file')} of {container}"


# -- the stored form ---------------------------------------------------------------------------------------------------


KINDS: tuple[type[Offsets], ...] = (LakeTableOffsets, FileOffsets, KafkaOffsets)  # Kafka last: its keys are topic names
CONNECTOR = "#connector"  # the key with the name of the connector; no topic has this name


def parse_offsets(stored: Any) -> Offsets | None:
    """Return the offsets that a commit stores.

    Raises ValueError for anything that a commit cannot contain, because the state is not trusted.
    """
    if stored is None or isinstance(stored, Offsets):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError("offsets are not a JSON object")
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
