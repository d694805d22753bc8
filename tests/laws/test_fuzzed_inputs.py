"""Sample of the cases of `tests.laws.fuzzers.run_fuzzers`. The command line runs all twenty thousand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.laws.fuzzers import run_fuzzers

from slackwater.query.open_windows import STATE_COLUMNS

CASES = {"where": 100, "http": 40, "page": 60, "toml": 60, "names": 12, "values": 12, "states": 12, "commands": 60}


@pytest.mark.parametrize("kind", CASES)
def test_fuzzed_input_is_answered_correctly_or_refused(kind: str) -> None:
    words = set()
    for seed in range(CASES[kind]):
        word, story = run_fuzzers.run_fuzz_case(kind, seed)
        assert not story
        words.add(word)
    assert words & {"answered", "read", "accepted"}, "some of it is valid"
    assert len(words) > 1 or kind == "values", "and some is not"


def test_fuzzer_reports_an_unexpected_exception_with_kind_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: random.Random) -> str:
        raise KeyError(rng.random())

    monkeypatch.setattr(run_fuzzers, "KINDS", {"where": (broken, 1)})
    word, story = run_fuzzers.run_fuzz_case("where", 7)
    assert word == "DEFECT"
    assert story.startswith("--kind where --only 7: KeyError")


ANY = (-(2**63), 2**63 - 1)
BROKEN: tuple[
    tuple[str, str, Any, range], ...
] = (  # kind, guard, replacement of the guard, and seeds that need the guard
    ("names", "slackwater.config.window.find_name_problem", lambda name: None, range(59, 60)),
    (
        "names",
        "slackwater.query.open_windows.state_column_names",
        lambda logic: {n: n for n in STATE_COLUMNS},
        range(62, 63),
    ),
    ("values", "slackwater.operators.unstorable_rows.storable_event_times", lambda logic: ANY, range(40)),
    ("toml", "slackwater.config.toml._too_deep", lambda data: None, range(120)),
    (
        "where",
        "tests.laws.fuzzers.fuzz_where_conditions.filter_frame",
        lambda frame, condition: [frame.filter(~condition)],
        range(40),
    ),
)


@pytest.mark.parametrize(("kind", "guard", "instead", "cases"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_fuzzer_reports_a_defect_if_a_safeguard_is_replaced(
    kind: str, guard: str, instead: Any, cases: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove each guard to show that the judge can fail."""
    monkeypatch.setattr(guard, instead)
    assert any(run_fuzzers.run_fuzz_case(kind, seed)[0] == "DEFECT" for seed in cases)
