"""Join laws: some seeded runs of `generators/join_runs.py`, and timelines drawn by hand."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.laws.generators import join_runs
from tests.laws.generators.join_runs import IDLE_MS, MS, SCHEMA
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import DriverCrash, LocalResult, MicroBatch, QuietInterval, run_local_script

from slackwater.config.join import Join
from slackwater.errors import LimitExceededError
from slackwater.joins import match_rows
from slackwater.testing import rows_without_spark

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))
Row = tuple[str, int, int]  # key, time in ms, id


@pytest.mark.semantics("stream-stream-joins")
@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_seeded_join_runs_match_a_brute_force_join(first: int) -> None:
    """With disorder, crashes and restarts, joins match a brute-force join of the rows that are not late."""
    for seed in range(first, first + 20):
        join_runs.check_seed(seed)


def test_pairs_do_not_depend_on_the_output_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_rows, "MOST", 3)
    for seed in range(20):
        join_runs.check_seed(seed)


def test_keys_with_the_same_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys collide, so their rows are adjacent in the buffers and match only by their values."""
    original_hash = rows_without_spark.key_hash
    monkeypatch.setattr(rows_without_spark, "key_hash", lambda frame, keys: original_hash(frame, keys) * 0)
    for seed in range(20):
        join_runs.check_seed(seed)


def build_join(**settings: Any) -> Join:
    defaults: dict[str, Any] = {"kind": "inner", "left_keys": ["k"], "right_keys": ["k"], "source_idleness_ms": IDLE_MS}
    if "lower_ms" not in settings:
        defaults["time_window_ms"] = 10
    return Join(left_source="a", right_source="b", **{**defaults, **settings})


def build_join_input(left_rows: list[Row] | None = None, right_rows: list[Row] | None = None) -> MicroBatch:
    rows_by_source = {"a": left_rows or [], "b": right_rows or []}
    return MicroBatch(
        {
            s: [{"k": k, "ts": t * MS, "id": n, "f": 0.0} for k, t, n in some]
            for s, some in rows_by_source.items()
            if some
        }
    )


def run_join(spec: Join, *script: Any, flush: bool = False, **more: Any) -> LocalResult:
    return run_local_script(spec, script, SCHEMA, sources=("a", "b"), flush=flush, **more)


def read_pairs(result: LocalResult) -> list[tuple[int, int | None, int | None]]:
    """Return (epoch, id of the left row, id of the right row) of each emitted row."""
    return sorted(
        ((r["_epoch"], r["left_id"], r["right_id"]) for r in result.rows),
        key=lambda r: [-1 if v is None else v for v in r],
    )


def test_pair_is_emitted_once_when_its_second_row_arrives() -> None:
    """
    epoch 0   left    ● 100
    epoch 1   right            ● 105       5 apart: a pair
    epoch 2   right   ● 90  ● 110  ● 111   rows 10 apart on either side are pairs, rows 11 apart are not
    """
    result = run_join(
        build_join(lateness_ms=50),
        build_join_input([("x", 100, 1)]),
        build_join_input(None, [("x", 105, 2)]),
        build_join_input(None, [("x", 90, 3), ("x", 110, 4), ("x", 111, 5)]),
    )
    assert read_pairs(result) == [(1, 1, 2), (2, 1, 3), (2, 1, 4)]
    assert [r["_event_ts"] for r in result.rows] == [105 * MS, 100 * MS, 110 * MS]


@pytest.mark.semantics("stream-stream-joins")
def test_an_unmatched_row_is_emitted_once() -> None:
    """An unmatched row is emitted once, when the watermark proves that no partner can follow.

    epoch 0   left   ● 100             stays until the watermark is above 110
              right  ● 100 (another key)
    epoch 1   both           ● 110     watermark 110: it could still match
    epoch 2   both              ● 111  watermark 111: unmatched
    """
    spec = build_join(kind="left")
    tail = [build_join_input([("t", t, t)], [("t", t, t)]) for t in (110, 111, 500)]
    result = run_join(spec, build_join_input([("x", 100, 1)], [("y", 100, 2)]), *tail)
    assert [s for s in read_pairs(result) if s[1] == 1] == [(2, 1, None)]
    assert result.counters.emitted["unmatched"] == 1
    assert result.counters.sides["left"]["unmatched"] == 1
    assert result.counters.sides["right"]["unmatched"] == 0


def test_outer_row_is_emitted_if_the_other_side_never_sends_a_row() -> None:
    """The right side never sends a row. Once it is idle, the left side alone advances the watermark."""
    result = run_join(
        build_join(kind="left"),
        build_join_input([("x", 100, 1)]),
        QuietInterval(IDLE_MS),
        build_join_input([("y", 200, 2)]),
        build_join_input([("z", 300, 3)]),
    )
    assert read_pairs(result) == [(2, 1, None), (3, 2, None)]


