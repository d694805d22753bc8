"""Check a few damages of `tests.laws.fuzzers.state_corruption`. The command line runs thousands of seeds."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator

import pytest
from tests.laws.fuzzers import state_corruption
from tests.laws.fuzzers.state_corruption import CASES
from tests.laws.generators import seeds

DAMAGES = (
    state_corruption.flip,
    state_corruption.remove,
    state_corruption.remove_some,
    state_corruption.swap_manifests,
    state_corruption.swap_segments,
    state_corruption.put_old,
    state_corruption.garble_published,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create intact states in fast storage, and hide the warnings about late rows."""
    former = tempfile.tempdir
    seeds.prepare_process()
    seeds.hide_warnings()
    yield
    tempfile.tempdir = former


def test_damaged_state_is_refused_or_the_damage_is_harmless() -> None:
    """Leave the last epoch of every other case unpublished. Some damages must be refused, and some must be harmless."""
    outcomes = [
        state_corruption.check_damage("sessions", bool(number % 2), damage, random.Random(number))
        for number, damage in enumerate(DAMAGES)
    ]
    assert any(o.refused for o in outcomes)
    assert any(not o.refused for o in outcomes)


def test_corruption_cases_cover_every_kind_of_state() -> None:
    kinds = {c.step.kind for c in CASES.values()} | {c.then.kind for c in CASES.values() if c.then}
    assert {"session", "hopping", "tumbling", "full"} <= kinds
