"""Parsers for the values of config keys. A parser returns the parsed value or raises InvalidValueError.

The attribute `shape` of a parser is the JSON Schema of its values (see `attach_json_schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from slackwater.config.error_text import (
    DurationWithoutUnit,
    EnvDuration,
    EnvString,
    describe_value_mismatch,
    format_key,
    format_value,
    quote_text,
    suggest_word,
)
from slackwater.core.time import parse_duration_ms
from slackwater.errors import ConfigError

Duration = int | str  # milliseconds, or a string such as "30s"


class InvalidValueError(Exception):
    """A value is invalid. The message describes the valid values."""


class InvalidConfigTableError(ConfigError):
    """A nested table is invalid. `draft` contains the valid parts of the table, which can still be checked."""

    def __init__(self, problems: list[str], draft: Any) -> None:
        super().__init__(problems)
        self.draft = draft


ValueParser = Callable[[Any], Any]
_K = TypeVar("_K", bound=ValueParser)


def attach_json_schema(**keywords: Any) -> Callable[[_K], _K]:
    """Return a decorator that stores a JSON Schema in the attribute `shape` of a parser.

    `keywords`: the keywords of the schema, and two that `config.json_schema` expands: `of`, the spec of a nested table,
    and `duration`, the minimum of a duration.
    """

    def mark(kind: _K) -> _K:
        vars(kind)["shape"] = keywords
        return kind

    return mark


_MOST = 2**63 - 1
HIDDEN = "__"  # prefix of the columns that Slackwater adds internally
_TEN_THOUSAND_YEARS_MS = 315_576_000_000_000  # in microseconds, this still fits into 64 bits


@attach_json_schema(type="string", minLength=1)
def parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValueError("a non-empty string")
    return value


def find_name_problem(name: str) -> str | None:
    """Return why a column cannot have this name; None if the name is allowed."""
    if "\0" in name:
        return f"found {format_value(name)}; a column name cannot contain U+0000; rename the column in the SQL"
    if name.startswith(HIDDEN) and name != HIDDEN:  # "__" alone means "no aggregation" in a state
        return f"found {format_value(name)}; names that begin with {HIDDEN} are reserved; rename the column in the SQL"
    return None


def integer_parser(minimum: int, maximum: int | None = None) -> ValueParser:
    @attach_json_schema(type="integer", minimum=minimum, maximum=_MOST if maximum is None else maximum)
    def check(value: Any) -> int:
        most = _MOST if maximum is None else maximum
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= most:
            top = "" if maximum is None else f" and at most {maximum}"
            raise InvalidValueError(f"a whole number of at least {minimum}{top}")
        return value

    return check


@attach_json_schema(type="boolean")
def parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError("true or false")
    return value


def choice_parser(*options: str) -> ValueParser:
    @attach_json_schema(enum=list(options))
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise InvalidValueError(" or ".join(f'"{o}"' for o in options) + suggest_word(str(value), options))
        return value

    return check


def duration_parser(minimum: int | None = None) -> ValueParser:
    """Return a parser that converts durations ("30s", or an integer in ms) to milliseconds.

    `minimum`: the shortest valid duration, which is 1 or 0 (ms); None also allows negative durations.
    """

    expected = {1: "a duration greater than 0", 0: "a duration of 0 or more", None: "a duration"}[minimum]

    @attach_json_schema(duration=minimum)
    def check(value: Any) -> int:
        try:
            ms = parse_duration_ms(value)
        except ValueError:
            raise InvalidValueError(f'{expected} ("30s", "5m", "2h" or milliseconds)') from None
        if minimum is not None and ms < minimum:
            raise InvalidValueError(f'{expected} ("30s", "5m", "2h" or milliseconds)')
        if abs(ms) > _TEN_THOUSAND_YEARS_MS:
            raise InvalidValueError("a duration of at most 10000 years")
        if isinstance(value, EnvString):
            return EnvDuration(ms, value.raw)
        return DurationWithoutUnit(ms) if isinstance(value, int) and 0 < ms < 1000 else ms

    return check


@attach_json_schema(type="array", items={"type": "string", "minLength": 1})
def parse_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidValueError(f"a list; write [{format_value(value)}]")
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise InvalidValueError("a list of non-empty strings")
    return tuple(value)


@attach_json_schema(
    anyOf=[{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]
)
def parse_names(value: Any) -> tuple[str, ...]:
    """Parse one name or a list of names."""
    if isinstance(value, str) and value:
        return (value,)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise InvalidValueError("a name, or a list of names")
    return tuple(value)


def settings_parser(expected: str) -> ValueParser:
    """Return a parser for a table of settings that another system defines, such as Spark or a Kafka client.

    `expected`: a description of the valid values, for error messages.
    """

    @attach_json_schema(type="object", additionalProperties={"type": ["string", "number", "boolean"]})
    def check(value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise InvalidValueError(expected)
        problems: list[str] = []
        settings: dict[str, str] = {}
        for key, setting in value.items():
            if isinstance(setting, str | int | float):
                plain = str(setting).lower() if isinstance(setting, bool) else str(setting)
                settings[str(key)] = setting if isinstance(setting, str) else plain
                continue
            advice = ""
            if isinstance(setting, Mapping) and setting:
                advice = f"; a key with dots needs quotes: {quote_text(_dotted_key(str(key), setting))}"
            problems.append(
                f": {format_key(key)}: "
                + describe_value_mismatch(setting, f"a string, a number, true or false{advice}")
            )
        if problems:
            raise InvalidConfigTableError(problems, settings)
        return settings

    return check


def _dotted_key(key: str, value: Any) -> str:
    """Return the path to the first value of a nested table: the dotted key that the user meant but did not quote."""
    while isinstance(value, Mapping) and value:
        inner, value = next(iter(value.items()))
        key = f"{key}.{inner}"
    return key


reader_options = settings_parser('a table of reader options ({ sep = ",", header = "true" })')


@attach_json_schema()
def accept_anything(value: Any) -> Any:
    return value
