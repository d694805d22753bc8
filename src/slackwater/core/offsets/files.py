"""Offsets of file sources. Files have no order, so every file that was read is named in a list next to the commits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slackwater.core.humanize import plural
from slackwater.core.offsets.base import ChangedFiles, OffsetChange, OffsetLookup, Offsets, parse_file_count
from slackwater.errors import StartError, Topic

_LIST = re.compile(r"([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class FileOffsets(Offsets):
    """Files that were read. `lists`: names of the lists that contain all of them; `count`: their number."""

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
        meaning = f"{plural(read, 'file')} again" if read else "as it is"
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
