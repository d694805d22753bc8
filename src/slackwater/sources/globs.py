r"""Patterns of paths as Hadoop reads them, and so Spark: `*`, `?`, `[a-z]`, `[^a]`, `{one,two}`, `\` before what is no pattern.

A pattern is matched part by part: no star reaches over a slash. Hidden names are matched like any other.
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
    """What a pattern names: a file, or a folder."""

    path: str
    is_folder: bool


def find_roots(pattern: str) -> list[GlobRoot]:
    """What is there by an absolute pattern, each once, in the order of names. Raises ValueError for what is no pattern."""
    found = {root.path: root for one in expand_braces(pattern) for root in _below("/", _parts(one))}
    return list(found.values())


def is_pattern(path: str) -> bool:
    """Whether it may name more than one file."""
    return _PATTERN.search(path) is not None


def plain_path(path: str) -> str:
    """A path without patterns, as the file system has it."""
    return posixpath.normpath(re.sub(r"\\(.)", r"\1", path))


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether a name is one of a pattern's."""
    return any(_matcher(one).fullmatch(name) for one in expand_braces(pattern))


def expand_braces(pattern: str) -> list[str]:
    """A pattern for each choice of its braces. Raises ValueError for one that is not closed."""
    depth, cuts, at = 0, list[int](), 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            at += 1
        elif c == "{":
            depth += 1
            cuts += [at] if depth == 1 else []
        elif c == "," and depth == 1:
            cuts.append(at)
        elif c == "}" and depth:
            depth -= 1
            if depth == 0:
                choices = [pattern[i + 1 : j] for i, j in pairwise([*cuts, at])]
                return [one for c in choices for one in expand_braces(pattern[: cuts[0]] + c + pattern[at + 1 :])]
        at += 1
    if depth:
        raise ValueError(f'"{pattern}" has a brace that is not closed')
    return [pattern]


def _parts(pattern: str) -> list[str]:
    return [p for p in posixpath.normpath(pattern).split("/") if p]


def _below(folder: str, parts: list[str]) -> Iterator[GlobRoot]:
    if not parts:
        yield GlobRoot(folder, True)
        return
    part, rest = parts[0], parts[1:]
    if not is_pattern(part):
        path = posixpath.join(folder, re.sub(r"\\(.)", r"\1", part))
        if rest:
            yield from _below(path, rest)
        elif Path(path).exists():
            yield GlobRoot(path, Path(path).is_dir())
        return
    matcher = _matcher(part)
    for entry in sorted(scan_folder(folder), key=lambda e: e.name):
        if matcher.fullmatch(entry.name):
            is_folder = is_dir(entry)
            if not rest:
                yield GlobRoot(entry.path, is_folder)
            elif is_folder:
                yield from _below(entry.path, rest)


def scan_folder(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where it is gone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


@lru_cache
def _matcher(part: str) -> re.Pattern[str]:
    """One part of a path, without braces, as a regular expression."""
    found, at, in_set = "", 0, False
    while at < len(part):
        c = part[at]
        at += 1
        if c == "\\":
            if at == len(part):
                raise ValueError(f'"{part}" ends with a backslash that stands before nothing')
            found += re.escape(part[at])
            at += 1
        elif in_set:
            in_set = c != "]"
            found += "^" if c in "!^" and found.endswith("[") else "\\[" if c == "[" else c
        elif c == "[":
            in_set = True
            found += c
        else:
            found += {"*": ".*", "?": "."}.get(c) or re.escape(c)
    if in_set:
        raise ValueError(f'"{part}" has a bracket that is not closed')
    try:
        return re.compile(found, re.DOTALL)
    except re.error as error:
        raise ValueError(f'"{part}" is no pattern ({error})') from None
