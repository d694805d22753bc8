"""Compare seeded runs of a keyed function with timers, including crashes and resharding, with a loop over each key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.support.keyed_functions import Reminders
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    PipelineRestart,
    run_local_script,
)

import slackwater as sw
from slackwater.state.protocol import StateStore

SCHEMA = {"user": "string", "f": "double"}
MS = 1000
Row = Mapping[str, Any]


def plan_keyed_timer_run(seed: int) -> tuple[sw.Keyed, list[Any], int]:
    """Return a step, a script of rows in time order in random batches, and a number of shards."""
    rng = random.Random(seed)
    options = {"every": rng.choice([5, 10]), "most": rng.choice([1, 2, 4])}
    step = sw.Keyed(class_=Reminders, keys=["user"], options=options)
    script: list[Any] = []
    now = 0
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.4:
            script.append(DriverCrash(rng.choice(KILL_POINTS), rng.choice([None, 1, 3])))
        if rng.random() < 0.2:
            script.append(PipelineRestart(shards=rng.choice([1, 2, 4])))
        rows = []
        for _ in range(rng.randint(1, 6)):
            now += rng.choice([0, 1, 5, 7, 10, 33])
            rows.append({"ts": MS * now, "user": rng.choice(["x", "y", None]), "f": 0.5})
        script.append(MicroBatch({"a": rows}))
    return step, script, rng.choice([1, 2, 3])


def expected_reminders(options: Mapping[str, int], rows: Iterable[Row]) -> Counter[Any]:
    """Return the expected reminders, by a loop over the rows of each key and the reminders before the next row."""
    by_user: dict[Any, list[int]] = {}
    for row in rows:
        by_user.setdefault(row["user"], []).append(row["ts"])
    newest, reminders = max(ts for times in by_user.values() for ts in times), Counter[Any]()
    for user, times in by_user.items():
        for count, ts in enumerate(times, 1):
            until = times[count] if count < len(times) else newest
            for number in range(1, options["most"] + 1):
                due = ts + number * options["every"] * MS
                if due <= until:
                    reminders[due, user, count, number] += 1
    return reminders


def check_keyed_timer_seed(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    step, script, shards = plan_keyed_timer_run(seed)
    result = run_local_script(step, script, SCHEMA, shards=shards, store=store, flush=False)
    rows = [row for item in script if isinstance(item, MicroBatch) for row in item.rows["a"]]
    emitted = Counter((r["_event_ts"], r["user"], r["rows"], r["number"]) for r in result.rows)
    assert emitted == expected_reminders(step.options, rows), f"seed {seed}"
    return result
