"""Seeded runs of a keyed operator against a counting loop, with crashes, resharding and config changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.every_nth_row_operator import EveryNthRowStep, EveryNthRowTransform
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    run_local_script,
)

from slackwater.state.protocol import StateStore

SCHEMA = {"user": "string", "f": "double", "id": "bigint"}


def plan_keyed_operator_run(seed: int) -> tuple[EveryNthRowStep, list[Any], int]:
    rng = random.Random(seed)
    keys = rng.choice([["user"], ["f"], ["user", "f"], ["id"]])
    step = EveryNthRowStep(every=rng.choice([1, 2, 3, 3, 7]), keys=keys, number_column=rng.choice([None, "nth of key"]))
    script: list[Any] = []
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.5:
            script.append(DriverCrash(rng.choice(KILL_POINTS), rng.choice([None, None, 1, 2, 5])))
        if rng.random() < 0.2:
            script.append(PipelineRestart(shards=rng.choice([1, 2, 3, 4])))
        if rng.random() < 0.1:
            script.append(PipelineRestart(step=step.model_copy(update={"every": rng.choice([1, 2, 5])})))
        script.append(MicroBatch({"a": [_draw_row(rng) for _ in range(rng.randint(1, 12))]}))
        if rng.random() < 0.2:
            script.append(QuietInterval(400))
    return step, script, rng.choice([1, 2, 3])


def _draw_row(rng: random.Random) -> dict[str, Any]:
    """Draw a row. Many rows have equal times."""
    f = rng.choice([0.0, -0.0, float("nan"), 1.5, None])
    return {"ts": rng.randrange(8) * 1000, "user": rng.choice(["x", "y", "z", None]), "f": f, "id": rng.randrange(4)}


def expected_row_counts(step: EveryNthRowStep, script: Sequence[Any]) -> Counter[str]:
    """Return the rows that a counting loop emits. Rows of an epoch are counted by time, then by value."""
    seen, line_counts = Counter[Any](), Counter[str]()
    for item in script:
        if isinstance(item, PipelineRestart) and isinstance(item.step, EveryNthRowStep):
            step = item.step
        for row in sorted(item.rows["a"], key=_sort_key) if isinstance(item, MicroBatch) else ():
            key = tuple(_comparable_value(row[k]) for k in step.keys)
            seen[key] += 1
            if seen[key] % step.every == 0:
                line_counts[_row_text({**row, step.number_column: seen[key]} if step.number_column else row)] += 1
    return line_counts


def _sort_key(row: Mapping[str, Any]) -> Any:
    values = (row["user"], _comparable_value(row["f"]), row["id"])
    return row["ts"], *((v is not None, v == "NaN", 0 if v in (None, "NaN") else v) for v in values)


def _comparable_value(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def _row_text(row: Mapping[str, Any]) -> str:
    return str(
        [row.get("ts", row.get("_event_ts")), *(_comparable_value(row[c]) for c in SCHEMA), row.get("nth of key")]
    )


def check_keyed_operator_seed(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    step, script, shards = plan_keyed_operator_run(seed)
    result = run_local_script(step, script, SCHEMA, shards=shards, store=store, transform_type=EveryNthRowTransform)
    assert Counter(map(_row_text, result.rows)) == expected_row_counts(step, script), f"seed {seed}"
    return result
