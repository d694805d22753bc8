"""A few seeds of `tests.laws.corrupted`, on each kind of pipeline; and each kind of damage on one of them."""

from __future__ import annotations

import os
import random

import pytest
from tests.laws import corrupted
from tests.laws.corrupted import CASES, DAMAGES

SEEDS = int(os.environ.get("SLACKWATER_CORRUPTED", "2"))  # of each case


@pytest.fixture(autouse=True, scope="module")
def in_memory() -> None:
    """Sound states are made once, where the machine is quick."""
    corrupted.seeds.prepared()


@pytest.mark.parametrize("case", ["sessions", "join"])
def test_a_damaged_state_is_told_or_harmless(case: str) -> None:
    """Each damage, with the last epoch published or not; both happen: what is told, and what does no harm."""
    corrupted.seeds.quiet()
    found = [
        corrupted.damaged(case, bool(seed % 2), damage, random.Random(seed))
        for damage in dict.fromkeys(DAMAGES)
        for seed in range(SEEDS)
    ]
    assert any(o.refused for o in found)
    assert any(not o.refused for o in found)


def test_there_is_a_case_for_every_kind_of_state() -> None:
    kinds = {c.step.kind for c in CASES.values()} | {c.then.kind for c in CASES.values() if c.then}
    assert {"session", "hopping", "tumbling", "full"} <= kinds
