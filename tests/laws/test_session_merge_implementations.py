"""Session steps: the walk over the intervals of a key gives the same state as the step over whole arrays."""

from __future__ import annotations

import pytest
from tests.laws.generators import session_window_step_comparison
from tests.support.case_selection import select_cases


@pytest.mark.parametrize("first", select_cases(range(1, 801, 50), keep=2))
def test_compiled_and_array_based_session_merge_produce_the_same_state(first: int) -> None:
    counts = [session_window_step_comparison.check_session_step_seed(seed) for seed in range(first, first + 50)]
    epochs, rows, late, refused = (sum(n) for n in zip(*counts, strict=True))
    assert rows > epochs > 50
    assert late and refused, "seeds that make no row late and refuse none say little"
