"""A window over what a join emits: one pipeline, one commit; the answer is the batch window over the batch join."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.laws import joins, naive, seeds
from tests.laws.joins import MS, SCHEMA, Judge, planned

from slackwater.config.window import Aggregation, Window
from slackwater.state.protocol import StateStore
from slackwater.testing.kit import Crash, LocalResult, Quiet, Rows, run_local

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))
AGGREGATIONS = (("n", "count", None), ("last", "max", "left_id"), ("ids", "sum", "right_id"))


def window(rng: random.Random) -> tuple[Window, naive.Spec]:
    kind = rng.choice(["tumbling", "hopping", "session"])
    shape: dict[str, Any] = {
        "session": {"gap_ms": 15, "max_session_duration_ms": 100_000},
        "tumbling": {"duration_ms": 20, "max_groups_per_window": 1000},
        "hopping": {"duration_ms": 20, "hop_ms": 10, "max_groups_per_window": 1000},
    }[kind]
    emit = rng.choice(["on_close", "on_close", "updates"])
    made = Window(
        kind=kind,
        group_by=["left_k"],
        aggregations=[Aggregation(agg=a, column=c, as_=name) for name, a, c in AGGREGATIONS],
        emit=emit,
        **shape,
    )
    spec = naive.Spec(
        kind,
        ["left_k"],
        AGGREGATIONS,
        duration_us=shape.get("duration_ms", 0) * MS,
        hop_us=shape.get("hop_ms", shape.get("duration_ms", 0)) * MS,
        gap_us=shape.get("gap_ms", 0) * MS,
        cap_us=shape.get("max_session_duration_ms", 0) * MS,
    )
    return made, spec


def content(row: Any) -> str:
    return repr(sorted((k, v) for k, v in row.items() if not k.startswith("_") and k != "session_id"))


def check(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    run = planned(seed)
    late = {"late_data": "drop", "allowed_lateness_ms": None} if run.join.late_data == "reopen" else {}
    join = run.join.model_copy(update=late)
    after, spec = window(random.Random(seed))
    result = run_local(
        join,
        run.script,
        SCHEMA,
        sources=("a", "b"),
        shards=run.shards,
        reshard_after=run.reshard_after,
        store=store,
        then=after,
    )
    judge = Judge(join, 0)
    for item in run.script:
        if isinstance(item, Rows):
            judge.epoch(item.rows)
        elif isinstance(item, Quiet):
            judge.clock.quiet(item.ms * MS)
    wanted = naive.answer(spec, judge.rows())
    table: dict[Any, Any] = {}
    for row in sorted([*result.rows, *({**g, "n": None} for g in result.gone)], key=lambda r: r["_epoch"]):
        name = (row["window_start"], row["left_k"])
        if row["n"] is None:
            del table[name]
        else:
            table[name] = row
    assert sorted(map(content, table.values())) == sorted(map(content, wanted))
    total = sum(len(rows) for item in run.script if isinstance(item, Rows) for rows in item.rows.values())
    assert result.counters.rows_in == total
    assert result.counters.rows_late == len(judge.late), "the join's own; none is late for the window"
    return result


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_seeded_runs(first: int) -> None:
    seeds.quiet()
    for seed in range(first, first + 20):
        try:
            check(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {planned(seed).join} then {window(random.Random(seed))[0]}") from error


def join(**settings: Any) -> Any:
    return joins.Join(
        left_source="a", right_source="b", left_keys=["k"], right_keys=["k"], source_idleness_ms=1000, **settings
    )


def rows(left: list[tuple[str, int]], right: list[tuple[str, int]]) -> Rows:
    return Rows(
        {s: [{"k": k, "ts": t * MS, "id": 1, "f": 0.0} for k, t in some] for s, some in (("a", left), ("b", right))}
    )


COUNTED = Window(
    kind="tumbling",
    duration_ms=10,
    group_by=["left_k"],
    max_groups_per_window=100,
    aggregations=[Aggregation(agg="count", as_="n")],
)


def test_the_window_waits_for_outer_rows() -> None:
    """
    left join, 20 either way; windows of 10
    epoch 0   left x @100, right x @100      a pair, in window [100, 110)
              left y @101                     alone, which is known when the watermark is above 121
    epoch 1   watermark 120                   the window's own is 20 behind: 100
    epoch 2   watermark 131                   y comes out; the window's watermark is 111: [100, 110) closes with both
    """
    spec = join(kind="left", time_window_ms=20)
    script = [
        rows([("x", 100), ("y", 101)], [("x", 100)]),
        rows([("z", 120)], [("t", 120)]),
        rows([("z", 131)], [("t", 131)]),
    ]
    result = run_local(spec, script, SCHEMA, sources=("a", "b"), then=COUNTED, flush=False)
    assert [(r["_epoch"], r["left_k"], r["window_start"] // MS, r["n"]) for r in result.rows] == [
        (2, "x", 100, 1),
        (2, "y", 100, 1),
    ]


@pytest.mark.parametrize(
    "step", ["ingest.after", "emit.after", "commit.before", "commit.after", "write.before", "note.before"]
)
def test_one_commit_for_both(step: str) -> None:
    """Whatever step a runner dies at, rows are in both stages' state or in neither."""
    spec = join(kind="inner", time_window_ms=20)
    script = [rows([("x", 100 + n)], [("x", 100 + n)]) for n in range(0, 60, 5)]
    calm = run_local(spec, script, SCHEMA, sources=("a", "b"), then=COUNTED)
    torn: list[Any] = [item for epoch in script for item in (Crash(step), epoch)]
    died = run_local(spec, torn, SCHEMA, sources=("a", "b"), then=COUNTED)
    assert died.rows == calm.rows
    assert sum(r["n"] for r in calm.rows) == 12 * 9 - 2 * (4 + 3 + 2 + 1)


def test_the_config_may_not_lose_a_stage(tmp_path: Any) -> None:
    spec = join(kind="inner", time_window_ms=20)
    script = [rows([("x", 100)], [("x", 100)])]
    run_local(spec, script, SCHEMA, sources=("a", "b"), then=COUNTED, state_dir=str(tmp_path))
    with pytest.raises(
        Exception,
        match=r"the state in epoch . was written for another join .stages: state has 2, config has 1: .*change the config back",
    ):
        run_local(spec, script, SCHEMA, sources=("a", "b"), state_dir=str(tmp_path))
