"""Files on the disks of this machine, listed as Spark's stream of files lists them: the same files, without Spark.

pattern ─▶ roots ─▶ the files below, but hidden ones ─▶ those directly in a root; all of them where folders are `column=value`

A folder that a stream of Spark writes to has a list of what that committed: then only that is there.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from slackwater.sources import globs

SINK_LOG = "_spark_metadata"
# what a URI of Java's holds as it is: the rest is percent-encoded, except for what is beyond ASCII
_QUOTED = re.compile(
    r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\x80-\U0010ffff]|[\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def to_uri(path: str) -> str:
    """A path as Spark lists it. Raises UnicodeEncodeError for a name that is no text."""
    path.encode()
    return "file://" + _QUOTED.sub(lambda m: quote(m[0], safe=""), path)


def is_hidden(name: str) -> bool:
    """Whether Spark passes over a file or a folder of that name."""
    left_out = (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    return left_out or name.startswith(("_metadata", "_common_metadata"))


@dataclass(frozen=True)
class DirectoryListing:
    """What a query names. `pattern`: absolute, as Hadoop reads it; `recursive`: all files below, whatever their folders are called;
    `only`: a pattern that the names of files must match."""

    pattern: str
    recursive: bool = False
    only: str | None = None

    def files(self) -> Iterator[str]:
        """The paths of all files that are there now. Raises ValueError, for folders that do not fit together, and OSError."""
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
        ] = {}  # by folder: what its `column=value` path hangs in, its files
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
        """Whether folders are those of a table, `column=value`. Raises ValueError where some are and others are something else."""
        if all(top is None for top in below.values()):
            return False
        bases = {top or folder for folder, top in below.items()} | {posixpath.dirname(path) for path in direct}
        if len(bases) > 1:
            first, second, *_ = sorted(bases)
            raise ValueError(
                f'"{first}" and "{second}" are not of one kind: with column=value folders below "{self.pattern}", all files have to '
                "lie in such folders of one parent, or beside them"
            )
        return True


def _folders_with_files(root: str) -> Iterator[tuple[str, list[str]]]:
    """Every folder from a root on that has files, with their paths."""
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
    """The folder that a `column=value` path below a root hangs in; None where it has no such part."""
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
    """The files that a stream of Spark has committed to a folder, by the log that it keeps there."""
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
