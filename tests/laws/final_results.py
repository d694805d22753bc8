"""The law of `updates.py` for `emit = "final"` and `"on_close"`, of sessions near the cap: what has come out after each epoch.

python -m tests.laws.final_results --runs 5000 --seed 1          # prints the seed of a run that fails
"""

from __future__ import annotations

from tests.laws import seeds, updates


def planned(seed: int) -> updates.Run:
    return updates.planned(seed, ("final", "final", "on_close"), ("session", "session", "dynamic"))


def checked(seed: int) -> tuple[int, int, int]:
    return updates.checked(seed, planned)


if __name__ == "__main__":
    seeds.main(checked, __doc__ or "", ("epochs", "late rows", "revisions"), 5000)
