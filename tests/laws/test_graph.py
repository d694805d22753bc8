"""Stages in a graph give the batch answer of each in turn, whatever dies in between: see `graph`."""

from __future__ import annotations

import os

import pytest
from tests.laws import seeds
from tests.laws.graph import check
from tests.support.effort import some

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "60"))


@pytest.mark.parametrize("first", some(range(0, SEEDS, 20)))
def test_seeded_graphs(first: int) -> None:
    seeds.quiet()
    for seed in range(first, first + 20):
        try:
            check(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
