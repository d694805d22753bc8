"""Revised windows: some seeded runs of `generators/window_revision_runs.py`, and timelines drawn by hand."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from tests.laws.generators import window_revision_runs
from tests.laws.generators.emission_mode_changes import (
    EMISSION_MODES,
    run_every_emission_mode,
    run_window_over_epochs,
    session_window,
    tumbling_window,
)
from tests.laws.generators.window_revision_runs import MS, SCHEMA
from tests.laws.oracles import naive_oracle
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import DriverCrash, LocalResult, run_local_script

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))


@pytest.mark.semantics("corrections-to-closed-windows")
@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_seeded_runs_with_corrections_match_the_oracle(first: int) -> None:
    """Seeded runs with corrections, `final` and `updates` leave exactly the oracle's windows in the target."""
    for seed in range(first, first + 20):
        window_revision_runs.check_seed(seed)


def read_revisions(result: LocalResult) -> list[tuple[Any, ...]]:
    """Return (epoch, reason, start in ms, n, revision) of each emitted row."""
    return [
        (r["_epoch"], r["_emit_reason"], r["window_start"] // MS, r["n"], r["_revision"])
        for r in sorted(result.rows, key=lambda r: (r["_epoch"], r["window_start"]))
    ]


def test_late_row_that_bridges_two_emitted_sessions_merges_them() -> None:
    """
    gap 5      0  2        10 12                30        7
    epoch 0    ●──●         ●──●                          emitted: [0, 2]
    epoch 1                                     ●         emitted: [10, 12]
    epoch 2                            ● 6, 7: merge both [0, 12] replaces both: 0 again, 10 superseded
    """
    result = run_window_over_epochs(
        session_window(late_data="reopen", allowed_lateness_ms=50), [0, 2, 10, 12], [30], [6, 7]
    )
    assert read_revisions(result) == [
        (0, "close", 0, 2, 1),
        (1, "close", 10, 2, 1),
        (2, "late", 0, 6, 2),
        (2, "supersede", 10, None, 2),
    ]


def test_session_extended_past_the_watermark_by_a_late_row_is_reopened() -> None:
    """
    lateness 3   0 ── 4                closes past 9: at watermark 10, event 13
                       8               late, and extends the session to 13: open again until the watermark is past 13
    """
    window = session_window(late_data="reopen", allowed_lateness_ms=50, lateness_ms=3)
    assert read_revisions(run_window_over_epochs(window, [0, 4], [13], [])) == [(1, "close", 0, 2, 1)]
    assert read_revisions(run_window_over_epochs(window, [0, 4], [13], [8])) == [(1, "close", 0, 2, 1)]
    assert read_revisions(run_window_over_epochs(window, [0, 4], [13], [8], [40]))[:2] == [
        (1, "close", 0, 2, 1),
        (3, "close", 0, 4, 2),
    ]


def test_late_row_that_moves_a_session_start_supersedes_the_old_start() -> None:
    result = run_window_over_epochs(session_window(late_data="reopen", allowed_lateness_ms=50), [10, 12], [30], [8])
    assert read_revisions(result) == [(1, "close", 10, 2, 1), (2, "late", 8, 3, 2), (2, "supersede", 10, None, 2)]


def test_row_beyond_the_allowed_lateness_is_late() -> None:
    """gap 5: the session of event 0 closes after 5 and leaves the state after 15"""
    window = session_window(late_data="reopen", allowed_lateness_ms=10)
    result = run_window_over_epochs(window, [0], [16], [2])
    assert read_revisions(result) == [(1, "close", 0, 1, 1)]
    assert result.counters.late == {"lateness": 1}
    assert read_revisions(run_window_over_epochs(window, [0], [15], [2])) == [
        (1, "close", 0, 1, 1),
        (2, "late", 0, 2, 2),
    ]


def test_emit_final_emits_once_after_the_allowed_lateness() -> None:
    window = session_window(late_data="reopen", allowed_lateness_ms=10, emit="final")
    assert read_revisions(run_window_over_epochs(window, [0], [15], [2], [17])) == []
    assert read_revisions(run_window_over_epochs(window, [0], [15], [2], [18])) == [(3, "close", 0, 2, 1)]


def test_emit_updates_emits_a_window_in_each_epoch_that_changes_it() -> None:
    """
    epoch 0  [0 ─ 2]          update 0
    epoch 1          [7 ─ 9]  within the gap of the first, so one session: update 0
    epoch 2                      60  the session closes unchanged, and is not emitted again
    """
    result = run_window_over_epochs(session_window(emit="updates", lateness_ms=20), [0, 2], [7, 9], [60])
    assert read_revisions(result) == [(0, "update", 0, 2, 1), (1, "update", 0, 4, 2), (2, "update", 60, 1, 1)]


def test_update_of_merged_sessions_supersedes_the_later_one() -> None:
    result = run_window_over_epochs(session_window(emit="updates", lateness_ms=50), [0, 8], [4])
    assert read_revisions(result) == [
        (0, "update", 0, 1, 1),
        (0, "update", 8, 1, 1),
        (1, "update", 0, 3, 2),
        (1, "supersede", 8, None, 2),
    ]


def test_updates_wait_for_emit_interval_unless_the_window_closes() -> None:
    window = session_window(emit="updates", emit_interval_ms="1h", lateness_ms=10)
    result = run_window_over_epochs(window, [0], [1], [30], [31])
    assert read_revisions(result) == [(0, "update", 0, 1, 1), (2, "close", 0, 2, 2)]


def test_only_the_corrected_window_is_emitted_again() -> None:
    result = run_window_over_epochs(
        tumbling_window(late_data="reopen", allowed_lateness_ms=30), [0, 11], [25], [3], [4, 21]
    )
    assert read_revisions(result) == [
        (0, "close", 0, 1, 1),
        (1, "close", 10, 1, 1),
        (2, "late", 0, 2, 2),
        (3, "late", 0, 3, 3),
    ]
    assert {r["_final_at"] for r in result.rows if r["window_start"] == 0} == {40 * MS}


def test_late_data_standalone_puts_late_rows_in_separate_sessions() -> None:
    """
    gap 5, cap 12    watermark 50: rows at 0, 2, 9 and 12 are late; 2 and 9 are 7 apart, 12 joins 9
    """
    result = run_window_over_epochs(session_window(late_data="standalone"), [50], [0, 2, 9, 12, 51])
    assert read_revisions(result) == [(1, "standalone", 0, 2, 1), (1, "standalone", 9, 2, 1)]
    assert result.counters.late == {"lateness": 4}
    assert result.counters.emitted == {"standalone": 2}


@pytest.mark.semantics("separate-results")
@pytest.mark.parametrize("seed", range(30))
def test_windows_and_standalone_results_together_contain_every_row(seed: int) -> None:
    """With `late_data = "standalone"`, each row is in one result: that of its window, or a separate one if late."""
    plans = (window_revision_runs.plan_revision_run(n) for n in range(100 * seed, 100 * seed + 100))
    run = next(plan for plan in plans if plan.spec.kind != "session")
    window = run.window.model_copy(
        update={"late_data": "standalone", "emit": "on_close", "allowed_lateness_ms": None, "emit_interval_ms": 0}
    )
    script = [item for item in run.script if not isinstance(item, DriverCrash)]
    result = run_local_script(window, script, SCHEMA, shards=run.shards, upserts=False)
    counted: Counter[tuple[Any, Any]] = Counter()
    for row in result.rows:
        assert row["_emit_reason"] in ("close", "flush", "standalone")
        counted[window_revision_runs.row_identity(row)] += row["ids"]
    rows = [r for epoch in run.epoch_rows for r in epoch]
    assert counted == {
        window_revision_runs.row_identity(w): w["ids"]
        for w in naive_oracle.compute_windows_over_all_rows(run.spec, rows)
    }


@pytest.mark.semantics("emission")
@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_a_changed_emit_mode_continues_the_state(kind: str, tmp_path: Any) -> None:
    """A start with a different `emit` or `late_data` adapts the state of the previous run and continues."""
    assert run_every_emission_mode(kind, state_dir=str(tmp_path)) == EMISSION_MODES[kind]
