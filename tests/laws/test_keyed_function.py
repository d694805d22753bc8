"""User-defined keyed functions: a selection of the seeded runs of `generators/keyed_timer_runs.py`."""

from __future__ import annotations

import pytest
from tests.laws.generators import keyed_timer_runs
from tests.support.case_selection import select_cases


@pytest.mark.semantics("keyed-functions")
@pytest.mark.parametrize("first", select_cases(range(0, 80, 20)))
def test_each_timer_fires_once_in_event_time(first: int) -> None:
    """Each timer of a keyed function fires once, at its event time, regardless of batches, shards and crashes."""
    results = [keyed_timer_runs.check_keyed_timer_seed(seed) for seed in range(first, first + 20)]
    assert sum(len(r.rows) for r in results) > 50
