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
        """The type of a key whose attribute has another type than the argument of the constructor.

        Type checkers take the argument from `__set__`, and the attribute from `__get__`.
        """

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type) -> _Attribute: ...
        def __get__(self, instance: Any, owner: type) -> Any: ...
        def __set__(self, instance: object, value: _Argument) -> None: ...

    class Milliseconds(Converted[int | str | None, _Attribute]):
        """A duration: milliseconds or a text such as "30s" in the constructor, milliseconds in the attribute."""

    class Tables(Converted[Sequence[_Argument] | None, tuple[_Argument, ...]]):
        """A list of tables."""

    class WithUnit(Converted[str | None, None]):
        """The argument for a duration with its unit, as in `gap="30s"`. The spec has no attribute with this name."""
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


_FIELD: Callable[..., Any] = Field  # its overloads exclude a default next to a factory, which may be None here


@dataclass(frozen=True, eq=False)
class Key:
    """A declared key.

    Args:
        parse: The parser of its value, which also knows the JSON Schema of the value.
        text: One sentence about the key.
        required: What to write if the key is missing; empty for an optional key.
        kinds: The kinds of the spec that have the key, each with the error for a missing key ("" if it is optional).
            Empty if all kinds have it.
        aliases: Older spellings.
        elsewhere: Names of the key in other systems, for "did you mean".
        python_only: What to write instead in TOML, which cannot express the key.
        of_connectors: Whether each connector decides if it has the key.
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
        text: One sentence about the key.
        default: The value of the attribute if the key is missing. Without it, the constructor requires the key.
        default_factory: Returns the default value.
        alias: The argument of the constructor, if the attribute has another name.
        repr: Whether the representation of the spec shows the value.
        further: See `Key`.
    """
    declared = _FIELD(default=default, default_factory=default_factory, alias=alias, repr=repr)
    declared.metadata.append(Key(parse, text, **further))
    return declared


def declare_attribute(
    *,
    default: Any = ...,
    default_factory: Callable[[], Any] | None = None,
    repr: bool = True,
    init: Literal[False] = False,
) -> Any:
    """Declare an attribute that no key sets. The constructor has no argument for it."""
    return _FIELD(default=default, default_factory=default_factory, repr=repr)


def declare_with_unit(*, default: None) -> Any:
    """Declare the argument for a duration with its unit, next to the key in milliseconds."""
    return default


@dataclass_transform(
    kw_only_default=True, field_specifiers=(declare_key, declare_attribute, declare_with_unit, PrivateAttr)
)
class SpecMeta(ModelMetaclass):
    """The metaclass of specs. Type checkers derive the constructor of a spec from its declared keys."""
