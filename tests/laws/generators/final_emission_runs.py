"""The law of `window_update_runs.py` for `emit = "final"` and `"on_close"`: rows emitted after each epoch.

The windows are sessions near the cap.

python -m tests.laws.generators.final_emission_runs --runs 5000 --seed 1          # prints the seed of a failing run
"""

from __future__ import annotations

from tests.laws.generators import seed_runner, window_update_runs


def plan_final_emission_run(seed: int) -> window_update_runs.UpdateRun:
    return window_update_runs.plan_update_run(seed, ("final", "final", "on_close"), ("session", "session", "dynamic"))


def check_seed(seed: int) -> tuple[int, int, int]:
    return window_update_runs.check_seed(seed, plan_final_emission_run)


if __name__ == "__main__":
    seed_runner.run_seeds(check_seed, __doc__ or "", ("epochs", "late rows", "revisions"), 5000)
