"""Compare a random window over the results of a join with the same two steps in plain loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.laws.generators import join_runs
from tests.laws.generators.join_runs import MS, SCHEMA, JoinOracle, plan_run
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import LocalResult, MicroBatch, QuietInterval, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.state.protocol import StateStore

AGGREGATIONS = (("n", "count", None), ("last", "max", "left_id"), ("ids", "sum", "right_id"))


def draw_window(rng: random.Random) -> tuple[Window, naive_oracle.WindowSpec]:
    kind = rng.choice(["tumbling", "hopping", "session"])
    shape: dict[str, Any] = {
        "session": {"gap_ms": 15, "max_session_duration_ms": 100_000},
        "tumbling": {"duration_ms": 20, "max_groups_per_window": 1000},
        "hopping": {"duration_ms": 20, "hop_ms": 10, "max_groups_per_window": 1000},
    }[kind]
    emit = rng.choice(["on_close", "on_close", "updates"])
    window_spec = Window(
        kind=kind,
        group_by=["left_k"],
        aggregations=[Aggregation(agg=a, column=c, as_=name) for name, a, c in AGGREGATIONS],
        emit=emit,
        **shape,
    )
    spec = naive_oracle.WindowSpec(
        kind,
        ["left_k"],
        AGGREGATIONS,
        duration_us=shape.get("duration_ms", 0) * MS,
        hop_us=shape.get("hop_ms", shape.get("duration_ms", 0)) * MS,
        gap_us=shape.get("gap_ms", 0) * MS,
        cap_us=shape.get("max_session_duration_ms", 0) * MS,
    )
    return window_spec, spec


def comparable_row(row: Any) -> str:
    return repr(sorted((k, v) for k, v in row.items() if not k.startswith("_") and k != "session_id"))


def check_join_then_window_run(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    run = plan_run(seed)
    late = {"late_data": "drop", "allowed_lateness_ms": None} if run.join.late_data == "reopen" else {}
    join = run.join.model_copy(update=late)
    after, spec = draw_window(random.Random(seed))
    result = run_local_script(
        join,
        run.script,
        SCHEMA,
        sources=("a", "b"),
        shards=run.shards,
        reshard_after=run.reshard_after,
        store=store,
        downstream=after,
    )
    judge = JoinOracle(join, 0)
    for item in run.script:
        if isinstance(item, MicroBatch):
            judge.process_epoch(item.rows)
        elif isinstance(item, QuietInterval):
            judge.clock.pass_quiet_time(item.ms * MS)
    expected_rows = naive_oracle.compute_windows_over_all_rows(spec, judge.compute_output_rows())
    table: dict[Any, Any] = {}
    for row in sorted([*result.rows, *({**g, "n": None} for g in result.gone)], key=lambda r: r["_epoch"]):
        name = (row["window_start"], row["left_k"])
        if row["n"] is None:
            del table[name]
        else:
            table[name] = row
    assert sorted(map(comparable_row, table.values())) == sorted(map(comparable_row, expected_rows))
    total = sum(len(rows) for item in run.script if isinstance(item, MicroBatch) for rows in item.rows.values())
    assert result.counters.rows_in == total
    assert result.counters.rows_late == len(judge.late), "the join's own; none is late for the window"
    return result


def join_spec(**settings: Any) -> Any:
    return join_runs.Join(
        left_source="a", right_source="b", left_keys=["k"], right_keys=["k"], source_idleness_ms=1000, **settings
    )


def join_input(left_rows: list[tuple[str, int]], right_rows: list[tuple[str, int]]) -> MicroBatch:
    return MicroBatch(
        {
            s: [{"k": k, "ts": t * MS, "id": 1, "f": 0.0} for k, t in some]
            for s, some in (("a", left_rows), ("b", right_rows))
        }
    )
