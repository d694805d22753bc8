"""Check that keys with the same hash share a unit of the state, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.testing import rows_without_spark

AGGREGATIONS = (Aggregation(agg="count", as_="n"), Aggregation(agg="last", column="x", as_="latest"))
WINDOWS = (
    Window(kind="session", gap_ms=20, max_session_duration_ms=150, lateness_ms=30, group_by=["k"], aggregations=AGGREGATIONS),
    Window(
        kind="hopping", duration_ms=60, hop_ms=20, lateness_ms=30, group_by=["k"], max_groups_per_window=99,
        aggregations=AGGREGATIONS,
    ),
)  # fmt: skip


def draw_epoch_inputs(seed: int) -> list[Any]:
    chance, now, epochs = random.Random(seed), 0, []
    for _ in range(12):
        rows = []
        for _ in range(chance.randrange(1, 9)):
            now += chance.randrange(0, 15) * 1000
            time_us = max(now - chance.choice([0, 0, 20_000, 80_000]), 0)
            rows.append({"ts": time_us, "k": chance.choice(["a", "b", None, "c"]), "x": chance.randrange(9)})
        epochs.append(MicroBatch({"a": rows}))
    return epochs


def sort_result_rows(result: Any) -> list[Any]:
    return sorted(([*r.values()] for r in result.rows), key=str)


@pytest.mark.parametrize("window", select_cases(WINDOWS), ids=lambda w: w.kind)
def test_hash_collision_of_all_keys_does_not_change_results(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"k": "string", "x": "bigint"}
    expected = [run_local_script(window, draw_epoch_inputs(seed), schema) for seed in range(6)]
    monkeypatch.setattr(
        rows_without_spark, "key_hash", lambda frame, keys: pl.Series("__kh", np.full(frame.height, 7), dtype=pl.Int64)
    )
    for seed, expected_result in enumerate(expected):
        got = run_local_script(window, draw_epoch_inputs(seed), schema)
        assert sort_result_rows(got) == sort_result_rows(expected_result), f"seed {seed}"
        assert got.counters == expected_result.counters, f"seed {seed}"
