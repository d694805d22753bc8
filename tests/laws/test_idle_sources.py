"""Section 2 of the contract on the virtual clock: lateness, far-future rows, idle sources and partitions, idle close.

Windows are 10 s long, and a source counts as idle after 60 s without rows. Times below are in seconds.
The oracle is `naive_oracle.PaneEpochOracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.generators.ten_second_windows import S, rows_for_seconds, ten_second_window
from tests.laws.generators.window_law_strategies import (
    LAW,
    SCHEMA,
    build_oracle_spec,
    build_window_from_spec,
    check_row_count,
    comparable_rows,
    ordered_rows,
    two_source_script,
)
from tests.laws.oracles import naive_oracle
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Window
from slackwater.testing.memory_target import START_US

USERS = {"u": "string"}
BOTH = ("a", "b")
Script = Sequence[MicroBatch | QuietInterval | DriverCrash]


def run_script_without_flush(
    script: Script, given_: Window | None = None, sources: Sequence[str] = BOTH, **more: Any
) -> LocalResult:
    return run_local_script(given_ or ten_second_window(), script, USERS, sources, flush=False, **more)


def compute_final_watermark_s(*script: Any, **more: Any) -> float:
    return run_script_without_flush(script, **more).watermark_us / S


def list_idle_sources(result: LocalResult) -> list[str]:
    return [s.name for s in result.statuses[-1].sources if s.idle]


def build_quiet_intervals(seconds: int, every: int = 10) -> list[QuietInterval]:
    return [QuietInterval(1000 * every)] * (seconds // every)


# -- lateness and the future -----------------------------------------------------------------------------------------


def test_source_lateness_overrides_the_lateness_of_the_window() -> None:
    rows = MicroBatch({"a": rows_for_seconds(100), "b": rows_for_seconds(100)})
    assert compute_final_watermark_s(rows, given_=ten_second_window(lateness_ms="5s")) == 95
    assert compute_final_watermark_s(rows, given_=ten_second_window(lateness_ms="5s"), lateness_ms={"b": 30_000}) == 70
    assert (
        compute_final_watermark_s(rows, given_=ten_second_window(lateness_ms="5s"), lateness_ms={"a": 0, "b": 1000})
        == 99
    )


@pytest.mark.semantics("wrong-dates")
def test_row_beyond_max_future_is_bad_and_does_not_move_the_watermark() -> None:
    """A row exactly `max_future` ahead of the clock is used. A row further ahead is bad and does not move the
    watermark.
    """
    bound = START_US + 3600 * S
    hour = ten_second_window(max_future_ms="1h")
    rows = [{"ts": t, "u": "x"} for t in (bound, bound + 1, None)]
    result = run_script_without_flush([MicroBatch({"a": rows})], hour, ["a"])
    assert (result.watermark_us, result.counters.rows_bad) == (bound, 2)
    check_row_count(result, 3, bad=2)
    alone = run_script_without_flush(
        [MicroBatch({"a": rows_for_seconds(100)}), MicroBatch({"a": [{"ts": bound + 1, "u": "x"}]})], hour, ["a"]
    )
    assert alone.watermark_us == 100 * S
    check_row_count(alone, 2, bad=1)


def test_max_future_is_relative_to_the_current_clock() -> None:
    """A row 1 ms beyond the bound is bad. The same time is good after the clock has moved."""
    rows = MicroBatch({"a": [{"ts": START_US + 1000, "u": "x"}]})
    zero = ten_second_window(max_future_ms=0)
    assert run_script_without_flush([rows], zero, ["a"]).counters.rows_bad == 1
    later = run_script_without_flush([MicroBatch({"a": rows_for_seconds(1)}), QuietInterval(1), rows], zero, ["a"])
    assert (later.counters.rows_bad, later.watermark_us) == (0, START_US + 1000)


def test_source_with_only_bad_rows_is_not_idle_and_holds_the_watermark() -> None:
    future = [{"ts": START_US + 2 * 86_400 * S, "u": "x"}]
    script: list[Any] = []
    for n in range(4):
        script += [MicroBatch({"a": rows_for_seconds(100 + n), "b": future}), QuietInterval(40_000)]
    result = run_script_without_flush(script)
    assert list_idle_sources(result) == []
    assert result.statuses[-1].watermark_us is None


# -- idle sources ----------------------------------------------------------------------------------------------------


def test_source_without_rows_holds_the_watermark_until_idle() -> None:
    assert (
        run_script_without_flush([MicroBatch({"a": rows_for_seconds(100)}), QuietInterval(59_999)])
        .statuses[-1]
        .watermark_us
        is None
    )
    result = run_script_without_flush(
        [
            MicroBatch({"a": rows_for_seconds(100)}),
            QuietInterval(59_999),
            MicroBatch({"a": rows_for_seconds(101)}),
            QuietInterval(1),
            MicroBatch({"a": rows_for_seconds(102)}),
        ]
    )
    assert (result.watermark_us, list_idle_sources(result)) == (102 * S, ["b"])


def test_watermark_advances_past_an_idle_source_and_never_moves_back() -> None:
    """Source b is silent after 50 while a continues to 200. When b returns with 120, the watermark stays at 200.

    a           ●100    ●150          ●200         ●300
    b           ●50     ○   60 s ○    ○     ●120   ●250
    watermark    50      50      150  200    200    250
    """
    script: list[Any] = [MicroBatch({"a": rows_for_seconds(100), "b": rows_for_seconds(50)})]
    expected = [50]
    for item, seconds in (
        ([MicroBatch({"a": rows_for_seconds(150)})], 50),
        ([*build_quiet_intervals(50), MicroBatch({"a": rows_for_seconds(150)}), QuietInterval(10_000)], 150),
        ([MicroBatch({"a": rows_for_seconds(200)})], 200),
        ([MicroBatch({"b": rows_for_seconds(120)})], 200),
        ([MicroBatch({"a": rows_for_seconds(300), "b": rows_for_seconds(250)})], 250),
    ):
        script += item
        expected.append(seconds)
        result = run_script_without_flush(script)
        assert result.watermark_us == seconds * S, script
    watermarks = [s.watermark_us for s in result.statuses]
    assert watermarks == sorted(watermarks), "it never goes back"
    assert dict(result.counters.late) == {"idle": 1}
    check_row_count(result, 8)


def test_watermark_does_not_move_while_all_sources_are_idle() -> None:
    result = run_script_without_flush(
        [MicroBatch({"a": rows_for_seconds(100), "b": rows_for_seconds(50)}), *build_quiet_intervals(7200)]
    )
    assert (result.watermark_us, list_idle_sources(result)) == (50 * S, ["a", "b"])
    assert [r["window_start"] for r in result.rows] == [], "the window of 50 is open"


@pytest.mark.parametrize(("first", "stays"), [("a", 50), ("b", 110)])
def test_idle_close_does_not_depend_on_the_source_that_was_silent_first(first: str, stays: int) -> None:
    """Source b is at 50. If a is silent first, b holds the watermark. If b is silent first, the watermark follows a."""
    last = {"a": rows_for_seconds(110)} if first == "b" else {"b": rows_for_seconds(50)}
    script = [
        MicroBatch({"a": rows_for_seconds(110), "b": rows_for_seconds(50)}),
        QuietInterval(40_000),
        MicroBatch(last),
        QuietInterval(30_000),
        MicroBatch(last),
        QuietInterval(60_000),
    ]
    assert compute_final_watermark_s(*script) == stays
    assert (
        compute_final_watermark_s(*script, *build_quiet_intervals(60), given_=ten_second_window(idle_close_ms="2m"))
        == 110 + 120
    )


def test_duration_of_a_slow_epoch_does_not_count_as_idle_time() -> None:
    """Process one epoch for an hour, with quiet time before and after. Only the quiet time counts."""
    slow = MicroBatch({"a": rows_for_seconds(100)}, took_ms=3_600_000)
    script = [
        MicroBatch({"a": rows_for_seconds(99), "b": rows_for_seconds(50)}),
        QuietInterval(30_000),
        slow,
        QuietInterval(29_999),
    ]
    result = run_script_without_flush(script, ten_second_window(idle_close_ms="1m"))
    assert (result.watermark_us, list_idle_sources(result)) == (50 * S, [])
    assert list_idle_sources(run_script_without_flush([*script, QuietInterval(1)])) == ["b"]


def test_late_rows_have_cause_idle_until_the_source_has_caught_up() -> None:
    """Source b returns far behind and catches up over three epochs. Then a row is late by the disorder of b.

    watermark   200                    260
    b           idle  ●100  ●150,●189  ●261   ●240
    late              idle  idle,idle         lateness
    """
    script = [
        MicroBatch({"a": rows_for_seconds(200), "b": rows_for_seconds(50)}),
        QuietInterval(60_000),
        MicroBatch({"a": rows_for_seconds(200)}),
        MicroBatch({"b": rows_for_seconds(100)}),
        MicroBatch({"b": rows_for_seconds(150, 189)}),
        MicroBatch({"a": rows_for_seconds(260), "b": rows_for_seconds(261)}),
        MicroBatch({"b": rows_for_seconds(240)}),
    ]
    result = run_script_without_flush(script)
    assert dict(result.counters.late) == {"idle": 3, "lateness": 1}
    check_row_count(result, 9)


def test_late_row_after_idle_time_has_cause_lateness_if_the_watermark_did_not_advance() -> None:
    result = run_script_without_flush(
        [MicroBatch({"a": rows_for_seconds(200)}), QuietInterval(60_000), MicroBatch({"a": rows_for_seconds(100)})],
        sources=["a"],
    )
    assert dict(result.counters.late) == {"lateness": 1}


# -- partitions ------------------------------------------------------------------------------------------------------

TWO = {"a": ("0", "1")}


@pytest.mark.semantics("kafka-partitions")
def test_slowest_partition_holds_the_watermark_until_idle() -> None:
    """The slowest partition holds the watermark back until it is idle. Then its late rows count as `idle` until it
    catches up.

    Partition 1 is silent after 50 while partition 0 continues to 200. The next row of partition 1 is late by idleness.

    0          ●100  ●150        ●200
    1          ●50   ○     60 s        ●70   ●201
    watermark   50    50   150    200   200   200
    """

    def rows(*given_: dict[str, Any]) -> MicroBatch:
        return MicroBatch({"a": given_}, TWO)

    zero, one = lambda s: rows_for_seconds(s, partition="0")[0], lambda s: rows_for_seconds(s, partition="1")[0]
    script: list[Any] = [rows(zero(100), one(50)), rows(zero(150))]
    assert compute_final_watermark_s(*script, sources=["a"]) == 50
    script += [QuietInterval(59_999), rows(zero(150))]
    assert compute_final_watermark_s(*script, sources=["a"]) == 50
    script += [QuietInterval(1), rows(zero(150))]
    assert compute_final_watermark_s(*script, sources=["a"]) == 150
    script += [rows(zero(200)), rows(one(70), zero(80)), rows(zero(205), one(201)), rows(one(202))]
    result = run_script_without_flush(script, sources=["a"])
    assert result.watermark_us == 202 * S
    assert dict(result.counters.late) == {"idle": 1, "lateness": 1}
    check_row_count(result, 11)


def test_partition_without_rows_holds_the_watermark_until_idle() -> None:
    first = MicroBatch({"a": rows_for_seconds(100, partition="0")}, TWO)
    assert run_script_without_flush([first, QuietInterval(59_999)], sources=["a"]).statuses[-1].watermark_us is None
    assert (
        compute_final_watermark_s(first, QuietInterval(30_000), first, QuietInterval(30_000), first, sources=["a"])
        == 100
    )


# -- idle_close_ms ---------------------------------------------------------------------------------------------------

CLOSE = "2m"


@pytest.mark.semantics("closing-the-last-windows")
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
def test_idle_close_closes_the_last_windows(kind: str) -> None:
    """If no rows arrive for `idle_close`, the watermark advances by the elapsed time and closes the last windows.

    The newest event is at 100: after 2 minutes of silence the watermark is at 220, and everything is closed.
    """
    script = [MicroBatch({"a": rows_for_seconds(95, 100), "b": rows_for_seconds(50)}), *build_quiet_intervals(110)]
    before = run_script_without_flush(script, ten_second_window(kind, idle_close_ms=CLOSE))
    assert max((r["window_start"] for r in before.rows), default=0) <= 50 * S
    result = run_script_without_flush([*script, QuietInterval(10_000)], ten_second_window(kind, idle_close_ms=CLOSE))
    assert result.watermark_us == 220 * S
    assert comparable_rows(result.rows) == comparable_rows(
        run_local_script(ten_second_window(kind), script, USERS, BOTH).rows
    ), "what a flush would emit"
    assert set(result.counters.emitted) == {"close"}


def test_idle_close_commits_once_a_minute_and_when_a_window_closes() -> None:
    """Tick every half second for half an hour. The window of the last event ends 400 s after the event.

    quiet       0      60     120    180 …          395    400    460 …  1800
    commit      ●      ●      ●      ●              ●      ●      ●      ●
                rows   idle   runs on, once a minute        closes
    """
    long = ten_second_window(duration_ms="500s", idle_close_ms=CLOSE)
    result = run_script_without_flush(
        [MicroBatch({"a": rows_for_seconds(100)}), *[QuietInterval(500)] * 3600], long, ["a"]
    )
    marks = [(s.watermark_us or 0) / S for s in result.statuses]
    assert marks[:4] == [100, 100, 220, 280]
    assert 500 in marks
    assert [(s.watermark_us, s.emitted) for s in result.statuses if s.emitted] == [(500 * S, 1)]
    assert marks == sorted(marks)
    assert 30 <= len(marks) <= 33, "about one a minute, not two a second"


def test_session_due_between_two_idle_commits_is_emitted_without_delay() -> None:
    result = run_script_without_flush(
        [MicroBatch({"a": rows_for_seconds(100, 215, 230)}), *[QuietInterval(500)] * 400],
        ten_second_window("session", idle_close_ms=CLOSE),
        ["a"],
    )
    assert [r["window_start"] / S for r in result.rows] == [100, 215, 230]
    assert [s.watermark_us for s in result.statuses if s.emitted][-1] == 350 * S, "230 + the first silence that counts"


def test_returning_source_does_not_move_the_watermark_back_after_idle_close() -> None:
    script = [MicroBatch({"a": rows_for_seconds(100), "b": rows_for_seconds(100)}), *build_quiet_intervals(180)]
    closing = ten_second_window(idle_close_ms=CLOSE)
    assert compute_final_watermark_s(*script, given_=closing) == 280
    script += [MicroBatch({"a": rows_for_seconds(110, 275, 280)})]
    result = run_script_without_flush([*script, *build_quiet_intervals(60)], closing)
    assert result.watermark_us == 280 * S, "a is at 280 and awake, and a silence starts over"
    assert dict(result.counters.late) == {"idle": 2}
    check_row_count(result, 5)
    assert compute_final_watermark_s(*script, MicroBatch({"a": rows_for_seconds(500)}), given_=closing) == 500, (
        "b is still idle"
    )
    assert (
        compute_final_watermark_s(
            *script, MicroBatch({"a": rows_for_seconds(500), "b": rows_for_seconds(300)}), given_=closing
        )
        == 300
    )


def test_only_the_committed_watermark_decides_whether_a_row_is_late() -> None:
    """The quiet time since the last commit would move the watermark further, but only the committed value counts."""
    script = [
        MicroBatch({"a": rows_for_seconds(100)}),
        *build_quiet_intervals(170),
        MicroBatch({"a": rows_for_seconds(221, 219)}),
    ]
    result = run_script_without_flush(script, ten_second_window(duration_ms="1s", idle_close_ms=CLOSE), ["a"])
    assert [(s.watermark_us or 0) / S for s in result.statuses] == [100, 100, 220, 221]
    assert dict(result.counters.late) == {"idle": 1}


def test_idle_close_does_not_apply_before_the_first_event() -> None:
    result = run_script_without_flush(build_quiet_intervals(600), ten_second_window(idle_close_ms=CLOSE))
    assert result.statuses[-1].watermark_us is None
    assert (
        compute_final_watermark_s(
            *build_quiet_intervals(600),
            MicroBatch({"a": rows_for_seconds(100)}),
            *build_quiet_intervals(120),
            given_=ten_second_window(idle_close_ms=CLOSE),
        )
        == 220
    )


def test_idle_close_advances_a_source_whose_partitions_are_all_idle() -> None:
    rows = rows_for_seconds(100, partition="0") + rows_for_seconds(40, partition="1")
    result = run_script_without_flush(
        [MicroBatch({"a": rows}, TWO), *build_quiet_intervals(120)], ten_second_window(idle_close_ms=CLOSE), ["a"]
    )
    assert result.watermark_us == 220 * S
    late = [MicroBatch({"a": rows_for_seconds(90, partition="1") + rows_for_seconds(300, partition="0")}, TWO)]
    back = run_script_without_flush(
        [MicroBatch({"a": rows}, TWO), *build_quiet_intervals(120), *late],
        ten_second_window(idle_close_ms=CLOSE),
        ["a"],
    )
    assert dict(back.counters.late) == {"idle": 1}


SILENCE = [
    MicroBatch({"a": rows_for_seconds(3, 12, 100), "b": rows_for_seconds(1, 55)}),
    *build_quiet_intervals(60, 20),
    MicroBatch({"b": rows_for_seconds(95, 101, 102)}),
    *build_quiet_intervals(240, 20),
    MicroBatch({"a": rows_for_seconds(60, 500), "b": rows_for_seconds(70)}),
    *build_quiet_intervals(300, 20),
]


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
@pytest.mark.parametrize(
    "step", select_cases(sorted(KILL_POINTS, key=lambda s: not s.startswith(("commit.", "checkpoint."))), keep=8)
)
def test_crash_at_any_step_while_sources_are_idle_changes_no_result(kind: str, step: str) -> None:
    """A crash loses the quiet time since the last commit. Windows may close later, with the same rows."""
    closing = ten_second_window(kind, idle_close_ms=CLOSE)
    whole = run_script_without_flush(SILENCE, closing)
    for at_ in range(KILL_POINTS.index(step) % 6, len(SILENCE), 6):
        result = run_script_without_flush(
            [*SILENCE[:at_], DriverCrash(step), *SILENCE[at_:], *build_quiet_intervals(60)], closing
        )
        marks = [s.watermark_us or -1 for s in result.statuses]
        assert marks == sorted(marks)
        assert comparable_rows(result.rows) == comparable_rows(whole.rows), at_
        assert result.counters.late == whole.counters.late == {"idle": 2}
        assert result.counters.emitted == whole.counters.emitted
        assert result.watermark_us >= whole.watermark_us


@pytest.mark.parametrize("restart", range(0, len(SILENCE), 3))
def test_restart_continues_with_the_committed_idle_time(restart: int) -> None:
    closing = ten_second_window(idle_close_ms=CLOSE)
    whole = run_script_without_flush(SILENCE, closing)
    result = run_script_without_flush([*SILENCE, *build_quiet_intervals(60)], closing, reshard_after=(restart, 2))
    assert comparable_rows(result.rows) == comparable_rows(whole.rows)
    assert result.counters.late == whole.counters.late
    assert result.watermark_us >= whole.watermark_us


@pytest.mark.semantics("idle-sources")
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
@LAW
@given(data=st.data())
def test_windows_of_two_pausing_sources_match_the_oracle(kind: str, data: st.DataObject) -> None:
    """Windows, late rows by cause and the watermark match the oracle for any disorder and pauses, with `idle_close`."""
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    lateness = {"a": data.draw(st.sampled_from([0, 4])), "b": data.draw(st.sampled_from([0, 30]))}
    script: list[Any] = []
    for item in data.draw(two_source_script(rows)):
        script += [
            item,
            *[
                QuietInterval(ms)
                for ms in data.draw(st.lists(st.sampled_from([1, 7, 500, 1000, 2000, 60_000]), max_size=4))
            ],
        ]
    spec = build_oracle_spec(kind)
    model = naive_oracle.PaneEpochOracle(spec, {s: ms * 1000 for s, ms in lateness.items()}, 1_000_000, 2_000_000)
    for item in script:
        if isinstance(item, QuietInterval):
            model.pass_quiet_time(item.ms * 1000)
        else:
            model.add_epoch(item.rows)
    given_ = build_window_from_spec(spec, idle_close_ms=2000)
    result = run_local_script(
        given_, script, SCHEMA, BOTH, shards=data.draw(st.integers(1, 3)), flush=False, lateness_ms=lateness
    )
    closed = [w for w in model.window_rows() if model.watermark is not None and w["window_end"] <= model.watermark]
    assert comparable_rows(result.rows) == comparable_rows(closed)
    assert (result.watermark_us if model.watermark is not None else None) == model.watermark
    late = {"idle": len(model.late_idle), "lateness": len(model.late) - len(model.late_idle)}
    assert dict(result.counters.late) == {cause: n for cause, n in late.items() if n}
    check_row_count(result, len(rows))
