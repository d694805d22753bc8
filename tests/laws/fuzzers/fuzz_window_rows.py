"""Fuzz hostile row values: every row is counted as used, late, bad or refused, and sums are exact."""

from __future__ import annotations

import random
from typing import Any

from tests.laws.fuzzers import hostile_texts as words
from tests.support.local_pipeline_script import DriverCrash, MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.errors import SlackwaterError

TIMES = (
    0,
    1,
    -1,
    -(10**15),
    10**15,
    4 * 10**15,
    -62135596800_000_000,
    -62135596800_000_000 + 5_000_000,
    -62135596800_000_000 + 10_000_000,
    253402300799_999_999,
    2**63 - 1,
    -(2**63),
    2**62,
)
LENGTH_US = 10_000_000
FLOATS = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, None)
SCHEMA = {"k": "string", "v": "bigint", "x": "double"}


def draw_row(rng: random.Random) -> dict[str, Any]:
    usual = rng.random() < 0.7
    return {
        "ts": rng.randrange(100) * 1_000_000 if usual else rng.choice(TIMES),
        "k": rng.choice([None, words.draw_text(rng)[:200], "a", "b"]),
        "v": rng.choice([0, 1, -1, 2**31, None, 2**62, -(2**63), 2**63 - 1])
        if rng.random() < 0.2
        else rng.randrange(9),
        "x": rng.choice(FLOATS),
    }


def check_case(rng: random.Random) -> str:
    rows = [draw_row(rng) for _ in range(rng.randint(1, 25))]
    cut = rng.randint(0, len(rows))
    script = [MicroBatch({"a": part}) for part in (rows[:cut], rows[cut:]) if part]
    shape = rng.choice(
        [
            {"kind": "tumbling", "duration_ms": LENGTH_US // 1000},
            {"kind": "hopping", "duration_ms": 10_000, "hop_ms": 5000},
            {"kind": "session", "gap_ms": 5000, "max_session_duration_ms": 20_000},
        ]
    )
    aggregations = [
        Aggregation(agg="count", as_="n"),
        Aggregation(agg=rng.choice(["sum", "min", "max", "avg"]), column="v", as_="v"),
        Aggregation(agg=rng.choice(["sum", "min", "max", "avg", "stddev"]), column="x", as_="x"),
    ]
    late = rng.choice([{}, {"lateness_ms": 10**12}, {"late_data": "reopen", "allowed_lateness_ms": 50_000}])
    window = Window(group_by=["k"], aggregations=aggregations, max_groups_per_window=1000, **shape, **late)
    written: list[dict[str, Any]] = []  # as Python values, whose years are limited to 1 to 9999
    try:
        result = run_local_script(window, script, SCHEMA, on_publish=lambda frame: written.extend(frame.to_dicts()))
        again = (
            run_local_script(window, [*script[:1], DriverCrash("commit.before"), *script[1:]], SCHEMA)
            if rng.random() < 0.3
            else result
        )
    except SlackwaterError as error:
        words.assert_slackwater_error(error)
        return "refused"
    c = result.counters
    assert c.rows_in == len(rows), f"{c.rows_in} rows in, {len(rows)} given"
    assert c.rows_sql == c.rows_used + c.rows_late + c.rows_refused, f"rows vanish: {c}"
    assert c.rows_in == c.rows_sql + c.rows_bad, f"rows vanish: {c}"
    assert len(written) == len(result.rows), "rows cannot be read"
    if window.kind == "tumbling" and not c.rows_late:
        _check_integer_aggregates(rows, result.rows, aggregations[1].agg)
    if window.kind != "hopping" and window.late_data == "drop":
        assert sum(int(r["n"]) for r in result.rows) == c.rows_used, "windows do not hold what was used"
    assert _comparable_rows(result.rows) == _comparable_rows(again.rows), "another answer after a crash"
    return "answered"


def _check_integer_aggregates(rows: list[dict[str, Any]], output_rows: list[dict[str, Any]], agg: str) -> None:
    """Compare the integer aggregates of each window with a loop over the rows."""
    values_by_window: dict[tuple[object, int], list[int]] = {}
    for row in rows:
        values_by_window.setdefault((row["k"], row["ts"] // LENGTH_US * LENGTH_US), []).extend(
            [] if row["v"] is None else [row["v"]]
        )
    emitted_values = {(r["k"], r["window_start"]): r["v"] for r in output_rows if r.get("_emit_reason") != "supersede"}
    for window, value in emitted_values.items():
        values = values_by_window[window]
        whole = {"sum": sum, "min": min, "max": max}.get(agg)
        if not values or whole is None:
            assert (value is None) == (not values), f"{window}: {value} of {values}"
        else:
            assert value == whole(values), f"{window}: {agg} {value} of {values}"


def _comparable_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str({k: v for k, v in r.items() if not k.startswith("_")}) for r in rows)
