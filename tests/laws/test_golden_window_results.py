"""Golden results per window kind: complete runs, crashes at every named step, other shard counts. Times in ms."""

from __future__ import annotations

from typing import Any

import pytest
from tests.laws.generators.golden_window_scripts import MS, SCHEMA, SCRIPTS, SHAPES
from tests.support.local_pipeline_script import KILL_POINTS, DriverCrash, LocalResult, run_local_script

from slackwater.config.window import Aggregation, Window

Golden = list[tuple[Any, ...]]
GOLDENS: dict[str, Golden] = {
    "tumbling": [
        (-10, 0, "a", 1, 1),
        (0, 10, None, 1, 4),
        (0, 10, "a", 1, 2),
        (10, 20, "a", 1, 8),
        (10, 20, "b", 1, None),
        (20, 30, "b", 1, 64),
    ],
    "hopping": [
        (-8, 2, "a", 1, 1),
        (-4, 6, "a", 1, 1),
        (0, 10, "a", 3, 11),
        (4, 14, "a", 2, 6),
        (8, 18, "a", 2, 6),
        (12, 22, "a", 1, 4),
        (16, 26, None, 1, 16),
        (20, 30, None, 1, 16),
        (24, 34, None, 1, 16),
    ],
    "session": [
        (0, 12, "a", 4, 27),
        (3, 8, None, 1, 4),
        (9, 14, None, 1, 64),
        (15, 20, "a", 1, 32),
        (30, 35, "a", 1, 128),
    ],
}
LATE = {"tumbling": (2, 2), "hopping": (0, 1), "session": (1, 1)}  # rows, (row, window) pairs


def read_window_rows(result: LocalResult) -> Golden:
    rows = [(r["window_start"] // MS, r["window_end"] // MS, r["u"], r["n"], r["x"]) for r in result.rows]
    return sorted(rows, key=lambda r: (r[0], r[2] is not None, r[2] or ""))


def run_window_of_kind(kind: str, script: list[Any], **more: Any) -> LocalResult:
    aggregations = [Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="x", as_="x")]
    return run_local_script(Window(group_by=["u"], aggregations=aggregations, **SHAPES[kind]), script, SCHEMA, **more)


def check_golden_result(kind: str, result: LocalResult) -> None:
    """Check the result of a timeline. `|` is the watermark that applies to an epoch. The lateness is 2.

    tumbling 10    -10        0         10        20        30
    epoch 0                  aa        N                          (-1, 0; 9)
    epoch 1 (7|)         x    .     |     a                       b at -3 is late: [-10, 0) closed at 7
    epoch 2 (10|)             .        x| b             b         a at 9 is late: [0, 10) closed at 10

    hopping 10/4   a 0 is in [-8, 2) [-4, 6) [0, 10); the watermark 7 has closed the first two when 3 comes,
                   which misses [-4, 6) and is used in [0, 10): a row partly late is used.

    session 5/12   0    5    10   15   20        30
    a              ●────●──●─●────●              ●    15 - 0 >= 12: cut; window_end = min(10 + 5, 0 + 12)
                   [────────── )[────)   x       [    21 comes behind the watermark 28, alone: late
    NULL              ●────) ●────)                   9 - 3 > 5: two sessions
    """
    assert read_window_rows(result) == GOLDENS[kind]
    assert (result.counters.rows_late, result.counters.late_windows) == LATE[kind]


@pytest.mark.semantics("tumbling-and-hopping-windows", "sessions")
@pytest.mark.parametrize("kind", SHAPES)
def test_golden_inputs_produce_golden_windows_and_late_rows(kind: str) -> None:
    """A short script for each window kind gives the expected windows and late rows, including for times before 1970."""
    check_golden_result(kind, run_window_of_kind(kind, SCRIPTS[kind]))


@pytest.mark.parametrize("step", KILL_POINTS)
@pytest.mark.parametrize("kind", SHAPES)
def test_golden_results_survive_a_crash_in_every_epoch(kind: str, step: str) -> None:
    script = [item for epoch in SCRIPTS[kind] for item in (DriverCrash(step), epoch)]
    check_golden_result(kind, run_window_of_kind(kind, [*script, DriverCrash(step)]))  # the last crash is in the flush


@pytest.mark.parametrize("shards", [1, 3, 7])
@pytest.mark.parametrize("kind", SHAPES)
def test_shard_count_and_resharding_do_not_change_golden_results(kind: str, shards: int) -> None:
    check_golden_result(kind, run_window_of_kind(kind, SCRIPTS[kind], shards=shards))
    for after in range(len(SCRIPTS[kind])):
        check_golden_result(kind, run_window_of_kind(kind, SCRIPTS[kind], shards=shards, reshard_after=(after, 4)))
