"""Killed and restarted joins of two Kafka topics: every pair and unmatched row is emitted once (see `join_matrix`)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.matrices.kill_matrix import KafkaAndPostgres, KillablePipeline
from tests.support.case_selection import exhaustive

EVENTS, PER_EPOCH = 10_000, 1_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka_and_postgres(
    kafka: Any, postgres: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaAndPostgres]:
    yield KafkaAndPostgres(kafka, postgres, tmp_path_factory.mktemp("joins"))


@exhaustive(beside="test_postgres_store_equivalence.py::test_joins_match_their_definition_in_postgres")
def test_rows_of_a_full_join_are_emitted_once_after_kills(kafka_and_postgres: KafkaAndPostgres) -> None:
    """State and results are in Postgres. `make faults` also kills inner joins, and joins with files."""
    pair = KillablePipeline(kafka_and_postgres, "postgres", "postgres", "full-join", EVENTS, PER_EPOCH)
    for step in ("stage.after", "write.after"):
        pair.run_until_kill_point(step)
    pair.kill_randomly(random.Random(5))
    pair.run_to_completion()
    expected, lost, wrong = pair.compare_with_batch_result()
    assert (lost, wrong) == (0, 0)
    assert expected > EVENTS // 2
