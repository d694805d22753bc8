"""Write epochs to a journal. An epoch is one line with its rows and its marker, so both are written, or neither."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from slackwater.connectors.files.target import text_columns
from slackwater.connectors.target import TargetTable
from slackwater.errors import PublishError, StartError
from slackwater.state.commit import TargetMarker


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal. An entry without an end was never published."""
    if not path.exists():
        return
    with path.open("rb") as journal:
        for line in journal:
            if line.endswith(b"\n"):
                yield json.loads(line)


class JournalTarget:
    """Appends one entry per epoch. An epoch at or below the marker is ignored."""

    guarantee = "exactly once"
    upserts = False

    def __init__(self, path: Path, table: TargetTable, sync: bool) -> None:
        self._path, self._table, self._sync = path, table, sync
        self.description = f'journal "{path}"'

    def open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self.description} cannot be written ({error.strerror}); check the path") from None

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        marker = self.read_marker(self._table.state)
        if marker is not None and marker.state == self._table.state and epoch <= marker.epoch:
            return
        entry = {"writer": self._table.writer, "state": self._table.state, "epoch": epoch, "commit": commit}
        line = json.dumps({**entry, "rows": text_columns(rows).to_dicts()}).encode() + b"\n"
        try:
            with self._path.open("ab") as journal:
                self._drop_unfinished_entry(journal.tell())
                journal.write(line)
                journal.flush()
                if self._sync:
                    os.fsync(journal.fileno())
        except OSError as error:
            raise PublishError(f"{self.description} did not accept epoch {epoch} ({error.strerror})") from error

    def _drop_unfinished_entry(self, size: int) -> None:
        """Cut off what a killed process has written of its last entry."""
        content = self._path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < size:
            os.truncate(self._path, complete)

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        entries = [e for e in read_entries(self._path) if e["writer"] == self._table.writer]
        if not entries:
            return None
        return TargetMarker(state=entries[-1]["state"], epoch=entries[-1]["epoch"], commit=entries[-1]["commit"])

    def writers(self) -> list[str]:
        return sorted({entry["writer"] for entry in read_entries(self._path)})

    def close(self) -> None:
        """There is nothing to close."""
