"""Several targets: each stores the rows of its stage once, despite kills and unavailable targets."""

from __future__ import annotations

import os

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.several_target_runs import FIXED, SCHEMA, SeveralTargetsRun, draw_several_target_pipeline
from tests.support.case_selection import select_cases

from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.local_pipeline import LocalPipeline

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "30"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_seeded_runs_store_each_row_once_in_several_targets(first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            SeveralTargetsRun(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("nth", select_cases([2, 1, 3]))
@pytest.mark.parametrize("step", KILL_POINTS)
def test_kill_at_any_step_repeats_at_most_the_unrecorded_write(step: str, nth: int) -> None:
    """All three targets receive rows in the epoch. A kill repeats at most the one write that was not recorded."""
    seed_runner.hide_warnings()
    rows = [{"k": "a", "p": "x", "v": n, "ts": n * 1_000_000} for n in range(4)]
    ends = [{"k": "a", "p": "x", "v": 9, "ts": 60_000_000}]

    def outcome(crash: bool) -> dict[str, list[str]]:
        with LocalPipeline(draw_several_target_pipeline(3, some=False), SCHEMA, shards=2, capture_losses=False) as test:
            test.pipe({"rows": rows})
            if crash:
                test.crash(step, shards=3, nth=nth)
            test.pipe({"rows": ends})
            test.quiet(500)
            test.flush()
            repeated = sum(test.target(n).repeated for n in FIXED)
            assert repeated == (1 if crash and step in ("write.after", "note.before") and nth <= 3 else 0)
            return {n: sorted(map(repr, t.rows(named=True))) for n, t in test.result().tables.items()}

    crashed_outcome = outcome(True)
    assert all(crashed_outcome[n] for n in FIXED)
    assert crashed_outcome == outcome(False)
