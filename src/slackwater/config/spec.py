"""The base of all specs: frozen values that check themselves, and say what is wrong in one line each.

A line is `<file or class>: <key>: <fact>; <what to do>`. All problems of a config are collected before any is raised.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from slackwater.core.time import duration_ms, duration_text
from slackwater.errors import ConfigError

Values = dict[str, Any]
Duration = int | str  # milliseconds, or as people write them: "30s"
Problem = tuple[str, str]  # (key, what is wrong with it)


class Interpolated(str):
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


class Unset(Interpolated):
    """A string whose environment variable is missing: reported once, where it was read, and not judged again."""


class InterpolatedDuration(int):
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


def show(value: object) -> str:
    """A value in one line, as the user wrote it; secrets as they are spelled in the config."""
    if isinstance(value, Interpolated | InterpolatedDuration):
        return _quoted(value.raw)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "a table" if value else "an empty table"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _quoted(value: str) -> str:
    return json.dumps(value if len(value) <= 80 else f"{value[:77]}...", ensure_ascii=False)


def show_key(key: object) -> str:
    """A key as TOML spells it: bare where it can be."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else _quoted(str(key))


def show_duration(ms: int) -> str:
    """A duration in its shortest spelling, or as the config spells one that came from the environment."""
    return show(ms) if isinstance(ms, InterpolatedDuration) else duration_text(ms)


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
        return InterpolatedDuration(ms, value.raw) if isinstance(value, Interpolated) else ms

    return check


