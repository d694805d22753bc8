"""A new connector with a seekable source works in all packages. See `tests/support/ticks_connector.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.single_stage_components import build_single_stage_commit
from tests.support.ticks_connector import TicksConnection, TicksOffsets, TicksSource, register_connector

import slackwater as sw
from slackwater import explain
from slackwater.config import toml
from slackwater.connectors import pipeline_sources
from slackwater.connectors.connector import connector_for
from slackwater.connectors.pipeline_sources import DataFrameSource
from slackwater.errors import ConfigError, StartError
from slackwater.maintenance import reset_offsets
from slackwater.runner import backfill_plan, run_log, run_options
from slackwater.runner.backfill import PlannedRangeReader
from slackwater.state.commit import Commit, SourceRecord

TEXT = """
name = "law"

[connections.clock]
kind = "ticks"
count = 10

[connections.screen]
kind = "console"

[[sources]]
name = "ticks"
connection = "clock"
query = "numbers"
max_messages_per_trigger = 4

[transform]
sql = "SELECT n % 2 AS odd, n, _event_ts FROM source"

[transform.window]
kind = "tumbling"
duration_ms = "5s"
lateness_ms = "0s"
group_by = ["odd"]
max_groups_per_window = 10
event_time_column = "_event_ts"
aggregations = [{ agg = "count", as = "n" }]

[target]
connection = "screen"

[state_store]
kind = "in_memory"
"""


@pytest.fixture(autouse=True)
def register_ticks_connector() -> Iterator[None]:
    with register_connector():
        yield


def load_changed_config(tmp_path: Path, old: str = "", new: str = "") -> sw.Pipeline:
    assert old in TEXT
    (tmp_path / "p.toml").write_text(TEXT.replace(old, new, 1) if old else TEXT)
    return toml.load(str(tmp_path / "p.toml"))


def commit_at_tick(next_: int) -> Commit:
    stored = {"#connector": "ticks", "ticks": next_}
    return build_single_stage_commit(3, sources={"ticks": {"rows": next_, "offsets": stored}})


def ticks_source(pipeline: sw.Pipeline) -> TicksSource:
    connection = pipeline.connections["clock"]
    assert isinstance(connection, TicksConnection)
    return TicksSource(pipeline.sources[0], connection.count, None)


def test_config_keys_of_a_new_connector_are_validated_and_explained(tmp_path: Path) -> None:
    pipeline = load_changed_config(tmp_path)
    assert "ticks of numbers, at most 4 per epoch" in str(explain.build_plan(pipeline))
    assert run_options.describe_starting_offsets(pipeline) == "ticks at earliest"
    with pytest.raises(
        ConfigError, match='max_files_per_trigger: applies only to connections of kind "files" or "delta" or'
    ):
        load_changed_config(tmp_path, "max_messages_per_trigger", "max_files_per_trigger")
    with pytest.raises(ConfigError, match='expected "earliest" or "latest"; ticks begin at the first'):
        load_changed_config(tmp_path, "max_messages_per_trigger = 4", "starting_offsets = { t = { 0 = 1 } }")


def test_offsets_of_a_new_connector_are_committed_and_logged_at_start(tmp_path: Path) -> None:
    record = SourceRecord(offsets=TicksOffsets(7))
    assert json.loads(record.model_dump_json())["offsets"] == {"#connector": "ticks", "ticks": 7}
    assert SourceRecord.model_validate_json(record.model_dump_json()) == record
    assert '"ticks": ticks of numbers, from tick 7;' in run_log.start_line(
        load_changed_config(tmp_path), commit_at_tick(7)
    )


def test_offsets_of_a_new_connector_can_be_reset(tmp_path: Path) -> None:
    pipeline = load_changed_config(tmp_path)
    (move,) = reset_offsets.plan_moves(commit_at_tick(7), ["ticks=latest"], pipeline)
    assert move.after == TicksOffsets(10)
    assert [c.skips_rows for c in move.after.changes(move.before)] == [True]
    with pytest.raises(StartError, match='source "ticks": no tick'):
        reset_offsets.plan_moves(commit_at_tick(7), ["ticks=latest"], None)


def test_run_and_backfill_plan_the_source_of_a_new_connector(tmp_path: Path) -> None:
    ticks, nothing = ticks_source(load_changed_config(tmp_path)), None
    state: Any = SimpleNamespace(sources={"ticks": SourceRecord(offsets=TicksOffsets(3))})
    streams: Any = SimpleNamespace(sources=[ticks])
    planner = pipeline_sources.create_source_planners(streams, state, {})
    assert planner is not None
    parts: list[Any] = [p["ticks"] for _ in range(2) if (p := planner.next())]
    assert [(p.first, p.end) for p in parts] == [(3, 7), (7, 10)]
    assert (planner.next(), planner.unplanned_files) == ({}, 0)
    streams = SimpleNamespace(sources=[ticks, DataFrameSource("queue", nothing)])  # type: ignore[arg-type]
    with pytest.raises(StartError, match=r'source "ticks" is a clock, which is read without .* "queue" needs'):
        pipeline_sources.create_source_planners(streams, state, {})
    pipeline_sources.check_spark_connect_support("p", [ticks])
    assert backfill_plan.backfill_pipeline(
        load_changed_config(tmp_path), 0, 5_000_000, str(tmp_path / "out")
    ).name.startswith("law-backfill")
    session: Any = SimpleNamespace(range=lambda first, end: SimpleNamespace(selectExpr=lambda *_: (first, end)))
    part = PlannedRangeReader(session, nothing, ticks, SourceRecord()).next(SourceRecord(), 0)  # type: ignore[arg-type]
    assert part is not None
    assert (part.frame, part.offsets) == ((0, 4), TicksOffsets(4))


def test_new_connector_has_no_input_lister_by_default(tmp_path: Path) -> None:
    pipeline = load_changed_config(tmp_path)
    assert connector_for(pipeline.connections["clock"]).input_lister(pipeline.sources[0]) is None
