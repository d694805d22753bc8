"""Base class of all specs: immutable values that validate themselves and report each mistake on one line.

Each line has the form `<file or class>: <key>: <problem>; <what to do>`. All problems of a config are collected before
an error is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from slackwater.config.config_key import ConfigKey, SpecMeta
from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.error_text import (
    EnvDuration,
    EnvString,
    MissingEnvString,
    describe_value_mismatch,
    format_key,
    suggest_or_list_words,
    suggest_word,
)
from slackwater.config.value_parsers import InvalidConfigTableError, InvalidValueError, ValueParser, attach_json_schema
from slackwater.errors import ConfigError

Values = dict[str, Any]
Problem = tuple[str, str]  # (key, what is wrong with it)


@cache
def find_duration_keys(cls: type[Spec]) -> Mapping[str, str]:
    """Return the duration keys of a spec, as key that takes a unit -> key in ms (`gap` -> `gap_ms`)."""
    durations = (key for key, declared in cls.KEYS.items() if "duration" in declared.shape)
    names = {key.removesuffix("_ms"): key for key in durations if key.endswith("_ms")}
    return {name: key for name, key in names.items() if name not in cls.KEYS}


def _under_key(line: str) -> str:
    """Convert an error line of a nested table (`: key: problem`) to the text that follows the key of the table."""
    rest = line.removeprefix(": ")
    return rest if rest.startswith("[") else f".{rest}"


def _respell(line: str, spelled: Mapping[str, str]) -> str:
    """Replace the names of keys in an error line with the spellings in the config."""
    if not spelled:
        return line
    return re.sub(rf"\b({'|'.join(spelled)})\b", lambda match: spelled[match[1]], line)


class Spec(BaseModel, metaclass=SpecMeta):
    """Base class of all specs: immutable and validated. The constructor raises ConfigError for invalid values."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    KEYS: ClassVar[Mapping[str, ConfigKey]] = {}  # these four are derived from the declared keys
    ALIASES: ClassVar[Mapping[str, str]] = {}  # older spelling -> key
    SUGGESTIONS: ClassVar[Mapping[str, str]] = {}  # word of another system -> key, for "did you mean"
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    DOC_LINK: ClassVar[str] = ""  # page and heading that describe the keys, as in "docs/configuration.md#windows"

    _wrong: frozenset[str] = PrivateAttr(default=frozenset())  # keys with reported problems, in a partially parsed spec

    @classmethod
    def __pydantic_init_subclass__(cls, **further: Any) -> None:
        super().__pydantic_init_subclass__(**further)
        for name in [name for name in vars(cls) if f"{name}_ms" in cls.model_fields]:
            delattr(cls, name)  # an argument of the constructor (`declare_with_unit`), but not an attribute
        cls.KEYS = cls.declared_keys()
        cls.ALIASES = {old: name for name, declared in cls.KEYS.items() for old in declared.aliases}
        words = {word: name for name, k in cls.KEYS.items() for word in k.elsewhere if word not in cls.KEYS}
        cls.SUGGESTIONS = {**cls.SUGGESTIONS, **words}
        cls.REQUIRED = tuple(name for name, declared in cls.KEYS.items() if declared.required)

    @classmethod
    def declared_keys(cls) -> Mapping[str, ConfigKey]:
        """Return the declared keys by name: first `kind`, then keys that this class declares, then inherited keys.

        A key has the name of its attribute. If the name is a Python keyword, the attribute ends with "_".
        """
        declared = {
            attribute.rstrip("_"): part
            for attribute, info in cls.model_fields.items()
            for part in info.metadata
            if isinstance(part, ConfigKey)
        }
        order = sorted(declared, key=lambda name: (name != "kind", declared[name] is cls.KEYS.get(name)))
        return {name: declared[name] for name in order}

    @classmethod
    def attribute_of(cls, key: str) -> str:
        """Return the name of the attribute that holds the value of a key: `from` -> `from_`."""
        return key if key in cls.model_fields else f"{key}_"

    def __init__(self, **data: Any) -> None:
        problems: list[str] = []
        keys = {self.attribute_of(key): key for key in self.KEYS}
        values, _ = self.read({keys.get(k, k): v for k, v in data.items()}, self.label(data), "", problems)
        if problems:
            raise ConfigError(problems)
        super().__init__(**values)

    @classmethod
    def label(cls, data: Values) -> str:
        """Return the prefix of error lines for a spec created in Python.

        For a config file, the prefix is the name of the file.
        """
        return cls.__name__

    @classmethod
    def parse(cls, data: Any, file: str, path: str, problems: list[str]) -> Self | None:
        """Parse a config table. If it is invalid, return None.

        Args:
            data: The table, or a Spec object, which is returned unchanged.
            file: The name of the file, for error lines.
            path: The path of the table in the config, such as "transform.window"; "" for the top level.
            problems: A list to which one line per problem is appended.
        """
        count = len(problems)
        draft = cls.parse_partial(data, file, path, problems)
        return draft if len(problems) == count else None

    @classmethod
    def parse_partial(cls, data: Any, file: str, path: str, problems: list[str]) -> Self:
        """Parse a config table. If it is invalid, return a draft with the valid parts.

        Required attributes without a valid value are None in a draft. For the arguments, see `parse`.
        """
        if isinstance(data, cls):
            return data
        blank = {name: None for name, field in cls.model_fields.items() if field.is_required()}
        values: Values = {}
        wrong = set(cls.KEYS)
        if isinstance(data, Mapping):
            data = dict(data)
            prefix = f"{file}: {path}." if path else f"{file}: "
            for key in [k for k in data if k in cls.KEYS and cls.KEYS[k].python_only]:
                del data[key]
                problems.append(f"{prefix}{key}: is available only in Python; {cls.KEYS[key].python_only}")
            values, wrong = cls.read(data, file, path, problems)
        elif not isinstance(data, MissingEnvString):
            problems.append(f"{file}: {path}: {describe_value_mismatch(data, 'a table')}")
        partial = cls.model_construct(**{**blank, **values})
        partial._wrong = frozenset(wrong)
        return partial

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        """Validate each key of a table, then the combination of keys. For the arguments, see `parse`.

        Returns the values of the attributes, and the keys with problems.
        """
        prefix = f"{file}: {path}." if path else f"{file}: "
        data = {k: v for k, v in data.items() if v is not None}
        written: dict[str, str] = {}  # key -> the spelling that the user chose
        for old, new in cls.ALIASES.items():
            if old in data and new in data:
                del data[old]
                problems.append(
                    f'{prefix}{old}: is the old name of the key "{new}", which is also set; remove the old key'
                )
            elif old in data:
                data[new] = data.pop(old)
                written[new] = old
        values: Values = {}
        wrong: set[str] = set()
        in_ms = any(key in data for key in find_duration_keys(cls).values())
        for name, key in find_duration_keys(cls).items():
            if name in data and key in data:
                del data[name]
                problems.append(f"{prefix}{name}: {written.get(key, key)} is also set; remove one of them")
            elif name in data:
                data[key] = data.pop(name)
                written[key] = name
            elif key not in data and not in_ms:
                written[key] = name  # messages about a missing key use this spelling
        for key, value in data.items():
            if key in cls.KEYS:
                at_key = f"{prefix}{written.get(key, key)}"
                if (
                    written.get(key) in find_duration_keys(cls)
                    and isinstance(value, int)
                    and not isinstance(value, bool)
                ):
                    wrong.add(key)
                    unit = 'a duration with its unit ("30s", "5m", "2h")'
                    problems.append(f"{at_key}: " + describe_value_mismatch(value, f"{unit}; {key} takes milliseconds"))
                    continue
                if isinstance(value, MissingEnvString):
                    wrong.add(key)
                    continue
                try:
                    values[cls.attribute_of(key)] = cls.KEYS[key].parse(value)
                except InvalidValueError as error:
                    wrong.add(key)
                    later = cls.unsupported_value(key, value)
                    expected = str(error)
                    if written.get(key) in find_duration_keys(cls):
                        expected = expected.replace(" or milliseconds)", ")")
                    problems.append(f"{at_key}: " + (later or describe_value_mismatch(value, expected)))
                except InvalidConfigTableError as nested:
                    wrong.add(key)
                    values[cls.attribute_of(key)] = nested.draft
                    problems.extend(at_key + _under_key(line) for line in nested.problems)
            elif cls.is_connector_key(str(key)):
                if isinstance(value, MissingEnvString):
                    wrong.add(key)
                else:
                    values.setdefault("connector_keys", {})[str(key)] = value
            else:
                meant = cls.SUGGESTIONS.get(str(key))
                meant = meant if meant is None else written.get(meant, meant)
                others = [k for k in cls.KEYS if in_ms or k not in find_duration_keys(cls).values()]
                key_names = [*others, *find_duration_keys(cls)]
                close = suggest_word(str(key), [*cls.KEYS, *find_duration_keys(cls)]) or suggest_or_list_words(
                    str(key), key_names
                )
                hint = f'; did you mean "{meant}"?' if meant else close
                problems.append(f"{prefix}{format_key(key)}: unknown key{hint}")
        for key in cls.REQUIRED:
            if key not in data and key not in wrong:
                problems.append(f"{prefix}{written.get(key, key)}: missing; {cls.KEYS[key].required}")
                wrong.add(key)
        conflicts = list(cls.check(values, wrong))
        spelled = {key: name for key, name in written.items() if name in find_duration_keys(cls)}
        problems += [f"{prefix}{written.get(key, key)}: {_respell(line, spelled)}" for key, line in conflicts]
        return values, wrong | {key for key, _ in conflicts}

    @classmethod
    def connector_attributes(cls) -> list[str]:
        """Return the attributes of keys that only some connectors support."""
        return [cls.attribute_of(name) for name, declared in cls.KEYS.items() if declared.of_connectors]

    @classmethod
    def is_connector_key(cls, key: str) -> bool:
        """Return whether a key belongs to the connector of this source or target. The connector checks it later."""
        return False

    def derived(self) -> Values:
        """Return the defaults that depend on the values of other keys.

        `to_toml` omits keys whose values equal these defaults.
        """
        return {}

    def non_defaults(self) -> Values:
        """Return the keys and values that differ from the defaults or come from the environment."""
        cls, implied = type(self), self.derived()
        changed: Values = {}
        for key in cls.KEYS:
            attribute = cls.attribute_of(key)
            field, value = cls.model_fields[attribute], getattr(self, attribute)
            spelled = isinstance(value, EnvString | EnvDuration)
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            if value is not None and (spelled or value != implied.get(attribute, default)):
                changed[key] = value
        return changed

    @classmethod
    def unsupported_value(cls, key: str, value: Any) -> str | None:
        """Return the problem with a value that is meaningful but not supported; None if the value is simply invalid."""
        return None

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        """Yield problems that involve several keys.

        `wrong`: keys whose problems have already been reported. Their values may be missing or incomplete.
        """
        yield from ()


