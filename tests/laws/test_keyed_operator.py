"""Operators by key: a part of the seeded runs of `keyed_operator.py`, with an operator that slackwater does not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.laws.generators import keyed_operator
from tests.support import nth_row_operator
from tests.support.case_selection import exhaustive, select_cases

from slackwater.testing import rows_without_spark


@pytest.fixture(autouse=True)
def registered_nth() -> Iterator[None]:
    with nth_row_operator.register_operator():
        yield


@pytest.mark.parametrize("first", select_cases(range(0, 200, 50)))
def test_every_nth_row_of_each_key_comes_out_once(first: int) -> None:
    results = [keyed_operator.check_seed(seed) for seed in range(first, first + 50)]
    assert sum(len(r.rows) for r in results) > 100


@exhaustive(beside="test_hash_collisions.py::test_one_hash_for_all_keys_changes_nothing")
def test_keys_of_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    original_hash = rows_without_spark.key_hash
    monkeypatch.setattr(rows_without_spark, "key_hash", lambda frame, keys: original_hash(frame, keys) * 0)
    for seed in range(30):
        keyed_operator.check_seed(seed)
