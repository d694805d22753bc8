"""Count the unread files of a source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from slackwater.config.source import Source
from slackwater.connectors.backlog import Answer, Backlog
from slackwater.connectors.files.source import absolute_query, load_file_list
from slackwater.core.humanize import plural
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path
from slackwater.state.protocol import Snapshot

MAX_FILES = 100_000  # the maximum number of files to list or compare


def unread_files(source: Source) -> Answer:
    """List the files that the query matches, and return a function that counts the unread ones."""
    return partial(_file_backlog, source.name, list_files(absolute_query(source.query or "")))


def _file_backlog(name: str, paths: list[str] | None, snapshot: Snapshot) -> Backlog:
    record = snapshot.commit.sources.get(name)
    read = FileOffsets.coerce(None if record is None else record.offsets)
    rows, read_count = 0 if record is None else snapshot.commit.clocks[name].rows, read.count
    if paths is None or read_count > MAX_FILES:
        return Backlog(name, "files", None, None, f"more than {plural(MAX_FILES, 'file')}, which are not compared")
    names = {os.path.normpath(file_uri_to_path(e.path)) for e in load_file_list(snapshot, read)}
    count = sum(1 for path in paths if os.path.normpath(path) not in names)
    return Backlog(name, "files", count, round(rows / read_count * count) if read_count else (0 if not count else None))


def list_files(pattern: str) -> list[str] | None:
    """Return the files that a pattern matches, or None if there are more than `MAX_FILES` of them."""
    paths = list(islice(_iterate_files(pattern), MAX_FILES + 1))
    return None if len(paths) > MAX_FILES else paths


def _iterate_files(pattern: str) -> Iterator[str]:
    """Yield the files that a pattern matches, as Spark would list them.

    A backslash escapes a character in Spark's patterns, but not in those of `Path.glob`, which needs brackets. Like
    Spark, this resolves `..` before it lists files.
    """
    pattern = os.path.normpath(pattern)
    root = Path(Path(pattern).anchor)
    for path in root.glob(re.sub(r"\\(.)", r"[\1]", pattern[len(str(root)) :])):
        if not path.is_dir():
            yield from [str(path)] * _is_visible(path.name)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = [f for f in folders if _is_visible(f) or "=" in f]
            yield from (f"{folder}/{n}" for n in names if _is_visible(n))


def _is_visible(name: str) -> bool:
    """Return whether Spark reads a file or folder with this name."""
    return not name.startswith((".", "_")) and not name.endswith("._COPYING_")
