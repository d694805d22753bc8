"""Reads pipelines from TOML, with interpolation of `${ENV}`, and writes pipelines as TOML."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.config.connection import Connection
from slackwater.config.error_text import EnvDuration, EnvString, MissingEnvString, format_key
from slackwater.config.pipeline import Pipeline
from slackwater.config.relative_paths import ResolvedPath, resolve_paths
from slackwater.config.spec_base import Spec, find_duration_keys
from slackwater.core.humanize import format_ms, mismatch
from slackwater.errors import ConfigError
from slackwater.secret_masking import remember_secret, remember_url

DEPTH = 32  # maximum depth of tables and lists; a pipeline needs six
# ${NAME} or ${NAME:-default}; "$${" is an escaped "${"
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_NAMES = frozenset(  # keys whose values are not secrets, because they appear in tables, paths and results
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
        "path",  # messages must show locations
        "table",
        "bootstrap_servers",
    ]
)


def load(path: str | Path, env: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline from a TOML file. Relative paths are resolved against the directory of the file.

    Args:
        path: The path of the file.
        env: The environment variables that replace `${NAME}`; by default, those of the process.

    Raises:
        ConfigError: The config is invalid; the error has one line per mistake.
    """
    pipeline, problems = load_draft(path, env)
    if problems:
        raise ConfigError(problems)
    return pipeline


def load_draft(path: str | Path, env: Mapping[str, str] | None = None) -> tuple[Pipeline, list[str]]:
    """Read a TOML file. Return a draft with the valid parts of the pipeline, and the problems, one line each.

    `env`: the environment variables; by default, those of the process. Raises ConfigError if the file is not
    readable TOML.
    """
    file = str(path)
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read ({error.strerror}); expected a TOML file"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{file}: is not UTF-8 text; expected a TOML file"]) from None
    pipeline, problems = _parse_partial(content, file, env)
    return (pipeline if problems else resolve_paths(pipeline, Path(path).resolve().parent)), problems


def loads(content: str, file: str = "<string>", env: Mapping[str, str] | None = None) -> Pipeline:
    """Parse a pipeline from TOML text. Relative paths are resolved against the working directory.

    Args:
        content: The TOML text.
        file: The file name that error messages show.
        env: The environment variables that replace `${NAME}`; by default, those of the process.

    Raises:
        ConfigError: The config is invalid; the error has one line per mistake.
    """
    pipeline, problems = _parse_partial(content, file, env)
    if problems:
        raise ConfigError(problems)
    return pipeline


def _parse_partial(content: str, file: str, env: Mapping[str, str] | None) -> tuple[Pipeline, list[str]]:
    try:
        data = tomllib.loads(content)
    except RecursionError:
        raise ConfigError([f"{file}: is nested too deeply to be read; expected at most {DEPTH} levels"]) from None
    except ValueError as error:  # TOMLDecodeError, or Python's error for a number with thousands of digits
        text = str(error).partition(";")[0]
        raise ConfigError([f"{file}: is not valid TOML: {text}"]) from None
    if (key := _too_deep(data)) is not None:
        raise ConfigError(
            [
                f"{file}: {key}: is nested more than {DEPTH} levels deep, which is deeper than any pipeline key; reduce the nesting"
            ]
        )
    if (key := _too_large(data)) is not None:
        raise ConfigError([f"{file}: {key}: " + mismatch("a number with more than 64 bits", "at most 64 bits")])
    problems: list[str] = []
    data = _interpolate(data, os.environ if env is None else env, file, "", problems)
    return Pipeline.parse_partial(data, file, "", problems), problems


def _too_large(value: Any, path: str = "") -> str | None:
    """Return the key of an integer with more than 64 bits, which TOML does not allow; None if there is none."""
    if isinstance(value, dict):
        items = [(f"{path}.{format_key(k)}" if path else format_key(k), v) for k, v in value.items()]
    elif isinstance(value, list):
        items = [(f"{path}[{n}]", v) for n, v in enumerate(value)]
    else:
        return path if isinstance(value, int) and value.bit_length() > 64 else None
    return next((key for name, v in items if (key := _too_large(v, name)) is not None), None)


