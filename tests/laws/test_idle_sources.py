"""Section 2 of the contract on the virtual clock: lateness, far-future rows, idle sources and partitions, idle close.

Windows are 10 s long, and a source counts as idle after 60 s without rows. Times below are in seconds.
The oracle is `naive_oracle.JudgingOracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.generators.contract_scripts import (
    LAW,
    SCHEMA,
    ascending,
    check_row_count,
    spec_of,
    table,
    two_sources,
    window_of,
)
from tests.laws.generators.short_windows import S, rows_at, window
from tests.laws.oracles import naive_oracle
from tests.support.case_selection import select_cases
from tests.support.script import KILL_POINTS, Crash, LocalResult, Quiet, RowsInput, run_local

from slackwater.config.window import Window
from slackwater.testing.memory_target import START_US

USERS = {"u": "string"}
BOTH = ("a", "b")
Script = Sequence[RowsInput | Quiet | Crash]


def run(script: Script, given_: Window | None = None, sources: Sequence[str] = BOTH, **more: Any) -> LocalResult:
    return run_local(given_ or window(), script, USERS, sources, flush=False, **more)


def watermark(*script: Any, **more: Any) -> float:
    return run(script, **more).watermark_us / S


def idle(result: LocalResult) -> list[str]:
    return [s.name for s in result.statuses[-1].sources if s.idle]


def ticks(seconds: int, every: int = 10) -> list[Quiet]:
    return [Quiet(1000 * every)] * (seconds // every)


# -- lateness and the future -----------------------------------------------------------------------------------------


def test_source_lateness_overrides_the_lateness_of_the_window() -> None:
    rows = RowsInput({"a": rows_at(100), "b": rows_at(100)})
    assert watermark(rows, given_=window(lateness_ms="5s")) == 95
    assert watermark(rows, given_=window(lateness_ms="5s"), lateness_ms={"b": 30_000}) == 70
    assert watermark(rows, given_=window(lateness_ms="5s"), lateness_ms={"a": 0, "b": 1000}) == 99


@pytest.mark.semantics("wrong-dates")
def test_row_beyond_max_future_is_bad_and_does_not_move_the_watermark() -> None:
    """A row exactly `max_future` ahead of the clock is used. A row further ahead is bad and does not move the
    watermark.
    """
    bound = START_US + 3600 * S
    hour = window(max_future_ms="1h")
    rows = [{"ts": t, "u": "x"} for t in (bound, bound + 1, None)]
    result = run([RowsInput({"a": rows})], hour, ["a"])
    assert (result.watermark_us, result.counters.rows_bad) == (bound, 2)
    check_row_count(result, 3, bad=2)
    alone = run([RowsInput({"a": rows_at(100)}), RowsInput({"a": [{"ts": bound + 1, "u": "x"}]})], hour, ["a"])
    assert alone.watermark_us == 100 * S
    check_row_count(alone, 2, bad=1)


def test_max_future_is_relative_to_the_current_clock() -> None:
    """A row 1 ms beyond the bound is bad. The same time is good after the clock has moved."""
    rows = RowsInput({"a": [{"ts": START_US + 1000, "u": "x"}]})
    zero = window(max_future_ms=0)
    assert run([rows], zero, ["a"]).counters.rows_bad == 1
    later = run([RowsInput({"a": rows_at(1)}), Quiet(1), rows], zero, ["a"])
    assert (later.counters.rows_bad, later.watermark_us) == (0, START_US + 1000)


def test_source_with_only_bad_rows_is_not_idle_and_holds_the_watermark() -> None:
    future = [{"ts": START_US + 2 * 86_400 * S, "u": "x"}]
    script: list[Any] = []
    for n in range(4):
        script += [RowsInput({"a": rows_at(100 + n), "b": future}), Quiet(40_000)]
    result = run(script)
    assert idle(result) == []
    assert result.statuses[-1].watermark_us is None


# -- idle sources ----------------------------------------------------------------------------------------------------


def test_source_without_rows_holds_the_watermark_until_idle() -> None:
    assert run([RowsInput({"a": rows_at(100)}), Quiet(59_999)]).statuses[-1].watermark_us is None
    result = run(
        [
            RowsInput({"a": rows_at(100)}),
            Quiet(59_999),
            RowsInput({"a": rows_at(101)}),
            Quiet(1),
            RowsInput({"a": rows_at(102)}),
        ]
    )
    assert (result.watermark_us, idle(result)) == (102 * S, ["b"])


def test_watermark_advances_past_an_idle_source_and_never_moves_back() -> None:
    """Source b is silent after 50 while a continues to 200. When b returns with 120, the watermark stays at 200.

    a           ●100    ●150          ●200         ●300
    b           ●50     ○   60 s ○    ○     ●120   ●250
    watermark    50      50      150  200    200    250
    """
    script: list[Any] = [RowsInput({"a": rows_at(100), "b": rows_at(50)})]
    expected = [50]
    for item, seconds in (
        ([RowsInput({"a": rows_at(150)})], 50),
        ([*ticks(50), RowsInput({"a": rows_at(150)}), Quiet(10_000)], 150),
        ([RowsInput({"a": rows_at(200)})], 200),
        ([RowsInput({"b": rows_at(120)})], 200),
        ([RowsInput({"a": rows_at(300), "b": rows_at(250)})], 250),
    ):
        script += item
        expected.append(seconds)
        result = run(script)
        assert result.watermark_us == seconds * S, script
    watermarks = [s.watermark_us for s in result.statuses]
    assert watermarks == sorted(watermarks), "it never goes back"
    assert dict(result.counters.late) == {"idle": 1}
    check_row_count(result, 8)


def test_watermark_does_not_move_while_all_sources_are_idle() -> None:
    result = run([RowsInput({"a": rows_at(100), "b": rows_at(50)}), *ticks(7200)])
    assert (result.watermark_us, idle(result)) == (50 * S, ["a", "b"])
    assert [r["window_start"] for r in result.rows] == [], "the window of 50 is open"


@pytest.mark.parametrize(("first", "stays"), [("a", 50), ("b", 110)])
def test_idle_close_does_not_depend_on_the_source_that_was_silent_first(first: str, stays: int) -> None:
    """Source b is at 50. If a is silent first, b holds the watermark. If b is silent first, the watermark follows a."""
    last = {"a": rows_at(110)} if first == "b" else {"b": rows_at(50)}
    script = [
        RowsInput({"a": rows_at(110), "b": rows_at(50)}),
        Quiet(40_000),
        RowsInput(last),
        Quiet(30_000),
        RowsInput(last),
        Quiet(60_000),
    ]
    assert watermark(*script) == stays
    assert watermark(*script, *ticks(60), given_=window(idle_close_ms="2m")) == 110 + 120


def test_processing_time_of_a_slow_epoch_does_not_count_as_silence() -> None:
    """Process one epoch for an hour, with quiet time before and after. Only the quiet time counts."""
    slow = RowsInput({"a": rows_at(100)}, took_ms=3_600_000)
    script = [RowsInput({"a": rows_at(99), "b": rows_at(50)}), Quiet(30_000), slow, Quiet(29_999)]
    result = run(script, window(idle_close_ms="1m"))
    assert (result.watermark_us, idle(result)) == (50 * S, [])
    assert idle(run([*script, Quiet(1)])) == ["b"]


def test_late_rows_have_cause_idle_until_the_source_has_caught_up() -> None:
    """Source b returns far behind and catches up over three epochs. Then a row is late by the disorder of b.

    watermark   200                    260
    b           idle  ●100  ●150,●189  ●261   ●240
    late              idle  idle,idle         lateness
    """
    script = [
        RowsInput({"a": rows_at(200), "b": rows_at(50)}),
        Quiet(60_000),
        RowsInput({"a": rows_at(200)}),
        RowsInput({"b": rows_at(100)}),
        RowsInput({"b": rows_at(150, 189)}),
        RowsInput({"a": rows_at(260), "b": rows_at(261)}),
        RowsInput({"b": rows_at(240)}),
    ]
    result = run(script)
    assert dict(result.counters.late) == {"idle": 3, "lateness": 1}
    check_row_count(result, 9)


def test_late_row_after_a_silence_without_progress_has_cause_lateness() -> None:
    result = run([RowsInput({"a": rows_at(200)}), Quiet(60_000), RowsInput({"a": rows_at(100)})], sources=["a"])
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

    def rows(*given_: dict[str, Any]) -> RowsInput:
        return RowsInput({"a": given_}, TWO)

    zero, one = lambda s: rows_at(s, partition="0")[0], lambda s: rows_at(s, partition="1")[0]
    script: list[Any] = [rows(zero(100), one(50)), rows(zero(150))]
    assert watermark(*script, sources=["a"]) == 50
    script += [Quiet(59_999), rows(zero(150))]
    assert watermark(*script, sources=["a"]) == 50
    script += [Quiet(1), rows(zero(150))]
    assert watermark(*script, sources=["a"]) == 150
    script += [rows(zero(200)), rows(one(70), zero(80)), rows(zero(205), one(201)), rows(one(202))]
    result = run(script, sources=["a"])
    assert result.watermark_us == 202 * S
    assert dict(result.counters.late) == {"idle": 1, "lateness": 1}
    check_row_count(result, 11)


def test_partition_without_rows_holds_the_watermark_until_idle() -> None:
    first = RowsInput({"a": rows_at(100, partition="0")}, TWO)
    assert run([first, Quiet(59_999)], sources=["a"]).statuses[-1].watermark_us is None
    assert watermark(first, Quiet(30_000), first, Quiet(30_000), first, sources=["a"]) == 100


# -- idle_close_ms ---------------------------------------------------------------------------------------------------

CLOSE = "2m"


@pytest.mark.semantics("closing-the-last-windows")
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
def test_idle_close_closes_the_last_windows(kind: str) -> None:
    """If no rows arrive for `idle_close`, the watermark advances by the elapsed time and closes the last windows.

    The newest event is at 100: after 2 minutes of silence the watermark is at 220, and everything is closed.
    """
    script = [RowsInput({"a": rows_at(95, 100), "b": rows_at(50)}), *ticks(110)]
    before = run(script, window(kind, idle_close_ms=CLOSE))
    assert max((r["window_start"] for r in before.rows), default=0) <= 50 * S
    result = run([*script, Quiet(10_000)], window(kind, idle_close_ms=CLOSE))
    assert result.watermark_us == 220 * S
    assert table(result.rows) == table(run_local(window(kind), script, USERS, BOTH).rows), "what a flush would emit"
    assert set(result.counters.emitted) == {"close"}


def test_idle_close_commits_once_a_minute_and_when_a_window_closes() -> None:
    """Tick every half second for half an hour. The window of the last event ends 400 s after the event.

    quiet       0      60     120    180 …          395    400    460 …  1800
    commit      ●      ●      ●      ●              ●      ●      ●      ●
                rows   idle   runs on, once a minute        closes
    """
    long = window(duration_ms="500s", idle_close_ms=CLOSE)
    result = run([RowsInput({"a": rows_at(100)}), *[Quiet(500)] * 3600], long, ["a"])
    marks = [(s.watermark_us or 0) / S for s in result.statuses]
    assert marks[:4] == [100, 100, 220, 280]
    assert 500 in marks
    assert [(s.watermark_us, s.emitted) for s in result.statuses if s.emitted] == [(500 * S, 1)]
    assert marks == sorted(marks)
    assert 30 <= len(marks) <= 33, "about one a minute, not two a second"


def test_session_due_between_two_idle_commits_is_emitted_without_delay() -> None:
    result = run(
        [RowsInput({"a": rows_at(100, 215, 230)}), *[Quiet(500)] * 400], window("session", idle_close_ms=CLOSE), ["a"]
    )
    assert [r["window_start"] / S for r in result.rows] == [100, 215, 230]
    assert [s.watermark_us for s in result.statuses if s.emitted][-1] == 350 * S, "230 + the first silence that counts"


def test_returning_source_does_not_move_the_watermark_back_after_idle_close() -> None:
    script = [RowsInput({"a": rows_at(100), "b": rows_at(100)}), *ticks(180)]
    closing = window(idle_close_ms=CLOSE)
    assert watermark(*script, given_=closing) == 280
    script += [RowsInput({"a": rows_at(110, 275, 280)})]
    result = run([*script, *ticks(60)], closing)
    assert result.watermark_us == 280 * S, "a is at 280 and awake, and a silence starts over"
    assert dict(result.counters.late) == {"idle": 2}
    check_row_count(result, 5)
    assert watermark(*script, RowsInput({"a": rows_at(500)}), given_=closing) == 500, "b is still idle"
    assert watermark(*script, RowsInput({"a": rows_at(500), "b": rows_at(300)}), given_=closing) == 300


def test_only_the_committed_watermark_decides_whether_a_row_is_late() -> None:
    """The quiet time since the last commit would move the watermark further, but only the committed value counts."""
    script = [RowsInput({"a": rows_at(100)}), *ticks(170), RowsInput({"a": rows_at(221, 219)})]
    result = run(script, window(duration_ms="1s", idle_close_ms=CLOSE), ["a"])
    assert [(s.watermark_us or 0) / S for s in result.statuses] == [100, 100, 220, 221]
    assert dict(result.counters.late) == {"idle": 1}


def test_idle_close_does_not_apply_before_the_first_event() -> None:
    result = run(ticks(600), window(idle_close_ms=CLOSE))
    assert result.statuses[-1].watermark_us is None
    assert (
        watermark(*ticks(600), RowsInput({"a": rows_at(100)}), *ticks(120), given_=window(idle_close_ms=CLOSE)) == 220
    )


def test_idle_close_advances_a_source_whose_partitions_are_all_idle() -> None:
    rows = rows_at(100, partition="0") + rows_at(40, partition="1")
    result = run([RowsInput({"a": rows}, TWO), *ticks(120)], window(idle_close_ms=CLOSE), ["a"])
    assert result.watermark_us == 220 * S
    late = [RowsInput({"a": rows_at(90, partition="1") + rows_at(300, partition="0")}, TWO)]
    back = run([RowsInput({"a": rows}, TWO), *ticks(120), *late], window(idle_close_ms=CLOSE), ["a"])
    assert dict(back.counters.late) == {"idle": 1}


SILENCE = [
    RowsInput({"a": rows_at(3, 12, 100), "b": rows_at(1, 55)}),
    *ticks(60, 20),
    RowsInput({"b": rows_at(95, 101, 102)}),
    *ticks(240, 20),
    RowsInput({"a": rows_at(60, 500), "b": rows_at(70)}),
    *ticks(300, 20),
]


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
@pytest.mark.parametrize(
    "step", select_cases(sorted(KILL_POINTS, key=lambda s: not s.startswith(("commit.", "checkpoint."))), keep=8)
)
def test_crash_at_any_step_during_a_silence_changes_no_result(kind: str, step: str) -> None:
    """A crash loses the quiet time since the last commit. Windows may close later, with the same rows."""
    closing = window(kind, idle_close_ms=CLOSE)
    whole = run(SILENCE, closing)
    for at_ in range(KILL_POINTS.index(step) % 6, len(SILENCE), 6):
        result = run([*SILENCE[:at_], Crash(step), *SILENCE[at_:], *ticks(60)], closing)
        marks = [s.watermark_us or -1 for s in result.statuses]
        assert marks == sorted(marks)
        assert table(result.rows) == table(whole.rows), at_
        assert result.counters.late == whole.counters.late == {"idle": 2}
        assert result.counters.emitted == whole.counters.emitted
        assert result.watermark_us >= whole.watermark_us


@pytest.mark.parametrize("restart", range(0, len(SILENCE), 3))
def test_restart_continues_with_the_committed_quiet_time(restart: int) -> None:
    closing = window(idle_close_ms=CLOSE)
    whole = run(SILENCE, closing)
    result = run([*SILENCE, *ticks(60)], closing, reshard_after=(restart, 2))
    assert table(result.rows) == table(whole.rows)
    assert result.counters.late == whole.counters.late
    assert result.watermark_us >= whole.watermark_us


@pytest.mark.semantics("idle-sources")
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
@LAW
@given(data=st.data())
def test_two_sources_that_pause_match_the_oracle(kind: str, data: st.DataObject) -> None:
    """Windows, late rows by cause and the watermark match the oracle for any disorder and pauses, with `idle_close`."""
    rows = data.draw(st.permutations(data.draw(ascending())))
    lateness = {"a": data.draw(st.sampled_from([0, 4])), "b": data.draw(st.sampled_from([0, 30]))}
    script: list[Any] = []
    for item in data.draw(two_sources(rows)):
        script += [
            item,
            *[Quiet(ms) for ms in data.draw(st.lists(st.sampled_from([1, 7, 500, 1000, 2000, 60_000]), max_size=4))],
        ]
    spec = spec_of(kind)
    model = naive_oracle.JudgingOracle(spec, {s: ms * 1000 for s, ms in lateness.items()}, 1_000_000, 2_000_000)
    for item in script:
        if isinstance(item, Quiet):
            model.quiet(item.ms * 1000)
        else:
            model.epoch(item.rows)
    given_ = window_of(spec, idle_close_ms=2000)
    result = run_local(
        given_, script, SCHEMA, BOTH, shards=data.draw(st.integers(1, 3)), flush=False, lateness_ms=lateness
    )
    closed = [w for w in model.answer() if model.watermark is not None and w["window_end"] <= model.watermark]
    assert table(result.rows) == table(closed)
    assert (result.watermark_us if model.watermark is not None else None) == model.watermark
    late = {"idle": len(model.late_idle), "lateness": len(model.late) - len(model.late_idle)}
    assert dict(result.counters.late) == {cause: n for cause, n in late.items() if n}
    check_row_count(result, len(rows))
