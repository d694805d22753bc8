"""Stage specs: TOML and Python build equal objects, and conflicting settings are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import slackwater as sw
from slackwater import explain
from slackwater.cli import check
from slackwater.config import toml
from slackwater.errors import ConfigError

CONFIG = """
name = "revenue"

[connections.lake]
kind = "files"

[[sources]]
name = "orders"
connection = "lake"
query = "orders/*"
format = "json"

[[sources]]
name = "payments"
connection = "lake"
query = "payments/*"
format = "json"

[[stages]]
name = "paid"

[stages.join]
kind = "JOIN"
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["id"]
lower_ms = "-20s"
upper_ms = "30s"
event_time_column = "ts"

[[stages]]
name = "per_minute"
sql = "SELECT left_region AS region, _event_ts FROM source"

[stages.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["region"]
max_groups_per_window = 1000

[[stages.window.aggregations]]
agg = "count"
as = "n"

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"
"""


def config_text(kind: str = "inner", **changes: str) -> str:
    text = CONFIG.replace("JOIN", kind)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def config_problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        toml.loads(text)
    return error.value.problems


def test_toml_and_python_build_equal_stages() -> None:
    parsed = toml.loads(config_text())
    assert toml.loads(sw.to_toml(parsed)) == parsed
    assert "[transform]" not in sw.to_toml(parsed)
    lake = sw.FilesConnection()
    same = sw.pipeline(
        name="revenue",
        connections={"lake": lake},
        sources=[sw.Source(name=n, connection="lake", query=f"{n}/*", format="json") for n in ("orders", "payments")],
        stages=[
            sw.Stage(
                name="paid",
                join=sw.Join(
                    kind="inner",
                    left_source="orders",
                    right_source="payments",
                    left_keys=["id"],
                    right_keys=["id"],
                    lower_ms="-20s",
                    upper_ms="30s",
                    event_time_column="ts",
                ),
            ),
            sw.Stage(
                name="per_minute",
                sql="SELECT left_region AS region, _event_ts FROM source",
                window=sw.Window(
                    kind="tumbling",
                    duration_ms="1m",
                    group_by=["region"],
                    max_groups_per_window=1000,
                    aggregations=[sw.Aggregation(agg="count", as_="n")],
                ),
            ),
        ],
        target=sw.Target(connection="lake", path="out"),
        state_store=sw.StateStore(kind="files", path="state"),
    )
    assert same == parsed
    assert parsed.transform == parsed.stages[0]
    assert [s.name for s in parsed.target_stage.sources] == ["paid"]
    assert parsed.target_stage.transform.window is not None


@pytest.mark.parametrize(
    ("kind", "event_time", "hold"),
    [
        ("inner", "later", 0),
        ("inner", "left", 30_000),
        ("inner", "right", 20_000),
        ("left", "later", 30_000),
        ("right", "later", 20_000),
        ("full", "later", 30_000),
        ("left", "right", 30_000),
    ],
)
def test_watermark_delay_after_join_follows_kind_and_event_time(kind: str, event_time: str, hold: int) -> None:
    pipeline = toml.loads(
        config_text(kind, **{'event_time_column = "ts"': f'event_time_column = "ts"\nevent_time = "{event_time}"'})
    )
    assert pipeline.watermark_delay_ms == hold


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {'name = "per_minute"': 'name = "paid"'},
            'revenue: stages: 2 stages are called "paid"; give each stage a unique name',
        ),
        (
            {'event_time_column = "ts"': 'event_time_column = "ts"\nlate_data = "reopen"'},
            'revenue: stages[0].join.late_data: "reopen" is not supported in a stage that another stage reads; raise lateness to wait longer for late rows',
        ),
        (
            {"[target]": '[transform]\nsql = "SELECT 1"\n[transform.window]\nkind = "session"\ngap_ms = 1\n[target]'},
            "revenue: stages: cannot be combined with [transform]; a pipeline has either [transform] or [[stages]]; remove one of them",
        ),
        ({'name = "paid"\n': ""}, "revenue: stages[0].name: missing; give the stage a name"),
        ({"upper_ms": "uper_ms"}, 'revenue: stages[0].join.uper_ms: unknown key; did you mean "upper_ms"?'),
    ],
)
def test_conflicting_settings_are_refused_in_one_line(changes: dict[str, str], line: str) -> None:
    assert line in [
        p.removeprefix("config: ").replace("pipeline.toml: ", "revenue: ")
        for p in config_problems(config_text(**changes))
    ] or line in [f"revenue: {p.split(': ', 1)[1]}" for p in config_problems(config_text(**changes))]


def test_swapped_stages_and_a_single_stage_are_refused() -> None:
    text = config_text()
    first, second = text.index("[[stages]]"), text.rindex("[[stages]]")
    swapped = text[:first] + text[second : text.index("[target]")] + text[first:second] + text[text.index("[target]") :]
    assert any('stages[0]: stage "per_minute" is unused' in p for p in config_problems(swapped))
    alone = text[:second] + text[text.index("[target]") :]
    assert any(
        "stages: found 1 stage, expected at least 2 stages; write a single stage as [transform]" in p
        for p in config_problems(alone)
    )


def test_check_and_explain_describe_both_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "revenue.toml"
    path.write_text(config_text("left"))
    check.check_file(path)
    assert (
        'ok — left outer join of "orders" and "payments" on 1 key, then tumbling window over its results, 1 aggregation'
        in (capsys.readouterr().out)
    )
    check.explain_file(path)
    output = capsys.readouterr().out
    assert '"per_minute" reads what "paid" emits, in the same epoch and the same commit' in output
    assert "its watermark is 30s behind" in output
    assert "SELECT left_region AS region" in output
    assert explain.build_plan(toml.loads(config_text())).state_bytes


def test_transform_step_names_its_toml_table() -> None:
    window = sw.Window(
        kind="tumbling", duration_ms=1, max_groups_per_window=1, aggregations=[sw.Aggregation(agg="count", as_="n")]
    )
    transforms = [sw.Transform(window=window), sw.Transform(sql="SELECT 1 FROM source")]
    assert [(t.step.table, t.stateful) for t in transforms] == [("window", window), ("sql", None)]
    assert {t.step.table for t in transforms} <= {*sw.Transform.STEPS, "sql"}
