"""Test dedup in TOML and Python configs: keys, messages of mistakes, and descriptions in `check` and `explain`."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater import explain
from slackwater.cli.check import _describe_step
from slackwater.config import static_sql_check
from slackwater.config.stage import Transform
from slackwater.errors import ConfigError, StartError

TOML = """
name = "once"

[connections.lake]
kind = "files"

[[sources]]
name = "payments"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "id STRING, tags ARRAY<STRING>, ts TIMESTAMP"

[transform.dedup]
keys = ["id"]
within = "10m"
event_time_column = "ts"
MORE

[target]
connection = "lake"
path = "out"
format = "parquet"

[state_store]
kind = "files"
path = "state"
"""


def load_dedup_config(more: str = "") -> sw.Pipeline:
    return sw.loads(TOML.replace("MORE", more), "once.toml")


def find_dedup_problems(**table: Any) -> list[str]:
    problems: list[str] = []
    Transform.parse_partial({"dedup": table}, "p.toml", "transform", problems)
    return [line.removeprefix("p.toml: transform.dedup.") for line in problems]


def test_toml_and_python_configs_create_the_same_dedup_step() -> None:
    step = sw.Dedup(keys=["id"], keep="last", within="10m", event_time_column="ts", lateness="1m")
    assert load_dedup_config('keep = "last"\nlateness = "1m"').transform.dedup == step
    assert (step.within_ms, step.watermark_delay_ms) == (600_000, 600_000)
    assert sw.Dedup(keys=["id"], within_ms=5).watermark_delay_ms == 0
    again = sw.loads(sw.to_toml(load_dedup_config('keep = "last"')), "again.toml")
    assert again.transform == load_dedup_config('keep = "last"').transform


def test_each_invalid_dedup_config_is_refused_with_a_one_line_error() -> None:
    assert find_dedup_problems(keys=["id"]) == ['within: missing; give a duration, as in "10m"']
    assert find_dedup_problems(within="1m") == ['keys: missing; name the key columns, as in ["user"]']
    assert find_dedup_problems(keys=[], within="0s") == [
        'within: found "0s", expected a duration greater than 0 ("30s", "5m", "2h")',
        'keys: empty; expected at least one key column, as in ["user"]',
    ]
    assert find_dedup_problems(keys=["a", "a", "_event_ts"], within="1s") == [
        'keys: "_event_ts" is the event time, which cannot be a key; remove it',
        'keys: contains column "a" more than once; list it once',
    ]
    assert find_dedup_problems(keys=["a"], within="1s", keep="newest") == [
        'keep: found "newest", expected "first" or "last"'
    ]
    assert find_dedup_problems(keys=["a"], within="1s", late_data="reopen") == [
        'late_data: found "reopen", expected "drop" or "dlq"; did you mean "drop"?'
    ]
    assert find_dedup_problems(key=["a"], within="1s")[0] == 'key: unknown key; did you mean "keys"?'


def test_check_reports_invalid_key_columns_and_missing_sections() -> None:
    assert static_sql_check.check_sql(load_dedup_config()).problems == []
    wrong = TOML.replace('keys = ["id"]', 'keys = ["idd", "tags"]').replace("MORE", "")
    assert static_sql_check.check_sql(sw.loads(wrong, "once.toml")).problems == [
        'transform.dedup.keys: column "idd" does not come out of the SQL; did you mean "id"?',
        'transform.dedup.keys: column "tags" has type array<string>, expected a scalar type; cast it in the SQL',
    ]
    with pytest.raises(ConfigError, match="state_store: missing; a dedup stage needs a state store"):
        sw.loads(TOML.partition("[state_store]")[0].replace("MORE", ""), "once.toml")
    with pytest.raises(ConfigError, match='dead_letter: missing, but required by late_data = "dlq"'):
        load_dedup_config('late_data = "dlq"')


def test_check_and_explain_describe_the_dedup_step() -> None:
    assert _describe_step(load_dedup_config()) == "deduplicate by 1 key, keep the first row within 10m over 1 source"
    (stage,) = [s for s in explain.build_plan(load_dedup_config('keep = "last"')).stages if s.name == "step"]
    assert stage.title == "the last row of a key, once 10m have passed without another row of it"
    assert stage.lines == ("kept: the last row per key, until 10m after it",)


def test_merge_mode_target_of_a_dedup_stage_is_refused() -> None:
    with pytest.raises(ConfigError, match='"merge" replaces rows with the same identity, but rows of a dedup stage'):
        sw.Pipeline(
            name="p",
            sources=[sw.Source(name="a", dataframe=object())],
            transform=sw.Transform(dedup=sw.Dedup(keys=["id"], within="1m")),
            target=sw.Target(connection=sw.DeltaConnection(), path="out", mode="merge"),
            state_store=sw.StateStore(kind="files", path="state"),
        )


def test_explain_shows_the_watermark_delay_of_the_next_stage() -> None:
    count = sw.Window(kind="tumbling", duration="1m", aggregations=[sw.Aggregation(agg="count", as_="n")])
    for keep, text in (("last", "10m behind"), ("first", "that of the previous stage")):
        described = sw.Pipeline(
            name="p",
            sources=[sw.Source(name="a", dataframe=object())],
            stages=[
                sw.Stage(name="once", dedup=sw.Dedup(keys=["id"], keep=keep, within="10m")),
                sw.Stage(name="count", window=count),
            ],
            target=sw.Target(connection=sw.FilesConnection(), path="out", format="parquet"),
            state_store=sw.StateStore(kind="files", path="state"),
        )
        lines = [line for stage in explain.build_plan(described).stages for line in stage.lines]
        assert any(text in line for line in lines), lines


def test_start_refuses_a_key_column_of_the_wrong_type() -> None:
    from slackwater.core.schema import Field
    from slackwater.operators.registry import compile_step

    with pytest.raises(StartError, match=r"transform.dedup.keys: column .id. has type array<string>"):
        compile_step(load_dedup_config(), {"payments": {"id": Field("id", "array<string>")}})
