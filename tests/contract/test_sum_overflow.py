"""Sums that overflow their type, in both stores. The error names the key, and a policy continues with NULL."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.local_pipeline_script import MicroBatch, PipelineRestart, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.core.schema import Field
from slackwater.errors import ValueRangeError
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres import pipeline_lock
from slackwater.state.postgres import store as postgres_store
from slackwater.state.protocol import StateStore
from slackwater.windows.aggregations import bind_aggregation, find_unrestorable_aggregations

Make = Callable[[], StateStore]
SECOND = 1_000_000
BIG, WIDE = 2**62, Decimal("9" * 38)
SCHEMA = {"k": "string", "v": "bigint", "d": "decimal(38,0)"}


@pytest.fixture(params=["files", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    if request.param == "files":
        return lambda: FilesStore(tmp_path, "law")
    monkeypatch.setattr(pipeline_lock, "LOCK_S", 0.2)
    url = request.getfixturevalue("postgres").database(f"overflow_{abs(hash(request.node.name)):x}")
    return lambda: postgres_store.PostgresStore(url, "public", "law")


def total_and_count_aggregations(column: str, policy: str | None = None, agg: str = "sum") -> list[Aggregation]:
    more: dict[str, Any] = {} if policy is None else {"on_overflow": policy}
    return [Aggregation(agg=agg, column=column, as_="total", **more), Aggregation(agg="count", as_="n")]


def totals_window(kind: str, aggregations: list[Aggregation]) -> Window:
    shape: dict[str, Any] = {
        "session": {"gap_ms": 1000, "max_session_duration_ms": 100_000},
        "tumbling": {"duration_ms": 10_000, "max_groups_per_window": 100},
        "hopping": {"duration_ms": 10_000, "hop_ms": 5_000, "max_groups_per_window": 100},
    }[kind]
    return Window(kind=kind, group_by=["k"], aggregations=aggregations, **shape)


def event_rows(*entries: tuple[int, str, Any], column: str = "v") -> MicroBatch:
    number_type = Decimal if column == "d" else int
    return MicroBatch(
        {"a": [{"ts": ts * SECOND, "k": k, column: None if v is None else number_type(v)} for ts, k, v in entries]}
    )


def list_sorted_totals(result: Any) -> list[tuple[str, Any, int]]:
    return sorted((r["k"], r["total"], r["n"]) for r in result.rows)


@pytest.mark.parametrize("kind", ["session", "tumbling"])
@pytest.mark.parametrize(("column", "large", "type_"), [("v", BIG, "BIGINT"), ("d", WIDE, r"DECIMAL\(38,0\)")])
def test_overflowing_sum_fails_before_the_commit_and_null_policy_continues(
    store_factory: Make, kind: str, column: str, large: Any, type_: str
) -> None:
    first, second = (
        event_rows((0, "x", large), (0, "y", 5), column=column),
        event_rows((1, "x", large), (1, "y", 6), column=column),
    )
    message = rf'^law: aggregation "total": the sum of "{column}" does not fit {type_} for k=\'x\'; set on_overflow = "null" in'
    failing = totals_window(kind, total_and_count_aggregations(column))
    with pytest.raises(ValueRangeError, match=message):
        run_local_script(failing, [first, second], SCHEMA, store=store_factory)
    store = store_factory()
    latest = store.open()
    store.close()
    assert (
        latest is not None and latest.epoch == 0 and latest.stages[0].counters["rows_used"] == 2
    )  # the second epoch is absent

    with pytest.raises(ValueRangeError, match=message):  # a restart replays the epoch
        run_local_script(failing, [second], SCHEMA, store=store_factory)
    going = run_local_script(
        totals_window(kind, total_and_count_aggregations(column, "null")), [second], SCHEMA, store=store_factory
    )
    assert list_sorted_totals(going) == [("x", None, 2), ("y", 11, 2)]
    assert going.counters.rows_used == 4
    assert going.counters.overflows == 1


def test_overflow_on_emit_names_the_key_and_null_policy_continues(store_factory: Make) -> None:
    """Each pane fits, but the window over two panes does not."""
    script = [event_rows((6, "x", BIG)), event_rows((11, "x", BIG))]
    with pytest.raises(
        ValueRangeError, match=r'^law: aggregation "total": the sum of "v" does not fit BIGINT for k=\'x\''
    ):
        run_local_script(
            totals_window("hopping", total_and_count_aggregations("v")), script, SCHEMA, store=store_factory
        )
    going = run_local_script(
        totals_window("hopping", total_and_count_aggregations("v", "null")), [], SCHEMA, store=store_factory
    )
    assert [(r["total"], r["n"]) for r in sorted(going.rows, key=lambda r: r["window_start"])] == [
        (None, 2),
        (BIG, 1),
    ]  # the failed run emitted the first window


def test_overflowed_integer_sum_recovers_with_later_rows_in_any_batching(store_factory: Make) -> None:
    entries = [(0, "x", BIG), (1, "x", BIG), (2, "x", -BIG), (2, "y", -(2**63)), (3, "y", -1)]
    kind, expected = (
        totals_window("tumbling", total_and_count_aggregations("v", "null")),
        [("x", BIG, 3), ("y", None, 2)],
    )
    assert list_sorted_totals(run_local_script(kind, [event_rows(*entries)], SCHEMA)) == expected
    assert (
        list_sorted_totals(run_local_script(kind, [event_rows(r) for r in entries], SCHEMA, store=store_factory))
        == expected
    )
    assert list_sorted_totals(
        run_local_script(
            totals_window("tumbling", total_and_count_aggregations("v")), [event_rows(*entries[:3])], SCHEMA
        )
    ) == [("x", BIG, 3)]


def test_overflow_policy_can_change_in_both_directions(store_factory: Make) -> None:
    """The change needs no rebuild. Back under the default policy, the error names the key."""
    kind, script = (
        totals_window("session", total_and_count_aggregations("v", "null")),
        [event_rows((0, "x", BIG)), event_rows((1, "x", BIG))],
    )
    back = [
        *script,
        PipelineRestart(step=totals_window("session", total_and_count_aggregations("v"))),
        event_rows((50, "z", 1)),
    ]
    with pytest.raises(ValueRangeError, match="for k='x'"):
        run_local_script(kind, back, SCHEMA, store=store_factory)
    again = run_local_script(kind, [event_rows((50, "z", 1))], SCHEMA, store=store_factory)
    assert list_sorted_totals(again) == [("x", None, 2), ("z", 1, 1)]


def test_null_results_after_overflow_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "slackwater"):
        result = run_local_script(
            totals_window("tumbling", total_and_count_aggregations("v", "null")),
            [
                event_rows((0, "x", BIG), (1, "x", BIG), (0, "y", -BIG), (0, "y", -BIG), (0, "y", -1)),
                event_rows((30, "z", 1)),
            ],
            SCHEMA,
        )
    (line,) = [r.getMessage() for r in caplog.records if "on_overflow" in r.getMessage()]
    assert line.startswith("law: epoch 1: 2 results do not fit the type of the column; NULL is emitted instead")
    assert '"total" of k=' in line
    assert result.counters.overflows == 2


@pytest.mark.parametrize("agg", ["sum", "avg"])
def test_decimal_results_beyond_38_digits_become_null(agg: str) -> None:
    """The values exceed 38 digits and 128 bits. An average has four digits after the decimal point."""
    numbers = {
        "x": [WIDE, WIDE],
        "y": [WIDE, WIDE.copy_negate()],
        "z": [WIDE.copy_negate()] * 7,
        "u": [10**33, 10**33],
        "n": [None, None],
    }
    script = [event_rows(*((0, k, v) for k, vs in numbers.items() for v in vs), column="d")]
    results = {
        k: v
        for k, v, _ in list_totals_in_output_order(
            run_local_script(totals_window("tumbling", total_and_count_aggregations("d", "null", agg)), script, SCHEMA)
        )
    }
    whole = {"x": None, "y": 0, "z": None, "u": 2 * 10**33 if agg == "sum" else 10**33, "n": None}
    assert results == whole
    one_by_one = [event_rows((0, k, v), column="d") for k, vs in numbers.items() for v in vs]
    again = run_local_script(
        totals_window("tumbling", total_and_count_aggregations("d", "null", agg)), one_by_one, SCHEMA
    )
    assert {k: v for k, v, _ in list_totals_in_output_order(again)} == whole


def list_totals_in_output_order(result: Any) -> list[tuple[str, Any, int]]:
    return [(r["k"], r["total"], r["n"]) for r in result.rows]


def test_average_with_too_many_digits_raises_value_range_error() -> None:
    """DECIMAL(38, 4) has 34 digits before the decimal point."""
    script = [event_rows((0, "x", WIDE), column="d")]
    with pytest.raises(ValueRangeError, match=r"the average of \"d\" does not fit DECIMAL\(38,4\) for k='x'"):
        run_local_script(totals_window("tumbling", total_and_count_aggregations("d", agg="avg")), script, SCHEMA)


def test_lower_half_of_a_sum_carries_into_the_upper_half() -> None:
    """Without a carry the lower halves would silently overflow 64 bits after 2^31 rows."""
    agg = bind_aggregation(Aggregation(agg="sum", column="v", as_="t", on_overflow="null"), Field("v", "bigint"))
    huge = 2**62
    parts = pl.DataFrame({"g": [0, 0], "t.n": [2**31, 2**31], "t.hi": [-(2**31)] * 2, "t.lo": [huge, huge - 2**32]})
    merged = agg.to_stored_form(parts.group_by("g").agg(agg.merge()))
    again = agg.to_stored_form(pl.concat([merged, merged]).group_by("g").agg(agg.merge()))
    assert merged["t.lo"][0] < 2**32
    assert again["t.hi"][0] * 2**32 + again["t.lo"][0] == 2 * (-(2**32) * 2**32 + 2 * huge - 2**32)


def test_sum_with_null_policy_cannot_be_restored_from_the_target() -> None:
    field = Field("v", "bigint")
    aggregations = [bind_aggregation(a, field if a.column else None) for a in total_and_count_aggregations("v")]
    assert find_unrestorable_aggregations(aggregations) == []
    assert find_unrestorable_aggregations(
        [bind_aggregation(a, field if a.column else None) for a in total_and_count_aggregations("v", "null")]
    ) == ['"total" (sum)']
