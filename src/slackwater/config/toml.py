"""Pipelines as TOML: reading, with `${ENV}` interpolation, and writing back."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import ConsoleConnection, FilesConnection
from slackwater.config.spec import Interpolated, Spec
from slackwater.errors import ConfigError

_VARIABLE = re.compile(r"\$(\$|\{([A-Za-z_][A-Za-z0-9_]*)\})")


def load(path: str | Path, env: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline from a TOML file. Raises ConfigError with every mistake, one line each."""
    file = str(path)
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read ({error.strerror}); expected a TOML file"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{file}: is not UTF-8 text; expected a TOML file"]) from None
    return loads(content, file, env)


def loads(content: str, file: str = "<string>", env: Mapping[str, str] | None = None) -> Pipeline:
    """The same, from text; `file` is the name that errors show."""
    try:
        data = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file}: is not valid TOML: {error}"]) from None
    problems: list[str] = []
    data = _interpolate(data, os.environ if env is None else env, file, "", problems)
    pipeline = Pipeline.build(data, file, "", problems)
    if pipeline is None or problems:
        raise ConfigError(problems)
    return pipeline


def _interpolate(value: Any, env: Mapping[str, str], file: str, at: str, problems: list[str]) -> Any:
    if isinstance(value, dict):
        return {k: _interpolate(v, env, file, f"{at}.{k}" if at else k, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolate(v, env, file, f"{at}[{i}]", problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    used: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        used.append(match[2])
        if match[2] not in env:
            problems.append(
                f"{file}: {at}: environment variable {match[2]} is not set; set it, or write $${{{match[2]}}} for the text itself"
            )
        return env.get(match[2], match[0])

    result = _VARIABLE.sub(replace, value)
    return Interpolated(result, value) if used else result


def to_toml(pipeline: Pipeline) -> str:
    """Write a pipeline as TOML; `loads(to_toml(p)) == p`. Interpolated strings keep their `${ENV}` spelling.

    Raises ConfigError for a source over a DataFrame, which exists in Python only.
    """
    import tomlkit

    if any(s.dataframe is not None for s in pipeline.sources):
        raise ConfigError(
            [f"{pipeline.name}: a source over a DataFrame cannot be written as TOML; it exists in Python only"]
        )
    document = tomlkit.document()
    known: dict[str, FilesConnection | ConsoleConnection] = dict(pipeline.connections)

    def name_of(reference: object) -> object:
        if not isinstance(reference, FilesConnection | ConsoleConnection):
            return reference
        for name, given in known.items():
            if given == reference:
                return name
        known[reference.kind] = reference
        return reference.kind

    data = _plain(pipeline, name_of)
    data["connections"] = {name: {"kind": c.kind} for name, c in known.items()}
    order = (
        "name",
        "trigger_interval_ms",
        "idle_pause_ms",
        "connections",
        "sources",
        "transform",
        "target",
        "state_store",
    )
    for key in order:
        if key in data and data[key] not in ({}, []):
            document.add(key, tomlkit.item(data[key]))
    return tomlkit.dumps(document)


def _plain(spec: Spec, name_of: Any) -> dict[str, Any]:
    """The keys of a spec that are not at their default, as TOML values."""
    keys = {attribute: key for key, attribute in type(spec).FIELDS.items()}
    out: dict[str, Any] = {}
    for attribute, field in type(spec).model_fields.items():
        value = getattr(spec, attribute)
        if value is None or (not field.is_required() and value == field.get_default(call_default_factory=True)):
            continue
        out[keys.get(attribute, attribute)] = name_of(value) if attribute == "connection" else _value(value, name_of)
    return out


def _value(value: Any, name_of: Any) -> Any:
    if isinstance(value, Spec):
        return _plain(value, name_of)
    if isinstance(value, Mapping):
        return {k: _value(v, name_of) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_value(v, name_of) for v in value]
    if isinstance(value, Interpolated):
        return value.raw
    return value.replace("${", "$${") if isinstance(value, str) else value
