"""The position up to which a journal was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.core.offset_base import NEEDS_FILE, OffsetChange, OffsetLookup, Offsets
from slackwater.errors import StartError


@dataclass(frozen=True)
class JournalOffsets(Offsets):
    """`line`: the number of lines that were read."""

    connector = "journal"
    line: int = 0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> JournalOffsets | None:
        line = stored.get("line")
        if isinstance(line, bool) or not isinstance(line, int) or line < 0:
            raise ValueError(f"{str(line)[:100]!r} is not a line of a journal")
        return cls(line)

    def to_json(self) -> dict[str, Any]:
        return {"line": self.line}

    def positions(self) -> dict[str, str]:
        return {"line": str(self.line)}

    def describe(self) -> str:
        return f"after line {self.line}"

    def changes(self, before: Offsets | None) -> list[OffsetChange]:
        was = JournalOffsets.coerce(before).line
        return [OffsetChange("line", str(was), str(self.line), rereads=self.line < was, skips_rows=self.line > was)]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        if start not in ("earliest", "latest"):
            raise StartError(f'{prefix}: this source reads a journal; expected "earliest" or "latest"')
        if lookup is None:
            raise StartError(f"{prefix}: the journal must be opened; {NEEDS_FILE}")
        return lookup(str(start))
