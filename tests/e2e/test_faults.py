"""A sample of the fault matrix: killed and restarted runs lose and duplicate no row. `make faults` runs all of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.matrices.kill_matrix import Pair, Services
from tests.support.case_selection import exhaustive, select_cases

EVENTS, PER_EPOCH = 15_000, 2_500

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(kafka: Any, postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    yield Services(kafka, postgres, tmp_path_factory.mktemp("matrix"))


@pytest.mark.semantics("delivery")
@pytest.mark.parametrize(
    ("window", "store", "target", "steps"),
    select_cases(
        [
            ("session", "postgres", "kafka", ["write.after"]),
            ("tumbling", "files", "delta", ["write.after"]),
            ("session", "postgres", "postgres", ["stage.after", "commit.after"]),
            ("next-stage", "files", "files", ["emit.after", "commit.after"]),
        ]
    ),
)
def test_run_killed_at_named_steps_loses_and_duplicates_no_row(
    services: Services, window: str, store: str, target: str, steps: list[str]
) -> None:
    """Runs from Kafka to Kafka, Delta, Postgres or files lose and duplicate no row when killed at named steps."""
    pair = Pair(services, store, target, window, EVENTS, PER_EPOCH)
    for step in steps:
        pair.die_at(step)
    pair.finish()
    expected, lost, wrong = pair.verdict()
    assert (lost, wrong) == (0, 0)
    assert expected > 100


@exhaustive(beside="test_faults.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_run_continues_on_another_machine_from_the_same_database(services: Services, tmp_path: Path) -> None:
    """Kill the run at random and restart it in another directory, without a checkpoint, on the same database."""
    pair = Pair(services, "postgres", "postgres", "session", EVENTS, PER_EPOCH)
    pair.die_somewhere(random.Random(3))
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(pair.home, elsewhere)
    shutil.rmtree(pair.home)
    pair.home, pair.config = elsewhere, elsewhere / "pipeline.toml"
    pair.finish()
    assert pair.verdict()[1:] == (0, 0)