def _too_deep(data: Mapping[str, Any]) -> str | None:
    """Return the top-level key whose tables and lists are nested too deeply; None if there is none."""
    for key, value in data.items():
        level = [value]
        for _ in range(DEPTH):
            nested = [v for v in level if isinstance(v, dict | list)]
            level = [v for n in nested for v in (n.values() if isinstance(n, dict) else n)]
        if any(isinstance(v, dict | list) for v in level):
            return format_key(key)
    return None


def _interpolate(value: Any, env: Mapping[str, str], file: str, path: str, problems: list[str]) -> Any:
    if isinstance(value, dict):
        return {
            k: _interpolate(v, env, file, f"{path}.{format_key(k)}" if path else format_key(k), problems)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_interpolate(v, env, file, f"{path}[{i}]", problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    used, defaults = list[str](), list[str]()

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "${"
        text = env.get(match[1], "")
        if not text and match[2] is not None:
            defaults.append(match[1])
            remember_url(match[2])  # the default is in the file, so only a password in a URL is secret
            return match[2]
        used.append(match[1])
        if re.sub(r"\[\d+\]$", "", path.rpartition(".")[2]) not in _NAMES:
            remember_secret(text, match[0])
        return text

    result = _VARIABLE.sub(replace, value)
    missing = [name for name in dict.fromkeys(used) if name not in env]
    problems += [
        f"{file}: {path}: environment variable {name} is not set; set it, or write $${{{name}}} for the literal text "
        f"${{{name}}}"
        for name in missing
    ]
    if missing:
        return MissingEnvString(result, value)
    return EnvString(result, value) if used or defaults else result


def to_toml(pipeline: Pipeline) -> str:
    """Serialize a pipeline to TOML text, so that `loads(to_toml(p)) == p`.

    A string with environment variables keeps its spelling `${NAME}`, so the text does not contain their values.

    Raises ConfigError if the pipeline has a DataFrame source, or an aggregation whose `agg` is a class, because these
    exist only in Python.
    """
    import tomlkit

    if any(s.dataframe is not None for s in pipeline.sources):
        raise ConfigError([f"{pipeline.name}: a DataFrame source cannot be written as TOML; it exists only in Python"])
    window = pipeline.target_stage.transform.window
    class_aggregations = [a.as_ for a in window.aggregations if not isinstance(a.agg, str)] if window else []
    if class_aggregations:
        raise ConfigError(
            [
                f'{pipeline.name}: aggregation "{class_aggregations[0]}" uses a Python object, which cannot be '
                'written as TOML; use the import path of the class, as in agg = "package.module:Class"'
            ]
        )
    document = tomlkit.document()
    data = {"name": None, "trigger_interval": None, "idle_pause": None} | _plain(pipeline)
    for key, value in data.items():
        if value not in (None, {}, []):
            document.add(key, tomlkit.item(value))
    return tomlkit.dumps(document)


def _plain(spec: Spec) -> dict[str, Any]:
    """Return the TOML values of the keys that differ from their defaults."""
    units = {key: name for name, key in find_duration_keys(type(spec)).items()}
    return {
        units.get(key, key): _duration(value)
        if key in units
        else _value(value, key in ("options", "columns", "starting_offsets", "spark"))
        for key, value in spec.non_defaults().items()
    }


def _duration(value: Any) -> Any:
    """Format a duration (ms) as a string with its unit. A SQL expression, as in `gap`, is returned unchanged."""
    is_number = isinstance(value, int) and not isinstance(value, EnvDuration)
    return format_ms(value) if is_number else _value(value)


def _value(value: Any, inline: bool = False) -> Any:
    import tomlkit

    if isinstance(value, Spec):
        # write the kind of a connection, even if it is the default of its class
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
    if isinstance(value, EnvString | EnvDuration):
        return _text(value.raw)
    if isinstance(value, ResolvedPath):
        value = value.written
    return _text(value.replace("${", "$${")) if isinstance(value, str) else value


def _text(value: str) -> Any:
    """Return a TOML item for a string. A string with line breaks becomes a multi-line string, if that preserves it."""
    import tomlkit

    if "\n" not in value:
        return value
    lines = tomlkit.string(value, multiline=True).as_string()
    written = f'text = """\n{lines[3:]}\n'  # TOML drops a line break directly after the quotes
    try:
        same = tomllib.loads(written)["text"] == value
    except tomllib.TOMLDecodeError:
        same = False
    return tomlkit.parse(written)["text"] if same else value
