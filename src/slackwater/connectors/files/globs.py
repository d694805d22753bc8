r"""Path patterns with Hadoop's syntax, which Spark uses: `*`, `?`, `[a-z]`, `[^a]`, `{one,two}`, and `\` to escape.

Patterns are matched component by component, so a star does not match a slash. Hidden names match like any other name.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*[*?\[{]")


class GlobRoot(NamedTuple):
    """A file or folder that a pattern matches."""

    path: str
    is_folder: bool


def find_roots(pattern: str) -> list[GlobRoot]:
    """Return the existing paths that an absolute pattern matches, without duplicates, in order of name.

    Raises ValueError if the pattern is not valid.
    """
    roots = {root.path: root for expanded in expand_braces(pattern) for root in _below("/", _parts(expanded))}
    return list(roots.values())


def is_pattern(path: str) -> bool:
    """Return whether a path contains pattern characters, so that it may match more than one file."""
    return _PATTERN.search(path) is not None


def plain_path(path: str) -> str:
    """Convert a pattern without special characters to a plain path, by removing the escapes."""
    return posixpath.normpath(re.sub(r"\\(.)", r"\1", path))


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
    """Return the entries of a folder. Empty if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory."""
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link to itself
        return False


@lru_cache
def _matcher(part: str) -> re.Pattern[str]:
    """Compile one path component, without braces, to a regular expression. Raises ValueError if it is not valid."""
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
