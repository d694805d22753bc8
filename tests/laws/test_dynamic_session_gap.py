"""Sessions with a gap per row: a row covers [ts, ts + gap], and rows that touch share a session."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.laws.generators import window_revision_runs
from tests.laws.generators.window_revision_runs import GAP, MS
from tests.laws.oracles.naive_oracle import hashable_value
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import LocalResult, MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.errors import BadRowError

CAP = 30
SCHEMA = {"u": "string", "id": "bigint", "g": "bigint"}


def session_window_with_gap_column(**settings: Any) -> Window:
    return Window(
        kind="session",
        gap_ms="g",
        group_by=["u"],
        aggregations=[Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="id", as_="ids")],
        **{"max_session_duration_ms": CAP, **settings},
    )


def compute_sessions(rows: Sequence[dict[str, Any]], cap_us: int) -> list[tuple[Any, ...]]:
    """Return (user, start, end, ids). In time order, a row joins a session within its range and below the cap."""
    sessions = []
    for user in {r["u"] for r in rows}:
        held: list[dict[str, Any]] = []
        for row in sorted((r for r in rows if r["u"] == user), key=lambda r: r["ts"]):
            reach = max((r["ts"] + r["g"] * MS for r in held), default=None)
            if reach is not None and (row["ts"] > reach or row["ts"] - held[0]["ts"] >= cap_us):
                end = min(reach, held[0]["ts"] + cap_us) if row["ts"] <= reach else reach
                sessions.append((user, held[0]["ts"], end, sum(r["id"] for r in held)))
                held = []
            held.append(row)
        sessions.append((user, held[0]["ts"], max(r["ts"] + r["g"] * MS for r in held), sum(r["id"] for r in held)))
    return sorted(sessions, key=repr)


def read_sessions(result: LocalResult) -> list[tuple[Any, ...]]:
    return sorted(((r["u"], r["window_start"], r["window_end"], r["ids"]) for r in result.rows), key=repr)


def draw_rows_with_gaps(rng: random.Random, gaps: Sequence[int | None]) -> list[dict[str, Any]]:
    now_ms, rows = rng.randint(-50, 20), list[dict[str, Any]]()
    for n in range(rng.randint(1, 25)):
        now_ms += rng.choice([0, 1, 2, 4, 5, 6, 10, 25])
        rows.append({"ts": now_ms * MS, "u": rng.choice(["a", "a", None]), "id": 1 << n, "g": rng.choice(gaps)})
    return rows


def split_into_epochs(rng: random.Random, rows: list[dict[str, Any]]) -> list[MicroBatch]:
    edges = sorted(rng.sample(range(len(rows) + 1), min(len(rows), rng.randint(0, 5))))
    parts = [rows[a:b] for a, b in zip([0, *edges], [*edges, len(rows)], strict=True) if b > a]
    return [MicroBatch({"a": part}) for part in parts]


@pytest.mark.semantics("a-gap-from-sql")
@pytest.mark.parametrize("seed", select_cases(range(40), keep=10))
def test_sessions_with_sql_gaps_match_a_simple_loop(seed: int) -> None:
    """With a SQL gap, rows share a session if and only if their ranges touch, regardless of batches and shards."""
    rng = random.Random(seed)
    rows = draw_rows_with_gaps(rng, [1, 2, 5, 12, 29])
    lateness = rng.choice([0, 20])
    jitter = {r["id"]: rng.uniform(0, lateness * MS) for r in rows}
    came = sorted(rows, key=lambda r: r["ts"] + jitter[r["id"]])
    result = run_local_script(
        session_window_with_gap_column(lateness_ms=lateness),
        split_into_epochs(rng, came),
        SCHEMA,
        shards=rng.choice([1, 3]),
    )
    assert result.counters.rows_late == 0
    assert read_sessions(result) == compute_sessions(rows, CAP * MS)


@pytest.mark.parametrize("seed", select_cases(range(40, 60), keep=5))
def test_equal_gaps_in_all_rows_match_the_gap_in_the_config(seed: int) -> None:
    """Late rows, revisions and cuts are equal to those of a run with this gap in the config."""
    run = window_revision_runs.plan_revision_run(seed, cap_binds=seed % 2 == 0)
    settings = run.window.model_dump(
        include={"late_data", "allowed_lateness_ms", "emit", "emit_metadata", "lateness_ms"}
    )
    cap = draw_maximum_session_duration(seed)
    script = [
        MicroBatch({"a": [{"ts": r["ts"], "u": r["u"], "id": r["id"], "g": GAP} for r in rows]})
        for rows in run.epoch_rows
    ]
    brought = run_local_script(
        session_window_with_gap_column(max_session_duration_ms=cap, **settings), script, SCHEMA, upserts=False
    )
    fixed = session_window_with_gap_column(max_session_duration_ms=cap, **settings).model_copy(update={"gap_ms": GAP})
    fixed_result = run_local_script(fixed, script, SCHEMA, upserts=False)
    assert [{k: hashable_value(v) for k, v in r.items()} for r in brought.rows] == [
        {k: hashable_value(v) for k, v in r.items()} for r in fixed_result.rows
    ]
    assert brought.counters == fixed_result.counters


def draw_maximum_session_duration(seed: int) -> int:
    return random.Random(seed).choice([11, 16, 24, 100_000])


@pytest.mark.semantics("a-gap-from-sql")
def test_row_without_a_valid_gap_is_bad() -> None:
    """A row is bad unless its gap is positive and less than the cap."""
    rows = [{"ts": n * 100 * MS, "u": "a", "id": 1 << n, "g": g} for n, g in enumerate([None, 0, -1, CAP, CAP - 1])]
    result = run_local_script(session_window_with_gap_column(), [MicroBatch({"a": rows})], SCHEMA)
    assert [r["ids"] for r in result.rows] == [16]
    assert (result.counters.rows_bad, result.counters.rows_sql, result.counters.rows_used) == (4, 1, 1)


def test_epoch_with_only_bad_rows_emits_nothing() -> None:
    result = run_local_script(
        session_window_with_gap_column(), [MicroBatch({"a": [{"ts": 0, "u": "a", "id": 1, "g": None}]})], SCHEMA
    )
    assert (result.rows, result.counters.rows_bad) == ([], 1)


def test_bad_gap_fails_the_epoch_if_on_error_is_fail() -> None:
    rows = [{"ts": 0, "u": "a", "id": 1, "g": None}]
    with pytest.raises(
        BadRowError, match=r"epoch 0: 1 bad row whose gap \(g\) is not both positive and less than .* u=a at 1970"
    ):
        run_local_script(session_window_with_gap_column(), [MicroBatch({"a": rows})], SCHEMA, on_error="fail")


def test_row_with_a_small_gap_is_late_next_to_one_with_a_large_gap() -> None:
    """Two rows have equal times. The row with the smaller gap is late, and the other one is not.

    b   ─────────────────●       watermark 100
    a         ●──┤ 80 to 85      late
    a         ●────────────┤ 80 to 105, not late
    """
    rows: list[list[dict[str, Any]]] = [[{"ts": 100 * MS, "u": "b", "id": 1, "g": 20}]]
    rows.append([{"ts": 80 * MS, "u": "a", "id": 2, "g": 5}, {"ts": 80 * MS, "u": "a", "id": 4, "g": 25}])
    result = run_local_script(session_window_with_gap_column(), [MicroBatch({"a": r}) for r in rows], SCHEMA)
    assert [(r["u"], r["ids"]) for r in result.rows if r["u"] == "a"] == [("a", 4)]
    assert result.counters.late == {"lateness": 1}
