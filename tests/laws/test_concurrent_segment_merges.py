"""Concurrent merges of segments: the results do not depend on when a merge ends or is applied.

commits   1    2    3    4    5
merging   ├─── a late thread ───┤         applied by the next epoch, or discarded if an epoch merged one of them
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from tests.laws.generators import final_emission_runs, join_runs, window_revision_runs, window_update_runs
from tests.support.case_selection import select_cases

from slackwater.state.files import join_buffers, shard
from slackwater.state.files.segments import SegmentMerge


class RandomlyCompletedFuture(Future[Any]):
    """Future that completes at a random call of `done`."""

    def __init__(self, rng: random.Random, work: Callable[[], Any]) -> None:
        super().__init__()
        self._rng, self._work = rng, work

    def done(self) -> bool:
        if not super().done() and self._rng.random() < 0.4:
            try:
                self.set_result(self._work())
            except BaseException as error:
                self.set_exception(error)
        return super().done()


class PolledExecutor:
    """Stand-in for the thread that merges. Work runs only when a caller polls its future."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def submit(self, work: Callable[..., Any], *arguments: Any) -> RandomlyCompletedFuture:
        return RandomlyCompletedFuture(self._rng, lambda: work(*arguments))

    def shutdown(self, cancel_futures: bool) -> None:
        assert cancel_futures


@pytest.fixture
def merge_outcome_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[bool, int]]:
    """Lower the merge thresholds, and count the applied merges (True) and the discarded ones (False)."""
    rng, merge_counts = random.Random(1), {True: 0, False: 0}
    applied = SegmentMerge.apply

    def counted(merge: SegmentMerge, metas: Any, watermark: int) -> Any:
        after = applied(merge, metas, watermark)
        merge_counts[after != metas] += 1
        return after

    monkeypatch.setattr(shard, "FAN", 2)
    for module in (shard, join_buffers):
        monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(shard, "ThreadPoolExecutor", lambda *_, **__: PolledExecutor(rng))
    monkeypatch.setattr(SegmentMerge, "apply", counted)
    yield merge_counts
    assert merge_counts[True] > 20 and merge_counts[False] > 5, merge_counts


@pytest.mark.parametrize(
    "law",
    select_cases([window_update_runs, join_runs, window_revision_runs, final_emission_runs], keep=2),
    ids=lambda law: law.__name__,
)
def test_results_do_not_depend_on_when_segments_are_merged(law: Any, merge_outcome_counts: dict[bool, int]) -> None:
    for seed in range(40):
        law.check_seed(seed)
