"""Dedup laws: some seeded runs of `generators/dedup.py`, and runs of equal rows in other batches."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.laws.generators import dedup_runs
from tests.support.case_selection import exhaustive, select_cases

import slackwater as sw
from slackwater.testing import rows_without_spark


@pytest.mark.semantics("dedup", "conservation")
@pytest.mark.parametrize("first", select_cases(range(0, 120, 20)))
def test_every_row_is_emitted_or_counted_as_late_or_duplicate(first: int) -> None:
    """Dedup emits each row, or counts it as late or as a duplicate, exactly as a simple loop would, even after
    crashes.
    """
    results = [dedup_runs.check_dedup_seed(seed) for seed in range(first, first + 20)]
    assert sum(len(r.rows) for r in results) > 50
    assert sum(r.statuses[-1].counters.rows_duplicate for r in results) > 50


@pytest.mark.semantics("dedup")
@pytest.mark.parametrize("keep", select_cases(["first", "last"]))
@pytest.mark.parametrize("first", select_cases(range(0, 30, 10)))
def test_results_do_not_depend_on_batch_boundaries(keep: str, first: int) -> None:
    """If no row is late, batching does not change dedup's results. With `keep = "first"`, rows must arrive in time
    order.
    """
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        spread = 0 if keep == "first" else 9
        step = sw.Dedup(keys=["user"], keep=keep, within_ms=rng.choice([3, 10]), lateness_ms=40)
        rows = [dedup_runs.draw_dedup_row(rng, now, spread) for now in range(0, rng.randint(5, 90), 3)]
        if keep == "first":
            rows.sort(key=dedup_runs.row_sort_key)
        whole = dedup_runs.check_dedup_run(step, [dedup_runs.MicroBatch({"a": rows})], 2)
        for _ in range(3):
            again = dedup_runs.check_dedup_run(
                step, dedup_runs.rebatch_rows_with_crashes(rng, rows), rng.choice([1, 3]), name=f"seed {seed}"
            )
            assert Counter(map(dedup_runs.row_text_without_tags, again.rows)) == Counter(
                map(dedup_runs.row_text_without_tags, whole.rows)
            ), f"seed {seed}"


@exhaustive(beside="test_hash_collisions.py::test_hash_collision_of_all_keys_does_not_change_results")
def test_keys_with_the_same_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    original_hash = rows_without_spark.key_hash
    monkeypatch.setattr(rows_without_spark, "key_hash", lambda frame, keys: original_hash(frame, keys) * 0)
    for seed in range(40):
        dedup_runs.check_dedup_seed(seed)
