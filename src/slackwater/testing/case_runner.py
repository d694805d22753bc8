"""Run test files. Spark prepares the rows of all steps at once. The steps then run one at a time."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.items import AoT, Array

from slackwater.config import toml
from slackwater.config.error_text import format_key, suggest_or_list_words
from slackwater.config.pipeline import Pipeline
from slackwater.errors import ConfigError, SlackwaterError
from slackwater.testing import case_file as cases
from slackwater.testing.case_file import ONLY, CaseStep, TestCase
from slackwater.testing.local_pipeline import LocalPipeline
from slackwater.testing.memory_target import START_US, LocalResult
from slackwater.testing.row_comparison import RowDifference, compare_rows, to_toml_value
from slackwater.testing.stub_sources import to_micros_utc

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from slackwater.testing.rows_with_spark import Rows

_REASON, _VALUE = "_reason", "_value"


@dataclass
class CaseResult:
    """Outcome of one test.

    Args:
        path: The test file.
        differences: The differences by key: "rows" ("rows.NAME" with several targets), "stages.NAME", "late" or "bad".
        failed: The message if the pipeline stopped unexpectedly, or did not stop as expected; otherwise None.
        wrong: Whether the test or its config is invalid.
        seconds: The duration of the test in seconds.
    """

    path: Path
    differences: Mapping[str, RowDifference] = field(default_factory=dict)
    failed: str | None = None
    wrong: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failed and not any(self.differences.values())

    def lines(self) -> list[str]:
        """Return lines that describe the failure; empty if the test passed."""
        failure_lines = [] if self.failed is None else self.failed.splitlines()
        return failure_lines + [line for key, d in self.differences.items() for line in d.lines(_difference_title(key))]


def _difference_title(key: str) -> str:
    """Return the title for a key of `CaseResult.differences`."""
    kind, _, name = key.partition(".")
    if name:
        return f"rows of {'target' if kind == 'rows' else 'stage'} {json.dumps(name, ensure_ascii=False)}"
    return {"rows": "rows", "late": "late rows", "bad": "bad rows"}[kind]


@dataclass(frozen=True)
class LoadedCase:
    """A test file and the config that it tests."""

    __test__ = False  # keeps pytest from collecting this class

    path: Path
    case: TestCase
    pipeline: Pipeline

    @classmethod
    def read(cls, path: Path) -> LoadedCase:
        """Load a test and its config. Raises ConfigError if one of them is invalid."""
        from slackwater.config import static_sql_check

        case = cases.load_case(path)
        config = cases.tested_config(path, case.pipeline)
        pipeline = toml.load(config)
        if sql_problems := static_sql_check.check_sql(pipeline).problems:
            raise ConfigError([f"{config}: {line}" for line in sql_problems])
        test = cls(path, case, pipeline)
        if problems := list(test._problems()):
            raise ConfigError(problems)
        return test

    def _problems(self) -> Iterator[str]:
        source_names = [s.name for s in self.pipeline.sources]
        for i, step in enumerate(self.case.steps):
            for key in ("rows", "files"):
                for source, entries in getattr(step, key).items():
                    location = f"{self.path}: steps[{i}].{key}"
                    if source == ONLY and len(source_names) > 1:
                        choices = " or ".join(f"{key}.{format_key(n)}" for n in source_names)
                        yield f"{location}: does not name a source; write {choices}"
                    elif source not in (ONLY, *source_names):
                        yield f"{location}.{format_key(source)}: is not a source of the pipeline{suggest_or_list_words(source, source_names)}"
                    for name in entries if key == "files" else ():
                        if not (self.path.parent / name).is_file():
                            yield f'{location}: "{self.path.parent / name}" does not exist; expected a path relative to this test'
            if step.restart is not None and step.restart.pipeline is not None:
                config = self.path.parent / step.restart.pipeline
                if not config.is_file():
                    yield f'{self.path}: steps[{i}].restart.pipeline: "{config}" does not exist; expected the path of a config'
        yield from self._unknown_names()

    def _unknown_names(self) -> Iterator[str]:
        """Yield a problem for each unknown target or stage in the expectations."""
        if any(s.restart is not None and s.restart.pipeline for s in self.case.steps):
            return  # the config of the last restart decides, so `_differences` reports the problem
        targets, stages = list(self.pipeline.per_target), [s.name for s in self.pipeline.running_stages]
        location = f"{self.path}: expect.rows"
        for name in self.case.expect.rows:
            if name == ONLY and len(targets) > 1:
                choices = " or ".join(f"rows.{format_key(n)}" for n in targets)
                yield f"{location}: does not name a target; write {choices}"
            elif name not in (ONLY, *targets):
                yield f"{location}.{format_key(name)}: is not a target of the pipeline{suggest_or_list_words(name, targets)}"
        for name in self.case.expect.stages:
            if name not in stages:
                more = (
                    suggest_or_list_words(name, stages)
                    if stages
                    else "; this pipeline has a single [transform]; write expect.rows"
                )
                yield f"{self.path}: expect.stages.{format_key(name)}: is not a stage of the pipeline{more}"

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, session: SparkSession) -> CaseResult:
        """Run the test and return its outcome. A failure is part of the outcome and is not raised."""
        began, outcome, fails = time.monotonic(), CaseResult(self.path), self.case.expect.fails
        try:
            result, test = self._result(session)
            outcome.differences = self._differences(result, test)
            if fails is not None:
                outcome.failed = f'the pipeline did not stop; expected an error that contains "{fails}"'
        except (SlackwaterError, ValueError) as error:
            if fails is None:
                outcome.failed, outcome.wrong = f"the pipeline stopped: {error}", isinstance(error, ConfigError)
            elif fails not in str(error):
                outcome.failed = (
                    f'the pipeline stopped with another error: {error}; expected one that contains "{fails}"'
                )
        outcome.seconds = time.monotonic() - began
        return outcome

    def _result(self, session: SparkSession) -> tuple[LocalResult, LocalPipeline]:
        clock = START_US if self.case.clock is None else to_micros_utc(self.case.clock)
        watch, shards = tuple(self.case.expect.stages), self.case.shards
        with LocalPipeline(self.pipeline, session=session, shards=shards, clock_us=clock, extra_stages=watch) as test:
            ahead = self._prepare_rows(test, self.case.steps)
            for i, step in enumerate(self.case.steps):
                if step.restart is not None and step.restart.pipeline is not None:
                    test.restart(toml.load(self.path.parent / step.restart.pipeline), shards=step.restart.shards)
                    ahead |= {i + 1 + j: rows for j, rows in self._prepare_rows(test, self.case.steps[i + 1 :]).items()}
                else:
                    self._apply_step(test, step, ahead.get(i, {}))
            if self.case.flush:
                test.flush()
            return test.result(), test

    def _prepare_rows(self, test: LocalPipeline, steps: Sequence[CaseStep]) -> dict[int, dict[str, Rows]]:
        """Use Spark to prepare the rows of all steps before the next config change. Return them by step and source."""
        from slackwater.testing.rows_with_spark import InputRows

        clock, inputs = test.now_us, list[tuple[int, InputRows]]()
        for i, step in enumerate(steps):
            if step.restart is not None and step.restart.pipeline is not None:
                break
            clock += 1000 * (step.took + (step.quiet or 0))
            for name in dict.fromkeys((*step.rows, *step.files)):
                paths = tuple(self.path.parent / file for file in step.files.get(name, ()))
                source = name or test.source_names[0]
                inputs.append((i, InputRows(source, step.rows.get(name, ()), paths, clock)))
        prepared: dict[int, dict[str, Rows]] = {}
        for (i, input_rows), rows in zip(inputs, test.prepare([g for _, g in inputs]), strict=True):
            prepared.setdefault(i, {})[input_rows.source] = rows
        return prepared

    @staticmethod
    def _apply_step(test: LocalPipeline, step: CaseStep, rows: Mapping[str, Rows]) -> None:
        if step.has_input:
            test.now_us += step.took * 1000
            test.pipe_prepared(rows)
        elif step.quiet is not None:
            test.quiet(step.quiet)
        elif step.crash is not None:
            test.crash(step.crash)
        elif step.restart is not None:
            test.restart(shards=step.restart.shards)
        elif step.replay:
            test.replay()
        elif step.flush:
            test.flush()

    def _differences(self, result: LocalResult, test: LocalPipeline) -> dict[str, RowDifference]:
        expect, differences = self.case.expect, dict[str, RowDifference]()
        first = next(iter(result.tables))
        for name, rows in expect.rows.items():
            target = test.pipeline.per_target.get(name or first)
            if target is None:
                location = f"{self.path}: expect.rows.{format_key(name)}"
                hint = suggest_or_list_words(name, test.pipeline.per_target)
                raise ConfigError(
                    [f"{location}: is not a target of the pipeline after the last step of the test{hint}"]
                )
            identity = test.identity_of(str(target.target.from_))
            key = f"rows.{name}" if name else "rows"
            differences[key] = _compare_table(rows, result.tables[name or first], identity)
        for name, rows in expect.stages.items():
            if name not in result.stages:
                location = f"{self.path}: expect.stages.{format_key(name)}"
                hint = suggest_or_list_words(name, result.stages)
                raise ConfigError([f"{location}: is not a stage of the pipeline after the last step of the test{hint}"])
            differences[f"stages.{name}"] = _compare_table(rows, result.stages[name], test.identity_of(name))
        late, bad = [], []
        for letter in result.letters:
            row = _letter_row(letter)
            if letter["reason"] == "late":
                late.append(row)
            else:
                bad.append({_REASON: letter["reason"], **row})
        differences["late"] = compare_rows(expect.late, late, _columns(late))
        differences["bad"] = compare_rows(expect.bad, bad, _columns(bad))
        return differences

    def actual(self, outcome: CaseResult) -> dict[str, list[dict[str, Any]]]:
        """Return the actual rows as TOML values, by key of `CaseResult.differences`, with compared columns only."""
        return {key: [row_as_toml(row, d.columns) for row in d.actual] for key, d in outcome.differences.items()}


def _compare_table(
    expected: Sequence[Mapping[str, Any]], table: pl.DataFrame, identity: Sequence[str]
) -> RowDifference:
    """Compare expected rows with the rows of `table`, which this function sorts by identity and time columns."""
    columns = list(table.columns)
    order = [c for c in (*identity, *columns) if (c in columns and table.schema[c].is_temporal()) or c in identity]
    by = [c for c in dict.fromkeys(order) if not table.schema[c].is_nested()]
    return compare_rows(expected, (table.sort(by) if by else table).to_dicts(), columns, identity)


def row_as_toml(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row as TOML values, without NULLs."""
    return {c: to_toml_value(row[c]) for c in columns if row.get(c) is not None}


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(c for row in rows for c in row))


