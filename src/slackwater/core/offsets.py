"""Where a source goes on, as a commit keeps it: the files that were read, the next offset of each partition, a version of a table.

    files   {"segments": ["offsets/000000007-…jsonl"], "count": 3, "changed": {"count": 1, "last": ["/in/a.json"]}}
    Kafka   {"clicks": {"0": 1200, "1": 1180}}
    tables  {"table": "8a1c…", "version": 12}                                     all of version 12, and of those before it
            {"table": "8a1c…", "version": 12, "files": 3, "content": true}        three files of what version 12 holds

What a source reads that goes on by Spark's checkpoint alone has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slackwater.core.words import plural

_LIST = re.compile(r"([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*")
ByTopic = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset, as Spark writes it


@dataclass(frozen=True)
class ChangedFiles:
    """Files that changed after they were read: how many, and the names of the `last` ones."""

    count: int = 0
    last: tuple[str, ...] = ()

    def stored(self) -> dict[str, Any]:
        return {"count": self.count, "last": list(self.last)}


@dataclass(frozen=True)
class FilesRead:
    """`lists`: the names of lists beside the state that hold every file read so far; `count`: how many files these are."""

    lists: tuple[str, ...] = ()
    count: int = 0
    changed: ChangedFiles | None = None

    def renamed(self, listed: Callable[[str], str]) -> FilesRead:
        """The same, with lists of other names."""
        return replace(self, lists=tuple(map(listed, self.lists)))

    def stored(self) -> dict[str, Any]:
        changed = {} if self.changed is None else {"changed": self.changed.stored()}
        return {"segments": list(self.lists), "count": self.count, **changed}

    def rows(self) -> dict[str, str]:
        """For people who look into a database: a name, and how far that is."""
        return {"files": str(self.count)}


@dataclass(frozen=True)
class KafkaOffsets:
    """The offset of the next record, by topic and partition."""

    topics: ByTopic = field(default_factory=dict)

    @property
    def lists(self) -> tuple[str, ...]:
        """None: they are short enough for a commit."""
        return ()

    def of(self, topic: str, partition: int | str) -> int | None:
        """None: the partition was not known yet."""
        return self.topics.get(topic, {}).get(str(partition))

    def each(self) -> Iterator[tuple[str, str, int]]:
        """Topic, partition and offset."""
        for topic, parts in self.topics.items():
            for partition, offset in parts.items():
                yield topic, partition, offset

    def renamed(self, listed: Callable[[str], str]) -> KafkaOffsets:
        return self

    def stored(self) -> dict[str, Any]:
        return {topic: dict(parts) for topic, parts in self.topics.items()}

    def rows(self) -> dict[str, str]:
        return {f"{topic}-{partition}": str(offset) for topic, partition, offset in self.each()}


@dataclass(frozen=True)
class TableRead:
    """How far a table was read, in the order of its versions. `table`: its own id, "" for one that is to be read from its first row.

    `version`: of a Delta table, or the id of an Iceberg snapshot, -1 before the first; `sequence`: the snapshot's number. `files`:
    how many of its files were read, None for all; `content`: of those that it holds, not of those that it added.
    """

    table: str = ""
    version: int = -1
    sequence: int | None = None
    files: int | None = None
    content: bool = False

    @property
    def lists(self) -> tuple[str, ...]:
        """None: a version says it all."""
        return ()

    @property
    def never(self) -> bool:
        """Whether nothing of it was read yet: it begins with what it holds then."""
        return not self.table

    @property
    def whole(self) -> TableRead:
        """The version, read to its end."""
        return replace(self, files=None, content=False)

    def renamed(self, listed: Callable[[str], str]) -> TableRead:
        return self

    def stored(self) -> dict[str, Any]:
        more = {"sequence": self.sequence, "files": self.files, "content": self.content or None}
        return {"table": self.table, "version": self.version} | {k: v for k, v in more.items() if v is not None}

    def rows(self) -> dict[str, str]:
        return {"version": str(self.version), "files": "all" if self.files is None else str(self.files)}

    def __str__(self) -> str:
        """For people: as in `version 12`, or `3 files of version 12`."""
        if self.version < 0:
            return "its first version" if self.table else "nothing"
        named = f"version {self.version}" if self.sequence is None else f"snapshot {self.version} ({self.sequence})"
        if self.files is None:
            return named
        of = f"what {named} holds" if self.content else named
        return f"{plural(self.files, 'file')} of {of}"


Offsets = FilesRead | KafkaOffsets | TableRead


def parsed(stored: Any) -> Offsets | None:
    """Offsets as a commit holds them. Raises ValueError for what no commit holds: a state is not trusted."""
    if stored is None or isinstance(stored, FilesRead | KafkaOffsets | TableRead):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError("offsets are no table")
    if isinstance(stored.get("table"), str):
        return _table(stored)
    if isinstance(stored.get("segments"), list):
        changed = stored.get("changed")
        return FilesRead(
            tuple(map(_list, stored["segments"])),
            _count(stored.get("count", 0)),
            None if changed is None else _changed(changed),
        )
    return KafkaOffsets({str(topic): _partitions(topic, parts) for topic, parts in stored.items()})


def _table(stored: Mapping[str, Any]) -> TableRead:
    if unknown := stored.keys() - {"table", "version", "sequence", "files", "content"}:
        raise ValueError(f"a place in a table has no {str(min(map(str, unknown)))[:100]!r}")
    version, content = stored.get("version"), stored.get("content", False)
    if isinstance(version, bool) or not isinstance(version, int) or not -1 <= version < 1 << 63:
        raise ValueError(f"{str(version)[:100]!r} is no version of a table")
    if not isinstance(content, bool):
        raise ValueError("content is neither true nor false")
    sequence, files = (None if stored.get(k) is None else _count(stored[k]) for k in ("sequence", "files"))
    return TableRead(stored["table"][:1000], version, sequence, files, content)


def _list(name: Any) -> str:
    if not isinstance(name, str) or not _LIST.fullmatch(name):
        raise ValueError(f"{str(name)[:100]!r} is no name of a list")
    return name


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:100]!r} is no count of files")
    return value


def _changed(found: Any) -> ChangedFiles:
    last = found.get("last", []) if isinstance(found, Mapping) else None
    if not isinstance(last, list) or not all(isinstance(name, str) for name in last):
        raise ValueError("changed files are no names")
    return ChangedFiles(_count(found.get("count", 0)), tuple(last))


def _partitions(topic: Any, parts: Any) -> dict[str, int]:
    if not isinstance(parts, Mapping):
        raise ValueError(f"{str(topic)[:100]!r} has no offsets by partition")
    for partition, offset in parts.items():
        if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
            raise ValueError(f"{str(topic)[:100]}-{str(partition)[:20]} has no offset")
        if not 0 <= offset < 1 << 63:
            raise ValueError(f"{str(topic)[:100]}-{partition} has an offset that no topic has")
    return {str(partition): offset for partition, offset in parts.items()}
