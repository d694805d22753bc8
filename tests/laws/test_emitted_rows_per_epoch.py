"""Target contents after each epoch: some seeds of `window_update_runs.py` and `final_emission_runs.py`, and hand-written timelines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from tests.laws.generators import final_emission_runs, window_update_runs
from tests.laws.generators.window_update_runs import MS, SCHEMA, TargetTable
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import (
    LocalResult,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))


@pytest.mark.semantics("emission")
@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_seeded_runs_with_emit_updates_match_the_oracle_after_each_epoch(first: int) -> None:
    """With `emit = "updates"`, the target contains exactly the current windows after each epoch."""
    for seed in range(first, first + 20):
        window_update_runs.check_seed(seed)


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_seeded_runs_with_emit_final_or_on_close_match_the_oracle_after_each_epoch(first: int) -> None:
    for seed in range(first, first + 20):
        final_emission_runs.check_seed(seed)


def session_window(gap: int, cap: int, **settings: Any) -> Window:
    return counting_window(
        kind="session", gap_ms=gap, max_session_duration_ms=cap, **{"lateness_ms": 60_000, **settings}
    )


def counting_window(**settings: Any) -> Window:
    return Window(
        group_by=["u"], aggregations=[Aggregation(agg="count", as_="n")], **{"emit_metadata": True, **settings}
    )


def run_window_over_event_times(
    window: Window, *epochs: Sequence[int], flush: bool = False, upserts: bool = True
) -> LocalResult:
    """Run over epochs of event times (in ms) of one user."""
    script = [MicroBatch({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 0.0, "g": 1} for t in e]}) for e in epochs]
    return run_local_script(window, script, SCHEMA, flush=flush, upserts=upserts)


def read_target_windows(result: LocalResult, upto: int = 1 << 60) -> list[tuple[Any, ...]]:
    """Return (start, end, n) of the rows in the target after an epoch, with times in ms."""
    table = TargetTable(result)
    table.apply_epochs(upto)
    return sorted((r["window_start"] // MS, r["window_end"] // MS, r["n"]) for r in table.rows.values())


def read_emitted_rows(result: LocalResult) -> list[tuple[Any, ...]]:
    """Return (epoch, reason, start in ms, n, revision) of the emitted rows."""
    rows = [*result.rows, *({**r, "_emit_reason": "supersede"} for r in result.gone)]
    return [
        (r["_epoch"], r["_emit_reason"], r["window_start"] // MS, r.get("n"), r.get("_revision"))
        for r in sorted(rows, key=lambda r: (r["_epoch"], r["window_start"]))
    ]


def test_rows_after_a_moved_session_split_are_emitted_as_a_session() -> None:
    """
    gap 20, cap 22    125       140       150
    epoch 0                     [──────────]170
    epoch 1            ●────────●)147      [)170    150 is 25 from the new start: emitted without a new row
    """
    result = run_window_over_event_times(session_window(20, 22, emit="updates"), [140, 150], [125])
    assert read_target_windows(result, 0) == [(140, 170, 2)]
    assert read_target_windows(result, 1) == [(125, 147, 2), (150, 170, 1)]
    assert read_emitted_rows(result)[1:] == [
        (1, "update", 125, 2, 2),
        (1, "supersede", 140, None, None),
        (1, "update", 150, 1, 2),
    ]


def test_session_shortened_by_its_successor_is_emitted_with_its_new_end() -> None:
    """
    gap 2, cap 7      0  1.5  3  4.5  6 6.5   7.5
    epoch 0           [──────────────────]8.5
    epoch 1           [──────────────────)7   [)9.5    the first has no new row; it ends where the second may begin
    """
    result = run_window_over_event_times(
        session_window(20, 70, emit="updates"), [0, 15, 30, 45, 60, 65], [75], flush=True
    )
    assert read_target_windows(result, 0) == [(0, 85, 6)]
    assert read_target_windows(result, 1) == [(0, 70, 6), (75, 95, 1)]
    assert [r[:3] for r in read_emitted_rows(result)] == [
        (0, "update", 0),
        (1, "update", 0),
        (1, "update", 75),
    ]  # not emitted again at the close


def test_retained_session_is_emitted_again_when_a_late_row_shortens_it() -> None:
    """
    gap 5, cap 8      0 ── 7             both are closed and retained: watermark 40
                             12 ─ 16
    a late row              ●11          8 or more from 0, so the row joins the second; the first now ends at its cap
    """
    result = run_window_over_event_times(
        session_window(5, 8, late_data="reopen", allowed_lateness_ms=100, lateness_ms=0), [0, 5, 7, 13, 17], [40], [12]
    )
    assert read_target_windows(result, 1) == [(0, 12, 3), (13, 22, 2)]
    assert read_target_windows(result, 2) == [(0, 8, 3), (12, 22, 3)]


@pytest.mark.semantics("late-rows-in-sessions")
def test_row_at_the_start_of_an_unsplit_session_joins_that_session() -> None:
    """A row behind the watermark joins the earlier session, and the next session stays whole.

    gap 20, cap 22     0       10        21   30
    epoch 0            ●                 ●────●       two sessions; watermark 15
    epoch 1                    ● behind the watermark: joins the first, and the second stays whole
    epoch 2                              ● 21 again: 21 from 0, but in the second, which contains 30
    """
    result = run_window_over_event_times(
        session_window(20, 22, emit="updates", lateness_ms=15), [0, 21, 30], [10], [21], flush=True
    )
    assert read_target_windows(result, 0) == [(0, 20, 1), (21, 50, 2)]
    assert read_target_windows(result, 1) == [(0, 21, 2), (21, 50, 2)]
    assert read_target_windows(result) == [(0, 21, 2), (21, 50, 3)]


def test_late_row_does_not_change_any_session() -> None:
    """
    gap 20, cap 22      94 97 100       118   121   125
    epoch 0                   ●─────────●─────●)122       lateness 28: watermark 97
                                                    [)145
    epoch 1             ●   behind the watermark, and joining would reach the cap: late (or not sent)
    epoch 2                ●──●─────────●)119 [─────●)145 97 is not late, and moves the cut in both cases
    """
    for late in ([], [94]):
        result = run_window_over_event_times(
            session_window(20, 22, emit="updates", lateness_ms=28), [100, 118, 121, 125], late, [97], flush=True
        )
        assert read_target_windows(result) == [(97, 119, 3), (121, 145, 2)]
        assert result.counters.rows_late == len(late)


@pytest.mark.semantics("columns-and-order")
@pytest.mark.parametrize("late_data", ["drop", "dlq", "reopen", "standalone"])
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
def test_first_row_of_a_window_has_revision_one(kind: str, late_data: str) -> None:
    """The first row of a window has revision 1, and each row that replaces it adds 1.

    Late rows start a window, correct a window and, with hopping windows, start a window that closes later.
    """
    shape: dict[str, Any] = {
        "tumbling": {"duration_ms": 10, "max_groups_per_window": 100},
        "hopping": {"duration_ms": 10, "hop_ms": 5, "max_groups_per_window": 100},
        "session": {"gap_ms": 3, "max_session_duration_ms": 10},
    }[kind]
    more = {"allowed_lateness_ms": 200} if late_data == "reopen" else {}
    spec = counting_window(kind=kind, late_data=late_data, **shape, **more)
    result = run_window_over_event_times(spec, [0, 61], [100], [30], [31, 96], [130], flush=True, upserts=False)
    seen: dict[int, int] = {}
    for epoch, reason, start, _, revision in read_emitted_rows(result):
        if reason == "standalone":
            assert revision == 1
            continue
        assert revision == seen.get(start, 0) + 1, (epoch, reason, start, revision)
        seen[start] = revision
    assert (max(seen.values()) > 1) == (late_data == "reopen")


def test_overlapping_windows_have_separate_revisions() -> None:
    """
    10 long, hop 5, late rows corrected       0    5    10   15   20
    epoch 0   ●2                              [─────────)            open: nothing is emitted
    epoch 1                     ●21           closed: −5 and 0 are emitted
    epoch 2        ●7 late                    0 corrected: revision 2; 5 started: revision 1
    epoch 3             ●12 late              5 corrected: revision 2; 10 started: revision 1
    """
    spec = counting_window(
        kind="hopping", duration_ms=10, hop_ms=5, max_groups_per_window=9, late_data="reopen", allowed_lateness_ms=99
    )
    result = run_window_over_event_times(spec, [2], [21], [7], [12], flush=False, upserts=False)
    assert [(e, s, r) for e, _, s, _, r in read_emitted_rows(result)] == [
        (1, -5, 1),
        (1, 0, 1),
        (2, 0, 2),
        (2, 5, 1),
        (3, 5, 2),
        (3, 10, 1),
    ]


def test_closed_window_is_not_emitted_again_while_its_pane_has_open_windows() -> None:
    """
    10 long, hop 5, at most every hour     row 7 is in 0 and 5; 0 closes at 10, 5 stays open
    """
    spec = counting_window(
        kind="hopping",
        duration_ms=10,
        hop_ms=5,
        max_groups_per_window=9,
        emit="updates",
        emit_interval_ms="1h",
        late_data="reopen",
        allowed_lateness_ms=99,
    )
    result = run_window_over_event_times(spec, [-20], [7], [12], [13], [14], flush=False, upserts=False)
    assert [(e, s, n) for e, _, s, n, _ in read_emitted_rows(result) if s == 0] == [(2, 0, 1)]


def test_open_session_is_emitted_with_its_new_end_after_a_gap_change() -> None:
    """
    gap 5 ▸ 8    0 ── 4      9 ▸ 12, without a new row
    """
    before, after = (session_window(gap, 50, emit="updates") for gap in (5, 8))
    rows = [{"ts": t * MS, "u": "a", "id": 1, "f": 0.0, "g": 1} for t in (0, 4)]
    script = [MicroBatch({"a": rows}), PipelineRestart(step=after), QuietInterval(100)]
    result = run_local_script(before, script, SCHEMA, flush=False)
    assert read_target_windows(result, 0) == [(0, 9, 2)]
    assert read_target_windows(result) == [(0, 12, 2)]
