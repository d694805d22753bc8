"""Keys of a source or target that only one connector has, such as those of a connector in a user's package.

A spec stores them as they are written (`connector_keys`), because the kind of its connection is not known during
parsing. `ConnectorKeys` is their spec: it checks them once the kind is known, and the connector reads them from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from slackwater.config.message_format import format_value
from slackwater.config.spec_base import Problem, Spec, find_duration_keys
from slackwater.core.connector_table import TABLE

K = TypeVar("K", bound="ConnectorKeys")


class ConnectorKeys(Spec):
    """The keys that a connector adds to a source or a target: see `config.key.declare_key`."""

    @classmethod
    def spellings(cls) -> set[str]:
        """Return all spellings of the keys. A duration has two: with its unit (`pause`) and in ms (`pause_ms`)."""
        return {*cls.KEYS, *find_duration_keys(cls)}

    @classmethod
    def from_spec(cls: type[K], spec: Any) -> K:
        """Return the keys of a checked source or target."""
        return cls(**spec.connector_keys)


def _keys_class(kind: str, of_target: bool) -> type[ConnectorKeys] | None:
    keys: type[ConnectorKeys] | None = TABLE[kind].own_target_keys if of_target else TABLE[kind].source_keys
    return keys


def is_connector_key(key: str, of_target: bool) -> bool:
    """Return whether any installed connector adds this key to sources or targets. This reads the entry points."""
    return bool(_kinds_with(key, of_target))


def _kinds_with(key: str, of_target: bool) -> list[str]:
    kinds = [description.kind for description in TABLE.load_installed()]
    return [kind for kind in kinds if (keys := _keys_class(kind, of_target)) is not None and key in keys.spellings()]


def check_connector_keys(kind: str, written: Mapping[str, Any], of_target: bool) -> Iterator[Problem]:
    """Yield the problems with connector keys on a connection of this kind. `written`: their values as in the config."""
    keys = _keys_class(kind, of_target)
    supported = {key: value for key, value in written.items() if keys is not None and key in keys.spellings()}
    for key in written:
        if key not in supported:
            kinds = " or ".join(format_value(k) for k in _kinds_with(key, of_target))
            yield (
                key,
                f"applies only to connections of kind {kinds}, but this one is {format_value(kind)}; remove it",
            )
    if keys is not None:
        problems: list[str] = []
        keys.read(supported, "", "", problems)
        for line in problems:
            key, _, problem = line.removeprefix(": ").partition(": ")
            yield key, problem
