"""File target, which writes one file per epoch, and a marker with the last epoch, to a directory.

out/sessions/
  user-sessions-000000012.parquet     written under a temporary name, then renamed, so it is complete or absent
  _slackwater/user-sessions.json      the last published epoch; readers of the directory ignore it
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from slackwater.connectors.files.output_directory import open_directory
from slackwater.connectors.target import TargetTable
from slackwater.core.paths import OUTPUT_FOLDER
from slackwater.core.row_format import TIME, apply_to_scalars, has_map, is_nested, row_to_json, value_to_json
from slackwater.core.schema import ANYTHING, YEARS, ValueLimits, to_arrow_schema
from slackwater.errors import EpochError, PublishError, StartError, StateError, Topic
from slackwater.state.commit import TargetMarker

_TIME = f"{TIME}Z"


class FilesTarget:
    """Target that writes each epoch exactly once. Epochs up to the one in the marker are ignored."""

    guarantee = "exactly once"
    upserts = False

    def __init__(
        self, path: str | Path, form: str, table: TargetTable, options: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the target without accessing the directory.

        Args:
            path: The path or URL of the directory.
            form: The format of the files: "parquet", "json" or "csv".
            table: The columns and the writer.
            options: The options of the object store.
        """
        self._folder, self._format, self._table = open_directory(path, options), form, table
        self._marker = f"{OUTPUT_FOLDER}/{table.writer}.json"
        self.description = f'{form} files in "{path}"'

    @property
    def capacity(self) -> ValueLimits:
        """The value limits: text formats support only four-digit years, but Parquet can store any time."""
        return ANYTHING if self._format == "parquet" else ValueLimits(time_range=YEARS)

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def last_epoch(self) -> int:
        """Return the last epoch that this state published, or -1 if it has not published any."""
        marker = self._read_marker()
        return int(marker["epoch"]) if marker.get("state", "") == self._table.state else -1

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        try:
            marker = self._read_marker()
        except PublishError as error:
            raise StartError(str(error), Topic.OUTPUT_UNREADABLE) from None
        except OSError as error:
            raise StartError(
                f"{self.description} cannot be read ({error.strerror}); check the path and its permissions",
                Topic.OUTPUT_UNREADABLE,
            ) from None
        if marker["epoch"] < 0:
            return None
        return TargetMarker(state=marker.get("state", ""), epoch=marker["epoch"], commit=marker.get("commit", ""))

    def writers(self) -> list[str]:
        try:
            return [name.removesuffix(".json") for name in self._folder.names(OUTPUT_FOLDER) if name.endswith(".json")]
        except OSError as error:
            raise StartError(
                f"{self.description} cannot be read ({error.strerror}); check the path and its permissions",
                Topic.OUTPUT_UNREADABLE,
            ) from None

    @property
    def _own_infix(self) -> str:
        infix = f"{self._table.state[:8]}-"
        return infix if any(f"-{infix}" in name for name in self._files()) else ""

    def can_set_newer_epochs_aside(self, rollback: TargetMarker) -> bool:
        """Return whether the files of this state up to `rollback` exist, and no other state uses these file names."""
        marker, own_infix = self._read_marker(), self._own_infix
        if marker.get("state", "") == self._table.state:
            return True
        ending = "jsonl" if self._format == "json" else self._format
        last = f"{self._table.writer}-{own_infix}{rollback.epoch:09d}.{ending}"
        return bool(marker.get("infix", "") != own_infix and last in self._folder.names())

    def set_newer_epochs_aside(self, rollback: TargetMarker) -> str:
        """Move files written after `rollback` to a directory that readers ignore, and restore the marker `rollback`.

        Return the directory. The move can be repeated after a crash. Raises StartError if a file cannot be moved.
        """
        marker, state, own_infix = self._read_marker(), self._table.state, self._own_infix
        newer = [name for name in self._files() if self._is_newer(name, rollback.epoch, own_infix, marker)]
        to = self._aside_name("newer")
        try:
            self._folder.move(newer, to)
            content = {"epoch": rollback.epoch, "state": state, "infix": own_infix, "commit": rollback.commit}
            self._folder.write_marker(self._marker, json.dumps(content).encode())
        except OSError as error:
            raise self._move_error(f"{self._shown}/{to}", error) from None
        return f'"{self._shown}/{to}"'

    def _is_newer(self, name: str, epoch: int, own_infix: str, marker: Mapping[str, Any]) -> bool:
        """Return whether a file was written after `epoch` of this state.

        This is true for files of later epochs of this state. If another state wrote the marker, it is also true for
        all files of that state.

        Args:
            name: The name of the file.
            epoch: The epoch of this state.
            own_infix: The infix in this state's file names.
            marker: The current marker.
        """
        written = re.fullmatch(rf"{re.escape(self._table.writer)}-([0-9a-f]{{8}}-)?([0-9]{{9,}})\.\w+", name)
        assert written is not None, "`name` must be one of `_files`"
        infix = written[1] or ""
        return (infix == own_infix and int(written[2]) > epoch) or (infix == marker.get("infix", "") != own_infix)

    def _read_marker(self) -> dict[str, Any]:
        content = self._folder.read(self._marker)
        if content is None:
            return {"epoch": -1, "state": self._table.state, "infix": ""}
        try:
            marker: dict[str, Any] = json.loads(content)
            return marker
        except ValueError:
            raise PublishError(
                f"marker file {self._shown}/{self._marker} is damaged; delete it if {self._shown} contains the output "
                "of all epochs up to the last commit"
            ) from None

    @property
    def _shown(self) -> str:
        return self._folder.full_name

    def _files(self) -> list[str]:
        """Return the names of the files that this writer has written with any state."""
        ending = "jsonl" if self._format == "json" else self._format
        named = re.compile(rf"{re.escape(self._table.writer)}-([0-9a-f]{{8}}-)?[0-9]{{9,}}\.{ending}")
        return [name for name in self._folder.names() if named.fullmatch(name)]

    def describe_previous_output(self) -> str | None:
        """Describe the files that this writer wrote to the directory with another state.

        Return None if there are none.
        """
        files, marker = self._files(), self._read_marker()
        if not files or (self._table.state and marker.get("state") == self._table.state):
            return None
        description = f'{len(files):,} {"file" if len(files) == 1 else "files"} of another state of "{self._table.writer}" in "{self._shown}"'
        return f"{description}, up to epoch {marker['epoch']}" if marker["epoch"] >= 0 else description

    def put_aside(self) -> str | None:
        """Move all files of this writer, and finally its marker, to a directory that readers ignore.

        Return the directory, or None if the writer has no files. Raises StartError if a file cannot be moved.
        """
        files = self._files()
        if not files:
            return None
        to = self._aside_name("before")
        directory = f"{self._shown}/{to}"
        try:
            marked = [self._marker] if self._folder.read(self._marker) is not None else []
            self._folder.move([*files, *marked], to)
        except OSError as error:
            raise self._move_error(directory, error) from None
        return f'"{directory}"'

    @staticmethod
    def _aside_name(reason: str) -> str:
        return f"{OUTPUT_FOLDER}/{reason}-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%fZ}"

    def _move_error(self, directory: str, error: OSError) -> StartError:
        return StartError(
            f"target directory {self._shown}: some files of the previous state could not be moved to {directory} "
            f"({error.strerror}); check the permissions, then start again",
            Topic.TARGET_OF_OTHER_STATE,
        )

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        try:
            if epoch <= self.last_epoch():
                return
            before = self._read_marker()
            ours = before.get("state", "") == self._table.state
            # Files of a previous state are kept. The names of this state's files contain its id.
            infix = before.get("infix", "") if ours else f"{self._table.state[:8]}-"
            name = f"{self._table.writer}-{infix}{epoch:09d}.{'jsonl' if self._format == 'json' else self._format}"
            self._folder.write(name, lambda path: self._write(path, rows))
            marker = {"epoch": epoch, "state": self._table.state, "infix": infix, "commit": commit}
            self._folder.write_marker(self._marker, json.dumps(marker).encode())
        except (StateError, EpochError) as error:  # from the object store
            raise PublishError(f"{error}; epoch {epoch} is committed and will be published at the next start") from None
        except OSError as error:
            raise PublishError(
                f"target directory {self._shown} did not accept epoch {epoch} ({error.strerror}); the epoch is "
                "committed and will be published at the next start"
            ) from error

    def _write(self, path: Path, rows: pl.DataFrame) -> None:
        if self._format == "parquet":
            pq.write_table(rows.to_arrow().cast(to_arrow_schema(list(self._table.fields))), path)
            return
        if self._format == "json" and any(map(has_map, rows.schema.values())):
            # Polars writes a map as a list of entries, but JSON readers expect an object.
            rows.select(row_to_json(rows.schema)).write_csv(path, include_header=False, quote_style="never")
        elif self._format == "json":
            text_columns(rows).write_ndjson(path)
        else:
            text_columns(json_columns(rows)).write_csv(path)


def text_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert times to ISO 8601 and bytes to hexadecimal, even in nested values, for formats without these types."""
    return rows.with_columns(apply_to_scalars(pl.col(c), t, _to_text).alias(c) for c, t in rows.schema.items())


def json_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert arrays and structs to JSON text, for formats without nested types."""
    nested = [c for c, t in rows.schema.items() if is_nested(t)]
    return rows.with_columns(
        pl.when(pl.col(c).is_not_null()).then(value_to_json(pl.col(c), rows.schema[c])).alias(c) for c in nested
    )


def _to_text(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Binary:
        return value.bin.encode("hex")
    return value.dt.strftime(_TIME) if isinstance(kind, pl.Datetime) else value
