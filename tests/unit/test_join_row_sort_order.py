"""Test the sort order of join rows: by key hash, then by time. Equal rows keep their order."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.core.sorted_arrays import distinct_values, find_run_starts
from slackwater.joins.join_buffers import sort_order


@pytest.mark.parametrize("keys", [1, 3, 50, 10**12])
@pytest.mark.parametrize("times", [1, 4, 10**12])
def test_join_rows_are_sorted_stably_by_key_hash_and_time(keys: int, times: int) -> None:
    rng = np.random.default_rng(keys + times)
    for length in (0, 1, 2, 100):
        kh, ts = rng.integers(-keys, keys, length), rng.integers(-times, times, length)
        assert sort_order(kh, ts).tolist() == sorted(range(length), key=lambda i: (kh[i], ts[i], i))


def test_run_starts_and_distinct_values_are_found_in_a_sorted_array() -> None:
    extremes = np.iinfo(np.int64)
    values = np.array([extremes.min, extremes.min, 0, 4, 4, 4, extremes.max])
    assert find_run_starts(values).tolist() == [0, 2, 3, 6]
    assert find_run_starts(values[:0]).tolist() == []
    assert distinct_values(values).tolist() == [extremes.min, 0, 4, extremes.max]
