"""Format keys, values and durations for messages, and suggest similar words.

Values from the environment are shown as the config spells them, so that messages do not reveal secrets.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Self

from slackwater.core.humanize import format_ms, mismatch


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


class MissingEnvString(EnvString):
    """A string whose environment variable is missing. The problem is reported once, where the variable is read."""


class EnvDuration(int):
    """A duration in milliseconds, from a string in the environment. `raw` is its spelling in the config."""

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


class DurationWithoutUnit(int):
    """A duration below one second without a unit. The user may have meant seconds or minutes."""


def format_value(value: object) -> str:
    """Format a value on one line, as the user wrote it.

    A value from the environment appears as the config spells it.
    """
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
        return "a number of more than 64 bits"  # Python itself refuses to print one of 5,000 digits
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def value_mismatch(value: object, expected: object) -> str:
    """Describe a value that is not as expected, as `humanize.mismatch` does. `format_value` formats the value."""
    return mismatch(format_value(value), expected)


def quote_text(value: str) -> str:
    """Quote a string, and shorten it if it is long."""
    return json.dumps(value if len(value) <= 80 else f"{value[:77]}...", ensure_ascii=False)


def format_key(key: object) -> str:
    """Format a key as in TOML: without quotes if possible."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else quote_text(str(key))


def format_config_duration(ms: int) -> str:
    """Format a duration in its shortest spelling; one from the environment appears as the config spells it."""
    return format_value(ms) if isinstance(ms, EnvDuration) else format_ms(ms)


def suggest_word(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean "x"?` with the most similar candidate, ignoring case; "" if none is similar."""
    words = {name.casefold(): name for name in reversed(list(candidates))}
    matches = difflib.get_close_matches(word.casefold(), words, n=1)
    return f'; did you mean "{words[matches[0]]}"?' if matches else ""


def suggest_word_or_list(word: str, candidates: Iterable[str]) -> str:
    """Return the result of `suggest_word`, or the list of candidates if none is similar."""
    words = sorted(candidates)
    return suggest_word(word, words) or (f"; expected one of {', '.join(words)}" if words else "")
