r"""List local files exactly as Spark's file stream would, without Spark.

pattern ─▶ roots: the paths that match ─▶ visible files below the roots ─▶ only those directly in a root,
                                                                           or all if the folders are `column=value`

A folder that a Spark stream writes to contains a log of committed files. In such a folder, only these files are listed.

Patterns have Hadoop's syntax: `*`, `?`, `[a-z]`, `[^a]`, `{one,two}`, and `\` to escape. They are matched component by
component, so a star does not match a slash. In patterns, hidden names match like any other name.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

SINK_LOG = "_spark_metadata"
# characters that Java percent-encodes in a URI; most non-ASCII characters are unchanged
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
    """Listing of the files that match a pattern.

    Args:
        pattern: An absolute pattern in Hadoop's syntax.
        recursive: Whether to include all files below the roots, regardless of their folder names.
        only: A pattern that the file names must match. If None, all names match.
    """

    pattern: str
    recursive: bool = False
    only: str | None = None

    def files(self) -> Iterator[str]:
        """Yield the paths of all current files. Raises OSError, or ValueError if partition folders are inconsistent."""
        for path in self._candidates():
            if self.only is None or matches_pattern(self.only, posixpath.basename(path)):
                yield path

    def _candidates(self) -> Iterator[str]:
        if not is_pattern(self.pattern):
            log = posixpath.join(plain_path(self.pattern), SINK_LOG)
            if Path(log).is_dir():
                yield from _committed_files(log)
                return
        direct: list[str] = []
        # by folder: the root of its `column=value` path, and its files
        below: dict[str, tuple[str | None, list[str]]] = {}
        for root in find_roots(self.pattern):
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
                f'"{first}" and "{second}" cannot be read as one table, because there are column=value folders below '
                f'"{self.pattern}"; put all files into such folders of one parent, or next to them'
            )
        return True


def _folders_with_files(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder at or below `root` that contains files, with the paths of these files."""
    pending = [root]
    while pending:
        folder, names = pending.pop(), []
        for entry in scan_folder(folder):
            if is_hidden(entry.name):
                continue
            if is_dir(entry):
                pending.append(entry.path)
            else:
                names.append(entry.path)
        if names:
            yield folder, names


def _table_root(folder: str, root: str) -> str | None:
    """Return the parent of the first `column=value` folder between `root` and `folder`, or None if there is none."""
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
    """Yield the files that a Spark stream has committed to a folder, according to the log in that folder."""
    numbers: dict[int, str] = {}
    for entry in scan_folder(log):
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


_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*[*?\[{]")


class GlobRoot(NamedTuple):
    """A file or folder that a pattern matches."""

    path: str
    is_folder: bool


def find_roots(pattern: str) -> list[GlobRoot]:
    """Return the existing paths that an absolute pattern matches, without duplicates, sorted by name.

    Raises ValueError if the pattern is not valid.
    """
    roots = {root.path: root for expanded in expand_braces(pattern) for root in _below("/", _parts(expanded))}
    return list(roots.values())


def is_pattern(path: str) -> bool:
    """Return whether a path contains pattern characters, so that it may match more than one file."""
    return _PATTERN.search(path) is not None


def plain_path(path: str) -> str:
    """Convert a pattern without wildcards to a plain path by removing its escapes."""
    return posixpath.normpath(re.sub(r"\\(.)", r"\1", path))


def escape_pattern(path: str) -> str:
    """Return a pattern that matches only the given path."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern."""
    return any(_matcher(expanded).fullmatch(name) for expanded in expand_braces(pattern))


def expand_braces(pattern: str) -> list[str]:
    """Return one pattern for each combination of alternatives in braces. Raises ValueError if a brace is not closed."""
    depth, cuts, index = 0, list[int](), 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 1
        elif char == "{":
            depth += 1
            cuts += [index] if depth == 1 else []
        elif char == "," and depth == 1:
            cuts.append(index)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                choices = [pattern[i + 1 : j] for i, j in pairwise([*cuts, index])]
                return [
                    one for char in choices for one in expand_braces(pattern[: cuts[0]] + char + pattern[index + 1 :])
                ]
        index += 1
    if depth:
        raise ValueError(f'"{pattern}" has a brace that is not closed')
    return [pattern]


def _parts(pattern: str) -> list[str]:
    return [p for p in posixpath.normpath(pattern).split("/") if p]


def _below(folder: str, parts: list[str]) -> Iterator[GlobRoot]:
    if not parts:
        yield GlobRoot(folder, True)
        return
    part, remaining_parts = parts[0], parts[1:]
    if not is_pattern(part):
        path = posixpath.join(folder, re.sub(r"\\(.)", r"\1", part))
        if remaining_parts:
            yield from _below(path, remaining_parts)
        elif Path(path).exists():
            yield GlobRoot(path, Path(path).is_dir())
        return
    matcher = _matcher(part)
    for entry in sorted(scan_folder(folder), key=lambda e: e.name):
        if matcher.fullmatch(entry.name):
            is_folder = is_dir(entry)
            if not remaining_parts:
                yield GlobRoot(entry.path, is_folder)
            elif is_folder:
                yield from _below(entry.path, remaining_parts)


def scan_folder(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, or an empty list if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory. Return False for a symbolic link that points to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


@lru_cache
def _matcher(part: str) -> re.Pattern[str]:
    """Compile one path component, without braces, into a regular expression. Raises ValueError if it is not valid."""
    regex, index, in_set = "", 0, False
    while index < len(part):
        char = part[index]
        index += 1
        if char == "\\":
            if index == len(part):
                raise ValueError(f'"{part}" ends with a backslash that escapes nothing')
            regex += re.escape(part[index])
            index += 1
        elif in_set:
            in_set = char != "]"
            regex += "^" if char in "!^" and regex.endswith("[") else "\\[" if char == "[" else char
        elif char == "[":
            in_set = True
            regex += char
        else:
            regex += {"*": ".*", "?": "."}.get(char) or re.escape(char)
    if in_set:
        raise ValueError(f'"{part}" has a bracket that is not closed')
    try:
        return re.compile(regex, re.DOTALL)
    except re.error as error:
        raise ValueError(f'"{part}" is not a pattern ({error})') from None
