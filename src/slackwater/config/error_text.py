"""Format keys, values and durations for messages, and suggest similar words.

A value from an environment variable is shown as `${NAME}`, as in the config, so that messages do not reveal secrets.
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
    """String that comes from the environment. Messages show `raw`, its spelling in the config, instead of the value."""

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
    """String whose environment variable is not set. The problem is reported once, when the file is read."""


class EnvDuration(int):
    """Duration in milliseconds that comes from the environment. `raw` is its spelling in the config."""

    raw: str

    def __new__(cls, value: int, raw: str) -> Self:
        self = super().__new__(cls, value)
        self.raw = raw
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]  # two arguments, for copy and pickle
        return int(self), self.raw

    def __repr__(self) -> str:
        return repr(self.raw)

    def __str__(self) -> str:  # without this, str() would call __repr__; SQL needs the number
        return int.__repr__(self)


class DurationWithoutUnit(int):
    """Duration of less than one second that was written without a unit. The user may have meant seconds or minutes."""


def format_value(value: object) -> str:
    """Format a value on one line, as it is written in a config.

    A value from the environment appears as `${NAME}`. A table is not shown in full.
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
        return "a number with more than 64 bits"  # Python cannot print numbers with thousands of digits
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def describe_value_mismatch(value: object, expected: object) -> str:
    """Return "found <value>, expected <expected>". `format_value` formats the value."""
    return mismatch(format_value(value), expected)


def quote_text(value: str) -> str:
    """Quote a string as JSON. A string of more than 80 characters is truncated."""
    return json.dumps(value if len(value) <= 80 else f"{value[:77]}...", ensure_ascii=False)


def format_key(key: object) -> str:
    """Format a key as in TOML, with quotes only if it needs them."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else quote_text(str(key))


def format_config_duration(ms: int) -> str:
    """Format a duration (ms) as `90s` or `2h`. A duration from the environment appears as `${NAME}`."""
    return format_value(ms) if isinstance(ms, EnvDuration) else format_ms(ms)


def suggest_word(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the candidate that is most similar to a word; "" if no candidate is similar."""
    words = {name.casefold(): name for name in reversed(list(candidates))}
    matches = difflib.get_close_matches(word.casefold(), words, n=1)
    return f'; did you mean "{words[matches[0]]}"?' if matches else ""


def suggest_or_list_words(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean "x"?` if a candidate is similar to a word, otherwise the list of all candidates."""
    words = sorted(candidates)
    return suggest_word(word, words) or (f"; expected one of {', '.join(words)}" if words else "")
