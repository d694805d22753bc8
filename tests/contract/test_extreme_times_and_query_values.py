"""Extreme times: rows outside the years 1 to 9999, and user input for times, limits, epochs and keys."""

from __future__ import annotations

import datetime as dt
import decimal
import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script

import slackwater as sw
from slackwater.core.time import EARLIEST_US, LATEST_US
from slackwater.errors import BadRowError, StartError

S = 1_000_000
NO_LIMIT = 2**63 - 1
COUNT = [sw.Aggregation(agg="count", as_="n")]
SHAPES: dict[str, dict[str, Any]] = {
    "session": {"gap_ms": 1000, "max_session_duration_ms": 100_000},
    "tumbling": {"duration_ms": 1000, "max_groups_per_window": 100},
    "hopping": {"duration_ms": 1000, "hop_ms": 400, "max_groups_per_window": 100},
}


def count_window(kind: str, **more: Any) -> sw.Window:
    return sw.Window(kind=kind, group_by=["k"], aggregations=COUNT, **SHAPES[kind], **more)


def rows_at_times(*times: int | None) -> MicroBatch:
    return MicroBatch({"a": [{"ts": t, "k": "u"} for t in times]})


@pytest.mark.parametrize("late", ["drop", "dlq", "reopen", "standalone"])
@pytest.mark.parametrize("kind", SHAPES)
def test_rows_outside_the_years_1_to_9999_are_bad(kind: str, late: str, caplog: pytest.LogCaptureFixture) -> None:
    """Out-of-range rows are bad in the first epoch and behind the watermark, up to the limits of 64 bits."""
    ends = (-(2**63), -(2**63) + 1, EARLIEST_US - 1, LATEST_US + 1, 2**63 - 1)
    more = {"emit_metadata": True} if late == "standalone" else {}
    with caplog.at_level(logging.WARNING, "slackwater"):
        result = run_local_script(
            count_window(kind, late_data=late, max_future_ms=10**13, **more),
            [rows_at_times(*ends, 5 * S), rows_at_times(90 * S), rows_at_times(*ends, EARLIEST_US + S)],
            {"k": "string"},
            upserts=late != "standalone",
        )
    assert result.counters.rows_bad == 10
    assert result.counters.rows_in == 13
    assert result.counters.rows_used + result.counters.rows_late == 3
    warnings = [r.getMessage() for r in caplog.records if "bad rows" in r.getMessage()]
    assert "5 with an event time outside of the years 1 to 9999" in warnings[0]


@pytest.mark.semantics("bad-rows")
@pytest.mark.parametrize("kind", SHAPES)
def test_row_is_bad_when_its_window_extends_beyond_the_years_1_to_9999(kind: str) -> None:
    """A row is bad if its windows would reach beyond the years 1 to 9999, because targets cannot store such times."""
    published: list[dict[str, Any]] = []
    script = [
        rows_at_times(
            EARLIEST_US, EARLIEST_US + S // 2, EARLIEST_US + S - 1, EARLIEST_US + S, LATEST_US - 102 * S, LATEST_US
        )
    ]
    window_spec = count_window(kind, max_future_ms=3 * 10**14)
    result = run_local_script(
        window_spec, script, {"k": "string"}, on_publish=lambda rows: published.extend(rows.to_dicts()), flush=True
    )
    assert result.counters.rows_bad == (1 if kind == "session" else 4)
    assert result.counters.rows_used == 6 - result.counters.rows_bad
    assert published


def test_pipeline_that_fails_on_bad_rows_reports_the_reason() -> None:
    with pytest.raises(BadRowError, match="1 with an event time outside of the years 1 to 9999"):
        run_local_script(count_window("session"), [rows_at_times(-(2**62))], {"k": "string"}, on_error="fail")


@pytest.fixture
def state_view(tmp_path: Path) -> Any:
    script = [rows_at_times(0), rows_at_times(10 * S), rows_at_times(20 * S + 5)]
    session = count_window("session", lateness_ms="1h")
    run_local_script(session, script, {"k": "string"}, flush=False, state_dir=str(tmp_path))
    return sw.open_state(tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "count"),
    [
        (0, NO_LIMIT, 3),
        (-(2**63), NO_LIMIT, 3),
        (-(10**30), 10**30, 3),
        (NO_LIMIT, None, 0),
        (None, -NO_LIMIT, 0),
        (np.int64(10 * S), np.int64(NO_LIMIT), 2),
        (dt.datetime.min, dt.datetime.max, 3),
        (dt.datetime(1970, 1, 1, 5, 0, 10, tzinfo=dt.timezone(dt.timedelta(hours=5))), "9999-12-31T23:59:59.999999", 2),
        (None, dt.datetime(1970, 1, 1, 0, 0, 20, 4), 2),
        (20 * S + 5, 20 * S + 5, 1),
        (20 * S + 6, None, 0),
    ],
)
def test_find_sessions_accepts_times_of_every_supported_type(state_view: Any, low: Any, high: Any, count: int) -> None:
    assert state_view.find_sessions("u", low, high).height == count


@pytest.mark.parametrize(
    "value", [True, False, 1.0, float("inf"), dt.date(2024, 1, 1), b"x", [], decimal.Decimal(1), "10:15"]
)
def test_find_sessions_rejects_values_that_are_not_times(state_view: Any, value: Any) -> None:
    for bounds, name in (((value,), "earliest_end"), ((None, value), "latest_start")):
        with pytest.raises(StartError, match=f"^{name}: found ") as raised:
            state_view.find_sessions("u", *bounds)
        assert len(str(raised.value).splitlines()) == 1


def test_invalid_limits_epochs_and_conditions_are_rejected(state_view: Any) -> None:
    assert state_view.scan(limit=0).height == 0
    assert state_view.scan(limit=np.int64(2)).height == 2
    assert state_view.scan(limit=10**30).height == 3
    for limit in (-1, -(10**30), True, 1.0, "1"):
        with pytest.raises(StartError, match=r"^limit: found .*, expected a whole number of at least 0"):
            state_view.scan(limit=limit)
    for epoch in (True, 1.0, "1", None, -5):
        with pytest.raises(StartError, match=r"^epoch: found "):
            state_view.as_of(epoch)
    for where in (5, True, ["n > 1"]):
        with pytest.raises(StartError, match=r"^where: found .*, expected SQL or a Polars expression"):
            state_view.scan(where)


ODD = [
    *(True, 1, 1.5, 2**70, -(2**70), float("nan"), "x", b"x", dt.date(2024, 1, 1), dt.datetime(2024, 1, 1), [1], {}, object()),
    *map(decimal.Decimal, ("1.5", "1e30", "NaN", "Infinity", "1e999999")),
]  # fmt: skip


@pytest.mark.parametrize(
    "type_", ["boolean", "int", "bigint", "double", "string", "binary", "date", "timestamp", "decimal(10,2)"]
)
def test_fetch_accepts_a_key_value_or_rejects_it_with_a_one_line_error(type_: str, tmp_path: Path) -> None:
    """Polars itself converts True to 1 and 1 to a date, rounds decimals, and panics at non-finite decimals."""
    run_local_script(
        count_window("session"),
        [MicroBatch({"a": [{"ts": 0, "k": None}]})],
        {"k": type_},
        flush=False,
        state_dir=str(tmp_path),
    )
    opened = sw.open_state(tmp_path)
    fits = 0
    for value in ODD:
        try:
            assert isinstance(opened.fetch({"k": value}), pl.DataFrame)
        except StartError as error:
            assert len(str(error).splitlines()) == 1
            continue
        fits += 1
        assert type_ == "boolean" or value is not True
    assert 1 <= fits <= 10
