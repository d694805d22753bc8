"""The kinds of values that a key may have: each takes what a user wrote and returns what is meant, or says what was expected.

A kind carries beside it what a JSON Schema says of it (`shaped`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from slackwater.config.spelling import (
    BareMilliseconds,
    Interpolated,
    InterpolatedDuration,
    near,
    quoted,
    show,
    show_key,
)
from slackwater.core.time import duration_ms
from slackwater.errors import ConfigError

Duration = int | str  # milliseconds, or as people write them: "30s"


class MismatchError(Exception):
    """A value is not of its kind; the text says what was expected."""


class NestedError(ConfigError):
    """Something is wrong inside a nested table; `draft` is what could be read, for the checks that need the rest of it."""

    def __init__(self, problems: list[str], draft: Any) -> None:
        super().__init__(problems)
        self.draft = draft


Kind = Callable[[Any], Any]
_K = TypeVar("_K", bound=Kind)


def shaped(**keywords: Any) -> Callable[[_K], _K]:
    """What a JSON Schema says of a kind, beside the kind; of tables `of`: the spec they are (see `json_schema`)."""

    def mark(kind: _K) -> _K:
        vars(kind)["shape"] = keywords
        return kind

    return mark


_MOST = 2**63 - 1
HIDDEN = "__"  # how the names of columns begin that frames have beside those of the user
_TEN_THOUSAND_YEARS_MS = 315_576_000_000_000  # in microseconds it still fits 64 bits


@shaped(type="string", minLength=1)
def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise MismatchError("a non-empty string")
    return value


def misnamed(name: str) -> str | None:
    """Why no column may have this name; None if one may."""
    if "\0" in name:
        return f"found {show(name)}; U+0000 is in no name of a column: rename it in the SQL"
    if (
        name.startswith(HIDDEN) and name != HIDDEN
    ):  # which stands for no aggregation at all in the state of a config with none
        return f"found {show(name)}; names that begin with {HIDDEN} are Slackwater's own: rename the column in the SQL"
    return None


def whole(minimum: int, maximum: int | None = None) -> Kind:
    @shaped(type="integer", minimum=minimum, maximum=_MOST if maximum is None else maximum)
    def check(value: Any) -> int:
        most = _MOST if maximum is None else maximum
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= most:
            top = "" if maximum is None else f" and at most {maximum}"
            raise MismatchError(f"a whole number of at least {minimum}{top}")
        return value

    return check


@shaped(type="boolean")
def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MismatchError("true or false")
    return value


def choice(*options: str) -> Kind:
    @shaped(enum=list(options))
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise MismatchError(" or ".join(f'"{o}"' for o in options) + near(str(value), options))
        return value

    return check


def duration(minimum: int | None = None) -> Kind:
    """`minimum` 1: greater than 0; 0: 0 or more; None: any."""

    wanted = {1: "a duration greater than 0", 0: "a duration of 0 or more", None: "a duration"}[minimum]

    @shaped(duration=minimum)
    def check(value: Any) -> int:
        try:
            ms = duration_ms(value)
        except ValueError:
            raise MismatchError(f'{wanted} ("30s", "5m", "2h" or milliseconds)') from None
        if minimum is not None and ms < minimum:
            raise MismatchError(f'{wanted} ("30s", "5m", "2h" or milliseconds)')
        if abs(ms) > _TEN_THOUSAND_YEARS_MS:
            raise MismatchError("a duration of at most 10000 years")
        if isinstance(value, Interpolated):
            return InterpolatedDuration(ms, value.raw)
        return BareMilliseconds(ms) if isinstance(value, int) and 0 < ms < 1000 else ms

    return check


@shaped(type="array", items={"type": "string", "minLength": 1})
def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise MismatchError(f"a list; write [{show(value)}]")
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise MismatchError("a list of non-empty strings")
    return tuple(value)


@shaped(anyOf=[{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}])
def names(value: Any) -> tuple[str, ...]:
    """One name, or several."""
    if isinstance(value, str) and value:
        return (value,)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise MismatchError("a name, or a list of names")
    return tuple(value)


def settings(wanted: str) -> Kind:
    """The kind of a table whose keys belong to somebody else: Spark, a client, a reader."""

    @shaped(type="object", additionalProperties={"type": ["string", "number", "boolean"]})
    def check(value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise MismatchError(wanted)
        problems: list[str] = []
        found: dict[str, str] = {}
        for key, given in value.items():
            if isinstance(given, str | int | float):
                plain = str(given).lower() if isinstance(given, bool) else str(given)
                found[str(key)] = given if isinstance(given, str) else plain
                continue
            advice = ""
            if isinstance(given, Mapping) and given:
                advice = f"; a key with dots stands in quotes: {quoted(_dotted(str(key), given))}"
            problems.append(
                f": {show_key(key)}: found {show(given)}, expected a string, a number, true or false{advice}"
            )
        if problems:
            raise NestedError(problems, found)
        return found

    return check


def _dotted(key: str, value: Any) -> str:
    """The key that was meant where TOML read dots as tables, down to the first value."""
    while isinstance(value, Mapping) and value:
        inner, value = next(iter(value.items()))
        key = f"{key}.{inner}"
    return key


reader_options = settings('a table of reader options ({ sep = ",", header = "true" })')


@shaped()
def anything(value: Any) -> Any:
    return value
