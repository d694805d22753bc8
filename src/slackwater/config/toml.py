"""Pipelines as TOML: reading, with `${ENV}` interpolation, and writing back."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.config.connection import Connection
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec import Interpolated, InterpolatedDuration, Spec, Unset, show_key
from slackwater.errors import ConfigError
from slackwater.secrets import remember

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # "$${" stands for "${" itself

_NAMES = frozenset(  # keys of names that tables, directories and answers show: they are no secrets
    [
        "name",
        "kind",
        "format",
        "schema",
        "group_by",
        "agg",
        "as",
        "column",
        "columns",
        "by",
        "event_time_column",
        "left_keys",
        "right_keys",
        "key_columns",
    ]
)


def load(path: str | Path, env: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline from a TOML file. Raises ConfigError with every mistake, one line each."""
    file = str(path)
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
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
        return {
            k: _interpolate(v, env, file, f"{at}.{show_key(k)}" if at else show_key(k), problems)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_interpolate(v, env, file, f"{at}[{i}]", problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    used: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "${"
        used.append(match[1])
        found = env.get(match[1], "")
        if re.sub(r"\[\d+\]$", "", at.rpartition(".")[2]) not in _NAMES:
            remember(found, match[0])
        return found

    result = _VARIABLE.sub(replace, value)
    missing = [name for name in dict.fromkeys(used) if name not in env]
    problems += [
        f"{file}: {at}: environment variable {name} is not set; set it, or write $${{{name}}} for the text itself"
        for name in missing
    ]
    if missing:
        return Unset(result, value)
    return Interpolated(result, value) if used else result


def to_toml(pipeline: Pipeline) -> str:
    """Write a pipeline as TOML; `loads(to_toml(p)) == p`. Interpolated strings keep their `${ENV}` spelling.

    Raises ConfigError for what exists in Python only: a source over a DataFrame, an aggregation that is a class.
    """
    import tomlkit

    if any(s.dataframe is not None for s in pipeline.sources):
        raise ConfigError(
            [f"{pipeline.name}: a source over a DataFrame cannot be written as TOML; it exists in Python only"]
        )
    window = pipeline.last.transform.window
    made = [a.as_ for a in window.aggregations if not isinstance(a.agg, str)] if window else []
    if made:
        raise ConfigError(
            [
                f'{pipeline.name}: aggregation "{made[0]}" holds a class, which cannot be written as TOML; '
                'name it by its import path, as in agg = "package.module:Class"'
            ]
        )
    document = tomlkit.document()
    data = {"name": None, "trigger_interval_ms": None, "idle_pause_ms": None} | _plain(pipeline)
    for key, value in data.items():
        if value not in (None, {}, []):
            document.add(key, tomlkit.item(value))
    return tomlkit.dumps(document)


def _plain(spec: Spec) -> dict[str, Any]:
    """The keys of a spec that are not at their default, as TOML values."""
    return {
        key: _value(value, key in ("options", "columns", "starting_offsets", "spark"))
        for key, value in spec.given().items()
    }


def _value(value: Any, inline: bool = False) -> Any:
    import tomlkit

    if isinstance(value, Spec):
        # a kind is what a connection is: written though it is the default of its class
        return ({"kind": value.kind} if isinstance(value, Connection) else {}) | _plain(value)
    if isinstance(value, Mapping):
        table = {k: _value(v) for k, v in value.items()}
        if not inline:
            return table
        row = tomlkit.inline_table()
        row.update(table)
        return row
    if isinstance(value, list | tuple):
        return [_value(v) for v in value]
    if isinstance(value, Interpolated | InterpolatedDuration):
        return _text(value.raw)
    return _text(value.replace("${", "$${")) if isinstance(value, str) else value


def _text(value: str) -> Any:
    """A string item; SQL of several lines is written as such where TOML would give the same text back."""
    import tomlkit

    if "\n" not in value:
        return value
    lines = tomlkit.string(value, multiline=True).as_string()
    written = f'text = """\n{lines[3:]}\n'  # TOML drops a line break right after the quotes
    try:
        same = tomllib.loads(written)["text"] == value
    except tomllib.TOMLDecodeError:
        same = False
    return tomlkit.parse(written)["text"] if same else value
