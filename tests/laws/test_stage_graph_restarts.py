"""Graphs of stages give the batch result of each stage in turn, despite crashes: see `fixed_stage_graph_runs.py`."""

from __future__ import annotations

import os

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.fixed_stage_graph_runs import (
    SCHEMA,
    build_stage_pipeline,
    check_fixed_graph_run,
    counting_stage,
)
from tests.support.case_selection import select_cases

from slackwater.errors import StateError
from slackwater.evolution.config_state_comparison import compare_config
from slackwater.testing.local_pipeline import LocalPipeline

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "30"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_random_pipelines_match_batch_results_despite_crashes(first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check_fixed_graph_run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def build_input_rows(first: int) -> list[dict[str, object]]:
    return [{"k": "x", "v": 1, "ts": (first + 7 * i) * 1000} for i in range(30)]


W, X, Y = counting_stage("w", "a"), counting_stage("x", "w", "total"), counting_stage("y", "x", "total")


@pytest.mark.parametrize("step", ["commit.before", "commit.after", "stage.after", "write.after"])
def test_stages_are_added_and_removed_between_runs(step: str) -> None:
    """w ─▶ x, then w ─▶ x ─▶ y, then w ─▶ y: a remaining stage continues, and a new stage starts with new rows."""
    with LocalPipeline(build_stage_pipeline(W, X), SCHEMA, capture_losses=False) as test:
        test.pipe({"a": build_input_rows(0)})
        test.crash(step)
        test.restart(build_stage_pipeline(W, X, Y), shards=3)
        assert len({s.watermark_us for s in test._driver.state.stages}) == 1, (
            "also where the start died once it was there"
        )
        test.pipe({"a": build_input_rows(2000)})
        w, x, y = test._driver.state.stages
        assert (w.counters["rows_in"], w.watermark_us) == (60, y.watermark_us)
        assert y.counters["rows_in"] == sum(x.counters["emitted"].values()) > 0
        test.crash(step)
        test.restart(build_stage_pipeline(W, counting_stage("y", "w", "total")))
        test.pipe({"a": build_input_rows(4000)})
        test.flush()
        w, y = test._driver.state.stages
        assert (w.counters["rows_in"], w.counters["late"], y.counters["late"]) == (90, {}, {})
        counted = sum(row["total"] for row in test.result().rows if row["window_start"] >= 2_000_000)
        assert counted == 60, "every row since it began, once"


def test_plan_reports_the_effect_of_added_removed_and_moved_stages() -> None:
    with LocalPipeline(build_stage_pipeline(W, X), SCHEMA, capture_losses=False) as test:
        test.pipe({"a": build_input_rows(0)})
        state = test._driver.state
    more, fewer = (
        compare_config(build_stage_pipeline(W, X, Y), state),
        compare_config(
            build_stage_pipeline(
                counting_stage("x", "a"), counting_stage("v", "x", "total"), counting_stage("q", "v", "total")
            ),
            state,
        ),
    )
    assert [(c.key, c.verdict) for c in more.changes] == [('stage "y"', "migrated"), ("target from", "compatible")]
    assert "begins empty" in more.changes[0].how
    verdicts = {c.key: (c.verdict, c.level) for c in fewer.changes}
    assert verdicts['stage "w"'] == ("migrated", "warning")
    assert verdicts["stages[0].from"][0] == "compatible"
    another = compare_config(build_stage_pipeline(W, counting_stage("z", "w", "total")), state)
    assert {c.key for c in another.with_verdict("migrated")} == {'stage "x"', 'stage "z"'}, (
        "a name that is unknown is a new stage"
    )
    before = compare_config(
        build_stage_pipeline(
            counting_stage("o", "a"),
            counting_stage("w", "o", "total"),
            counting_stage("x", "w", "total"),
            store="postgres",
        ),
        state,
    )
    with pytest.raises(StateError, match="in Postgres, the name of a state table contains the position"):
        before.check()
