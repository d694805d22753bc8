"""Join specs: TOML and Python build equal objects, mistakes are reported, and derived settings are correct."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.invalid_join_configs import (
    ADVICE,
    BOUNDS,
    CASES,
    ISSUE,
    LAKE,
    LETTERS,
    TARGET,
    J,
    make_invalid_join_config,
)

import slackwater as sw
from slackwater.config.connection import Connection, DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.connector_description import metadata_columns
from slackwater.config.join import JOIN_TYPES, joined_column_names
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import find_duration_keys
from slackwater.errors import ConfigError, StartError

WRITTEN = """\
name = "orders-payments"

[connections.kafka_prod]
kind = "kafka"
bootstrap_servers = "${KAFKA}"

[connections.warehouse]
kind = "postgres"
url = "${WAREHOUSE_URL}"

[[sources]]
connection = "kafka_prod"
query = "orders"

[[sources]]
connection = "kafka_prod"
query = "payments"

[transform.join]
kind = "stream_stream_join"
left_source = "orders"
right_source = "payments"
left_keys = ["order_id"]
right_keys = ["order_id"]
time_window = "5m"
lateness = "10s"

[target]
connection = "warehouse"
table = "public.paid_orders"

[state_store]
kind = "postgres"
url = "${STATE_URL}"
"""
ENV = {"KAFKA": "b:9092", "WAREHOUSE_URL": "postgresql://h/d", "STATE_URL": "postgresql://h/s"}


def join_spec(**more: Any) -> sw.Join:
    required: dict[str, Any] = {
        "kind": "inner",
        "left_source": "orders",
        "right_source": "payments",
        "left_keys": ["order_id"],
        "right_keys": ["order_id"],
    }
    if not {"lower_ms", "upper_ms"} & set(more):
        required["time_window_ms"] = "5m"
    return sw.Join(**(required | more))


def pipeline(step: sw.Join, target: Connection | None = None, **more: Any) -> sw.Pipeline:
    lake = FilesConnection()
    settings: dict[str, Any] = {
        "name": "p",
        "sources": [
            sw.Source(name=name, connection=lake, query=name, format="json", schema="order_id INT, ts TIMESTAMP")
            for name in ("orders", "payments")
        ],
        "join": step,
        "target": target or lake,
        "target_path": "out",
        "state_store": sw.StateStore(kind="files", path="state"),
    }
    return sw.pipeline(**(settings | more))


# -- TOML and Python


def test_example_config_loads_with_defaults() -> None:
    p = sw.loads(ISSUE, env=ENV)
    j = p.transform.join
    assert j is not None
    assert (p.transform.step, p.transform.window, p.transform.sql) == (j, None, None)
    assert (j.join_type, j.sources, j.left_keys, j.right_keys) == (
        *("inner", ("orders", "payments")),
        *(("order_id",), ("order_id",)),
    )
    assert (j.bounds_ms, j.lateness_ms, j.late_data, j.event_time) == ((-300_000, 300_000), 10_000, "drop", "later")
    assert (j.left_prefix, j.right_prefix, j.max_rows_per_key, j.on_state_cap) == ("left_", "right_", 100_000, "fail")
    assert (j.time_mode, j.max_future_ms, j.idle_close_ms) == ("event", 3_600_000, None)


def test_python_and_toml_build_equal_pipelines() -> None:
    kafka = sw.KafkaConnection(bootstrap_servers="b:9092")
    built = sw.pipeline(
        name="orders-payments",
        connections={"kafka_prod": kafka, "warehouse": sw.PostgresConnection(url="postgresql://h/d")},
        sources=[sw.Source(name=name, connection=kafka, query=name) for name in ("orders", "payments")],
        join=join_spec(kind="stream_stream_join", lateness_ms="10s"),
        target="warehouse",
        target_table="public.paid_orders",
        state_store=sw.StateStore(kind="postgres", url="postgresql://h/s"),
    )
    assert built == sw.loads(ISSUE, env=ENV)


def test_toml_is_written_without_defaults_and_round_trips() -> None:
    p = sw.loads(ISSUE, env=ENV)
    assert sw.to_toml(p) == WRITTEN
    assert sw.loads(WRITTEN, env=ENV) == p


def test_every_setting_survives_a_round_trip_through_toml() -> None:
    settings = {
        "kind": "full_outer",
        "lower_ms": "-5m",
        "upper_ms": 7,
        "event_time_column": "ts",
        "event_time_unit": "ms",
        "event_time_zone": "Europe/Berlin",
        "max_jump_ms": "2h",
        "lateness_ms": "3s",
        "source_idleness_ms": 1,
        "idle_close_ms": "1s",
        "max_future_ms": 0,
        "late_data": "reopen",
        "allowed_lateness_ms": "1h",
        "left_sql": "SELECT order_id, _event_ts\nFROM source",
        "right_sql": "SELECT * FROM source",
        "output_left_columns": ["order_id"],
        "output_right_columns": [],
        "left_prefix": "",
        "right_prefix": "r_",
        "event_time": "left",
        "max_rows_per_key": 7,
        "on_state_cap": "drop_oldest",
        "crash_recovery": "persisted",
    }
    p = pipeline(join_spec(**settings))
    written = tomllib.loads(sw.to_toml(p))["transform"]["join"]
    keys = {find_duration_keys(sw.Join).get(name, name) for name in written}
    assert set(settings) - keys == set()
    assert set(sw.Join.KEYS) - keys == {"time_window_ms", "time_mode"}
    assert sw.loads(sw.to_toml(p), env={}) == p


def test_duration_from_environment_is_written_as_variable() -> None:
    p = sw.loads(make_invalid_join_config("= 300000", '= "${APART}"'), env=ENV | {"APART": "2m"})
    assert p.transform.join is not None
    assert p.transform.join.bounds_ms == (-120_000, 120_000)
    assert 'time_window = "${APART}"' in sw.to_toml(p)


def test_streaming_pipeline_decorator_accepts_join() -> None:
    @sw.streaming_pipeline(
        sources=pipeline(join_spec(event_time_column="ts")).sources,
        connections={"files": FilesConnection()},
        join=join_spec(event_time_column="ts"),
        target="files",
        target_path="out",
        state_store=sw.StateStore(kind="files", path="state"),
    )
    def registered_join() -> None: ...

    assert registered_join.pipeline.transform.join == join_spec(event_time_column="ts")


def test_joins_page_shows_example_config() -> None:
    page = (Path(__file__).parents[3] / "docs" / "joins.md").read_text()
    shown = page.split("```toml\n")[1].split("```")[0]
    assert sw.loads(shown, env=ENV) == sw.loads(ISSUE, env=ENV)


# -- derived settings


def test_every_kind_spelling_maps_to_one_of_four_join_types() -> None:
    hows = {kind: join_spec(kind=kind).join_type for kind in JOIN_TYPES}
    assert set(hows.values()) == {"inner", "left", "right", "full"}
    assert {kind: join_spec(kind=kind).outer for kind in JOIN_TYPES} == {
        "stream_stream_join": (False, False),
        "inner": (False, False),
        "left": (True, False),
        "left_outer": (True, False),
        "right": (False, True),
        "right_outer": (False, True),
        "full": (True, True),
        "full_outer": (True, True),
    }


@pytest.mark.parametrize(
    ("settings", "bounds", "keeps"),
    [
        ({"time_window_ms": "5m"}, (-300_000, 300_000), (300_000, 300_000)),
        ({"time_window_ms": 0}, (0, 0), (0, 0)),
        ({"lower_ms": 0, "upper_ms": "10s"}, (0, 10_000), (10_000, 0)),
        ({"lower_ms": "2s", "upper_ms": "10s"}, (2_000, 10_000), (10_000, 0)),
        ({"lower_ms": "-10s", "upper_ms": "-2s"}, (-10_000, -2_000), (0, 10_000)),
        ({"lower_ms": -1, "upper_ms": 1, "lateness_ms": 50}, (-1, 1), (1, 1)),
        ({"lower_ms": -1, "upper_ms": 2, "lateness_ms": 50, "late_data": "reopen"}, (-1, 2), (52, 51)),
        ({"lower_ms": 5, "upper_ms": 9, "late_data": "reopen", "allowed_lateness_ms": 100}, (5, 9), (109, 100)),
    ],
)
def test_retention_of_each_side_follows_bounds_and_lateness(
    settings: dict[str, Any], bounds: tuple[int, int], keeps: tuple[int, int]
) -> None:
    """
    right.ts - left.ts in [lower, upper]:   left   ●────── upper ──▶      right   ●── -lower ──▶      never less than 0
    """
    spec = join_spec(**settings)
    assert (spec.bounds_ms, spec.retention_ms) == (bounds, keeps)


def test_each_side_has_separate_sql() -> None:
    both = pipeline(join_spec(left_sql="SELECT 1", event_time_column="ts")).transform
    assert [both.sql_of(name) for name in ("orders", "payments")] == ["SELECT 1", None]
    assert [both.sql_key(name) for name in ("orders", "payments")] == [f"{J}.left_sql", f"{J}.right_sql"]


# -- output names

LEFT, RIGHT = ["order_id", "amount", "_event_ts"], ["order_id", "paid", "_event_ts"]


def test_output_columns_have_prefix_of_side() -> None:
    assert joined_column_names(join_spec(), LEFT, RIGHT) == (
        {"order_id": "left_order_id", "amount": "left_amount"},
        {"order_id": "right_order_id", "paid": "right_paid"},
    )


def test_output_column_settings_select_and_order_columns() -> None:
    spec = join_spec(output_left_columns=["_event_ts", "amount"], output_right_columns=[], left_prefix="l")
    assert joined_column_names(spec, LEFT, RIGHT) == ({"_event_ts": "l_event_ts", "amount": "lamount"}, {})


def test_metadata_columns_are_omitted_unless_selected() -> None:
    columns = ["_key", "_value", "id", "_event_ts"]
    added = (metadata_columns("kafka"), metadata_columns("kafka"))
    left_names, right_names = joined_column_names(join_spec(output_right_columns=["_key"]), columns, columns, added)
    assert (list(left_names), list(right_names)) == (["id"], ["_key"])
    left_names, right_names = joined_column_names(join_spec(left_sql="SELECT * FROM source"), columns, ["id"], added)
    assert (list(left_names), list(right_names)) == (["_key", "_value", "id"], ["id"])
    assert metadata_columns(None) == metadata_columns("files") == ()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"left_prefix": "", "right_prefix": ""},
            f'{J}.right_prefix: column "order_id" of the right side is emitted as "order_id", which is already the output name of column "order_id" of the left side; {ADVICE}',
        ),
        (
            {"left_prefix": "right_ORDER_", "output_left_columns": ["id"]},
            f'{J}.right_prefix: column "order_id" of the right side is emitted as "right_order_id", which is already the output name of column "id" of the left side; {ADVICE}',
        ),
        (
            {"output_left_columns": ["amuont"]},
            f'{J}.output_left_columns: column "amuont" does not come out of the left side; did you mean "amount"?',
        ),
        (
            {"output_right_columns": ["x", "paid"]},
            f'{J}.output_right_columns: column "x" does not come out of the right side; expected one of _event_ts, order_id, paid',
        ),
    ],
)
def test_conflicting_output_names_are_refused_at_start(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(StartError, match=J) as caught:
        joined_column_names(join_spec(**settings), [*LEFT, "id"], RIGHT)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("name", "line"), [("__reason", "begin with __ are reserved"), ("a\0", r"a column name cannot contain U\+0000")]
)
def test_invalid_output_names_are_refused_at_start(name: str, line: str) -> None:
    with pytest.raises((ConfigError, StartError), match=f"right_prefix: .* of the right side: found .*{line}"):
        joined_column_names(
            join_spec(left_prefix="l_", right_prefix="", output_right_columns=[name]), LEFT, [*RIGHT, name]
        )


def test_empty_prefix_is_accepted_without_name_conflict() -> None:
    left_names, right_names = joined_column_names(join_spec(left_prefix="", output_right_columns=["paid"]), LEFT, RIGHT)
    assert (left_names, right_names) == ({"order_id": "order_id", "amount": "amount"}, {"paid": "right_paid"})


# -- mistakes

# fmt: on


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2].split(";")[0])
def test_each_mistake_is_reported_in_one_line(case: tuple[str, ...]) -> None:
    old, new, *lines = case
    with pytest.raises(ConfigError) as caught:
        sw.loads(make_invalid_join_config(old, new), "p.toml", ENV)
    assert [line.removeprefix("p.toml: ") for line in caught.value.problems] == lines


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BOUNDS, 'lower_ms = "-5m"\nupper_ms = "-1m"\n'),
        (BOUNDS, "lower_ms = 7\nupper_ms = 7\n"),
        ('late_data = "drop"', 'late_data = "reopen"\nallowed_lateness_ms = "1h"'),
        ("[target]", LETTERS + '[transform]\non_error = "dlq"\n[target]'),
        (TARGET, LAKE + '[target]\nconnection = "lake"\npath = "out"\nmode = "append"\n'),
        (TARGET, '[target]\nconnection = "kafka_prod"\ntopic = "out"\nkey_columns = ["left_order_id"]\n'),
        ('left_keys = ["order_id"]\nright_keys = ["order_id"]', 'left_keys = ["a", "a"]\nright_keys = ["b", "c"]'),
        ('event_time_column = "_event_ts"', 'time_mode = "processing"'),
    ],
)
def test_valid_join_settings_are_accepted(old: str, new: str) -> None:
    assert sw.loads(make_invalid_join_config(old, new), env=ENV).transform.join is not None


def test_join_of_files_sources_requires_event_time_column() -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(join_spec())
    which = (
        "whose rows have no default event time; name the column that contains the event time, or give a SQL expression"
    )
    assert caught.value.problems == tuple(
        f'p: {J}.event_time_column: missing; source "{name}" reads files, {which}' for name in ("orders", "payments")
    )


def test_python_transform_requires_window_or_join() -> None:
    with pytest.raises(ConfigError, match=r"Transform: window: missing; describe the window"):
        sw.Transform()
    with pytest.raises(ConfigError, match=r"Transform: sql: does not apply to a join"):
        sw.Transform(sql="SELECT 1", join=join_spec())


@pytest.mark.parametrize("target", [FilesConnection(), DeltaConnection(), KafkaConnection(bootstrap_servers="b:1")])
def test_join_results_are_never_upserted(target: Connection) -> None:
    topic = {"target_path": None, "target_topic": "t"} if target.kind == "kafka" else {}
    joined = pipeline(
        join_spec(event_time_column="ts", late_data="reopen"), target, **topic
    )  # pairs are final: no corrections
    assert not joined.target.upserts(target.kind, joined.transform.step)


def test_any_value_of_a_key_is_accepted_or_reported_in_one_line() -> None:
    """Try every key with a value of every TOML type. The parser reports lines and never raises an exception."""
    for key in [*sw.Join.KEYS, "unknown", "how"]:
        for value in (1, -1.5, 2**70, True, [], [[]], {}, "", "x", [1], {"a": [1]}, ["x"]):
            data = tomllib.loads(ISSUE)
            data["transform"]["join"][key] = value
            lines: list[str] = []
            parsed = Pipeline.parse(data, "p.toml", "", lines)
            assert (parsed is None) == bool(lines), (key, value)
            assert all(x.startswith("p.toml: ") and "\n" not in x and "Error" not in x for x in lines), lines
