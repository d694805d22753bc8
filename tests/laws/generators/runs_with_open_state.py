"""Seeded pipelines of several stages that stop before the end of their input."""

from __future__ import annotations

import random
from typing import Any

from tests.laws.generators.fixed_stage_graph_runs import MS, SCHEMA, draw_pipeline

from slackwater.testing.local_pipeline import LocalPipeline


def run_pipeline_without_flush(seed: int, store_dir: str | None = None) -> LocalPipeline:
    """Run the pipeline of a seed without a final flush. `store_dir` is the directory of its state."""
    rng = random.Random(seed)
    test, now_ms = LocalPipeline(draw_pipeline(rng), SCHEMA, shards=2, capture_losses=False, state_dir=store_dir), 0
    for _ in range(rng.randrange(2, 6)):
        epoch_rows: dict[str, list[dict[str, Any]]] = {}
        for source in rng.choice([["a"], ["b"], ["a", "b"], ["a", "b"]]):
            epoch_rows[source] = []
            for _ in range(rng.randrange(1, 8)):
                now_ms += rng.choice([0, 3, 11, 40])
                epoch_rows[source].append(
                    {"k": rng.choice(["x", "y", None]), "v": 1, "ts": (now_ms - rng.choice([0, 5])) * MS}
                )
        test.pipe(epoch_rows)
        if rng.random() < 0.2:
            test.quiet(rng.choice([500, 70_000]))
    return test
