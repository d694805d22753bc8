"""User-defined keyed steps in a config: keys, and descriptions in `check`, `explain` and the JSON schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support import every_nth_row_operator
from tests.support.every_nth_row_operator import EveryNthRowStep, EveryNthRowTransform
from tests.support.example_statuses_and_metrics import STATUS

import slackwater as sw
from slackwater import explain
from slackwater.cli.check import _describe_step
from slackwater.cli.output import format_run_summary
from slackwater.config import static_sql_check
from slackwater.config.json_schema import build_schema
from slackwater.config.spec_base import find_duration_keys
from slackwater.core.schema import Field
from slackwater.errors import ConfigError, StartError
from slackwater.operators.registry import compile_step
from slackwater.runner import backfill_plan


def build_nth_row_pipeline(
    schema: str = "user STRING, tags ARRAY<STRING>, ts TIMESTAMP", sql: str | None = None, **more: Any
) -> Any:
    step = EveryNthRowStep(every=3, keys=["user"], event_time_column="ts", **more)
    return sw.Pipeline(
        name="p",
        sources=[sw.Source(name="a", connection=sw.FilesConnection(), query="a", format="json", schema=schema)],
        transform=EveryNthRowTransform(nth=step, sql=sql),
        target=sw.Target(connection=sw.FilesConnection(), path="out", format="parquet"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def find_transform_problems(**tables: Any) -> list[str]:
    problems: list[str] = []
    EveryNthRowTransform.parse_partial(tables, "p.toml", "transform", problems)
    return [line.removeprefix("p.toml: transform") for line in problems]


def test_invalid_keyed_step_config_is_reported_with_its_config_key() -> None:
    assert find_transform_problems(nth={"every": 0}) == [
        ".nth.every: found 0, expected a whole number of at least 1",
        '.nth.keys: missing; name the key columns, as in ["user"]',
    ]
    assert find_transform_problems(nth={"every": 1, "keys": []})[0].startswith(
        ".nth.keys: empty; expected at least one key column"
    )
    assert find_transform_problems(nth={"every": 1, "keys": ["u"], "evry": 2}) == [
        '.nth.evry: unknown key; did you mean "every"?'
    ]
    beside = find_transform_problems(nth={"every": 1, "keys": ["u"]}, window={"kind": "tumbling"})
    assert ".nth: cannot be combined with [transform.window]; a stage has only one step; remove one of them" in beside
    assert find_transform_problems(on_error="drop")[0].startswith(
        ".window: missing; describe the window in [transform.window], or the join"
    )


def test_keyed_step_key_must_be_a_scalar_column_of_the_sql() -> None:
    assert static_sql_check.check_sql(build_nth_row_pipeline()).problems == []
    problems = static_sql_check.check_sql(build_nth_row_pipeline(sql="SELECT tags, _event_ts FROM source")).problems
    assert len(problems) == 1
    assert problems[0].startswith('transform.nth.keys: column "user" does not come out of the SQL')
    (line,) = static_sql_check.check_sql(build_nth_row_pipeline(schema="user ARRAY<STRING>, ts TIMESTAMP")).problems
    assert line.startswith('transform.nth.keys: column "user" has type array<string>, expected a scalar type')


def test_added_column_with_an_existing_name_is_refused() -> None:
    for check in (lambda p: static_sql_check.check_sql(p).problems, find_compile_problems):
        (line,) = check(build_nth_row_pipeline(number_column="tags"))
        assert line.endswith(
            '.nth: the SQL selects a column "tags", which this step adds itself; rename the column in the SQL'
        )
    numbered = build_nth_row_pipeline(number_column="nr")
    assert (static_sql_check.check_sql(numbered).problems, find_compile_problems(numbered)) == ([], [])


def find_compile_problems(described: Any) -> list[str]:
    columns = {
        f.name: f for f in (Field("user", "string"), Field("tags", "array<string>"), Field("_event_ts", "timestamp"))
    }
    with every_nth_row_operator.register_operator():
        try:
            compile_step(described, {"a": columns})
        except StartError as error:
            return str(error).splitlines()
    return []


def test_start_reports_every_invalid_column_of_a_keyed_step() -> None:
    columns = {
        f.name: f for f in (Field("tags", "array<string>"), Field("__h", "int"), Field("_event_ts", "timestamp"))
    }
    with every_nth_row_operator.register_operator(), pytest.raises(StartError) as caught:
        compile_step(build_nth_row_pipeline(), {"a": columns})
    lines = str(caught.value).splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        'p: transform.nth.keys: column "user" does not come out of the SQL',
        'p: transform.nth: column "__h" has a name that Slackwater reserves',
    ]


def test_check_and_explain_describe_a_keyed_step() -> None:
    described = build_nth_row_pipeline()
    assert _describe_step(described) == "each 3th row of a key over 1 source"
    plan = explain.build_plan(described)
    (stage,) = [s for s in plan.stages if s.name == "step"]
    assert (stage.title, stage.lines) == (
        "each 3th row of a key, in the epoch that reads it",
        ("kept: one number per key, for ever",),
    )
    assert plan.state_bytes is None
    status = replace(STATUS, window_kind="nth", groups=4)
    assert (
        "42 rows: 40 closed by the watermark, 2 cut at max_session_duration; 4 keys kept; results in out"
        in format_run_summary(status, "p", "out")
    )


def test_keyed_step_refuses_merge_mode_and_backfill() -> None:
    with pytest.raises(
        ConfigError, match='"merge" replaces rows with the same identity, but rows of a nth stage have no identity'
    ):
        sw.Pipeline(
            name="p",
            sources=[sw.Source(name="a", dataframe=object())],
            transform=EveryNthRowTransform(nth=EveryNthRowStep(every=3, keys=["user"])),
            target=sw.Target(connection=sw.DeltaConnection(), path="out", mode="merge"),
        )
    with pytest.raises(StartError, match=r"found \[transform.nth\], expected only \[transform.window\]"):
        backfill_plan.backfill_pipeline(build_nth_row_pipeline(), 0, 1, None)


def test_json_schema_describes_the_table_and_keys_of_a_keyed_step() -> None:
    schema = build_schema(EveryNthRowTransform, "a transform")
    assert {"required": ["nth"]} in schema["allOf"][0]["anyOf"]
    for both in (["window", "join"], ["window", "nth"], ["join", "nth"], ["dedup", "nth"]):
        assert {"not": {"required": both}} in schema["allOf"]
    assert schema["properties"]["nth"]["description"].startswith("Every n-th row of each key")
    table = schema["$defs"]["everynthrowstep"]
    assert set(table["properties"]) == {*EveryNthRowStep.KEYS, *find_duration_keys(EveryNthRowStep)}
    assert all(declared.text for declared in EveryNthRowStep.KEYS.values())
    assert "late_data" not in str(table), "no row of it is late"
    assert EveryNthRowStep.DOC_LINK == "docs/configuration.md#transform"