def _letter_row(letter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a dead letter, or its text as `_value` if the text is not a JSON object."""
    value = letter["value"]
    text = "" if value is None else value.decode(errors="replace")
    try:
        row = json.loads(text)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {_VALUE: text}


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the log during a test, because it would warn about late and bad rows that the test expects."""
    log = logging.getLogger("slackwater")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def spark_session(pipelines: Sequence[Pipeline] = ()) -> SparkSession:
    """Return the local Spark session that all tests share: the active one, or a new one that starts fast.

    `pipelines`: the pipelines whose `[spark]` settings apply to a new session.
    """
    import os

    # the session lives for seconds, so the second JIT compiler costs more than it saves
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own imports warn
        from slackwater.spark.sessions import spark_session

        configured = {k: v for p in pipelines for k, v in p.spark.items() if k != "spark.master"}
        settings = {"spark.driver.memory": "1g", **configured, "spark.master": "local[1]"}
        return spark_session.start_session({k: str(v) for k, v in settings.items()})


# -- updating expectations -----------------------------------------------------------------------------------------------


_LEFT_OUT = ("session_id",)  # meaningless to users; omitted unless the file already expects rows


def update_case(path: Path, outcome: CaseResult, whole: bool = False) -> bool:
    """Change the expectations of a test file to match the outcome. Return whether the file changed.

    `whole`: whether to add the rows of the target if the file does not expect any rows.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    if "expect" not in document:
        document["expect"] = tomlkit.table()
    expect: Any = document["expect"]
    changed = False
    for key, difference in outcome.differences.items():
        if not difference or (key == "rows" and key not in expect and not whole):
            continue
        changed = True
        kind, _, name = key.partition(".")
        _apply(expect[kind] if name else expect, name or kind, difference)
    if changed:
        path.write_text(tomlkit.dumps(document), encoding="utf-8")
    return changed


def _apply(expect: Any, key: str, difference: RowDifference) -> None:
    columns = [c for c in difference.columns if difference.expected or c not in _LEFT_OUT]
    expected_rows = expect.get(key)
    editable = isinstance(expected_rows, Array | AoT) and len(expected_rows) == len(difference.expected)
    if not editable or not expected_rows:
        expect[key] = rows_as_toml([row_as_toml(row, columns) for row in difference.actual])
        return
    rows: Any = expected_rows
    for i, j, differing in difference.pairs:
        for column in differing:
            values = row_as_toml(difference.actual[j], [column])
            if column in values:
                rows[i][column] = values[column]
            else:
                del rows[i][column]
    for i in sorted(difference.missing, reverse=True):
        del rows[i]
    for j in difference.unexpected:
        row = row_as_toml(difference.actual[j], columns)
        if isinstance(rows, AoT):
            rows.append(tomlkit.item(row))
        else:
            rows.add_line(_inline_table(row), indent="  ")


def rows_as_toml(rows: Sequence[Mapping[str, Any]]) -> Array:
    """Return rows as a TOML array with one inline table per line."""
    array = tomlkit.array()
    for row in rows:
        array.add_line(_inline_table(row), indent="  ")
    if rows:
        array.add_line(indent="")
    return array


def _inline_table(row: Mapping[str, Any]) -> Any:
    table = tomlkit.inline_table()
    table.update(row)
    return table
