"""Refuse configs that would write unmarked corrections next to the rows that they correct."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.config.connection import (
    Connection,
    ConsoleConnection,
    DeltaConnection,
    FilesConnection,
    IcebergConnection,
    KafkaConnection,
    PostgresConnection,
)
from slackwater.config.pipeline_checks import check_corrections
from slackwater.config.stage import Transform
from slackwater.config.target import Target as TargetSpec
from slackwater.config.window import Aggregation, Window

COUNT = Aggregation(agg="count", as_="n")
SESSION = Window(kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["user"], aggregations=[COUNT])
TUMBLING = Window(kind="tumbling", duration_ms=10, group_by=["user"], max_groups_per_window=9, aggregations=[COUNT])

CONNECTIONS: dict[str, Connection] = {
    "files": FilesConnection(),
    "console": ConsoleConnection(),
    "delta": DeltaConnection(),
    "iceberg": IcebergConnection(catalog="rest"),
    "kafka": KafkaConnection(bootstrap_servers="b:9092"),
    "postgres": PostgresConnection(url="postgresql://h/d"),
}
HOW = (
    'set emit_metadata = true, use emit = "final", or write to a target that replaces rows (postgres, delta or iceberg with '
    'mode = "merge", or kafka with the default key_columns)'
)


def find_correction_problems(
    kind: str, window: Window = SESSION, target_settings: dict[str, Any] | None = None, **changed: Any
) -> list[Any]:
    """Return the problems of a window with these settings and a target of this kind."""
    window = window.model_copy(update=changed)
    values = {
        "connections": CONNECTIONS,
        "transform": Transform(window=SESSION).model_copy(update={"window": window}),
        "target": TargetSpec(connection=kind, **(target_settings or {})),
    }
    return list(check_corrections(values))


REOPEN = {"late_data": "reopen"}


@pytest.mark.semantics("append-only-targets")
@pytest.mark.parametrize(
    ("kind", "target_settings", "which"),
    [
        ("files", {}, "a files target"),
        ("console", {}, "a console target"),
        ("delta", {"mode": "append"}, 'a delta target with mode = "append"'),
        ("iceberg", {"mode": "append"}, 'an iceberg target with mode = "append"'),
        ("kafka", {"key_columns": ["user"]}, "a kafka target with these key_columns"),
        ("kafka", {"key_columns": []}, "a kafka target with these key_columns"),
        ("kafka", {"key_columns": ["user", "window_start", "n"]}, "a kafka target with these key_columns"),
        ("kafka", {"key_columns": ["session_id"]}, "a kafka target with these key_columns"),
    ],
)
def test_corrections_to_append_only_targets_are_refused(kind: str, target_settings: dict[str, Any], which: str) -> None:
    """Without `emit_metadata`, a config that writes corrected windows to an append-only target is refused."""
    line = f"emits a window more than once, but {which} is append-only, so readers could not recognize outdated rows; {HOW}"
    assert find_correction_problems(kind, target_settings=target_settings, **REOPEN) == [
        ("transform.window.late_data", f'"reopen" {line}')
    ]
    assert find_correction_problems(kind, target_settings=target_settings, emit="updates") == [
        ("transform.window.emit", f'"updates" {line}')
    ]
    assert find_correction_problems(kind, target_settings=target_settings, emit="updates", **REOPEN) == [
        ("transform.window.emit", f'"updates" {line}')
    ]
    assert (
        find_correction_problems(kind, target_settings=target_settings, emit="updates", emit_metadata=True, **REOPEN)
        == []
    )
    assert find_correction_problems(kind, target_settings=target_settings, emit="final", **REOPEN) == []
    assert find_correction_problems(kind, target_settings=target_settings) == []


@pytest.mark.parametrize(
    ("kind", "target_settings"),
    [
        ("postgres", {}),
        ("delta", {}),
        ("delta", {"mode": "merge"}),
        ("iceberg", {}),
        ("kafka", {}),
        ("kafka", {"key_columns": ["window_start", "user"]}),
        ("kafka", {"key_columns": ["user", "session_id"]}),
    ],
)
def test_corrections_to_upserting_targets_are_accepted(kind: str, target_settings: dict[str, Any]) -> None:
    assert find_correction_problems(kind, target_settings=target_settings, emit="updates", **REOPEN) == []


def test_topic_of_tumbling_windows_cannot_be_keyed_by_session_id() -> None:
    keys = {"key_columns": ["user", "session_id"]}
    assert len(find_correction_problems("kafka", TUMBLING, keys, **REOPEN)) == 1
    keys = {"key_columns": ["user", "begin"]}
    assert find_correction_problems("kafka", TUMBLING, keys, window_start_column="begin", **REOPEN) == []


def test_correction_check_ignores_missing_and_invalid_config_sections() -> None:
    window = SESSION.model_copy(update=REOPEN)
    transform = Transform(window=SESSION).model_copy(update={"window": window})
    target = TargetSpec(connection="files")
    assert list(check_corrections({"target": target})) == []
    assert list(check_corrections({"transform": transform})) == []
    unknown = {"transform": transform, "target": TargetSpec(connection="nowhere"), "connections": CONNECTIONS}
    assert list(check_corrections(unknown)) == []
