"""Specs as plain data for JSON, which `Spec.parse` can read back. A state describes its config in this form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.spec_base import Spec
from slackwater.errors import ConfigError

S = TypeVar("S", bound=Spec)


def spec_to_data(spec: Spec) -> dict[str, Any] | None:
    """Return the keys of a spec that differ from their defaults, as plain data.

    None if it contains something without a name, such as a class defined in a function.
    """
    try:
        return {key: _value(value) for key, value in spec.non_defaults().items()}
    except _UnnamedError:
        return None


class _UnnamedError(Exception):
    """Raised for a value that exists only in Python."""


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
    for plain in (str, int, float):  # a plain value, without the spelling of the config
        if isinstance(value, plain):
            return plain.__str__(value) if plain is str else plain(value)
    raise _UnnamedError


def spec_from_data(cls: type[S], data: Mapping[str, Any], where: str) -> S:
    """Return the spec written by `spec_to_data`. Raises ConfigError if the data is not a valid spec."""
    problems: list[str] = []
    spec = cls.parse(dict(data), where, "", problems)
    if spec is None or problems:
        raise ConfigError(problems)
    return spec
