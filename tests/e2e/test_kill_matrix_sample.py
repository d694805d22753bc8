"""A sample of the fault matrix: killed and restarted runs lose and duplicate no row. `make faults` runs all of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.matrices.kill_matrix import KafkaAndPostgres, KillablePipeline
from tests.support.case_selection import exhaustive, select_cases

EVENTS, PER_EPOCH = 15_000, 2_500

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka_and_postgres(
    kafka: Any, postgres: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaAndPostgres]:
    yield KafkaAndPostgres(kafka, postgres, tmp_path_factory.mktemp("matrix"))


@pytest.mark.semantics("delivery")
@pytest.mark.parametrize(
    ("window", "store", "target", "steps"),
    select_cases(
        [
            ("session", "postgres", "kafka", ["write.after"]),
            ("tumbling", "files", "delta", ["write.after"]),
            ("next-stage", "files", "files", ["emit.after", "commit.after"]),
        ]
    ),
)
def test_run_killed_at_named_steps_loses_and_duplicates_no_row(
    kafka_and_postgres: KafkaAndPostgres, window: str, store: str, target: str, steps: list[str]
) -> None:
    """Runs from Kafka to Kafka, Delta, Postgres or files lose and duplicate no row when killed at named steps."""
    pair = KillablePipeline(kafka_and_postgres, store, target, window, EVENTS, PER_EPOCH)
    for step in steps:
        pair.run_until_kill_point(step)
    pair.run_to_completion()
    expected, lost, wrong = pair.compare_with_batch_result()
    assert (lost, wrong) == (0, 0)
    assert expected > 100


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_run_continues_on_another_machine_from_the_same_database(
    kafka_and_postgres: KafkaAndPostgres, tmp_path: Path
) -> None:
    """Kill the run at random and restart it in another directory, without a checkpoint, on the same database."""
    pair = KillablePipeline(kafka_and_postgres, "postgres", "postgres", "session", EVENTS, PER_EPOCH)
    pair.kill_randomly(random.Random(3))
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(pair.home, elsewhere)
    shutil.rmtree(pair.home)
    pair.home, pair.config = elsewhere, elsewhere / "pipeline.toml"
    pair.run_to_completion()
    assert pair.compare_with_batch_result()[1:] == (0, 0)
