"""Read results back from a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from journal_connector.target import read_entries
from slackwater.connectors.target import ResultReader


@dataclass
class JournalReader(ResultReader):
    """Reads the entries of some writers. `_read`: the number of entries that were read."""

    path: Path
    writers: Sequence[str]
    _read: int = 0

    @property
    def location(self) -> str:
        return f"journal {self.path}"

    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        self._read = 0
        return self.poll()

    def poll(self) -> pl.DataFrame | None:
        entries = [e for e in read_entries(self.path) if e["writer"] in self.writers]
        rows = [row for entry in entries[self._read :] for row in entry["rows"]]
        self._read = len(entries)
        return pl.DataFrame(rows, infer_schema_length=None) if rows else None