def table_parser(cls: type[Spec], expected: str = "a table") -> ValueParser:
    """Return a parser for a nested table. `expected`: a description of the valid values, for error messages."""

    @attach_json_schema(of=cls)
    def build(value: Any) -> Any:
        if not isinstance(value, cls | Mapping):
            raise InvalidValueError(expected)
        problems: list[str] = []
        spec = cls.parse_partial(value, "", "", problems)
        if problems or spec._wrong:
            raise InvalidConfigTableError(problems, spec)
        return spec

    return build


def table_list_parser(cls: type[Spec], expected: str) -> ValueParser:
    """Return a parser for a list of tables. `expected`: a description of the valid values, for error messages."""

    @attach_json_schema(type="array", of=cls)
    def build(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise InvalidValueError(expected)
        problems: list[str] = []
        specs = tuple(cls.parse_partial(v, "", f"[{i}]", problems) for i, v in enumerate(value))
        if problems or any(m._wrong for m in specs):
            raise InvalidConfigTableError(problems, specs)
        return specs

    return build


def iterate_specs(spec: type[Spec]) -> Iterator[type[Spec]]:
    """Yield a spec and, recursively, the specs of all tables nested in it."""
    yield spec
    for declared in spec.KEYS.values():
        if "of" in declared.shape:
            yield from iterate_specs(declared.shape["of"])


def find_doc_link(spec: type[Spec], key: str) -> str:
    """Return the docs page and heading that describe a key of a spec or, for an unknown key, its table.

    `key`: the path of the key as errors show it, such as "transform.window.aggregations[0].as".
    """
    steps = re.findall(r'"(?:[^"\\]|\\.)*"|[^.\[\]"]+|\[\d+\]', key)
    table = 0
    while table < len(steps):
        declared = spec.KEYS.get(spec.ALIASES.get(steps[table], steps[table]))
        table += 1
        if declared is None or "of" not in declared.shape:
            break
        spec = declared.shape["of"]
        if declared.shape.get("type") == "array" or "named" in declared.shape:
            table += 1  # skip the index or the name
    return spec.DOC_LINK


S = TypeVar("S", bound=Spec)


def spec_to_data(spec: Spec) -> dict[str, Any] | None:
    """Return the keys of a spec that differ from their defaults, as JSON-compatible data.

    Return None if a value has no import path, such as a class defined in a function.
    """
    try:
        return {key: _value(value) for key, value in spec.non_defaults().items()}
    except _UnnamedError:
        return None


class _UnnamedError(Exception):
    """A value has no import path, so it cannot be used outside this process."""


def _value(value: Any) -> Any:
    if isinstance(value, Spec):
        keys = spec_to_data(value)
        if keys is None:
            raise _UnnamedError
        return keys
    if isinstance(value, Mapping):
        return {str(k): _value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_value(v) for v in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, type) and issubclass(value, Aggregator) and "<" not in value.__qualname__:
        return f"{value.__module__}:{value.__qualname__}"
    for plain in (str, int, float):  # convert subclasses such as EnvString to plain values
        if isinstance(value, plain):
            return plain.__str__(value) if plain is str else plain(value)
    raise _UnnamedError


def spec_from_data(cls: type[S], data: Mapping[str, Any], where: str) -> S:
    """Rebuild a spec from the data that `spec_to_data` returned.

    Args:
        cls: The class of the spec.
        data: The keys and their values.
        where: The prefix of error lines.

    Raises ConfigError if the data is invalid.
    """
    problems: list[str] = []
    spec = cls.parse(dict(data), where, "", problems)
    if spec is None or problems:
        raise ConfigError(problems)
    return spec
