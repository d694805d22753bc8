"""Seeded chains of three windows with crashes and resharding, against the batch result of each window in turn.

rows ─▶ window ─▶ results, at the last instant of each window ─▶ window ─▶ … ─▶ target
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.laws.oracles import window_oracle

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.local_pipeline import LocalPipeline

MS = 1000
SHAPES: dict[str, dict[str, Any]] = {
    "tumbling": {"duration_ms": 20, "max_groups_per_window": 1000},
    "hopping": {"duration_ms": 40, "hop_ms": 20, "max_groups_per_window": 1000},
    "session": {"gap_ms": 15, "max_session_duration_ms": 120},
}


def draw_window(rng: random.Random, keys: list[str], column: str, last: bool) -> sw.Window:
    kind = rng.choice(list(SHAPES))
    emit = rng.choice(["on_close", "final", "updates"] if last else ["on_close", "final"])
    late = {"late_data": "reopen", "allowed_lateness_ms": 30} if emit == "final" and rng.random() < 0.5 else {}
    return sw.Window(
        kind=kind,
        group_by=keys or (["k"] if kind == "session" else []),
        aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column=column, as_="total")],
        emit=emit,
        lateness_ms=0 if keys != ["k", "p"] else 1000,
        **SHAPES[kind],
        **late,
    )


def draw_window_chain(rng: random.Random) -> sw.Pipeline:
    windows = [
        draw_window(rng, ["k", "p"], "v", False),
        draw_window(rng, ["k"], "total", False),
        draw_window(rng, [], "total", True),
    ]
    lake = sw.Target(connection="tables", path="out", mode="merge")
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="rows", dataframe=object())],
        connections={"tables": sw.DeltaConnection()},
        stages=[sw.Stage(name=f"w{n}", window=w) for n, w in enumerate(windows)],
        target=lake,
        state_store=sw.StateStore(kind="files", path="state"),
    )


def compute_batch_result(spec: sw.Pipeline, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for stage in spec.stages:
        assert stage.window is not None
        instant = 0 if stage.window.kind == "session" else 1
        rows = [
            {**r, "ts": r["window_end"] - instant}
            for r in window_oracle.compute_windows_over_all_rows(stage.window, rows)
        ]
    return rows


def comparable_rows(rows: Any) -> list[str]:
    return sorted(repr((r["window_start"], r["window_end"], r["n"], r["total"])) for r in rows)


def check_window_chain_run(seed: int, store: Callable[[], Any] | None = None) -> None:
    rng = random.Random(seed)
    spec, now_ms, every = draw_window_chain(rng), 0, list[dict[str, Any]]()
    schema = {"k": "string", "p": "string", "v": "bigint"}
    with LocalPipeline(spec, schema, shards=rng.choice([1, 2, 3]), store=store, capture_losses=False) as test:
        for _ in range(rng.randrange(2, 9)):
            rows = []
            for _ in range(rng.randrange(0, 9)):
                now_ms += rng.choice([0, 3, 11, 40, 200])
                ts = (now_ms - rng.choice([0, 0, 5, 30])) * MS
                rows.append({"k": rng.choice("ab"), "p": rng.choice("xyz"), "v": rng.randrange(9), "ts": ts})
            if rng.random() < 0.4:
                test.crash(rng.choice(KILL_POINTS), shards=rng.choice([None, 2, 3]))
            test.pipe({"rows": rows})
            every += rows
            if rng.random() < 0.2:
                test.restart(shards=rng.choice([1, 2, 4]))
            if rng.random() < 0.2:
                test.quiet(500)
        test.flush()
        run_result = test.result()
        state = test._driver.state
    assert comparable_rows(run_result.table.with_columns(run_result.table[c].dt.timestamp("us") for c in ("window_start", "window_end")).iter_rows(named=True)) == comparable_rows(compute_batch_result(spec, every))  # fmt: skip
    assert run_result.counters.rows_in == len(every)
    for stage in state.stages[1:]:
        assert stage.counters.get("late", {}) == {}, "what a stage emits is never late for the next"
