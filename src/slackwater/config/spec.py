"""The base of all specs: frozen values that check themselves, and say what is wrong in one line each.

A line is `<file or class>: <key>: <fact>; <what to do>`. All problems of a config are collected before any is raised.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from slackwater.core.time import duration_ms
from slackwater.errors import ConfigError

Values = dict[str, Any]
Problem = tuple[str, str]  # (key, what is wrong with it)


class Interpolated(str):
    """A string that came from the environment: `raw` is how the config spells it; its value is never shown."""

    raw: str

    def __new__(cls, value: str, raw: str) -> Interpolated:
        self = super().__new__(cls, value)
        self.raw = raw
        return self


def show(value: object) -> str:
    """A value as the user wrote it; secrets as they are spelled in the config."""
    if isinstance(value, Interpolated):
        return f'"{value.raw}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "a table"
    return repr(value)


class MismatchError(Exception):
    """A value is not of its kind; the text says what was expected."""


Kind = Callable[[Any], Any]


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise MismatchError("a non-empty string")
    return value


def whole(minimum: int, maximum: int | None = None) -> Kind:
    def check(value: Any) -> int:
        top = f" and at most {maximum}" if maximum is not None else ""
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < minimum
            or (maximum is not None and value > maximum)
        ):
            raise MismatchError(f"a whole number of at least {minimum}{top}")
        return value

    return check


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MismatchError("true or false")
    return value


def choice(*options: str) -> Kind:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            near = difflib.get_close_matches(str(value), options, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise MismatchError(" or ".join(f'"{o}"' for o in options) + hint)
        return value

    return check


def duration(minimum: int | None = None) -> Kind:
    """`minimum` 1: greater than 0; 0: 0 or more; None: any."""

    def check(value: Any) -> int:
        wanted = {1: "a duration greater than 0", 0: "a duration of 0 or more", None: "a duration"}[minimum]
        try:
            ms = duration_ms(value)
        except (ValueError, AttributeError):
            raise MismatchError(f'{wanted} ("30s", "5m", "2h" or milliseconds)') from None
        if minimum is not None and ms < minimum:
            raise MismatchError(f'{wanted} ("30s", "5m", "2h" or milliseconds)')
        return ms

    return check


def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise MismatchError(f'a list; write ["{value}"]')
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise MismatchError("a list of non-empty strings")
    return tuple(value)


def reader_options(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str | int | float | bool) for v in value.values()):
        raise MismatchError('a table of reader options ({ sep = ",", header = "true" })')
    return {
        str(k): str(v).lower() if isinstance(v, bool) else v if isinstance(v, str) else str(v) for k, v in value.items()
    }


def anything(value: Any) -> Any:
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or the known words if none is near."""
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"?' if near else f"; expected one of {', '.join(words)}"


def _below(line: str) -> str:
    """A line of a nested table (its file is empty: `: key: fact`), to be put behind the table's key."""
    rest = line.removeprefix(": ")
    return rest if rest.startswith("[") else f".{rest}"


class Spec(BaseModel):
    """A frozen spec. Constructing one with a mistake raises ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    KINDS: ClassVar[Mapping[str, Kind]] = {}  # key as written -> kind of its value
    FIELDS: ClassVar[Mapping[str, str]] = {}  # key as written -> attribute, where they differ
    OLD: ClassVar[Mapping[str, str]] = {}  # older spelling -> key
    LATER: ClassVar[Mapping[str, str]] = {}  # key that is not available yet -> advice, may be empty
    REQUIRED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **data: Any) -> None:
        problems: list[str] = []
        values = self.read(data, type(self).__name__, "", problems)
        if problems:
            raise ConfigError(problems)
        super().__init__(**values)

    @classmethod
    def build(cls, data: Any, file: str, at: str, problems: list[str]) -> Self | None:
        """A spec from a table of a config; None (and lines in `problems`) if anything is wrong."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            problems.append(f"{file}: {at}: found {show(data)}, expected a table")
            return None
        count = len(problems)
        values = cls.read(dict(data), file, at, problems)
        if len(problems) != count:
            return None
        return cls.model_construct(**values)  # type: ignore[return-value]  # the plugin loses Self here

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> Values:
        """Keys and values checked one by one, then together; returns attribute values."""
        prefix = f"{file}: {at}." if at else f"{file}: "
        attributes = {v: k for k, v in cls.FIELDS.items()}
        data = {attributes.get(k, k): v for k, v in data.items() if v is not None}
        for old, new in cls.OLD.items():
            if old in data and new not in data:
                data[new] = data.pop(old)
        values: Values = {}
        wrong: set[str] = set()
        for key, value in data.items():
            if key in cls.KINDS:
                try:
                    values[cls.FIELDS.get(key, key)] = cls.KINDS[key](value)
                except MismatchError as mismatch:
                    later = cls.later_value(key, value)
                    wrong.add(key)
                    problems.append(f"{prefix}{key}: " + (later or f"found {show(value)}, expected {mismatch}"))
                except ConfigError as nested:
                    wrong.add(key)
                    problems.extend(prefix + key + _below(line) for line in nested.problems)
            elif key in cls.LATER:
                advice = cls.LATER[key]
                problems.append(f"{prefix}{key}: not available yet" + (f"; {advice}" if advice else ""))
            else:
                problems.append(f"{prefix}{key}: unknown key{nearest(key, cls.KINDS)}")
        for key in cls.REQUIRED:
            if key not in data:
                problems.append(f"{prefix}{key}: missing; {cls.wanted(key)}")
                wrong.add(key)
        for key, line in cls.check(values, wrong):
            problems.append(f"{prefix}{key}: {line}" if key else f"{prefix.rstrip('.: ')}: {line}")
        return values

    @classmethod
    def wanted(cls, key: str) -> str:
        """What to write for a missing key."""
        return "it must be given"

    @classmethod
    def later_value(cls, key: str, value: Any) -> str | None:
        """The line for a value that other issues of this field know and this version does not; None for a plain mistake."""
        return None

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        """What is wrong between the keys; `wrong` holds keys that were already reported."""
        yield from ()
