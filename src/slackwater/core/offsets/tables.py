"""Offsets of table sources: a position in the sequence of a table's versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slackwater.core.humanize import plural
from slackwater.core.offsets.base import NEEDS_FILE, OffsetChange, OffsetLookup, Offsets, parse_file_count
from slackwater.errors import StartError, Topic


@dataclass(frozen=True)
class TableOffsets(Offsets):
    """The position up to which a table was read, in the sequence of its versions.

    `table`: the id of the table; "" if it is to be read from its first row. `version`: the version of a Delta table or
    the id of an Iceberg snapshot; -1 before the first. `sequence`: the sequence number of the snapshot. `files`: the
    number of files that were read; None for all. `content`: whether `files` counts the files that the version
    consists of, and not those that it added.
    """

    table: str = ""
    version: int = -1
    sequence: int | None = None
    files: int | None = None
    content: bool = False

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableOffsets | None:
        if not isinstance(stored.get("table"), str):
            return None
        if unknown := stored.keys() - {"table", "version", "sequence", "files", "content"}:
            raise ValueError(f"an offset in a table has no {str(min(map(str, unknown)))[:100]!r}")
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
    def fully_read(self) -> TableOffsets:
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
        was = str(before) if isinstance(before, TableOffsets) else "never read"
        if not self.is_unread:
            return [OffsetChange("versions", was, f"after {self}", skips_rows=before != self)]
        again = before is not None
        return [OffsetChange("versions", was, "what it holds", "all of it again" if again else "", rereads=again)]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        """Return the offsets for "earliest" (the content at the next run) or "latest" (changes from now on)."""
        if start == "earliest":
            return TableOffsets(files=0, content=True)
        if start != "latest":
            raise StartError(
                f'{prefix}: this source reads a table; expected "earliest" (all rows) or "latest" (new rows only)',
                Topic.TABLE_HISTORY,
            )
        if lookup is None:
            raise StartError(
                f"{prefix}: the latest version must be looked up in the table; {NEEDS_FILE}", Topic.TABLE_HISTORY
            )
        return lookup("latest")

    def __str__(self) -> str:
        """Format the position: `version 12`, or `3 files of version 12`."""
        if self.version < 0:
            return "its first version" if self.table else "nothing"
        version = f"version {self.version}" if self.sequence is None else f"snapshot {self.version} ({self.sequence})"
        if self.files is None:
            return version
        container = f"what {version} holds" if self.content else version
        return f"{plural(self.files, 'file')} of {container}"
