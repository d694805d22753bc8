"""Custom keyed operators: a selection of the seeded runs of `keyed_operator_runs.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.laws.generators import keyed_operator_runs
from tests.support import every_nth_row_operator
from tests.support.case_selection import exhaustive, select_cases

from slackwater.testing import rows_without_spark


@pytest.fixture(autouse=True)
def register_nth_row_operator() -> Iterator[None]:
    with every_nth_row_operator.register_operator():
        yield


@pytest.mark.parametrize("first", select_cases(range(0, 100, 25)))
def test_every_nth_row_of_each_key_is_emitted_once(first: int) -> None:
    results = [keyed_operator_runs.check_keyed_operator_seed(seed) for seed in range(first, first + 25)]
    assert sum(len(r.rows) for r in results) > 50


@exhaustive(beside="test_hash_collisions.py::test_hash_collision_of_all_keys_does_not_change_results")
def test_keys_with_the_same_hash_have_separate_state(monkeypatch: pytest.MonkeyPatch) -> None:
    original_hash = rows_without_spark.key_hash
    monkeypatch.setattr(rows_without_spark, "key_hash", lambda frame, keys: original_hash(frame, keys) * 0)
    for seed in range(30):
        keyed_operator_runs.check_keyed_operator_seed(seed)