@shaped(type="array", items={"type": "string", "minLength": 1})
def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise MismatchError(f"a list; write [{show(value)}]")
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise MismatchError("a list of non-empty strings")
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
                advice = f"; a key with dots stands in quotes: {_quoted(_dotted(str(key), given))}"
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


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` with the known word that is nearest, whatever its case; empty if none is near."""
    words = {name.casefold(): name for name in reversed(list(known))}
    found = difflib.get_close_matches(word.casefold(), words, n=1)
    return f'; did you mean "{words[found[0]]}"?' if found else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The same, or the known words if none is near."""
    words = sorted(known)
    return near(word, words) or (f"; expected one of {', '.join(words)}" if words else "")


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
    MEANT: ClassVar[Mapping[str, str]] = {}  # other word for a key, of another system -> key, for the hint
    LATER: ClassVar[Mapping[str, str]] = {}  # key that is not available yet -> advice, may be empty
    PYTHON_ONLY: ClassVar[Mapping[str, str]] = {}  # key that no table can hold -> advice
    REQUIRED: ClassVar[tuple[str, ...]] = ()

    _wrong: frozenset[str] = PrivateAttr(default=frozenset())  # of a draft: keys already reported; else empty

    def __init__(self, **data: Any) -> None:
        problems: list[str] = []
        keys = {attribute: key for key, attribute in self.FIELDS.items()}
        values, _ = self.read({keys.get(k, k): v for k, v in data.items()}, self.label(data), "", problems)
        if problems:
            raise ConfigError(problems)
        super().__init__(**values)

    @classmethod
    def label(cls, data: Values) -> str:
        """What stands in an error where a config from a file has the file's name."""
        return cls.__name__

    @classmethod
    def build(cls, data: Any, file: str, at: str, problems: list[str]) -> Self | None:
        """A spec from a table of a config; None (and lines in `problems`) if anything is wrong."""
        count = len(problems)
        draft = cls.draft(data, file, at, problems)
        return draft if len(problems) == count else None

    @classmethod
    def draft(cls, data: Any, file: str, at: str, problems: list[str]) -> Self:
        """As `build`, but returns what could be read of a wrong table too: absent attributes are None."""
        if isinstance(data, cls):
            return data
        blank = {name: None for name, field in cls.model_fields.items() if field.is_required()}
        values: Values = {}
        wrong = set(cls.KINDS)
        if isinstance(data, Mapping):
            data = dict(data)
            prefix = f"{file}: {at}." if at else f"{file}: "
            for key in [k for k in cls.PYTHON_ONLY if k in data]:
                del data[key]
                problems.append(f"{prefix}{key}: exists in Python only; {cls.PYTHON_ONLY[key]}")
            values, wrong = cls.read(data, file, at, problems)
        elif not isinstance(data, Unset):
            problems.append(f"{file}: {at}: found {show(data)}, expected a table")
        made = cls.model_construct(**{**blank, **values})
        made._wrong = frozenset(wrong)
        return made  # type: ignore[return-value]  # the plugin loses Self here

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> tuple[Values, set[str]]:
        """Keys and values checked one by one, then together; returns attribute values and the keys reported."""
        prefix = f"{file}: {at}." if at else f"{file}: "
        data = {k: v for k, v in data.items() if v is not None}
        written: dict[str, str] = {}  # key -> the older spelling that the user chose
        for old, new in cls.OLD.items():
            if old in data and new in data:
                del data[old]
                problems.append(f'{prefix}{old}: is the older spelling of "{new}", which is given too; remove it')
            elif old in data:
                data[new] = data.pop(old)
                written[new] = old
        values: Values = {}
        wrong: set[str] = set()
        for key, value in data.items():
            if key in cls.KINDS:
                at_key = f"{prefix}{written.get(key, key)}"
                if isinstance(value, Unset):
                    wrong.add(key)
                    continue
                try:
                    values[cls.FIELDS.get(key, key)] = cls.KINDS[key](value)
                except MismatchError as mismatch:
                    wrong.add(key)
                    later = cls.later_value(key, value)
                    problems.append(f"{at_key}: " + (later or f"found {show(value)}, expected {mismatch}"))
                except NestedError as nested:
                    wrong.add(key)
                    values[cls.FIELDS.get(key, key)] = nested.draft
                    problems.extend(at_key + _below(line) for line in nested.problems)
            elif key in cls.LATER:
                advice = cls.LATER[key]
                wrong.add(key)
                problems.append(f"{prefix}{key}: not available yet" + (f"; {advice}" if advice else ""))
            else:
                meant = cls.MEANT.get(str(key))
                hint = f'; did you mean "{meant}"?' if meant else nearest(str(key), cls.KINDS)
                problems.append(f"{prefix}{show_key(key)}: unknown key{hint}")
        for key in cls.REQUIRED:
            if key not in data and key not in wrong:
                problems.append(f"{prefix}{key}: missing; {cls.wanted(key)}")
                wrong.add(key)
        found = list(cls.check(values, wrong))
        problems += [f"{prefix}{written.get(key, key)}: {line}" for key, line in found]
        return values, wrong | {key for key, _ in found}

    def implied(self) -> Values:
        """Attribute values that follow from the others where the config does not give them; `to_toml` leaves them out."""
        return {}

    def given(self) -> Values:
        """The keys that are not at their default, or are spelled in a way of their own, with their values."""
        cls, implied = type(self), self.implied()
        found: Values = {}
        for key in cls.KINDS:
            attribute = cls.FIELDS.get(key, key)
            field, value = cls.model_fields[attribute], getattr(self, attribute)
            spelled = isinstance(value, Interpolated | InterpolatedDuration)
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            if value is not None and (spelled or value != implied.get(attribute, default)):
                found[key] = value
        return found

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
        """What is wrong between the keys; `wrong` holds keys that were already reported, whose values may be drafts."""
        yield from ()


def one(cls: type[Spec], wanted: str = "a table") -> Kind:
    """The kind of a nested table."""

    @shaped(of=cls)
    def build(value: Any) -> Any:
        if not isinstance(value, cls | Mapping):
            raise MismatchError(wanted)
        problems: list[str] = []
        made = cls.draft(value, "", "", problems)
        if problems or made._wrong:
            raise NestedError(problems, made)
        return made

    return build


def many(cls: type[Spec], wanted: str) -> Kind:
    """The kind of a list of tables."""

    @shaped(type="array", of=cls)
    def build(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise MismatchError(wanted)
        problems: list[str] = []
        made = tuple(cls.draft(v, "", f"[{i}]", problems) for i, v in enumerate(value))
        if problems or any(m._wrong for m in made):
            raise NestedError(problems, made)
        return made

    return build
