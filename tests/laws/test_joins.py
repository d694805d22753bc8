"""Joins: a part of the seeded runs of `joins.py`, and timelines drawn by hand."""

from __future__ import annotations

import os

import pytest
from tests.laws import joins

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "200"))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_seeded_runs(first: int) -> None:
    for seed in range(first, first + 20):
        joins.checked(seed)