def test_row_matched_before_a_restart_is_never_emitted_as_unmatched() -> None:
    """The state records the first match, through kills and resharding, and after the partner has expired."""
    spec = build_join(kind="full", lower_ms=-40, upper_ms=0)
    script = [
        build_join_input([("x", 100, 1)], [("x", 90, 2)]),
        build_join_input([("x", 120, 3)]),
        DriverCrash("commit.before"),
        build_join_input([("x", 121, 4)], [("y", 121, 5)]),
        DriverCrash("note.before"),
        build_join_input([("y", 900, 6)], [("y", 900, 7)]),
    ]
    result = run_join(spec, *script, flush=True, reshard_after=1)
    pairs = [(left_id, right_id) for _, left_id, right_id in read_pairs(result)]
    assert pairs == [(1, 2), (3, 2), (4, 2), (None, 5), (6, 7)]


def test_rows_with_a_null_key_never_match() -> None:
    keyless = [build_join_input([(None, 100, 1)], [(None, 100, 2)])]  # type: ignore[list-item]
    inner, left_outer = (
        run_join(build_join(), *keyless, flush=True),
        run_join(build_join(kind="left"), *keyless, flush=True),
    )
    assert read_pairs(inner) == []
    assert {side: c["keyless"] for side, c in inner.counters.sides.items()} == {"left": 1, "right": 1}
    assert inner.counters.rows_used == 0
    assert read_pairs(left_outer) == [(0, 1, None)], "it comes out at once"
    assert {side: c["keyless"] for side, c in left_outer.counters.sides.items()} == {"left": 0, "right": 1}


@pytest.mark.parametrize(
    ("lower", "upper", "matching"),
    [(5, 10, [105, 110]), (-10, -5, [90, 95]), (0, 0, [100]), (-5, 10, [95, 100, 105, 110])],
)
def test_rows_match_exactly_within_the_time_bounds(lower: int, upper: int, matching: list[int]) -> None:
    """
    left                 ● 100
    right   90  95  99  100  101  105  110        a row matches if lower <= right - left <= upper
    """
    times = (
        [89, 90, 95, 96, 100, 104, 105, 110, 111] if (lower, upper) != (5, 10) else [90, 95, 100, 104, 105, 110, 111]
    )
    inside = [t for t in times if lower <= t - 100 <= upper]
    spec = build_join(kind="full", lower_ms=lower, upper_ms=upper, lateness_ms=100)
    for script in (
        [build_join_input([("x", 100, 1)]), build_join_input(None, [("x", t, t) for t in times])],
        [build_join_input(None, [("x", t, t) for t in times]), build_join_input([("x", 100, 1)])],
    ):
        result = run_join(spec, *script, flush=True)
        pairs = [(left_time, right_time) for _, left_time, right_time in read_pairs(result)]
        assert sorted(right_time for left_time, right_time in pairs if left_time and right_time) == inside
        assert set(matching) <= set(inside)
        assert sorted(right_time for left_time, right_time in pairs if left_time is None) == [
            t for t in times if t not in inside
        ]


def test_identical_rows_are_paired_separately() -> None:
    result = run_join(build_join(), build_join_input([("x", 100, 1)] * 2), build_join_input(None, [("x", 100, 2)] * 3))
    assert read_pairs(result) == [(1, 1, 2)] * 6


@pytest.mark.semantics("stream-stream-joins")
def test_a_late_row_is_counted_by_side_and_matches_nothing() -> None:
    """A late row matches nothing, is counted for its side and becomes a dead letter.

    watermark 200 after epoch 0: left 199 and right 150 are late
    """
    start = build_join_input([("x", 200, 1)], [("x", 200, 2)])
    result = run_join(
        build_join(late_data="dlq"), start, build_join_input([("x", 199, 3), ("x", 201, 4)], [("x", 150, 5)])
    )
    assert read_pairs(result) == [(0, 1, 2), (1, 4, 2)]
    assert {side: c["late"] for side, c in result.counters.sides.items()} == {"left": 1, "right": 1}
    assert sorted((letter["reason"], letter["late_us"], letter["windows_missed"]) for letter in result.letters) == [
        ("late", MS, None),
        ("late", 50 * MS, None),
    ]


