"""Migrations of stored records, without a store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater.config.spec_base import spec_from_data
from slackwater.config.window import Window
from slackwater.errors import StateError
from slackwater.state import migrations
from slackwater.state.migrations import (
    FORMAT,
    STEPS,
    UNBOUNDED,
    migrate_record,
    migrate_to_2,
    migration_route,
    migration_statements,
)
from slackwater.state.postgres.pipeline_tables import PipelineTables

SESSION = {
    "kind": "session", "duration_ms": None, "hop_ms": None, "offset_ms": 0, "gap_ms": 5, "max_session_duration_ms": 90,
    "keys": ["user string", "my page string"],
    "aggregations": {
        "n": "count *", "m": "count my page string", "total": "sum amount decimal(10,2)",
        "about": "count_distinct page string approximate 12", "exactly": "count_distinct page string exact",
    },
}  # fmt: skip


def stored_commit_record(**fingerprint: Any) -> dict[str, Any]:
    return {"format": 1, "pipeline": "p", "epoch": 3, "fingerprint": SESSION | fingerprint}


def test_every_format_has_a_migration_to_the_next() -> None:
    assert list(STEPS) == list(range(1, FORMAT))
    assert all(step.description for step in STEPS.values())


def test_session_description_is_derived_from_its_fingerprint() -> None:
    migrated = migrate_to_2({**stored_commit_record(), "emission": {"updates": True, "retain_us": 7_000_000}})
    assert migrated["emission"] == {"updates": True, "retain_us": 7_000_000}
    assert migrated["described"] == {
        "window": {
            "kind": "session", "gap_ms": 5, "max_session_duration_ms": 90, "emit": "updates", "late_data": "reopen",
            "allowed_lateness_ms": 7000, "group_by": ["user", "my page"],
            "aggregations": [
                {"agg": "count", "as": "n"},
                {"agg": "count", "column": "my page", "as": "m"},
                {"agg": "sum", "column": "amount", "as": "total"},
                {"agg": "count_distinct", "column": "page", "hll_precision": 12, "as": "about"},
                {"agg": "count_distinct", "column": "page", "mode": "exact", "max_distinct_values_per_group": UNBOUNDED,
                 "as": "exactly"},
            ],
        },
        "columns": {"user": "string", "my page": "string", "amount": "decimal(10,2)", "page": "string"},
        "assumed": ["lateness_ms", "aggregations.exactly.max_distinct_values_per_group"],
    }  # fmt: skip
    assert spec_from_data(Window, migrated["described"]["window"], "state").gap_ms == 5


@pytest.mark.parametrize(("kind", "hop"), [("tumbling", 20), ("hopping", 5)])
def test_tumbling_and_hopping_windows_are_described_without_their_limit(kind: str, hop: int) -> None:
    """The fingerprint of a tumbling window may store its duration as the hop."""
    lengths = {"duration_ms": 20, "hop_ms": hop, "offset_ms": 3, "gap_ms": None, "max_session_duration_ms": None}
    migrated = migrate_to_2(stored_commit_record(kind=kind, **lengths))
    assert migrated["emission"] == {"updates": False, "retain_us": 0}
    assert migrated["described"]["assumed"][-1] == "max_groups_per_window"
    window = spec_from_data(Window, migrated["described"]["window"], "state")
    assert (window.duration_ms, window.offset_ms, window.max_groups_per_window) == (20, 3, UNBOUNDED)
    assert window.hop_ms == (5 if kind == "hopping" else None)


@pytest.mark.parametrize(
    "fingerprint",
    [
        {"kind": "join"},
        {"aggregations": {"q": "approx_quantile x double 200"}},
        {"aggregations": {"x": "Mean(value=price double; total double)"}},
    ],
)
def test_incomplete_fingerprint_gives_no_description(fingerprint: dict[str, Any]) -> None:
    assert migrate_to_2(stored_commit_record(**fingerprint))["described"] == {}


def test_existing_description_is_not_replaced() -> None:
    described = {"window": {"kind": "session"}, "columns": {}}
    assert migrate_to_2({**stored_commit_record(), "described": described})["described"] == described


def test_later_stages_are_migrated_without_changing_the_input() -> None:
    original = {**stored_commit_record(), "then": stored_commit_record(kind="join")}
    before = json.dumps(original)
    migrated = migrate_record(original, 1, "state")
    assert (migrated["format"], [s["fingerprint"]["kind"] for s in migrated["stages"]]) == (FORMAT, ["session", "join"])
    assert migrated["stages"][0]["described"]["window"]["kind"] == "session"
    assert migrated["stages"][1]["described"] == {}
    assert json.dumps(original) == before


def test_two_migrations_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    added = migrations.Migration(
        "adds x", lambda r: {**r, "x": r["described"]["assumed"]}, lambda t: [f"ALTER {t.state}"]
    )
    monkeypatch.setattr(migrations, "STEPS", {1: STEPS[1], 2: added})
    monkeypatch.setattr(migrations, "FORMAT", 3)
    migrated = migrate_record(stored_commit_record(), 1, "state")
    assert (migrated["format"], migrated["x"][0]) == (3, "lateness_ms")
    assert migrate_record({**migrated, "format": 2}, 2, "state")["format"] == 3
    tables = [PipelineTables("public", "p", stage) for stage in (0, 1)]
    assert migration_statements(1, tables) == [
        'ALTER TABLE IF EXISTS "public"."slackwater_state_p" ALTER COLUMN state_version SET DEFAULT 2',
        'ALTER TABLE IF EXISTS "public"."slackwater_state_p#2" ALTER COLUMN state_version SET DEFAULT 2',
        'ALTER "public"."slackwater_state_p"',
        'ALTER "public"."slackwater_state_p#2"',
    ]
    assert migration_statements(3, tables) == []


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            FORMAT + 1,
            f"state of x has format {FORMAT + 1}, but this version reads formats 1 to {FORMAT}; install a newer",
        ),
        (-(10**23), f"state of x has format {-(10**23)}, but this version reads formats 1 to {FORMAT}; this format"),
        (10**23, f"state of x has format {10**23}, but this version reads formats 1 to {FORMAT}; install a newer"),
        (
            0,
            f"state of x has format 0, but this version reads formats 1 to {FORMAT}; this format cannot",
        ),
    ],
)
def test_format_without_a_migration_is_refused(version: int, message: str) -> None:
    with pytest.raises(StateError, match=message):
        migration_route(version, "state of x")


def test_record_that_violates_its_format_is_reported_as_damaged() -> None:
    with pytest.raises(StateError, match=r"^state of x is damaged: .* does not fit format 1 \(KeyError\); restore"):
        migrate_record({"format": 1}, 1, "state of x")
