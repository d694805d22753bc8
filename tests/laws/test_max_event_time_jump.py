"""`max_jump_ms`: far dates do not advance the watermark, in any order of rows, and no row is lost.

first 45 rows    ●        ●  ●     wrong clocks, days apart
the rest                        ●●●●●●●●●●●●●●●●●●●●●●   consecutive times; the watermark follows these
"""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.generators.ten_second_windows import S, rows_for_seconds, ten_second_window
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import DriverCrash, LocalResult, MicroBatch, PipelineRestart, run_local_script

from slackwater.watermark import CONFIRMS, SourceActivity, SourceClock, Span, advance_clock, merge_spans

DAY = 86_400


def run_with_max_jump(script: Any, **more: Any) -> LocalResult:
    guarded = ten_second_window(**({"max_jump_ms": "1h"} | more))
    return run_local_script(guarded, script, {"u": "string"}, ["a"], flush=False)


def compute_newest_event_time(times: list[int], jump: int) -> int | None:
    """Return the newest time in steps of at most `jump` from the CONFIRMS-th newest row, or None for fewer rows."""
    newest = sorted(times)[-CONFIRMS:]
    if len(newest) < CONFIRMS:
        return None
    reached = newest[0]
    for t in newest[1:]:
        if t - reached > jump:
            break
        reached = t
    return reached


def compute_newest_event_time_spans(times: list[int], jump: int) -> tuple[Span, ...]:
    times_by_bucket: dict[int, list[int]] = {}
    for t in times:
        times_by_bucket.setdefault(t // jump, []).append(t)
    newest = sorted(times_by_bucket, reverse=True)[:CONFIRMS]
    return tuple((min(times_by_bucket[b]), max(times_by_bucket[b]), len(times_by_bucket[b])) for b in newest)


@pytest.mark.semantics("wrong-dates")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_newest_event_time_does_not_depend_on_order_or_batches(
    groups: list[tuple[int, int]], jump: int, seed: int
) -> None:
    """With `max_jump`, the newest time of a source depends only on the rows read, not on their order or batches."""
    draw = random.Random(seed)
    times = [100 * place + draw.randrange(50) for place, count in groups for _ in range(count)]
    draw.shuffle(times)
    clock, at_ = SourceClock(0, 60, jump_us=jump), 0
    while at_ < len(times):
        size = draw.choice([1, 2, 7, 60])
        some = times[at_ : at_ + size]
        heard = SourceActivity(len(some), max(some))
        if clock.needs_spans(heard):
            heard = SourceActivity(len(some), max(some), spans=compute_newest_event_time_spans(some, jump))
        before, clock, at_ = clock, advance_clock(clock, heard, 0), at_ + size
        assert clock.max_event_us == compute_newest_event_time(times[:at_], jump)
        assert (before.max_event_us or -1) <= (clock.max_event_us if clock.max_event_us is not None else -1)
        assert len(clock.spans) <= CONFIRMS


def test_event_time_spans_merge_when_a_row_arrives_between_them() -> None:
    assert merge_spans([(0, 0, CONFIRMS), (8, 9, 1)], 5) == ((0, 0, CONFIRMS), (8, 9, 1))
    assert merge_spans([(0, 0, CONFIRMS), (8, 9, 1), (4, 4, 1)], 5) == ((0, 9, CONFIRMS),)
    assert merge_spans([(0, 0, CONFIRMS), (8, 9, CONFIRMS)], 5) == ((8, 9, CONFIRMS),)


def rows_with_wrong_clocks() -> list[dict[str, Any]]:
    wrong = rows_for_seconds(*(DAY * (1 + n) for n in range(45)))
    return [*wrong, *rows_for_seconds(*range(7200))]


@pytest.mark.parametrize("size", select_cases([1000, 7245, 30], keep=2))
def test_rows_with_wrong_clocks_are_used_and_make_no_row_late(size: int) -> None:
    rows = rows_with_wrong_clocks()
    script = [MicroBatch({"a": rows[n : n + size]}) for n in range(0, len(rows), size)]
    run_result = run_with_max_jump(script)
    assert (run_result.counters.rows_late, run_result.counters.rows_used) == (0, 7245)
    assert run_result.watermark_us == 7199 * S
    assert sum(r["n"] for r in run_result.rows) == 7190
    if size < 7245:  # without the guard, all rows after the first epoch are late
        assert run_with_max_jump(script, max_jump_ms=None).counters.rows_late > 6000


@pytest.mark.parametrize("step", ["ingest.after", "commit.before", "write.before", "note.before"])
def test_kill_and_resharding_do_not_change_the_result(step: str) -> None:
    rows = rows_with_wrong_clocks()
    script: list[Any] = [MicroBatch({"a": rows[n : n + 500]}) for n in range(0, len(rows), 500)]
    expected = run_with_max_jump(script)
    script[5:5] = [DriverCrash(step)]
    script[9:9] = [PipelineRestart(shards=3)]
    run_result = run_with_max_jump(script)

    def window_counts(result: LocalResult) -> list[tuple[Any, ...]]:
        return sorted((r["window_start"], r["u"], r["n"]) for r in result.rows)

    assert window_counts(run_result) == window_counts(expected)
    assert (run_result.watermark_us, run_result.counters.rows_late) == (expected.watermark_us, 0)


def test_watermark_follows_a_real_pause_after_enough_rows() -> None:
    night = rows_for_seconds(*range(200))
    day = rows_for_seconds(*(DAY + n for n in range(CONFIRMS)))
    assert run_with_max_jump([MicroBatch({"a": night}), MicroBatch({"a": day[:-1]})]).watermark_us == 199 * S
    run_result = run_with_max_jump([MicroBatch({"a": night}), MicroBatch({"a": day[:-1]}), MicroBatch({"a": day[-1:]})])
    assert (run_result.watermark_us, run_result.counters.rows_late) == ((DAY + CONFIRMS - 1) * S, 0)


def test_each_partition_is_guarded_separately() -> None:
    def rows(*seconds: float, partition: str) -> list[dict[str, Any]]:
        return rows_for_seconds(*seconds, partition=partition)

    both = [*rows(*range(200), partition="t-0"), *rows(*range(200), DAY, partition="t-1")]
    later = rows(250, partition="t-0") + rows(240, partition="t-1")
    script = [MicroBatch({"a": epoch_rows}, partitions={"a": ["t-0", "t-1"]}) for epoch_rows in (both, later)]
    assert run_with_max_jump(script).watermark_us == 240 * S


def test_time_jump_is_logged_with_its_source(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "slackwater"):
        run_with_max_jump([MicroBatch({"a": rows_for_seconds(*range(200), 2 * DAY)})])
    (line,) = [r.getMessage() for r in caplog.records if "jumps" in r.getMessage()]
    assert 'source "a" jumps from 1970-01-01T00:03:19Z to 1970-01-03T00:00:00Z' in line
    assert (
        "max_jump (1h); these rows are used, but do not advance the watermark of the source until there are 100 of them (1 so far)"
        in line
    )


def test_newest_event_time_that_makes_most_rows_late_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    script = [
        MicroBatch({"a": rows_for_seconds(0, DAY)}),
        *[MicroBatch({"a": rows_for_seconds(*range(n, n + 8))}) for n in range(0, 40, 8)],
    ]
    with caplog.at_level(logging.WARNING, "slackwater"):
        run_with_max_jump(script, max_jump_ms=None)
    (line,) = [r.getMessage() for r in caplog.records if "may be wrong" in r.getMessage()]
    assert "epoch 2: most rows are late (16 of 16)" in line
    assert 'the newest event time of source "a" is 1970-01-02T00:00:00Z' in line
