"""Clock jumps: a clock that is set forward or back changes no result, and delays none for long.

clock of the machine   ──▶──▶ │ a day back: ──▶──▶ │ an hour forward: ──▶──▶      event times continue
watermark              ──▶──▶───▶──▶──────────────────▶──▶                        follows only the events
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.random_stage_graph_runs import (
    SCHEMA,
    SOURCES,
    build_stage_pipeline,
    comparable_rows,
    draw_stages,
    emitted_rows,
)
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.testing.local_pipeline import LocalPipeline

MS = 1000
HOUR_MS = 3_600_000
COUNT = [sw.Aggregation(agg="count", as_="n")]


def run_random_graph(seed: int, jumps: bool) -> tuple[dict[str, list[str]], list[tuple[int, int]], dict[str, Any]]:
    """Run the graph of a seed. Return the results by stage, the watermarks after each epoch, and the counters.

    `jumps`: set the clock forward or back before some epochs, by about a day or an hour.
    """
    rng, clock = random.Random(seed), random.Random(-1 - seed)
    lateness = rng.choice([0, 10])
    stages = draw_stages(rng, lateness)
    spec, now_ms = build_stage_pipeline(stages), 0
    names = [s.name for s in spec.sources]
    watched = [s.name for s in stages if s.name not in {t.from_ for t in spec.targets}]
    watermarks: list[tuple[int, int]] = []
    with LocalPipeline(spec, SCHEMA, shards=rng.choice([1, 3]), capture_losses=False, extra_stages=watched) as test:
        for _ in range(rng.randrange(5, 20)):
            rows: dict[str, list[dict[str, Any]]] = {}
            for source in sorted(rng.sample(names, rng.randrange(1, len(names) + 1))):
                rows[source] = []
                for _ in range(rng.choice([0, 1, 2, 4])):
                    now_ms += rng.choice([0, 1, 4, 8, 40])
                    behind = rng.choice([0, 0, 12]) if lateness else 0
                    rows[source].append(
                        {"k": rng.choice(["x", "y", None]), "v": rng.randrange(9), "ts": (now_ms - behind) * MS}
                    )
            if jumps and clock.random() < 0.4:
                test.now_us += clock.choice([-24, -1, 1, 24]) * HOUR_MS * MS + clock.randrange(-5000, 5000)
            test.pipe(rows)
            watermarks += [(n, s.watermark_us) for n, s in enumerate(test._driver.state.stages)]
            if rng.random() < 0.3:
                test.quiet(rng.choice([600, 1100]))
            if rng.random() < 0.2:
                test.restart(shards=rng.choice([1, 2]))
        test.flush()
        result, state = test.result(), test._driver.state
    counted = {
        s.name: {k: s.counters.get(k, 0) for k in ("rows_in", "rows_used", "rows_bad", "late")} for s in state.stages
    }
    return {s.name: comparable_rows(s, emitted_rows(s, result.stages[s.name])) for s in stages}, watermarks, counted


@pytest.mark.parametrize("first", select_cases(range(0, 15, 5)))
def test_results_and_watermarks_do_not_depend_on_the_clock(first: int) -> None:
    seed_runner.hide_warnings()
    assert len(SOURCES) == 3
    for seed in range(first, first + 5):
        steady, jumped = run_random_graph(seed, jumps=False), run_random_graph(seed, jumps=True)
        assert jumped == steady, f"seed {seed}"
        latest: dict[int, int] = {}
        for stage, watermark in jumped[1]:
            assert watermark >= latest.get(stage, watermark), f"seed {seed}: a watermark went back"
            latest[stage] = watermark


@pytest.mark.parametrize("hours", [-24, -1, 1, 24])
def test_open_windows_keep_receiving_updates_after_a_clock_jump(hours: int) -> None:
    """
    clock     00:00    00:10             set to another time     + 20 s: at the latest now
    row       1        2                 3                       4
    n emitted 1        (10 s have not    3                       4
                        passed)
    """
    window = sw.Window(
        kind="tumbling",
        duration_ms="1h",
        group_by=["user"],
        aggregations=COUNT,
        emit="updates",
        emit_interval_ms="10s",
        max_groups_per_window=10,
    )
    with LocalPipeline(window, {"user": "string"}) as test:

        def counted(second: int) -> int | None:
            test.pipe([{"user": "u", "ts": second * 1_000_000}])
            held = test.target().held.to_dicts()
            return held[0]["n"] if held else None

        assert counted(1) == 1
        test.now_us += 1_000_000
        assert counted(2) == 1, "not more often than emit_interval"
        test.now_us += hours * HOUR_MS * MS
        assert counted(3) == 3
        test.now_us += 20_000_000
        assert counted(4) == 4
