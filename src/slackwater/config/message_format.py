"""How a message spells what a user wrote: values, keys and durations in one line, and the known word that is nearest.

A value that came from the environment is spelled as the config spells it, so that no message shows a secret.
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
    """A string that came from the environment: `raw` is how the config spells it; its value is never shown."""

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
    """A string whose environment variable is missing: reported once, where it was read, and not judged again."""


class EnvDuration(int):
    """Milliseconds whose text came from the environment; `raw` is how the config spells it."""

    raw: str

    def __new__(cls, value: int, raw: str) -> Self:
        self = super().__new__(cls, value)
        self.raw = raw
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]  # two arguments, for copy and pickle
        return int(self), self.raw

    def __repr__(self) -> str:
        return repr(self.raw)

    def __str__(self) -> str:  # int would take the repr; SQL and messages of the engine need the number
        return int.__repr__(self)


class BareMilliseconds(int):
    """Milliseconds of less than a second that stand in a config without a unit: seconds or minutes may be meant."""


def format_value(value: object) -> str:
    """A value in one line, as the user wrote it; secrets as they are spelled in the config."""
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
    """A text in quotes, cut where it is long."""
    return json.dumps(value if len(value) <= 80 else f"{value[:77]}...", ensure_ascii=False)


def show_key(key: object) -> str:
    """A key as TOML spells it: bare where it can be."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else quote_text(str(key))


def show_duration(ms: int) -> str:
    """A duration in its shortest spelling, or as the config spells one that came from the environment."""
    return format_value(ms) if isinstance(ms, EnvDuration) else duration_text(ms)


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean "x"?` with the known word that is nearest, whatever its case; empty if none is near."""
    words = {name.casefold(): name for name in reversed(list(candidates))}
    matches = difflib.get_close_matches(word.casefold(), words, n=1)
    return f'; did you mean "{words[matches[0]]}"?' if matches else ""


def suggestion_or_list(word: str, candidates: Iterable[str]) -> str:
    """The same, or the known words if none is near."""
    words = sorted(candidates)
    return suggestion(word, words) or (f"; expected one of {', '.join(words)}" if words else "")
