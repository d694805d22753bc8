"""TOML and Python build the same objects."""

from __future__ import annotations

import pytest

import slackwater as sw
from slackwater.config import toml
from slackwater.core.time import duration_ms, duration_text
from slackwater.errors import ConfigError

SESSIONS = '''
name = "user-sessions"

[connections.lake]
kind = "files"

[[sources]]
name = "events"                      # default: the query
connection = "lake"
query = "data/events/*.jsonl"
format = "json"
schema = "user_id STRING, amount DOUBLE, page_url STRING, event_type STRING, ts TIMESTAMP"
options = {}
max_files_per_trigger = 1

[transform]
on_error = "fail"
sql = """
  SELECT user_id, amount, page_url, _event_ts FROM source WHERE event_type = 'click'
"""

[transform.window]
kind                     = "session"
gap_ms                   = 30000
max_session_duration_ms  = 7200000
event_time_column        = "ts"
time_mode                = "event"
lateness_ms              = 30000
source_idleness_ms       = 60000
group_by                 = ["user_id"]
late_data                = "drop"
max_groups_per_window    = 1000000
on_state_cap             = "fail"
window_start_column      = "window_start"
window_end_column        = "window_end"
crash_recovery           = "persisted"

[[transform.window.aggregations]]
agg = "count"
as  = "events"

[[transform.window.aggregations]]
agg    = "count_distinct"
column = "page_url"
mode   = "approximate"
as     = "unique_pages"

[transform.lookups.users]
connection = "lake"
query = "data/users.parquet"
refresh_interval_ms = 60000

[target]
connection = "lake"
path = "out/sessions"
format = "parquet"

[state_store]
kind = "files"
path = "state"
checkpoint_interval_ms = 60000
'''


def in_python() -> sw.Pipeline:
    lake = sw.FilesConnection()
    return sw.pipeline(
        name="user-sessions",
        connections={"lake": lake},
        sources=[
            sw.Source(
                name="events",
                connection="lake",
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
                sw.Aggregation(agg="count_distinct", column="page_url", mode="approximate", as_="unique_pages"),
            ],
        ),
        lookups={"users": sw.Lookup(connection="lake", query="data/users.parquet")},
        target=sw.Target(connection="lake", path="out/sessions"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def test_toml_and_python_build_the_same_pipeline() -> None:
    assert toml.loads(SESSIONS) == in_python()


def test_a_pipeline_written_as_toml_is_read_back_the_same() -> None:
    for pipeline in (toml.loads(SESSIONS), in_python()):
        assert sw.loads(sw.to_toml(pipeline)) == pipeline


def test_interpolated_strings_keep_their_spelling() -> None:
    text = SESSIONS.replace('path = "state"', 'path = "${STATE_DIR}/s$${x}"')
    pipeline = toml.loads(text, env={"STATE_DIR": "/secret"})
    assert pipeline.state_store is not None
    assert pipeline.state_store.path == "/secret/s${x}"
    assert "/secret" not in sw.to_toml(pipeline)
    assert toml.loads(sw.to_toml(pipeline), env={"STATE_DIR": "/secret"}) == pipeline


def test_older_spellings_are_accepted() -> None:
    new = sw.Aggregation(agg="sum", column="x", as_="total")
    assert sw.Aggregation(kind="sum", input_column="x", output_name="total") == new
    counted = sw.Aggregation(agg="count_col", column="x", as_="n")
    assert counted == sw.Aggregation(agg="count", column="x", as_="n")
    assert sw.Aggregation(kind="count_col", input_column="x", output_name="n") == counted
    shape = {"kind": "tumbling", "max_groups_per_window": 5, "aggregations": [new]}
    assert sw.Window(**shape, width_ms="1m") == sw.Window(**shape, duration_ms=60_000)


def test_a_source_is_called_by_its_query_unless_named() -> None:
    assert sw.Source(connection="lake", query="in/*.json", format="json").name == "in/*.json"


def test_specs_are_frozen() -> None:
    window = in_python().transform.window
    with pytest.raises(ValueError, match="frozen"):
        window.gap_ms = 5  # type: ignore[misc]


def test_the_decorator_registers_by_name_once() -> None:
    settings = {
        "source": sw.FilesConnection(),
        "source_query": "in/*.json",
        "source_format": "json",
        "target": sw.ConsoleConnection(),
        "window": sw.Window(
            kind="tumbling",
            duration_ms="1m",
            max_groups_per_window=5,
            event_time_column="ts",
            aggregations=[sw.Aggregation(agg="count", as_="n")],
        ),
    }

    @sw.streaming_pipeline(**settings)
    def registered_once() -> str:
        return "SELECT _event_ts FROM source"

    assert sw.pipelines["registered_once"] is registered_once
    assert registered_once.pipeline.transform.sql == "SELECT _event_ts FROM source"
    with pytest.raises(ConfigError, match="already registered"):
        sw.streaming_pipeline(**settings, name="registered_once")(lambda: None)
    with pytest.raises(ConfigError, match='sorce_query: unknown argument; did you mean "source_query"'):
        sw.pipeline(name="x", sorce_query="q", **settings)


@pytest.mark.parametrize(
    ("value", "ms"),
    [(250, 250), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("30d", 2_592_000_000)],
)
def test_durations(value: int | str, ms: int) -> None:
    assert duration_ms(value) == ms
    assert duration_ms(duration_text(ms)) == ms
