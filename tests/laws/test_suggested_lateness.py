"""Predictions for a higher lateness, compared with a rerun of the same input that has this lateness."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.ui_pipeline_states import (
    SHAPES,
    M,
    S,
    draw_two_source_script,
    run_two_source_pipeline,
    write_two_source_config,
)

from slackwater.config.join import Join
from slackwater.core.lateness_histogram import (
    EDGES,
    NEVER,
    build_lateness_histogram,
    compute_lateness_stats,
    update_histogram,
)

KINDS = {
    **SHAPES,
    "reopened": 'kind = "tumbling"\nduration_ms = "5m"\nlate_data = "reopen"\nallowed_lateness_ms = "3m"\n'
    "emit_metadata = true\nmax_groups_per_window = 1000",
    "final": 'kind = "hopping"\nduration_ms = "10m"\nhop_ms = "5m"\nlate_data = "reopen"\nallowed_lateness_ms = "3m"\n'
    'emit = "final"\nmax_groups_per_window = 1000',
}
WEB, APP = 30_000, 60_000


@pytest.mark.parametrize("seed", select_cases(range(2)))
@pytest.mark.parametrize("kind", select_cases(KINDS, keep=4))
def test_rerun_with_suggested_lateness_keeps_the_predicted_share_of_rows(tmp_path: Path, kind: str, seed: int) -> None:
    story = draw_two_source_script(seed, epochs=14)
    shape = KINDS[kind]
    dead = '[dead_letter]\nconnection = "lake"\npath = "letters"\n' if "reopen" in shape else ""

    def late(name: str, more_ms: int) -> Any:
        home = tmp_path / name
        home.mkdir()
        file = write_two_source_config(shape, home)
        file.write_text(file.read_text() + dead)
        return run_two_source_pipeline(file, story, lateness_ms={"web": WEB + more_ms, "app": APP + more_ms}).counters

    first = late("first", 0)
    stats = compute_lateness_stats(first.lateness)
    assert stats.late == first.rows_late
    assert stats.rows == first.rows_used + first.rows_late + first.rows_refused
    assert stats.late > 0
    assert [c.late for c in stats.chances] == sorted((c.late for c in stats.chances), reverse=True)
    assert stats.chances[-1].late == 0
    assert stats.advice is not None
    chosen = {stats.chances[0], stats.advice, stats.chances[-1], stats.chances[len(stats.chances) // 2]}
    for n, chance in enumerate(sorted(chosen, key=lambda c: c.more_us)):
        again = late(f"again {n}", chance.more_us // 1000)
        assert again.rows_late <= chance.late
        if "session" not in shape:
            assert again.rows_late == chance.late
        used_share = 1 - again.rows_late / stats.rows
        assert used_share >= chance.share - 1e-12
        assert chance.lateness_us is None  # the two sources have different lateness


@pytest.mark.parametrize("seed", select_cases(range(4)))
def test_predicted_late_rows_of_a_join_match_a_rerun(seed: int) -> None:
    dice, now_us, script = random.Random(seed), 0, []
    for _ in range(12):
        now_us += dice.choice([S, 40 * S, 5 * M])
        script.append(
            MicroBatch(
                {
                    side: [
                        {"ts": now_us - dice.choice([0, S, 50 * S, 9 * M]) - dice.randrange(S), "user": f"u{n % 3}"}
                        for n in range(dice.randrange(20))
                    ]
                    for side in ("left", "right")
                }
            )
        )

    def late(lateness_ms: int) -> Any:
        join = Join(
            kind="left",
            left_source="left",
            right_source="right",
            left_keys=["user"],
            right_keys=["user"],
            time_window_ms="1m",
            event_time_column="ts",
            lateness_ms=lateness_ms,
        )
        return run_local_script(join, script, {"user": "string"}, ("left", "right"), flush=False).counters

    first = late(5000)
    stats = compute_lateness_stats(first.lateness)
    assert stats.late == first.rows_late > 0
    for chance in stats.chances:
        assert chance.lateness_us == 5_000_000 + chance.more_us
        assert late(chance.lateness_us // 1000).rows_late == chance.late


def test_lateness_histogram_is_reset_when_a_source_lateness_changes() -> None:
    histogram = update_histogram({}, 10, [{"0": 2}, {"3": 1}], {"a": 5})
    assert histogram == {"rows": 10, "late": {"0": 2, "3": 1}, "of_us": {"a": 5}}
    more = update_histogram(histogram, 5, [{"3": 4}], {"a": 5})
    assert more == {"rows": 15, "late": {"0": 2, "3": 5}, "of_us": {"a": 5}}
    assert update_histogram(more, 5, [{"3": 4}], {"a": 6}) == {"rows": 5, "late": {"3": 4}, "of_us": {"a": 6}}
    assert compute_lateness_stats({}).advice is None
    assert compute_lateness_stats({}).share == 1.0


def test_lateness_bucket_is_the_smallest_edge_that_covers_the_row() -> None:
    import numpy as np

    times = [1, 125_000, 125_001, 250_000, 10**6, 10**6 + 1, int(EDGES[-1]), 1 << 62]
    assert build_lateness_histogram(np.array(times)) == {
        "0": 2,
        "1": 2,
        "3": 1,
        "4": 1,
        str(len(EDGES) - 1): 1,
        NEVER: 1,
    }
    stats = compute_lateness_stats(update_histogram({}, 20, [build_lateness_histogram(np.array(times))], {"a": 0}))
    assert stats.late == 8
    assert stats.chances[-1].late == 1  # no lateness covers this row