@pytest.mark.semantics("stream-stream-joins")
def test_late_data_reopen_matches_late_rows_with_retained_rows_of_the_other_side() -> None:
    """With `late_data = "reopen"`, a row within the allowed lateness still finds its partners.

    watermark 220, time window 10, allowed lateness 30: left 190 is not late, and right 195 stays until 195 + 10 + 30
    """
    script = [
        build_join_input([("x", 200, 1)], [("x", 195, 2)]),
        build_join_input([("t", 220, 8)], [("t", 220, 9)]),
        build_join_input([("x", 190, 3)]),
    ]
    spec = build_join(late_data="reopen", allowed_lateness_ms=30, kind="left")
    result = run_join(spec, *script, build_join_input([("x", 189, 4)]), flush=True)
    assert (2, 3, 2) in read_pairs(result)
    assert result.counters.rows_late == 1, "189 + 30 is below the watermark"
    assert read_pairs(run_join(build_join(kind="left"), *script)) == [(0, 1, 2), (1, 8, 9)]


def test_row_emitted_as_unmatched_stays_expired_after_allowed_lateness_grows(tmp_path: Any) -> None:
    """A row is emitted as unmatched and expires. A greater allowed lateness in the next run does not bring it back."""
    first = [build_join_input([("x", 100, 1)], [("y", 100, 2)]), build_join_input([("t", 115, 8)], [("t", 115, 9)])]
    before = run_join(build_join(kind="left"), *first, state_dir=str(tmp_path))
    assert (1, 1, None) in read_pairs(before)
    spec = build_join(kind="left", late_data="reopen", allowed_lateness_ms=50)
    after = run_join(spec, build_join_input(None, [("x", 105, 3)]), state_dir=str(tmp_path))
    assert read_pairs(after) == []
    assert after.counters.rows_late == 0, "the row itself is not late any more"


def test_key_with_too_many_rows_fails_the_epoch_and_is_named() -> None:
    spec = build_join(max_rows_per_key=4, lateness_ms=100)
    first = build_join_input([("x", 100, n) for n in range(4)] + [("y", 100, 9)])
    assert run_join(spec, first).counters.sides["left"]["buffered"] == 5
    for script in ([first, build_join_input([("x", 101, 4)])], [build_join_input([("x", 100, n) for n in range(5)])]):
        with pytest.raises(
            LimitExceededError,
            match=r"law: 5 rows of the left side with k = 'x' wait for partners, but max_rows_per_key is 4; raise it, or set "
            r'on_state_cap = "drop_oldest"; this epoch was not committed',
        ):
            run_join(spec, *script)


def test_expired_rows_do_not_count_towards_max_rows_per_key() -> None:
    spec = build_join(max_rows_per_key=4)
    epochs = []
    for time_ms in range(100, 900, 100):
        several = [("x", time_ms + i, i) for i in range(3)]
        epochs.append(build_join_input([*several, ("t", time_ms + 99, 8)], [("t", time_ms + 99, 9)]))
    assert run_join(spec, *epochs).counters.rows_used == 40


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_drop_oldest_evicts_the_oldest_rows_of_a_key(kind: str) -> None:
    """
    max_rows_per_key = 3; a right row matches left rows that are at most 20 older or 1 younger
    epoch 0   left   1 @100   2 @101   3 @102      right 7 @101 matches all three
    epoch 1   left   4 @103   5 @80                5 and 1 are evicted; 5 never matched, so a left join emits it
    epoch 2   right  8 @104                        matches 2, 3 and 4
    """
    spec = build_join(
        kind=kind, max_rows_per_key=3, on_state_cap="drop_oldest", lateness_ms=100, lower_ms=-1, upper_ms=20
    )
    script = [
        build_join_input([("x", 100, 1), ("x", 101, 2), ("x", 102, 3)], [("x", 101, 7)]),
        build_join_input([("x", 103, 4), ("x", 80, 5)]),
        build_join_input(None, [("x", 104, 8)]),
    ]
    result = run_join(spec, *script, flush=True)
    alone = [] if kind == "inner" else [(1, 5, None)]
    assert read_pairs(result) == [(0, 1, 7), (0, 2, 7), (0, 3, 7), *alone, (2, 2, 8), (2, 3, 8), (2, 4, 8)]
    assert result.counters.sides["left"]["evicted"] == 2
    assert result.statuses[1].buffered["left"].rows == 4, "what was evicted is still on disk"
    # a later epoch evicts another row; the earlier evictions are not counted again
    again = run_join(
        spec, *script, build_join_input([("x", 104, 6)]), build_join_input(None, [("x", 105, 9)]), flush=True
    )
    assert [r for r in read_pairs(again) if r[0] == 4] == [(4, 3, 9), (4, 4, 9), (4, 6, 9)]
    assert again.counters.sides["left"]["evicted"] == 3
