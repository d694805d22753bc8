"""Joins from two Kafka topics, killed and restarted: every pair once, every unmatched row once (see `join_matrix`)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.matrices.kill_matrix import Pair, Services
from tests.support.case_selection import exhaustive

EVENTS, PER_EPOCH = 20_000, 1_600

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(kafka: Any, postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    yield Services(kafka, postgres, tmp_path_factory.mktemp("joins"))


@pytest.mark.parametrize(
    ("kind", "place", "steps"),
    [
        ("join", "files", ["stage.before", "commit.after"]),
        ("full-join", "postgres", ["stage.after", "write.after"]),
    ],
)
@exhaustive(beside="test_postgres_laws.py::test_joins_keep_their_rows_in_tables")
def test_each_row_comes_out_once_whatever_is_killed(
    services: Services, kind: str, place: str, steps: list[str]
) -> None:
    pair = Pair(services, place, place, kind, EVENTS, PER_EPOCH)
    for step in steps:
        pair.die_at(step)
    pair.die_somewhere(random.Random(5))
    pair.finish()
    expected, lost, wrong = pair.verdict()
    assert (lost, wrong) == (0, 0)
    assert expected > EVENTS // 2
