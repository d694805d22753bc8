"""Windows over the output of a join, in one commit: results equal those of a batch window over a batch join."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.join_runs import MS, SCHEMA, plan_run
from tests.laws.generators.join_then_window_runs import check_join_then_window_run, draw_window, join_input, join_spec
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import DriverCrash, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.errors import StateError

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "20"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_seeded_runs_match_batch_window_over_batch_join(first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check_join_then_window_run(seed)
        except BaseException as error:
            raise AssertionError(
                f"seed {seed}: {plan_run(seed).join} then {draw_window(random.Random(seed))[0]}"
            ) from error


COUNTED = Window(
    kind="tumbling",
    duration_ms=10,
    group_by=["left_k"],
    max_groups_per_window=100,
    aggregations=[Aggregation(agg="count", as_="n")],
)


def test_window_waits_for_unmatched_rows_of_an_outer_join() -> None:
    """
    left join, 20 ms either way; windows of 10 ms
    epoch 0   left x @100, right x @100      pair, in window [100, 110)
              left y @101                     unmatched, which is known when the watermark is above 121
    epoch 1   watermark 120                   the watermark of the window is 20 behind: 100
    epoch 2   watermark 131                   y is emitted; the window watermark is 111: [100, 110) closes with both
    """
    spec = join_spec(kind="left", time_window_ms=20)
    script = [
        join_input([("x", 100), ("y", 101)], [("x", 100)]),
        join_input([("z", 120)], [("t", 120)]),
        join_input([("z", 131)], [("t", 131)]),
    ]
    result = run_local_script(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED, flush=False)
    assert [(r["_epoch"], r["left_k"], r["window_start"] // MS, r["n"]) for r in result.rows] == [
        (2, "x", 100, 1),
        (2, "y", 100, 1),
    ]


@pytest.mark.parametrize(
    "step", ["ingest.after", "emit.after", "commit.before", "commit.after", "write.before", "note.before"]
)
def test_crash_leaves_rows_in_the_state_of_both_stages_or_neither(step: str) -> None:
    """Rows are in the state of both stages or of neither after a crash at any of these steps."""
    spec = join_spec(kind="inner", time_window_ms=20)
    script = [join_input([("x", 100 + n)], [("x", 100 + n)]) for n in range(0, 60, 5)]
    calm = run_local_script(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED)
    torn: list[Any] = [item for epoch in script for item in (DriverCrash(step), epoch)]
    died = run_local_script(spec, torn, SCHEMA, sources=("a", "b"), downstream=COUNTED)
    assert died.rows == calm.rows
    assert sum(r["n"] for r in calm.rows) == 12 * 9 - 2 * (4 + 3 + 2 + 1)


def test_single_stage_refuses_two_stage_state_without_formerly_option(tmp_path: Any) -> None:
    spec = join_spec(kind="inner", time_window_ms=20)
    script = [join_input([("x", 100)], [("x", 100)])]
    run_local_script(spec, script, SCHEMA, sources=("a", "b"), downstream=COUNTED, state_dir=str(tmp_path))
    with pytest.raises(StateError, match=r'the state has the stages "first", "second"; name the one .*: formerly = '):
        run_local_script(spec, script, SCHEMA, sources=("a", "b"), state_dir=str(tmp_path))
