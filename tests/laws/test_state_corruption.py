"""Check a few damages of `tests.laws.fuzzers.fuzz_state_files`. The command line runs thousands of seeds."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator

import pytest
from tests.laws.fuzzers import fuzz_state_files
from tests.laws.fuzzers.fuzz_state_files import CASES
from tests.laws.generators import seed_runner

DAMAGES = (
    fuzz_state_files.flip_bits,
    fuzz_state_files.remove_file,
    fuzz_state_files.remove_manifests,
    fuzz_state_files.swap_manifests,
    fuzz_state_files.swap_segments,
    fuzz_state_files.replace_with_old_file,
    fuzz_state_files.garble_published_marker,
)


@pytest.fixture(autouse=True)
def use_fast_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create intact states in fast storage, and hide the warnings about late rows."""
    former = tempfile.tempdir
    seed_runner.prepare_worker_process()
    seed_runner.hide_warnings()
    yield
    tempfile.tempdir = former


def test_damaged_state_is_refused_or_the_damage_is_harmless() -> None:
    """Leave the last epoch of every other case unpublished. Some damages must be refused, and some must be harmless."""
    outcomes = [
        fuzz_state_files.check_damage("sessions", bool(number % 2), damage, random.Random(number))
        for number, damage in enumerate(DAMAGES)
    ]
    assert any(o.refused for o in outcomes)
    assert any(not o.refused for o in outcomes)


def test_corruption_cases_cover_every_kind_of_state() -> None:
    kinds = {c.step.kind for c in CASES.values()} | {c.then.kind for c in CASES.values() if c.then}
    assert {"session", "hopping", "tumbling", "full"} <= kinds
