"""Seeded runs of a keyed operator against a counting loop, with crashes, resharding and config changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.nth_row_operator import Nth, WithNth
from tests.support.script import KILL_POINTS, Crash, LocalResult, Quiet, Restart, RowsInput, run_local

from slackwater.state.protocol import StateStore

SCHEMA = {"user": "string", "f": "double", "id": "bigint"}


def plan_run(seed: int) -> tuple[Nth, list[Any], int]:
    rng = random.Random(seed)
    keys = rng.choice([["user"], ["f"], ["user", "f"], ["id"]])
    step = Nth(every=rng.choice([1, 2, 3, 3, 7]), keys=keys, number_column=rng.choice([None, "nth of key"]))
    script: list[Any] = []
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.5:
            script.append(Crash(rng.choice(KILL_POINTS), rng.choice([None, None, 1, 2, 5])))
        if rng.random() < 0.2:
            script.append(Restart(shards=rng.choice([1, 2, 3, 4])))
        if rng.random() < 0.1:
            script.append(Restart(step=step.model_copy(update={"every": rng.choice([1, 2, 5])})))
        script.append(RowsInput({"a": [_row(rng) for _ in range(rng.randint(1, 12))]}))
        if rng.random() < 0.2:
            script.append(Quiet(400))
    return step, script, rng.choice([1, 2, 3])


def _row(rng: random.Random) -> dict[str, Any]:
    """Draw a row. Many rows have equal times."""
    f = rng.choice([0.0, -0.0, float("nan"), 1.5, None])
    return {"ts": rng.randrange(8) * 1000, "user": rng.choice(["x", "y", "z", None]), "f": f, "id": rng.randrange(4)}


def expected(step: Nth, script: Sequence[Any]) -> Counter[str]:
    """Return the rows that a counting loop emits. Rows of an epoch are counted by time, then by value."""
    seen, line_counts = Counter[Any](), Counter[str]()
    for item in script:
        if isinstance(item, Restart) and isinstance(item.step, Nth):
            step = item.step
        for row in sorted(item.rows["a"], key=_order) if isinstance(item, RowsInput) else ():
            key = tuple(_same(row[k]) for k in step.keys)
            seen[key] += 1
            if seen[key] % step.every == 0:
                line_counts[_line({**row, step.number_column: seen[key]} if step.number_column else row)] += 1
    return line_counts


def _order(row: Mapping[str, Any]) -> Any:
    values = (row["user"], _same(row["f"]), row["id"])
    return row["ts"], *((v is not None, v == "NaN", 0 if v in (None, "NaN") else v) for v in values)


def _same(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def _line(row: Mapping[str, Any]) -> str:
    return str([row.get("ts", row.get("_event_ts")), *(_same(row[c]) for c in SCHEMA), row.get("nth of key")])


def check_seed(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    step, script, shards = plan_run(seed)
    result = run_local(step, script, SCHEMA, shards=shards, store=store, transform_type=WithNth)
    assert Counter(map(_line, result.rows)) == expected(step, script), f"seed {seed}"
    return result
