"""Added columns. A target gets them if this state has written it and the source adds columns (schema_changes)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.single_stage_components import build_single_stage_commit

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.evolution import added_columns, target_changes
from slackwater.state.commit import Commit, TargetDestination

CONFIG = """name = "p"
[connections.lake]
kind = "delta"
[[sources]]
name = "grows"
connection = "lake"
query = "a"
schema_changes = "add"
[[sources]]
name = "stays"
connection = "lake"
query = "b"
schema_changes = "ignore"
[[stages]]
name = "inner"
from = "grows"
sql = "SELECT * FROM source"
[[stages]]
name = "one"
from = "inner"
sql = "SELECT * FROM source"
[[stages]]
name = "other"
from = "stays"
sql = "SELECT * FROM source"
[[targets]]
from = "one"
connection = "lake"
path = "one"
[[targets]]
from = "other"
connection = "lake"
path = "other"
[state_store]
kind = "files"
path = "state"
"""
NOW = {"one": {"k": "string", "c": "bigint"}, "other": {"k": "string", "c": "bigint"}}


@pytest.fixture
def pipeline_with_schema_changes(tmp_path: Path) -> Pipeline:
    (tmp_path / "p.toml").write_text(CONFIG)
    return toml.load(tmp_path / "p.toml")


def build_commit_with_columns(pipeline: Pipeline, columns: tuple[str, ...] | None, place: str | None = None) -> Commit:
    """Build a commit whose targets were last written with `columns`."""
    destinations_by_target = {}
    for name, narrowed in pipeline.per_target.items():
        location = (place, None, None) if place else target_changes.target_location(narrowed.target)
        destinations_by_target[name] = TargetDestination(
            stage=str(narrowed.target.from_), writer=narrowed.writer, place=location, columns=columns
        )
    return build_single_stage_commit(3, targets=destinations_by_target)


def test_target_gets_added_columns_of_a_source_with_schema_changes(pipeline_with_schema_changes: Pipeline) -> None:
    assert added_columns.targets_accepting_columns(pipeline_with_schema_changes) == {"one"}
    assert added_columns.added_target_columns(
        pipeline_with_schema_changes, build_commit_with_columns(pipeline_with_schema_changes, ("k",)), NOW
    ) == {"one": {"c": "bigint"}}
    (change,) = added_columns.added_column_changes(
        pipeline_with_schema_changes, build_commit_with_columns(pipeline_with_schema_changes, ("k",)), NOW
    )
    assert change.line.startswith(
        'target "one" columns: state has none, the result has new: "c" (bigint): the target table gets it'
    )


@pytest.mark.parametrize(
    "commit",
    [
        lambda p: None,
        lambda p: build_single_stage_commit(3),
        lambda p: build_commit_with_columns(p, None),
        lambda p: build_commit_with_columns(p, ("k", "c")),
        lambda p: build_commit_with_columns(p, ("k",), "elsewhere"),
    ],
    ids=["no state", "nothing written", "unknown", "written before", "another place"],
)
def test_table_that_this_state_never_wrote_gets_no_added_columns(
    pipeline_with_schema_changes: Pipeline, commit: object
) -> None:
    assert (
        added_columns.added_target_columns(pipeline_with_schema_changes, commit(pipeline_with_schema_changes), NOW)
        == {}
    )  # type: ignore[operator]


@pytest.mark.parametrize(
    ("now", "new"),
    [
        ([["k string", "c bigint"], ["x int"]], [["c bigint"], []]),
        ([["c bigint", "k string"], ["x int"]], [["c bigint"], []]),
        ([["k string"], ["x int"]], [[], []]),
        ([["c bigint"], ["x int"]], None),
        ([["k binary", "c bigint"], ["x int"]], None),
    ],
    ids=["one more", "in another order", "the same", "one is gone", "another type"],
)
def test_join_continues_only_if_columns_are_added_to_a_side(now: list[list[str]], new: list[list[str]] | None) -> None:
    assert added_columns.added_side_columns([["k string"], ["x int"]], now) == new
