"""The law of `updates.py` for `emit = "final"` and `"on_close"`: rows emitted after each epoch.

The windows are sessions near the cap.

python -m tests.laws.generators.final_results --runs 5000 --seed 1          # prints the seed of a failing run
"""

from __future__ import annotations

from tests.laws.generators import seeds, updates


def plan_run(seed: int) -> updates.Run:
    return updates.plan_run(seed, ("final", "final", "on_close"), ("session", "session", "dynamic"))


def check_seed(seed: int) -> tuple[int, int, int]:
    return updates.check_seed(seed, plan_run)


if __name__ == "__main__":
    seeds.main(check_seed, __doc__ or "", ("epochs", "late rows", "revisions"), 5000)
