"""List local files exactly as Spark's file stream would, without Spark.

pattern ─▶ roots: the paths that match ─▶ visible files below the roots ─▶ only those directly in a root,
                                                                           or all if the folders are `column=value`

A folder that a Spark stream writes to contains a log of committed files. In such a folder, only these files are listed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from slackwater.connectors.files import globs

SINK_LOG = "_spark_metadata"
# characters that Java percent-encodes in a URI; most non-ASCII characters stay as they are
_QUOTED = re.compile(
    r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\x80-\U0010ffff]|[\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def to_uri(path: str) -> str:
    """Return the URI under which Spark lists a path. Raises UnicodeEncodeError if the path is not valid Unicode."""
    path.encode()
    return "file://" + _QUOTED.sub(lambda m: quote(m[0], safe=""), path)


def is_hidden(name: str) -> bool:
    """Return whether Spark skips a file or folder with this name."""
    left_out = (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    return left_out or name.startswith(("_metadata", "_common_metadata"))


@dataclass(frozen=True)
class DirectoryListing:
    """The files that a query matches.

    Args:
        pattern: An absolute pattern in Hadoop's syntax.
        recursive: Whether to include all files below the roots, whatever the names of their folders.
        only: A pattern that the file names must match. None: all names.
    """

    pattern: str
    recursive: bool = False
    only: str | None = None

    def files(self) -> Iterator[str]:
        """Yield the paths of all current files. Raises OSError, and ValueError for inconsistent partition folders."""
        for path in self._candidates():
            if self.only is None or globs.matches_pattern(self.only, posixpath.basename(path)):
                yield path

    def _candidates(self) -> Iterator[str]:
        if not globs.is_pattern(self.pattern):
            log = posixpath.join(globs.plain_path(self.pattern), SINK_LOG)
            if Path(log).is_dir():
                yield from _committed_files(log)
                return
        direct: list[str] = []
        below: dict[
            str, tuple[str | None, list[str]]
        ] = {}  # by folder: the root of its `column=value` path, and its files
        for root in globs.find_roots(self.pattern):
            if not root.is_folder:
                if not is_hidden(posixpath.basename(root.path)):
                    direct.append(root.path)
                continue
            for folder, names in _folders_with_files(root.path):
                if folder == root.path:
                    direct += names
                else:
                    below[folder] = (_table_root(folder, root.path), names)
        yield from direct
        if self.recursive or self._is_partitioned({folder: top for folder, (top, _) in below.items()}, direct):
            for _, names in below.values():
                yield from names

    def _is_partitioned(self, below: Mapping[str, str | None], direct: Iterable[str]) -> bool:
        """Return whether the folders form one partitioned table (`column=value`).

        `below`: the result of `_table_root` for each folder below a root. `direct`: the files directly in a root.
        Raises ValueError if only some of the files are in `column=value` folders.
        """
        if all(top is None for top in below.values()):
            return False
        bases = {top or folder for folder, top in below.items()} | {posixpath.dirname(path) for path in direct}
        if len(bases) > 1:
            first, second, *_ = sorted(bases)
            raise ValueError(
                f'"{first}" and "{second}" are not of one kind: with column=value folders below "{self.pattern}", all '
                "files must be in such folders of one parent, or next to them"
            )
        return True


def _folders_with_files(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder at or below `root` that contains files, with the paths of these files."""
    pending = [root]
    while pending:
        folder, names = pending.pop(), []
        for entry in globs.scan_folder(folder):
            if is_hidden(entry.name):
                continue
            if globs.is_dir(entry):
                pending.append(entry.path)
            else:
                names.append(entry.path)
        if names:
            yield folder, names


def _table_root(folder: str, root: str) -> str | None:
    """Return the folder, `root` or below, that contains the `column=value` folders of a path; None without any."""
    in_partition, current = False, folder
    while current != root:
        name, _, value = posixpath.basename(current).partition("=")
        if name and value:
            in_partition = True
        elif in_partition:
            return current
        current = posixpath.dirname(current)
    return current if in_partition else None


def _committed_files(log: str) -> Iterator[str]:
    """Yield the files that a Spark stream has committed to a folder, as recorded in the folder's log."""
    numbers: dict[int, str] = {}
    for entry in globs.scan_folder(log):
        text, _, ending = entry.name.partition(".")
        if text.isdecimal() and ending in ("", "compact"):
            numbers[int(text)] = max(numbers.get(int(text), ""), entry.name)
    begin = max((n for n, name in numbers.items() if name.endswith(".compact")), default=0)
    committed: dict[str, None] = {}
    for number in sorted(n for n in numbers if n >= begin):
        for line in Path(log, numbers[number]).read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]:
            file: Mapping[str, object] = json.loads(line)
            path = unquote(urlsplit(str(file["path"])).path)
            if file.get("action") == "delete":
                committed.pop(path, None)
            else:
                committed[path] = None
    yield from committed
