"""Some cases of `tests.laws.hostile`; the twenty thousand are run from the command line."""

from __future__ import annotations

import random

import pytest
from tests.laws import hostile

CASES = {"where": 150, "http": 60}


@pytest.mark.parametrize("kind", CASES)
def test_hostile_input_is_answered_rightly_or_refused(kind: str) -> None:
    words = set()
    for seed in range(CASES[kind]):
        word, story = hostile.found(kind, seed)
        assert not story
        words.add(word)
    assert "answered" in words, "some of it is valid"
    assert len(words) > 1, "and some is not"


def test_a_defect_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: random.Random) -> str:
        raise KeyError(rng.random())

    monkeypatch.setattr(hostile, "KINDS", {"where": (broken, 1)})
    word, story = hostile.found("where", 7)
    assert word == "DEFECT"
    assert story.startswith("--kind where --only 7: KeyError")
