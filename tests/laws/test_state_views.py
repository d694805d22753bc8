"""State views show the rows that would be emitted: a few seeds of `state_view_runs.py`.

For more seeds, run `python -m tests.laws.generators.state_view_runs`.
"""

from __future__ import annotations

import os

import pytest
from tests.laws.generators import state_view_runs
from tests.support.case_selection import select_cases

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "20"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_state_view_shows_the_rows_that_would_be_emitted(first: int) -> None:
    counts = [state_view_runs.compare_view_with_emitted_rows(seed, seed % 5 == 0) for seed in range(first, first + 20)]
    assert sum(opened for opened, _ in counts) > 20
    assert sum(retained for _, retained in counts) > 0
