"""Parser for pipeline tests in TOML. A test lists the input, step by step, and the expected results.

pipeline = "../clicks.toml"       # by default, the TOML file of the same name in the parent folder

[[steps]]                         # one epoch with rows of the only source; otherwise rows.SOURCE = [...]
rows = [{ user_id = "u1", ts = 2024-03-01T09:00:00Z }, "a broken line"]
[[steps]]
quiet = "1h"
[expect]
rows = [{ user_id = "u1", clicks = 1 }]
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from slackwater.config.config_key import Milliseconds, Tables, declare_key
from slackwater.config.error_text import describe_value_mismatch, format_key
from slackwater.config.spec_base import Problem, Spec, Values, table_list_parser, table_parser
from slackwater.config.value_parsers import (
    InvalidConfigTableError,
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    duration_parser,
    integer_parser,
    parse_flag,
    parse_text,
)
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import ConfigError

_PAGE = "docs/testing.md#a-test-as-a-file"
_ROW = {"anyOf": [{"type": "object"}, {"type": "string"}]}
_ROWS: dict[str, Any] = {"type": "array", "items": _ROW}
_NOTHING = "missing; a step needs one of rows, files, quiet, crash, restart, replay or flush"
ONLY = ""  # stands for the only source or target


@attach_json_schema(anyOf=[_ROWS, {"type": "object", "additionalProperties": _ROWS}])
def _parse_rows(value: Any) -> dict[str, tuple[Any, ...]]:
    """Parse the `rows` of a step: a list for the only source, or lists by source name."""
    return _per_source(
        value, (dict, str), 'a list of rows ([{ user_id = "u1" }]), or one per source (rows.SOURCE = [...])'
    )


@attach_json_schema(
    anyOf=[
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    ]
)
def _parse_files(value: Any) -> dict[str, tuple[Any, ...]]:
    return _per_source(value, (str,), 'a list of files (["noon.jsonl"]), or one per source (files.SOURCE = [...])')


def _per_source(value: Any, kinds: tuple[type, ...], expected: str) -> dict[str, tuple[Any, ...]]:
    rows_by_source = value if isinstance(value, Mapping) else {ONLY: value}
    problems = []
    for source, rows in rows_by_source.items():
        key_path = f": {format_key(source)}" if isinstance(value, Mapping) else ""
        if not isinstance(rows, list | tuple):
            if not key_path:
                raise InvalidValueError(expected)
            problems.append(f"{key_path}: {describe_value_mismatch(rows, expected)}")
            continue
        for i, row in enumerate(rows):
            if not isinstance(row, kinds):
                expected_row = "a file name" if kinds == (str,) else "a table, or a raw record as a string"
                problems.append(f"{key_path or ': '}[{i}]: {describe_value_mismatch(row, expected_row)}")
    if problems:
        raise InvalidConfigTableError(problems, {})
    return {source: tuple(rows) for source, rows in rows_by_source.items()}


_EXPECTED: dict[str, Any] = {"type": "array", "items": {"type": "object"}}


@attach_json_schema(**_EXPECTED)
def _parse_expected(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValueError('a list of rows ([{ user_id = "u1" }])')
    if wrong := [
        f"[{i}]: {describe_value_mismatch(row, 'a table')}"
        for i, row in enumerate(value)
        if not isinstance(row, Mapping)
    ]:
        raise InvalidConfigTableError([f": {line}" for line in wrong], ())
    return tuple(dict(row) for row in value)


@attach_json_schema(anyOf=[_EXPECTED, {"type": "object", "additionalProperties": _EXPECTED}])
def _parse_by_target(value: Any) -> dict[str, tuple[dict[str, Any], ...]]:
    """Parse the expected rows of targets: a list for the only target, or lists by target name."""
    if isinstance(value, Mapping):
        return _parse_by_name(value)
    return {ONLY: _parse_expected(value)}


@attach_json_schema(type="object", additionalProperties=_EXPECTED)
def _parse_by_stage(value: Any) -> dict[str, tuple[dict[str, Any], ...]]:
    if not isinstance(value, Mapping):
        raise InvalidValueError("a list of rows per stage (stages.STAGE = [...])")
    return _parse_by_name(value)


def _parse_by_name(value: Mapping[str, Any]) -> dict[str, tuple[dict[str, Any], ...]]:
    rows_by_name, problems = dict[str, tuple[dict[str, Any], ...]](), list[str]()
    for name, rows in value.items():
        try:
            rows_by_name[name] = _parse_expected(rows)
        except InvalidValueError:
            problems.append(f": {format_key(name)}: {describe_value_mismatch(rows, 'a list of rows')}")
        except InvalidConfigTableError as error:
            problems += [f": {format_key(name)}{line.removeprefix(': ')}" for line in error.problems]
    if problems:
        raise InvalidConfigTableError(problems, {})
    return rows_by_name


@attach_json_schema(type="string", format="date-time")
def _parse_time(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise InvalidValueError("a time (2024-03-01T09:00:00Z, without quotes)")
    return value if value.tzinfo else value.replace(tzinfo=dt.UTC)


class CaseRestart(Spec):
    """A restart with the same state, but with a different number of shards or a different config."""

    shards: int | None = declare_key(integer_parser(1), "The number of shards after the restart.", default=None)
    pipeline: str | None = declare_key(
        parse_text, "The config after the restart, as a path relative to this file.", default=None
    )

    DOC_LINK: ClassVar[str] = _PAGE


class CaseStep(Spec):
    """One step of a test, such as the arrival of rows, a quiet period, or a crash."""

    rows: Mapping[str, tuple[Any, ...]] = declare_key(
        _parse_rows,
        "The rows that arrive in one epoch: a list for the only source, or lists by source.",
        default_factory=dict,
        elsewhere=("given",),
    )
    files: Mapping[str, tuple[Any, ...]] = declare_key(
        _parse_files,
        "The files that the source reads in one epoch, as paths relative to this file.",
        default_factory=dict,
    )
    took: Milliseconds[int] = declare_key(
        duration_parser(0), "How long the epoch takes on the virtual clock.", default=0, elsewhere=("took_ms",)
    )
    quiet: Milliseconds[int | None] = declare_key(
        duration_parser(0), "How long no source returns rows.", default=None, elsewhere=("quiet_ms",)
    )
    crash: str | None = declare_key(
        choice_parser(*KILL_POINTS),
        "The kill point at which the next epoch crashes. A new process then repeats the epoch.",
        default=None,
        elsewhere=("kill",),
    )
    restart: CaseRestart | None = declare_key(
        table_parser(CaseRestart), "Stop the process and start it again: restart = { shards = 3 }.", default=None
    )
    replay: bool = declare_key(
        parse_flag, "Whether to replay the dead letters, as `slackwater dlq replay` does.", default=False
    )
    flush: bool = declare_key(parse_flag, "Whether to close all open windows.", default=False)

    DOC_LINK: ClassVar[str] = _PAGE

    @property
    def has_input(self) -> bool:
        return bool(self.rows or self.files)

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        before = len(problems)
        values, wrong = super().read(data, file, path, problems)
        if set(data) - set(cls.KEYS):  # the unknown key is reported already
            problems[before:] = [p for p in problems[before:] if _NOTHING not in p]
        return values, wrong

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        alone = [k for k in ("quiet", "crash", "restart", "replay", "flush") if values.get(k) not in (None, False)]
        has_input = [k for k in ("rows", "files") if k in values]
        if not alone and not has_input and not wrong:
            yield "rows", _NOTHING
        if len(alone) + bool(has_input) > 1:
            both = [*has_input, *alone]
            key = both[1] if both[0] == "rows" and both[1] != "files" else both[-1]
            yield key, f"cannot be combined with {both[0]}, because a step does one thing; write another [[steps]]"


class Expectation(Spec):
    """The rows that a test expects after its last step.

    A column that no expected row names is not compared. If only some rows name a column, the other rows expect NULL.
    """

    rows: Mapping[str, tuple[dict[str, Any], ...]] = declare_key(
        _parse_by_target,
        "The rows in the target at the end, in any order: a list for the only target, or lists by target.",
        default_factory=dict,
        elsewhere=("result",),
    )
    stages: Mapping[str, tuple[dict[str, Any], ...]] = declare_key(
        _parse_by_stage,
        "The results of stages at the end, in any order. The stages need no target.",
        default_factory=dict,
    )
    late: tuple[dict[str, Any], ...] = declare_key(
        _parse_expected,
        "The late rows, as written in the input. By default, none are expected.",
        default=(),
        elsewhere=("late_rows",),
    )
    bad: tuple[dict[str, Any], ...] = declare_key(
        _parse_expected,
        "The bad rows, each with its `_reason`. A row that cannot be decoded has its text in `_value`.",
        default=(),
        elsewhere=("letters",),
    )
    fails: str | None = declare_key(
        parse_text, "A part of the error message with which the pipeline stops.", default=None, elsewhere=("error",)
    )

    DOC_LINK: ClassVar[str] = _PAGE


class TestCase(Spec):
    """A pipeline test: its steps, and the expected results at the end."""

    pipeline: str | None = declare_key(
        parse_text,
        "The config under test, as a path relative to this file. By default, the TOML file of the same name in the parent folder.",
        default=None,
    )
    shards: int = declare_key(integer_parser(1), "The number of shards at the start.", default=2)
    clock: dt.datetime | None = declare_key(
        _parse_time, "The start of the virtual clock. By default, a time in the year 2096.", default=None
    )
    flush: bool = declare_key(parse_flag, "Whether to close all open windows at the end.", default=True)
    steps: Tables[CaseStep] = declare_key(
        table_list_parser(CaseStep, "a list of steps ([[steps]])"),
        "The steps of the test, in order.",
        required="write at least one [[steps]] with rows",
    )
    expect: Expectation = declare_key(
        table_parser(Expectation), "The expected results at the end.", default_factory=Expectation
    )

    DOC_LINK: ClassVar[str] = _PAGE


def load_case(path: Path) -> TestCase:
    """Load a test from a file. Raises ConfigError with one line per problem."""
    file, problems = str(path), list[str]()
    case = TestCase.parse(_parse_case(path), file, "", problems)
    if problems or case is None:
        raise ConfigError(problems)
    return case


def _parse_case(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ConfigError if the file cannot be read or is not valid TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); expected a TOML file"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not UTF-8 text; expected a TOML file"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: is not valid TOML: {str(error).partition(';')[0]}"]) from None


# -- finding tests and their configs -------------------------------------------------------------------------------------


def _is_case(path: Path) -> bool:
    """Return whether a TOML file is a test. Only tests have `steps`."""
    try:
        return "steps" in _parse_case(path)
    except ConfigError:
        return False


def find_cases(path: Path) -> list[Path]:
    """Return the test files that a path refers to. Raises ConfigError if there are none.

    `path`: a test file, a config with a folder `tests` next to it, a folder with a subfolder `tests`, or any folder
    that contains tests.
    """
    if path.is_dir():
        home = path / "tests" if (path / "tests").is_dir() else path
        cases = [p for p in sorted(home.rglob("*.toml")) if _is_case(p)]
        if not cases:
            raise ConfigError([f"{path}: contains no tests; expected tests/*.toml with [[steps]]; see docs/testing.md"])
        return cases
    data = _parse_case(path)
    if "steps" in data or not {"sources", "transform", "stages", "target"} & set(data):
        return [path]
    folder = path.parent / "tests"
    cases = [p for p in sorted(folder.rglob("*.toml")) if _is_case(p) and _is_test_of(p, path)]
    if not cases:
        raise ConfigError(
            [f"{path}: has no tests; expected {folder}/{path.stem}.toml with [[steps]]; see docs/testing.md"]
        )
    return cases


def _is_test_of(case: Path, pipeline: Path) -> bool:
    try:
        return tested_config(case, _parse_case(case).get("pipeline")).resolve() == pipeline.resolve()
    except ConfigError:
        return True  # the run of the test reports the problem


def tested_config(case: Path, named: Any) -> Path:
    """Return the config file that the test file `case` tests. `named`: the value of the test key `pipeline`, or None.

    Raises ConfigError if the config file does not exist or is ambiguous.
    """
    if isinstance(named, str) and named:
        path = case.parent / named
        if not path.is_file():
            raise ConfigError(
                [f'{case}: pipeline: "{path}" does not exist; expected the path of a config, relative to this file']
            )
        return path
    home = case.parent.parent
    configs = sorted(p for p in home.glob("*.toml") if p.name != "pyproject.toml")
    name_matches = [
        p for p in configs if case.stem == p.stem or case.stem.startswith((f"{p.stem}-", f"{p.stem}_", f"{p.stem}."))
    ]
    best = max(name_matches, key=lambda p: len(p.stem), default=configs[0] if len(configs) == 1 else None)
    if best is None:
        listed = ", ".join(p.name for p in configs[:5]) or "no TOML files"
        raise ConfigError(
            [
                f"{case}: pipeline: missing, and the name of this file does not match a config in the parent folder "
                f'({listed}); write pipeline = "../NAME.toml"'
            ]
        )
    return best


__all__ = ["ONLY", "CaseStep", "Expectation", "TestCase", "find_cases", "load_case", "tested_config"]
