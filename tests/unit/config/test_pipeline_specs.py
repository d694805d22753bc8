"""Pipeline specs: TOML and Python build equal frozen objects, and specs can be written as TOML."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.user_sessions_config import ISSUE

import slackwater as sw
from slackwater.config.source import parse_declared_columns
from slackwater.core.humanize import format_ms
from slackwater.core.time import parse_duration_ms

WRITTEN = '''\
name = "user-sessions"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "lake"
query = "data/events/*.jsonl"
format = "json"
schema = "user_id STRING, amount DOUBLE, page_url STRING, event_type STRING, ts TIMESTAMP"
max_files_per_trigger = 1

[transform]
sql = """
  SELECT user_id, amount, page_url, _event_ts FROM source WHERE event_type = 'click'
"""

[transform.window]
kind = "session"
gap = "30s"
max_session_duration = "2h"
group_by = ["user_id"]
event_time_column = "ts"
lateness = "30s"
crash_recovery = "persisted"

[[transform.window.aggregations]]
agg = "count"
as = "events"

[[transform.window.aggregations]]
agg = "count_distinct"
column = "page_url"
as = "unique_pages"

[transform.lookups.users]
connection = "lake"
query = "data/users.parquet"

[target]
connection = "lake"
path = "out/sessions"

[state_store]
kind = "files"
path = "state"
'''


def build_python_pipeline(lake: sw.FilesConnection | str) -> sw.Pipeline:
    return sw.pipeline(
        name="user-sessions",
        connections={"lake": sw.FilesConnection()},
        sources=[
            sw.Source(
                name="events",
                connection=lake,
                query="data/events/*.jsonl",
                format="json",
                schema="user_id STRING, amount DOUBLE, page_url STRING, event_type STRING, ts TIMESTAMP",
                max_files_per_trigger=1,
            )
        ],
        transform_sql="  SELECT user_id, amount, page_url, _event_ts FROM source WHERE event_type = 'click'\n",
        window=sw.Window(
            kind="session",
            gap_ms="30s",
            max_session_duration_ms="2h",
            event_time_column="ts",
            lateness_ms="30s",
            group_by=["user_id"],
            crash_recovery="persisted",
            aggregations=[
                sw.Aggregation(agg="count", as_="events"),
                sw.Aggregation(agg="count_distinct", column="page_url", as_="unique_pages"),
            ],
        ),
        lookups={"users": sw.Lookup(connection=lake, query="data/users.parquet")},
        target=sw.Target(connection=lake, path="out/sessions"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def build_tumbling_window(**more: object) -> sw.Window:
    settings = {
        "kind": "tumbling",
        "duration_ms": "1m",
        "max_groups_per_window": 5,
        "event_time_column": "ts",
        "aggregations": [sw.Aggregation(agg="count", as_="n")],
    }
    return sw.Window(**(settings | more))


def build_small_pipeline(**more: object) -> sw.Pipeline:
    lake = sw.FilesConnection()
    settings = {"name": "p", "target": lake, "target_path": "out", "window": build_tumbling_window()}
    if "sources" not in more:
        settings |= {"source": lake, "source_query": "in/*.json", "source_format": "json"}
    return sw.pipeline(**(settings | more))


def test_example_config_loads_with_its_defaults() -> None:
    p = sw.loads(ISSUE, env={})
    w = p.transform.window
    assert (w.kind, w.gap_ms, w.max_session_duration_ms, w.group_by) == ("session", 30_000, 7_200_000, ("user_id",))
    assert (w.max_future_ms, w.emit, w.offset_ms, w.emit_metadata) == (3_600_000, "on_close", 0, False)
    assert (w.aggregations[1].mode, w.aggregations[1].hll_precision) == ("approximate", 14)
    assert (p.trigger_interval_ms, p.idle_pause_ms) == (0, 500)
    assert p.transform.lookups["users"].format == "parquet"


@pytest.mark.parametrize("lake", ["lake", sw.FilesConnection()], ids=["by name", "as an object"])
def test_python_and_toml_build_equal_pipelines(lake: sw.FilesConnection | str) -> None:
    assert build_python_pipeline(lake) == sw.loads(ISSUE, env={})


def test_toml_is_written_without_defaults_and_can_be_read_again() -> None:
    p = sw.loads(ISSUE, env={})
    assert sw.to_toml(p) == WRITTEN
    assert sw.loads(WRITTEN, env={}) == p


def test_every_setting_survives_a_round_trip_through_toml() -> None:
    lake, screen = sw.FilesConnection(), sw.ConsoleConnection()
    p = build_small_pipeline(
        sources=[
            sw.Source(connection=lake, query="a/*.csv", format="csv", options={"header": True, "sep": "|", "n": 3}),
            sw.Source(name="b", connection=lake, query="b", format="text", lateness_ms="5s"),
        ],
        window=sw.Window(
            kind="hopping",
            duration_ms="1m",
            hop_ms="10s",
            offset_ms="-3s",
            event_time_column="ts",
            event_time_unit="ms",
            group_by=["k"],
            source_idleness_ms=1,
            idle_close_ms="1s",
            max_future_ms=0,
            max_groups_per_window=7,
            on_state_cap="drop_new_groups",
            window_start_column="a",
            window_end_column="b",
            crash_recovery="at_least_once",
            aggregations=[
                sw.Aggregation(
                    agg="count_distinct", column="x", mode="exact", max_distinct_values_per_group=3, as_="d"
                ),
                sw.Aggregation(agg="count_distinct", column="x", hll_precision=10, as_="h"),
                sw.Aggregation(agg="count", column="x", as_="c"),
            ],
        ),
        lookups={"u": sw.Lookup(connection=lake, query="u", format="csv", schema="a INT", refresh_interval_ms="1h")},
        target=screen,
        target_path=None,
        on_error="drop",
        state_store=sw.StateStore(kind="in_memory", shards=3, checkpoint_interval_ms="5s"),
        trigger_interval_ms="10s",
        idle_pause_ms=50,
    )
    assert sw.loads(sw.to_toml(p), env={}) == p
    assert p.sources[0].name == "a/*.csv"
    assert p.sources[0].options == {"header": "true", "sep": "|", "n": "3"}
    assert 'options = {header = "true", sep = "|", n = "3"}' in sw.to_toml(p)


@pytest.mark.parametrize(
    "sql",
    [
        "a\nb", "\n a\n", "a\r\nb", 'a"""\nb', 'a\n"', "a\\\nb", "tab\t\n\x01", "'''\n", "a$$b",
        "${A}", "$${A}", "$$${A}", "${", "x ~ '^a$'",
    ],
)  # fmt: skip
def test_any_sql_survives_a_round_trip_through_toml(sql: str) -> None:
    assert sw.loads(sw.to_toml(build_small_pipeline(transform_sql=sql)), env={}).transform.sql == sql


def test_a_source_without_a_name_is_named_after_its_query() -> None:
    assert sw.Source(connection="lake", query="in/*.json", format="json").name == "in/*.json"


def test_specs_are_frozen() -> None:
    window = build_python_pipeline("lake").transform.window
    with pytest.raises(ValueError, match="frozen"):
        window.gap_ms = 5  # type: ignore[misc]


def test_decorator_registers_each_pipeline_name_once() -> None:
    settings = {
        "source": sw.FilesConnection(),
        "source_query": "in/*.json",
        "source_format": "json",
        "target": sw.ConsoleConnection(),
        "window": build_tumbling_window(),
    }

    @sw.streaming_pipeline(**settings)
    def registered_once() -> str:
        return "SELECT _event_ts FROM source"

    assert sw.pipelines["registered_once"] is registered_once
    assert registered_once.pipeline.transform.sql == "SELECT _event_ts FROM source"
    with pytest.raises(sw.ConfigError, match="already registered"):
        sw.streaming_pipeline(**settings, name="registered_once")(lambda: None)
    with pytest.raises(sw.ConfigError, match='sorce_query: unknown argument; did you mean "source_query"'):
        sw.pipeline(name="x", sorce_query="q", **settings)


def test_deprecated_names_of_config_keys_still_work() -> None:
    old = sw.Window(
        kind="tumbling",
        width_ms="1m",
        max_groups_per_window=5,
        aggregations=[
            {"kind": "count_col", "input_column": "x", "output_name": "n"},
            {"kind": "sum", "input_column": "x", "output_name": "s"},
            {"agg": "count_col", "column": "x", "as": "m"},
        ],
    )
    assert old == sw.Window(
        kind="tumbling",
        duration_ms="1m",
        max_groups_per_window=5,
        aggregations=[
            sw.Aggregation(agg="count", column="x", as_="n"),
            sw.Aggregation(agg="sum", column="x", as_="s"),
            sw.Aggregation(agg="count", column="x", as_="m"),
        ],
    )


def test_python_config_errors_have_the_format_of_toml_config_errors() -> None:
    with pytest.raises(sw.ConfigError) as caught:
        build_tumbling_window(group_by="k", gap_ms=5, duration_ms=True)
    assert caught.value.problems == (
        'Window: duration_ms: found true, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)',
        'Window: group_by: found "k", expected a list; write ["k"]',
        'Window: gap_ms: applies only to session windows, but this one is "tumbling"; remove it',
    )
    with pytest.raises(sw.ConfigError) as caught:
        sw.Aggregation(agg="sum", as_=None)
    assert caught.value.problems == (
        "Aggregation: as: missing; name the output column",
        'Aggregation: column: missing; "sum" needs a column to aggregate',
    )
    with pytest.raises(sw.ConfigError) as caught:
        build_small_pipeline(name="clicks", window=build_tumbling_window(crash_recovery="persisted"))
    assert str(caught.value) == (
        'clicks: transform.window.crash_recovery: "persisted" needs a durable [state_store]; use kind = "files" or "postgres"'
    )
    with pytest.raises(sw.ConfigError) as caught:
        build_small_pipeline(name="a/b")
    assert str(caught.value) == (
        'pipeline: name: found "a/b", expected only letters, digits, ".", "_" and "-", because it names a directory'
    )


def test_dataframe_source_needs_a_name_and_has_no_toml() -> None:
    frame = object()
    p = build_small_pipeline(
        sources=[sw.Source(name="clicks", dataframe=frame)], window=build_tumbling_window(event_time_column="_event_ts")
    )
    assert p.sources[0].dataframe is frame
    with pytest.raises(sw.ConfigError) as caught:
        sw.to_toml(p)
    assert str(caught.value) == ("p: a DataFrame source cannot be written as TOML; it exists only in Python")
    with pytest.raises(sw.ConfigError) as caught:
        sw.Source(dataframe=frame, format="json")
    assert caught.value.problems == (
        "Source: name: missing; a DataFrame source needs a name",
        "Source: format: applies only to a source with a connection, but this one is a DataFrame; remove it",
    )


def test_console_connection_can_be_referenced_by_name() -> None:
    p = build_small_pipeline(connections={"screen": sw.ConsoleConnection()}, target="screen", target_path=None)
    assert (p.target.connection, p.target.path) == ("screen", None)


def test_connection_objects_get_unused_names() -> None:
    taken = {"files": sw.ConsoleConnection(), "files_2": sw.ConsoleConnection()}
    p = build_small_pipeline(connections=taken)
    assert (p.sources[0].connection, p.target.connection) == ("files_3", "files_3")
    assert sw.loads(sw.to_toml(p), env={}) == p


# -- small parts


@pytest.mark.parametrize(
    ("value", "ms"),
    [(250, 250), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("30d", 2_592_000_000)],
)
def test_durations_are_parsed_and_formatted(value: int | str, ms: int) -> None:
    assert parse_duration_ms(value) == ms
    assert parse_duration_ms(format_ms(ms)) == ms


@pytest.mark.parametrize("value", [True, 1.5, None, "", "5", "s", "1.5s", "5 weeks", "1h30m", []])
def test_invalid_durations_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("a STRING, b INT", ["a", "b"]),
        ("a:STRING,b:INT", ["a", "b"]),
        ("a DECIMAL(10, 2), s STRUCT<x: INT, y: MAP<STRING, INT>>, c INT", ["a", "s", "c"]),
        ("`a b` INT, `c,d<` INT, e INT COMMENT 'x, (y', f INT NOT NULL", ["a b", "c,d<", "e", "f"]),
        ("", []),
    ],
)
def test_column_names_are_parsed_from_a_ddl_schema(ddl: str, columns: list[str]) -> None:
    assert parse_declared_columns(ddl) == columns


def test_importing_the_config_loads_neither_spark_nor_dataframes() -> None:
    code = "import sys, slackwater.config.toml; print([m for m in ('pyspark', 'pandas', 'polars', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
