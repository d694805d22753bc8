"""Formats keys, values and durations for messages, and suggests similar words.

A value from the environment is shown as the config spells it, so that messages do not reveal secrets.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Self

from slackwater.core.time import duration_text


class EnvString(str):
    """A string from the environment. `raw` is its spelling in the config; the value itself is never shown."""

    raw: str

    def __new__(cls, value: str, raw: str) -> Self:
        self = super().__new__(cls, value)
        self.raw = raw
        return self

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # two arguments, for copy and pickle
        return str(self), self.raw

    def __repr__(self) -> str:
        return repr(self.raw)


class MissingEnv(EnvString):
    """A string whose environment variable is missing. The problem is reported once, where it was read."""


class EnvDuration(int):
    """Milliseconds whose text came from the environment. `raw` is its spelling in the config."""

    raw: str

    def __new__(cls, value: int, raw: str) -> Self:
        self = super().__new__(cls, value)
        self.raw = raw
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]  # two arguments, for copy and pickle
        return int(self), self.raw

    def __repr__(self) -> str:
        return repr(self.raw)

    def __str__(self) -> str:  # int would use the repr; SQL and messages need the number
        return int.__repr__(self)


class BareMilliseconds(int):
    """A duration of less than a second without a unit. The user may have meant seconds or minutes."""


def format_value(value: object) -> str:
    """Return a value in one line, as the user wrote it. Values from the environment appear as the config spells them."""
    if isinstance(value, EnvString | EnvDuration):
        return quote_text(value.raw)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "a table" if value else "an empty table"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, int) and value.bit_length() > 512:
        return "a number beyond 64 bits"  # Python itself does not print one of 5,000 digits
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def quote_text(value: str) -> str:
    """Return a text in quotes, shortened if it is long."""
    return json.dumps(value if len(value) <= 80 else f"{value[:77]}...", ensure_ascii=False)


def show_key(key: object) -> str:
    """Return a key as TOML spells it: without quotes if possible."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else quote_text(str(key))


def show_duration(ms: int) -> str:
    """Return a duration in its shortest spelling, or as the config spells one from the environment."""
    return format_value(ms) if isinstance(ms, EnvDuration) else duration_text(ms)


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean "x"?` with the most similar candidate, ignoring case; empty if none is similar."""
    words = {name.casefold(): name for name in reversed(list(candidates))}
    matches = difflib.get_close_matches(word.casefold(), words, n=1)
    return f'; did you mean "{words[matches[0]]}"?' if matches else ""


def suggestion_or_list(word: str, candidates: Iterable[str]) -> str:
    """Return the most similar candidate as `suggestion` does, or the list of candidates if none is similar."""
    words = sorted(candidates)
    return suggestion(word, words) or (f"; expected one of {', '.join(words)}" if words else "")
