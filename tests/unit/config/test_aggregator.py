"""User-defined aggregations: mistakes in one line each, and the round trip through Python and TOML."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_mistakes import BASE, COUNT, OWN, Mean, expect_config_problems, replace_text

import slackwater as sw
from slackwater.config.custom_aggregator import check_aggregator
from slackwater.core.schema import Field
from slackwater.errors import ConfigError, StartError
from slackwater.windows.aggregations import bind_aggregation


class AggregatorWithoutMethods(sw.Aggregator):
    accumulators: Mapping[str, str] = {"n": "bigint"}
    output = "bigint"


def mean_subclass(**changed: Any) -> type[sw.Aggregator]:
    return type("Mean", (Mean,), changed)


def aggregation_problems(aggregator: Any, **settings: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        sw.Aggregation(**{"agg": aggregator, "columns": {"value": "x"}, "as_": "y", **settings})
    return caught.value.problems


@pytest.mark.parametrize(
    ("aggregator", "line"),
    [
        (mean_subclass(inputs=["value"]), 'inputs is a list, expected a mapping of names to types, as in {"value": "double"}'),
        (mean_subclass(inputs={"value": "array<int>"}), 'input "value" has type "array<int>", expected a scalar Spark type, such as "double"'),
        (mean_subclass(accumulators={"n": "number"}), 'accumulator "n" has type "number", expected a scalar Spark type or an array of '
         "scalars; use several accumulators instead of a struct"),
        (mean_subclass(accumulators={"n": "struct<a:int>"}), 'accumulator "n" has type "struct<a:int>", expected a scalar Spark type or an array of '
         "scalars; use several accumulators instead of a struct"),
        (mean_subclass(accumulators={}), 'declares no accumulators; expected at least one, as in {"total": "double"}'),
        (mean_subclass(output="array<struct<a int>>"), 'output is "array<struct<a int>>", expected a Spark type, such as "double" or "array<string>"'),
        (mean_subclass(lift=lambda self, value: {"n": value}), "lift returns a mapping with the keys n, expected a mapping with the keys n, total"),
        (mean_subclass(merge=lambda self, n, total: [n, total]), "merge returns a list, expected a mapping with the keys n, total"),
        (mean_subclass(merge=lambda self, n, total: {"n": n, "total": total.sum()}), 'merge returns a list for "n"; expected one value per group, such as n.sum()'),
        (mean_subclass(finish=lambda self, n: n), "finish fails on rows of NULLs (TypeError: <lambda>() got an unexpected keyword argument 'total')"),
        (mean_subclass(finish=lambda self, n, total: total.str.len_chars()), "finish fails on rows of NULLs (SchemaError: "),
    ],
)  # fmt: skip
def test_inconsistent_aggregator_is_refused_in_one_line(aggregator: Any, line: str) -> None:
    (problem,) = aggregation_problems(aggregator)
    assert problem.startswith(f"Aggregation: agg: Mean: {line}")
    assert "\n" not in problem


def test_missing_aggregator_function_is_reported_by_name() -> None:
    assert aggregation_problems(AggregatorWithoutMethods, columns={}) == (
        "Aggregation: agg: AggregatorWithoutMethods: does not define lift",
    )


def test_options_for_an_aggregator_instance_are_refused() -> None:
    expected = "Aggregation: options: applies only if agg is a class, but agg is an instance; pass the class, or remove the options"
    assert aggregation_problems(Mean(), options={"k": 1}) == (expected,)


def test_failing_module_is_reported_without_a_stack_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert expect_config_problems(replace_text(BASE, COUNT, 'agg = "failing_module:X"\nas = "x"\n')) == [
        'transform.window.aggregations[0].agg: module "failing_module" cannot be imported '
        "(ZeroDivisionError: division by zero); correct the module"
    ]


def test_only_named_aggregators_round_trip_through_toml() -> None:
    text = replace_text(BASE, COUNT, OWN)
    pipeline = sw.loads(text, env={})
    assert sw.loads(sw.to_toml(pipeline), env={}) == pipeline
    assert 'columns = {value = "amount"}' in sw.to_toml(pipeline)
    assert pipeline.transform.window.aggregations[0].call == "Mean(amount)"
    for aggregator in (Mean, Mean()):
        aggregation = sw.Aggregation(agg=aggregator, columns={"value": "amount"}, as_="x")
        window = pipeline.transform.window.model_copy(update={"aggregations": (aggregation,)})
        python = pipeline.model_copy(update={"transform": pipeline.transform.model_copy(update={"window": window})})
        with pytest.raises(
            ConfigError, match=r'p: aggregation "x" uses a Python object, which cannot be written as TOML; use'
        ):
            sw.to_toml(python)
        kinds = [
            bind_aggregation(a, None, (Field("amount", "int"),))
            for a in (aggregation, pipeline.transform.window.aggregations[0])
        ]
        assert {k.fingerprint() for k in kinds} == {"Mean(value=amount int; n bigint, total double)"}


def test_aggregator_attributes_are_part_of_the_fingerprint() -> None:
    def text(k: Any) -> str:
        aggregator = Mean()
        vars(aggregator).update(k=k, cache={})
        return bind_aggregation(
            sw.Aggregation(agg=aggregator, columns={"value": "x"}, as_="y"), None, (Field("x", "double"),)
        ).fingerprint()

    assert text(3) == "Mean(value=x double; n bigint, total double) k=3"
    assert text([1, "a"]).endswith("k=[1, 'a']")


@pytest.mark.parametrize(("column", "fits"), [("int", True), ("decimal(8,2)", True), ("string", False)])
def test_input_column_is_cast_only_without_loss(column: str, fits: bool) -> None:
    spec = sw.Aggregation(agg=Mean, columns={"value": "x"}, as_="y")
    if fits:
        bind_aggregation(spec, None, (Field("x", column),))
        return
    with pytest.raises(
        StartError, match=r'aggregation "y": Mean\.value takes double, but column "x" is string; cast it in the SQL'
    ):
        bind_aggregation(spec, None, (Field("x", column),))


def test_start_refuses_an_aggregator_that_became_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sw.Aggregation(agg=Mean, columns={"value": "x"}, as_="y")
    monkeypatch.setattr(Mean, "output", "nothing")
    with pytest.raises(StartError, match=r'aggregation "y": Mean: output is "nothing", expected a Spark type'):
        bind_aggregation(spec, None, (Field("x", "double"),))


def test_merge_with_wants_keys_is_checked_without_real_keys() -> None:
    def merge(self: Any, keys: Any, n: Any, total: Any) -> Any:
        return {"n": n.sum(), "total": keys["any"].cast(float) + total.sum()}

    check_aggregator(mean_subclass(merge=merge, wants_keys=True)())


def test_fingerprints_of_built_in_aggregations_are_stable() -> None:
    def text(column: str | None = "x", **settings: Any) -> str:
        spec = sw.Aggregation(**settings, column=column, as_="y")
        by = (Field("b", "date"),) if spec.by else ()
        return bind_aggregation(spec, Field("x", "double") if column else None, by).fingerprint()

    assert text(None, agg="count") == "count *"
    assert text(agg="count") == "count x double"
    assert text(agg="min") == "min x double"
    assert (
        text(agg="avg") == "avg x double lossless"
    )  # the totals are exact, so states of earlier releases are migrated
    assert text(agg="count_distinct") == "count_distinct x double approximate 14"
    assert text(agg="count_distinct", mode="exact", max_distinct_values_per_group=1) == "count_distinct x double exact"
    assert text(agg="min_by", by="b") == "min_by x double b date"
    assert text(agg="approx_quantile", quantile=0.5) == "approx_quantile x double 200"


def test_check_imports_polars_only_for_classes_and_never_spark(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "own.py").write_text("import slackwater as sw\nimport polars as pl\n" + MEAN)
    text = replace_text(BASE, COUNT, 'agg = "own:Mean"\ncolumns = { value = "amount" }\nas = "x"\n')
    for content, expected in ((BASE, "False False"), (text, "True False")):
        (tmp_path / "p.toml").write_text(content)
        code = (
            "import sys; sys.argv = ['slackwater', 'check', 'p.toml']; from slackwater.cli.main import app\n"
            "try: app()\nexcept SystemExit as e: assert not e.code\nprint('polars' in sys.modules, 'pyspark' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


MEAN = """
class Mean(sw.Aggregator):
    inputs = {"value": "double"}
    accumulators = {"total": "double"}
    output = "double"

    def lift(self, value):
        return {"total": value.fill_null(0)}

    def merge(self, total):
        return {"total": total.sum()}

    def finish(self, total):
        return total
"""
