"""A window over what a join emits: one pipeline, one commit; the answer is the batch window over the batch join."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.laws.generators import seeds
from tests.laws.generators.join_then_window import check, join, rows, window
from tests.laws.generators.joins import MS, SCHEMA, plan_run
from tests.support.case_selection import select_cases
from tests.support.script import Crash, run_local

from slackwater.config.window import Aggregation, Window
from slackwater.errors import StateError

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_seeded_runs(first: int) -> None:
    seeds.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {plan_run(seed).join} then {window(random.Random(seed))[0]}") from error


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
    result = run_local(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED, flush=False)
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
    calm = run_local(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED)
    torn: list[Any] = [item for epoch in script for item in (Crash(step), epoch)]
    died = run_local(spec, torn, SCHEMA, sources=("a", "b"), downstream=COUNTED)
    assert died.rows == calm.rows
    assert sum(r["n"] for r in calm.rows) == 12 * 9 - 2 * (4 + 3 + 2 + 1)


def test_one_transform_does_not_take_the_state_of_two_stages_by_itself(tmp_path: Any) -> None:
    spec = join(kind="inner", time_window_ms=20)
    script = [rows([("x", 100)], [("x", 100)])]
    run_local(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED, state_dir=str(tmp_path))
    with pytest.raises(StateError, match=r'the state has the stages "first", "second"; name the one .*: formerly = '):
        run_local(spec, script, SCHEMA, sources=("a", "b"), state_dir=str(tmp_path))
