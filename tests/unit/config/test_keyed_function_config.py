"""User classes in a config: the TOML and Python forms, and a one-line error for each class that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.keyed_functions import FailingFunction, Reminders, WrongColumnsFunction
from tests.support.local_pipeline_script import build_pipeline

import slackwater as sw
from slackwater import explain
from slackwater.config import static_sql_check
from slackwater.config.custom_aggregator import forbid_imports
from slackwater.config.stage import Transform
from slackwater.core.schema import Field
from slackwater.errors import ConfigError, StartError
from slackwater.operators.registry import compile_step

HERE = "tests.support.keyed_functions"
TOML = """
name = "watch"

[connections.lake]
kind = "files"

[[sources]]
name = "logins"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"

[[stages]]
name = "remind"

[stages.keyed]
class = "tests.support.keyed_functions:Reminders"
keys = ["user"]
options = { every = 20 }
event_time_column = "ts"
lag = "1m"

[[stages]]
name = "rest"
sql = "SELECT user, number, _event_ts FROM source"

[target]
connection = "lake"
path = "out"
format = "parquet"

[state_store]
kind = "files"
path = "state"
"""


def find_keyed_step_problems(**table: Any) -> list[str]:
    problems: list[str] = []
    Transform.parse_partial({"keyed": {"keys": ["user"], **table}}, "p.toml", "transform", problems)
    return [line.removeprefix("p.toml: transform.keyed.") for line in problems]


def test_toml_and_python_configs_create_the_same_keyed_step() -> None:
    pipeline = sw.loads(TOML, "watch.toml")
    step = sw.Keyed(class_=Reminders, keys=["user"], options={"every": 20}, event_time_column="ts", lag="1m")
    assert pipeline.stages[0].keyed == step
    assert (step.class_, step.watermark_delay_ms) == (f"{HERE}:Reminders", 60_000)
    assert sw.loads(sw.to_toml(pipeline), "again.toml").stages == pipeline.stages


def test_check_uses_the_declared_output_columns_of_the_class() -> None:
    assert static_sql_check.check_sql(sw.loads(TOML, "watch.toml")).problems == []
    (line,) = static_sql_check.check_sql(
        sw.loads(TOML.replace("SELECT user, number", "SELECT user, count"), "w.toml")
    ).problems
    assert 'column "count"' in line
    (stage,) = [s for s in explain.build_plan(sw.loads(TOML, "watch.toml")).stages if s.name == "step"]
    assert stage.title == f"the rows that {HERE}:Reminders emits"


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({}, 'class: missing; give the import path of a class, as in "shop.rules:Fraud"'),
        ({"class": "Fraud"}, 'class: found "Fraud", expected the import path of a class, as in "shop.rules:Fraud"'),
        (
            {"class": "no_such_shop.rules:Fraud"},
            'class: module "no_such_shop.rules" cannot be imported (ModuleNotFoundError: No module named '
            "'no_such_shop'); put the module on PYTHONPATH, or in the working directory",
        ),
        ({"class": f"{HERE}:Remindes"}, f'class: module "{HERE}" has no "Remindes"; did you mean "Reminders"?'),
        (
            {"class": f"{HERE}:NOT_A_CLASS"},
            f'class: "{HERE}:NOT_A_CLASS" is a int, expected a class derived from slackwater.KeyedFunction; name such a class',
        ),
        (
            {"class": "fractions:Fraction"},
            'class: "fractions:Fraction" is the class Fraction, expected a class derived from slackwater.KeyedFunction; '
            "name such a class",
        ),
        (
            {"class": f"{HERE}:FunctionWithoutAdvance"},
            "class: FunctionWithoutAdvance does not define the method advance; define it",
        ),
        (
            {"class": f"{HERE}:StateColumnNamedLikeKeyFunction"},
            'class: StateColumnNamedLikeKeyFunction: state has a column "user", which is a key; remove it, because every state row has the key columns',
        ),
        (
            {"class": f"{HERE}:Reminders", "options": {"evry": 1}},
            "options: Reminders does not accept these options (TypeError: Reminders.__init__() got an unexpected keyword "
            "argument 'evry'); correct them",
        ),
    ],
    ids=str,
)
def test_each_invalid_keyed_function_config_is_refused_with_a_one_line_error(table: dict[str, Any], line: str) -> None:
    assert find_keyed_step_problems(**table) == [line]


def test_class_that_workers_cannot_import_is_rejected() -> None:
    class Local(sw.KeyedFunction):
        """Defined in a function."""

    with pytest.raises(
        ConfigError,
        match="expected a class at the top level of a module other than __main__; move the class to such a module",
    ):
        sw.Keyed(class_=Local, keys=["user"])


def test_declared_state_columns_must_have_valid_names_and_types() -> None:
    for state, text in (
        ({"__n": "bigint"}, "state has a column '__n', whose name is reserved or empty; rename it"),
        ({"n": "integer"}, 'state column "n" has type "integer", expected a Spark type, such as "bigint"'),
        (["n"], "state is a list, expected a mapping of names to types"),
    ):
        from slackwater.config.keyed_step import KeyedFunctionError, check_keyed_function

        function = Reminders()
        function.state = state  # type: ignore[misc,assignment]
        with pytest.raises(KeyedFunctionError) as caught:
            check_keyed_function(function, ("user",))
        assert text in str(caught.value)


def compile_keyed_function(function: type[sw.KeyedFunction]) -> None:
    pipeline = build_pipeline(sw.Keyed(class_=function, keys=["user"]), ["a"], name="p")
    compile_step(pipeline, {"a": {"user": Field("user", "string")}})


def test_start_reports_errors_of_the_class_before_reading_rows() -> None:
    with pytest.raises(
        StartError,
        match=r"p: advance of tests.support.keyed_functions:FailingFunction failed in line \d+ of .*ColumnNotFound",
    ):
        compile_keyed_function(FailingFunction)
    with pytest.raises(
        StartError, match=r"returned rows without the column total, expected the columns user, total, __ts"
    ):
        compile_keyed_function(WrongColumnsFunction)


def test_step_restored_from_a_state_does_not_import_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    with forbid_imports():
        problems: list[str] = []
        step = sw.Keyed.parse({"class": "no_such_shop.rules:Fraud", "keys": ["user"]}, "state", "", problems)
    assert (problems, step is not None and step.output_columns) == ([], None)
