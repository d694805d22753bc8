"""Files in a directory: one file per epoch, and a marker with the last epoch.

out/sessions/
  user-sessions-000000012.parquet     written aside, then renamed: there as a whole or not at all
  _slackwater/user-sessions.json      the last published epoch; readers of the directory ignore it
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from slackwater.core.capacity import ANYTHING, YEARS, Capacity
from slackwater.core.schema import arrow_schema
from slackwater.core.text import TIME, has_map, json_text, nested, object_text, within
from slackwater.errors import PublishError, StartError
from slackwater.targets.base import Table

_TIME = f"{TIME}Z"


class FilesTarget:
    """Appends each epoch once; an epoch at or below the marker is ignored."""

    guarantee = "exactly once"
    upserts = False

    def __init__(self, path: str | Path, form: str, table: Table) -> None:
        self._dir, self._format, self._table = Path(path), form, table
        self._marker = self._dir / "_slackwater" / f"{table.writer}.json"
        self.description = f'{form} files in "{path}"'

    @property
    def capacity(self) -> Capacity:
        """Text writes times with four digits of a year; Parquet holds any."""
        return ANYTHING if self._format == "parquet" else Capacity(times=YEARS)

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def last_epoch(self) -> int:
        """The last epoch that this state published, -1 for none."""
        marker = self._read_marker()
        return int(marker["epoch"]) if marker.get("state", "") == self._table.state else -1

    def _read_marker(self) -> dict[str, Any]:
        if not self._marker.exists():
            return {"epoch": -1, "state": self._table.state, "infix": ""}
        try:
            found: dict[str, Any] = json.loads(self._marker.read_text())
            return found
        except ValueError:
            raise PublishError(
                f"marker {self._marker} is damaged; delete it if the epochs in {self._dir} are complete up to the last commit"
            ) from None

    def _files(self) -> list[Path]:
        """The files of this writer, of whatever state."""
        ending = "jsonl" if self._format == "json" else self._format
        named = re.compile(rf"{re.escape(self._table.writer)}-([0-9a-f]{{8}}-)?[0-9]{{9,}}\.{ending}")
        try:
            return sorted(p for p in self._dir.iterdir() if named.fullmatch(p.name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def former(self) -> str | None:
        """What another state of this writer left here, in words."""
        files, marker = self._files(), self._read_marker()
        if not files or (self._table.state and marker.get("state") == self._table.state):
            return None
        of = f'{len(files):,} {"file" if len(files) == 1 else "files"} of another state of "{self._table.writer}" in "{self._dir}"'
        return f"{of}, up to epoch {marker['epoch']}" if marker["epoch"] >= 0 else of

    def put_aside(self) -> str | None:
        """Move them to a directory that readers of this one ignore, the marker last; returns which, None if there are none."""
        files = self._files()
        if not files:
            return None
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
        aside = self._marker.parent / f"before-{stamp}"
        try:
            aside.mkdir(parents=True)
            for path in (*files, *([self._marker] if self._marker.exists() else [])):
                path.replace(aside / path.name)
        except OSError as error:
            raise StartError(
                f"target directory {self._dir}: files of the former state could not be put aside in {aside} ({error.strerror}); "
                "what was moved is there; check the rights, then repeat this"
            ) from None
        return f'"{aside}"'

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None) -> None:
        try:
            self._marker.parent.mkdir(parents=True, exist_ok=True)
            if epoch <= self.last_epoch():
                return
            before = self._read_marker()
            ours = before.get("state", "") == self._table.state
            # the files of a state that was started over stay; its successor's have names of their own
            infix = before.get("infix", "") if ours else f"{self._table.state[:8]}-"
            name = f"{self._table.writer}-{infix}{epoch:09d}.{'jsonl' if self._format == 'json' else self._format}"
            aside = self._marker.parent / f".{name}"
            self._write(aside, rows)
            _flush(aside)
            aside.replace(self._dir / name)
            marker = self._marker.with_suffix(".tmp")
            marker.write_text(json.dumps({"epoch": epoch, "state": self._table.state, "infix": infix}))
            _flush(marker)
            marker.replace(self._marker)
        except OSError as error:
            raise PublishError(
                f"target directory {self._dir} did not take epoch {epoch} ({error.strerror}); the epoch is committed, "
                "the next start publishes it"
            ) from error

    def _write(self, path: Path, rows: pl.DataFrame) -> None:
        if self._format == "parquet":
            pq.write_table(rows.to_arrow().cast(arrow_schema(list(self._table.fields))), path)
            return
        if self._format == "json" and any(map(has_map, rows.schema.values())):
            # Polars writes a map as a list of entries, and readers of JSON know maps as objects
            rows.select(object_text(rows.schema)).write_csv(path, include_header=False, quote_style="never")
        elif self._format == "json":
            text_columns(rows).write_ndjson(path)
        else:
            text_columns(json_columns(rows)).write_csv(path)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def text_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Times as ISO 8601 and bytes as hexadecimal, also within arrays and structs, for formats without these types."""
    return rows.with_columns(within(pl.col(c), t, _textual).alias(c) for c, t in rows.schema.items())


def json_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Arrays and structs as JSON, for formats that have neither."""
    found = [c for c, t in rows.schema.items() if nested(t)]
    return rows.with_columns(
        pl.when(pl.col(c).is_not_null()).then(json_text(pl.col(c), rows.schema[c])).alias(c) for c in found
    )


def _textual(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Binary:
        return value.bin.encode("hex")
    return value.dt.strftime(_TIME) if isinstance(kind, pl.Datetime) else value
