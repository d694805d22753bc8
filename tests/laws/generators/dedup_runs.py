"""Seeded runs of dedup against plain loops, with kills at named steps, resharding, both stores and other batches.

within 10, lateness 4     0    5    10   15   20   25   30
rows of one key           ●    ●    ●         ●              times 0, 5, 10, 20
keep = "first"            ▲         ▲         ▲              5 is a duplicate of 0; 10 is 10 after 0; 20 is 10 after 10
keep = "last"                       ▲         ▲              0 and 5 are followed by 5 and 10; 10 and 20 by nothing in
                                    └──── 20  └──── 30       less than 10: each is emitted `within` after its time
watermark                      1                             after the row at 5: from then on, a row at 0 is late
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    run_local_script,
)

import slackwater as sw
from slackwater.state.protocol import StateStore

SCHEMA = {"user": "string", "f": "double", "id": "bigint", "tags": "array<string>"}
MS = 1000
Row = Mapping[str, Any]


@dataclass
class ExpectedDedup:
    """The results of a loop, and its numbers of late rows and duplicates."""

    results: Counter[str]
    late: int = 0
    duplicates: int = 0


def plan_dedup_run(seed: int) -> tuple[sw.Dedup, list[Any], int]:
    rng = random.Random(seed)
    keys = rng.choice([["user"], ["f"], ["user", "f"], ["id"]])
    lateness = rng.choice([0, 3, 8, 40])
    step = sw.Dedup(
        keys=keys,
        keep=rng.choice(["first", "last"]),
        within_ms=rng.choice([1, 4, 10, 25]),
        lateness_ms=lateness,
        source_idleness_ms=10_000,
    )
    script: list[Any] = []
    now = 0
    for _ in range(rng.randint(1, 14)):
        if rng.random() < 0.4:
            script.append(DriverCrash(rng.choice(KILL_POINTS), rng.choice([None, None, 1, 2, 5])))
        if rng.random() < 0.2:
            script.append(PipelineRestart(shards=rng.choice([1, 2, 3, 4])))
        script.append(MicroBatch({"a": [draw_dedup_row(rng, now, lateness) for _ in range(rng.randint(1, 10))]}))
        now += rng.choice([0, 2, 5, 20, 60])
        if rng.random() < 0.2:
            script.append(QuietInterval(400))
    return step, script, rng.choice([1, 2, 3])


def draw_dedup_row(rng: random.Random, now: int, spread: int) -> dict[str, Any]:
    """Draw a row with a time around `now`. Many times are equal, and some are late."""
    f = rng.choice([0.0, -0.0, float("nan"), 1.5, None])
    ts = MS * (now + rng.randrange(-spread - 3, 12))
    user, tags = rng.choice(["x", "y", None]), rng.choice([None, [], ["t"]])
    return {"ts": ts, "user": user, "f": f, "id": rng.randrange(3), "tags": tags}


def expected_results(step: sw.Dedup, batches: Iterable[Sequence[Row]]) -> ExpectedDedup:
    """Compute the results with a loop over the rows of each batch, in order of time and values. State never expires."""
    watermark, expected = None, ExpectedDedup(Counter())
    results: dict[Any, list[int]] = {}
    by_key: dict[Any, list[Row]] = {}
    for batch in batches:
        for row in sorted(batch, key=row_sort_key):
            if watermark is not None and row["ts"] < watermark:
                expected.late += 1
            elif step.keep == "first":
                times = results.setdefault(dedup_key(step, row), [])
                if any(abs(row["ts"] - t) < MS * step.within_ms for t in times):
                    expected.duplicates += 1
                else:
                    times.append(row["ts"])
                    expected.results[row_text_without_tags(row)] += 1
            else:
                by_key.setdefault(dedup_key(step, row), []).append(row)
        newest = max(row["ts"] for row in batch) - MS * step.lateness_ms
        watermark = newest if watermark is None else max(watermark, newest)
    for rows in by_key.values():
        ordered = sorted(rows, key=row_sort_key)
        for number, row in enumerate(ordered):
            follows = ordered[number + 1 : number + 2]
            if follows and follows[0]["ts"] - row["ts"] < MS * step.within_ms:
                expected.duplicates += 1
            else:
                expected.results[row_text_without_tags(row)] += 1
    return expected


def dedup_key(step: sw.Dedup, row: Row) -> Any:
    return tuple(comparable_value(row[name]) for name in step.keys)


def row_sort_key(row: Row) -> Any:
    values = (row["user"], comparable_value(row["f"]), row["id"])
    return row["ts"], *((v is not None, v == "NaN", 0 if v in (None, "NaN") else v) for v in values)


def comparable_value(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def row_text_without_tags(row: Row) -> str:
    """Return a row as text, without its list. Dedup may emit either of two rows that differ only in a list."""
    return str([row.get("ts", row.get("_event_ts")), *(comparable_value(row[c]) for c in ("user", "f", "id"))])


def row_batches(script: Sequence[Any]) -> list[Sequence[Row]]:
    return [item.rows["a"] for item in script if isinstance(item, MicroBatch)]


def check_dedup_run(
    step: sw.Dedup, script: Sequence[Any], shards: int, store: Callable[[], StateStore] | None = None, name: str = ""
) -> LocalResult:
    """Run a script, and compare its results, late rows and duplicates with those of the loop."""
    result = run_local_script(step, script, SCHEMA, shards=shards, store=store)
    expected = expected_results(step, row_batches(script))
    assert Counter(map(row_text_without_tags, result.rows)) == expected.results, name
    counters = result.statuses[-1].counters
    assert (counters.rows_late, counters.rows_duplicate) == (expected.late, expected.duplicates), name
    assert counters.rows_used == counters.rows_duplicate + len(result.rows), name
    assert counters.rows_sql == counters.rows_used + counters.rows_late, name
    return result


def check_dedup_seed(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    step, script, shards = plan_dedup_run(seed)
    return check_dedup_run(step, script, shards, store, f"seed {seed}")


def rebatch_rows_with_crashes(rng: random.Random, rows: Sequence[Row]) -> list[Any]:
    """Split the rows, in their order, into other batches, with kills and restarts between them."""
    script: list[Any] = []
    rest = list(rows)
    while rest:
        size = rng.randint(1, len(rest))
        if rng.random() < 0.3:
            script.append(DriverCrash(rng.choice(KILL_POINTS)))
        script.append(MicroBatch({"a": rest[:size]}))
        rest = rest[size:]
        if rng.random() < 0.3:
            script.append(PipelineRestart(shards=rng.choice([1, 2, 3])))
    return script
