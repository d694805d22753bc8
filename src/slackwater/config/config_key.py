"""Declares the keys of a spec. Each key is declared once, as a field of the class.

    topic: str | None = declare_key(parse_text, "The topic to write to (Kafka).", default=None)

The signature of the constructor (for editors and type checkers), validation, error lines, the JSON Schema and
docs/keys.md are derived from this declaration (docs/adr/0051-a-config-key-is-declared-once.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, dataclass_transform, overload

from pydantic import BaseModel, Field, PrivateAttr

from slackwater.config.value_parsers import ValueParser

_Argument = TypeVar("_Argument")
_Attribute = TypeVar("_Attribute")

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    class Converted(Generic[_Argument, _Attribute]):
        """Annotation for a key whose constructor argument and attribute have different types.

        Type checkers read the type of the argument from `__set__`, and that of the attribute from `__get__`.
        """

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type) -> _Attribute: ...
        def __get__(self, instance: Any, owner: type) -> Any: ...
        def __set__(self, instance: object, value: _Argument) -> None: ...

    class Milliseconds(Converted[int | str | None, _Attribute]):
        """Annotation for a duration: ms or a string ("30s") in the constructor, ms in the attribute."""

    class Tables(Converted[Sequence[_Argument] | None, tuple[_Argument, ...]]):
        """Annotation for a list of tables: any sequence in the constructor, a tuple in the attribute."""

    class WithUnit(Converted[str | None, None]):
        """Annotation for the constructor argument `gap="30s"`. The value is stored in the attribute `gap_ms`."""
else:
    ModelMetaclass = type(BaseModel)

    class Converted:
        def __class_getitem__(cls, types: Any) -> Any:
            return types[-1] if isinstance(types, tuple) else types

    class Tables:
        def __class_getitem__(cls, table: Any) -> Any:
            return tuple[table, ...]

    Milliseconds = Converted
    WithUnit = ClassVar[None]

Texts = Converted[Sequence[str], tuple[str, ...]]
OptionalTexts = Converted[Sequence[str] | None, tuple[str, ...] | None]
Settings = Converted[Mapping[str, str | float] | None, Mapping[str, str]]


_FIELD: Callable[..., Any] = Field  # the overloads of Field do not accept both `default` and `default_factory`


@dataclass(frozen=True, eq=False)
class ConfigKey:
    """Declaration of one config key.

    Args:
        parse: The parser of the value. Its attribute `shape` is the JSON Schema of the value.
        text: One sentence that describes the key in docs/keys.md and in the JSON Schema.
        required: What an error advises if the key is missing; empty for an optional key.
        kinds: The kinds of window or aggregation to which the key applies; empty if it applies to all of them. Each
            value is what an error advises if the key is missing, or "" if the key is optional.
        aliases: Older spellings, which are still accepted.
        elsewhere: Names of the key in other systems. An error for such a name suggests this key.
        python_only: What to write in TOML instead, for a key that TOML cannot express.
        of_connectors: Whether only some connectors support the key.
    """

    parse: ValueParser
    text: str = ""
    required: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    python_only: str = ""
    of_connectors: bool = False

    @property
    def shape(self) -> Mapping[str, Any]:
        """The JSON Schema of the value (see `attach_json_schema`)."""
        shape: Mapping[str, Any] = vars(self.parse)["shape"]
        return shape


def declare_key(
    parse: ValueParser,
    text: str = "",
    *,
    default: Any = ...,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    repr: bool = True,
    **further: Any,
) -> Any:
    """Declare a key as a field of a spec.

    Args:
        parse: The parser of its value.
        text: One sentence that describes the key.
        default: The value of the attribute if the key is missing. Without a default, the constructor requires the key.
        default_factory: A function that returns the default.
        alias: The name of the constructor argument, if it differs from the name of the attribute.
        repr: Whether `repr()` of the spec shows the value.
        further: Other arguments of `ConfigKey`.
    """
    declared = _FIELD(default=default, default_factory=default_factory, alias=alias, repr=repr)
    declared.metadata.append(ConfigKey(parse, text, **further))
    return declared


def declare_attribute(
    *,
    default: Any = ...,
    default_factory: Callable[[], Any] | None = None,
    repr: bool = True,
    init: Literal[False] = False,
) -> Any:
    """Declare an attribute that is neither a config key nor an argument of the constructor."""
    return _FIELD(default=default, default_factory=default_factory, repr=repr)


def declare_with_unit(*, default: None) -> Any:
    """Declare a constructor argument that takes a duration with a unit, such as `gap` for the key `gap_ms`."""
    return default


@dataclass_transform(
    kw_only_default=True, field_specifiers=(declare_key, declare_attribute, declare_with_unit, PrivateAttr)
)
class SpecMeta(ModelMetaclass):
    """Metaclass of specs. It lets type checkers derive the constructor of a spec from its declared keys."""
