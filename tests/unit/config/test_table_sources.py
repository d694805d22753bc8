"""Configs with Delta and Iceberg tables as sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.markdown_pages import read_fenced_block

import slackwater as sw
from slackwater import explain
from slackwater.config import toml
from slackwater.errors import ConfigError, StartError
from slackwater.runner import run_options


def load_docs_pipeline(tmp_path: Path, old: str = "", new: str = "") -> sw.Pipeline:
    """Load the pipeline of the documentation page with one change."""
    text = next(b for n in range(9) if '"visits"' in (b := read_fenced_block("toml", n, "docs/sources/tables.md")))
    assert old in text
    (tmp_path / "p.toml").write_text(text.replace(old, new, 1) if old else text)
    return toml.load(str(tmp_path / "p.toml"))


KEY = "max_files_per_trigger = 100"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (KEY, 'schema = "a INT"', "applies only to connections of kind"),
        (KEY, 'format = "parquet"', 'applies only to connections of kind "files", but this one is "delta"'),
        (KEY, 'starting_offsets = { t = { 0 = 1 } }', 'found offsets, expected "earliest" or "latest"; Delta tables start at one of their versions'),
        (KEY, 'starting_offsets = "latest"\nstarting_version = 3', "cannot be combined with starting_offsets"),
        (KEY, "starting_version = -1", "starting_version"),
        (KEY, 'on_rewrite = "ignore"', "on_rewrite"),
        (KEY, 'schema_changes = "ad"', 'did you mean "add"'),
        ('query = "lake/clicks" ', 'table = "lake/clicks" ', "query"),
        ('event_time_column = "at"', "", 'source "clicks" reads a table, whose rows have no default event time'),
    ],
)  # fmt: skip
def test_keys_that_do_not_apply_to_tables_are_refused(tmp_path: Path, old: str, new: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_docs_pipeline(tmp_path, old, new)
    assert line in str(raised.value)


def test_table_path_is_relative_to_config_and_shown_by_explain(tmp_path: Path) -> None:
    pipeline = load_docs_pipeline(tmp_path)
    assert pipeline.sources[0].query == str(tmp_path / "lake" / "clicks")
    text = str(explain.build_plan(pipeline))
    assert f"Delta table {tmp_path}/lake/clicks, at most 100 per epoch" in text
    assert run_options.describe_starting_offsets(pipeline) == "clicks at earliest"
    later = load_docs_pipeline(tmp_path, KEY, "starting_version = 7")
    assert run_options.describe_starting_offsets(later) == "clicks at version 7"
    assert (
        run_options.describe_starting_offsets(run_options.set_starting_offsets(later, {"*": "latest"}))
        == "clicks at latest"
    )


def test_table_only_key_is_refused_for_files_source() -> None:
    with pytest.raises(ConfigError, match=r'on_rewrite: applies only to connections of kind "delta" or "iceberg"'):
        sw.pipeline(
            name="p",
            sources=[sw.Source(connection=sw.FilesConnection(), query="in", format="json", on_rewrite="skip")],
            window=sw.Window(
                kind="session",
                gap_ms=1,
                max_session_duration_ms=9,
                event_time_column="at",
                group_by=["a"],
                aggregations=[sw.Aggregation(agg="count", as_="n")],
            ),
            target=sw.Target(connection=sw.ConsoleConnection()),
            state_store=sw.StateStore(kind="in_memory"),
        )


def test_table_source_next_to_spark_planned_source_is_refused() -> None:
    from types import SimpleNamespace
    from typing import Any

    from slackwater.connectors import pipeline_sources
    from slackwater.connectors.lake_tables.source import LakeTableSource
    from slackwater.connectors.lake_tables.table_log import TableSnapshot
    from slackwater.connectors.pipeline_sources import DataFrameSource

    spec = sw.Source(name="t", connection=sw.DeltaConnection(), query="x")
    nothing: Any = None
    sources = [LakeTableSource(spec, nothing, TableSnapshot(nothing, nothing)), DataFrameSource("queue", nothing)]
    streams: Any = SimpleNamespace(sources=sources)
    with pytest.raises(StartError, match=r'source "t" is a table, which is read without .* but source "queue" needs'):
        pipeline_sources.create_source_planners(streams, nothing, {})
    with pytest.raises(
        StartError, match=r'p: source "t" is a table, which Slackwater does not read over Spark Connect yet'
    ):
        pipeline_sources.check_spark_connect_support("p", sources)
