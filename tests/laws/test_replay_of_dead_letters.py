"""Replay of dead letters: the target then has the batch answer over all rows, as if none had been late.

Seeded runs have any disorder, crashes at named steps and several shards. The oracle is a naive loop.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators.dead_letter_replay_runs import (
    AGGREGATIONS,
    GAP,
    MS,
    SCHEMA,
    check_dead_letter_replay,
    comparable_rows,
    draw_replay_script,
    draw_rows,
    draw_window,
    final_table_rows,
)
from tests.support.case_selection import exhaustive, select_cases
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DeadLetterReplay,
    DriverCrash,
    LocalResult,
    MicroBatch,
    build_pipeline,
    run_local_script,
)

from slackwater.config.join import Join
from slackwater.config.window import Aggregation, Window
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import Field
from slackwater.dead_letters import replay
from slackwater.dead_letters.dead_letter_reader import AttemptLedger
from slackwater.errors import StartError
from slackwater.maintenance import verify_state
from slackwater.operators.registry import compile_window
from slackwater.state.files.store import FilesStore
from slackwater.windows import expired_window_corrections as windows

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "20"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_target_has_the_batch_result_after_a_replay(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            check_dead_letter_replay(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {draw_window(random.Random(seed))}") from error


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
@exhaustive(beside="test_replay_of_dead_letters.py::test_target_has_the_batch_result_after_a_replay")
def test_replay_at_the_maximum_session_duration_never_puts_a_row_in_two_sessions(first: int) -> None:
    """Cut sessions with gap 5 and cap 11 to 24. Rows that cannot be merged remain dead letters."""
    for seed in range(first, first + 20):
        rng = random.Random(10_000 + seed)
        cap = rng.choice([11, 16, 24])
        spec = Window(
            kind="session",
            gap_ms=GAP,
            max_session_duration_ms=cap,
            group_by=["u"],
            aggregations=AGGREGATIONS,
            late_data=rng.choice(["dlq", "reopen"]),
            lateness_ms=rng.choice([0, 4]),
        )
        input_rows = [row for row in draw_rows(rng) if row["id"]]
        items = draw_replay_script(rng, input_rows, crashes=True)
        once = run_local_script(spec, [*items, DeadLetterReplay()], SCHEMA)
        twice = run_local_script(spec, [*items, DeadLetterReplay(), DeadLetterReplay()], SCHEMA)
        assert comparable_rows(final_table_rows(once)) == comparable_rows(final_table_rows(twice)), seed
        remaining = sum(once.replays[-1].remaining.values())
        assert set(once.replays[-1].remaining) <= {windows.CAPPED}
        held: list[tuple[Any, int, int]] = []
        members = 0
        for row in final_table_rows(once):
            inside = [r for r in input_rows if row["ids"] & r["id"]]
            times = [r["ts"] for r in inside]
            assert row["n"] == len(inside) == row["ids"].bit_count(), seed
            assert min(times) == row["window_start"], seed
            assert max(times) - min(times) < cap * MS, seed
            assert {r["u"] for r in inside} == {row["u"]}, seed
            members |= row["ids"]
            held.append((str(row["u"]), min(times), max(times)))
        held.sort()
        assert all(a[0] != b[0] or a[2] < b[1] for a, b in itertools.pairwise(held)), f"{seed}: sessions overlap"
        assert sum(r["n"] for r in final_table_rows(once)) == members.bit_count() == len(input_rows) - remaining, seed


def build_input_at_times(*times: int, user: str = "a", value: float | None = 1.0) -> MicroBatch:
    return MicroBatch({"a": [{"ts": t * MS, "u": user, "id": 1, "f": value} for t in times]})


def session_window(*aggregations: Aggregation, **more: Any) -> Window:
    defaults: dict[str, Any] = {"kind": "session", "gap_ms": 3, "max_session_duration_ms": 20, "group_by": ["u"]}
    named = aggregations or (Aggregation(agg="count", as_="n"),)
    return Window(aggregations=named, **{**defaults, "late_data": "dlq", **more})


def read_window_counts(result: LocalResult) -> list[tuple[int, int, int]]:
    return sorted((r["window_start"] // MS, r["window_end"] // MS, r["n"]) for r in final_table_rows(result))


def test_replayed_late_row_merges_two_stored_sessions() -> None:
    """
    gap 3     [0 ── 2]     [8 ── 9]            both are in the target and not in the state
    late                ● 5                    merges both
    """
    result = run_local_script(
        session_window(),
        [build_input_at_times(0, 2, 8, 9), build_input_at_times(100), build_input_at_times(5), DeadLetterReplay()],
        SCHEMA,
    )
    assert read_window_counts(result) == [(0, 12, 5), (100, 103, 1)]
    assert [(g["window_start"] // MS, g["u"]) for g in result.gone] == [(8, "a")]
    assert result.replays[0].reasons == {"late": 1, "supersede": 1}


def test_stored_session_merged_into_an_open_one_is_retracted_until_close() -> None:
    """
    gap 3     [0 ── 2]    stored      [8, open at watermark 8
    late                ● 5           behind the floor of the first (5), so a dead letter that merges both
    """
    script = [build_input_at_times(0, 2), build_input_at_times(8), build_input_at_times(5), DeadLetterReplay()]
    result = run_local_script(session_window(), script, SCHEMA, flush=False)
    assert (read_window_counts(result), result.replays[0].applied) == ([], 1)
    assert read_window_counts(run_local_script(session_window(), [*script, build_input_at_times(10)], SCHEMA)) == [
        (0, 13, 5)
    ]


def test_row_within_the_gap_of_a_corrected_session_is_late() -> None:
    """
    gap 3     [0]   at watermark 8 the dead letter 4 (late, a separate run) is applied: [4], floor 7
                    a row at 6 has 6 + 3 >= 8 and would start a session within the gap of [4]: late
    """
    result = run_local_script(
        session_window(),
        [
            build_input_at_times(0),
            build_input_at_times(8),
            build_input_at_times(4),
            DeadLetterReplay(),
            build_input_at_times(6),
        ],
        SCHEMA,
    )
    assert read_window_counts(result) == [(0, 3, 1), (4, 7, 1), (8, 11, 1)]
    assert len(result.letters) == 2
    assert read_window_counts(run_local_script(session_window(), [build_input_at_times(0), build_input_at_times(8), build_input_at_times(4), DeadLetterReplay(), build_input_at_times(6), DeadLetterReplay()], SCHEMA)) == [
        (0, 3, 1), (4, 11, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("late", ["dlq", "reopen"])
def test_rows_that_would_exceed_the_maximum_session_duration_stay_dead_letters(late: str) -> None:
    """
    gap 3, cap 8     [0 ── 3]   [7 ── 10]     merged by a row at 5 they would span 10
                     [30 .. 37][38 ── 40]     cut at 38; a row at 35 in a cut session stays a dead letter
    """
    spec = session_window(max_session_duration_ms=8, late_data=late)
    script = [
        build_input_at_times(0, 3),
        build_input_at_times(7, 10),
        build_input_at_times(30, 33, 36, 37, 38, 40),
        build_input_at_times(200),
        build_input_at_times(5),
        build_input_at_times(35),
        build_input_at_times(60),
        DeadLetterReplay(),
    ]
    result = run_local_script(spec, script, SCHEMA)
    assert result.replays[0].remaining == {windows.CAPPED: 2}
    assert result.replays[0].applied == 1
    assert [c for c in read_window_counts(result) if c[0] == 60] == [(60, 63, 1)]


@pytest.mark.parametrize("agg", ["first", "count_distinct", "avg"])
def test_replay_merges_only_stored_accumulators_but_adds_new_sessions(agg: str) -> None:
    spec = session_window(Aggregation(agg="count", as_="n"), Aggregation(agg=agg, column="f", as_="x"))
    result = run_local_script(
        spec,
        [
            build_input_at_times(0),
            build_input_at_times(100),
            build_input_at_times(2),
            build_input_at_times(50),
            DeadLetterReplay(),
            DeadLetterReplay(),
        ],
        SCHEMA,
    )
    why = f'its window left the state, and the accumulators of "x" ({agg}) are not stored'
    assert [r.remaining for r in result.replays] == [{why: 1}, {why: 1}]
    assert [r.applied for r in result.replays] == [1, 0]
    assert read_window_counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]


def test_replay_does_not_correct_stored_sessions_with_a_gap_per_row() -> None:
    spec = session_window(gap_ms="gap")
    script = [
        MicroBatch({"a": [{"ts": t * MS, "u": "a", "gap": 3} for t in times]}) for times in ([0], [100], [2], [50])
    ]
    result = run_local_script(spec, [*script, DeadLetterReplay()], {"u": "string", "gap": "bigint"})
    assert read_window_counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]
    assert list(result.replays[0].remaining) == [
        "its session left the state, and the last event of a session with a gap per row is not stored"
    ]


def test_rows_without_a_valid_gap_stay_dead_letters() -> None:
    spec = session_window(gap_ms="gap")
    rows_ = MicroBatch({"a": [{"ts": 0, "u": "a", "gap": -1}, {"ts": 0, "u": "a", "gap": 3}]})
    result = run_local_script(spec, [rows_, DeadLetterReplay()], {"u": "string", "gap": "bigint"}, on_error="dlq")
    assert result.replays[0].remaining == {replay.NO_GAP: 1}
    assert read_window_counts(result) == [(0, 3, 1)]


def test_replayed_bad_rows_are_applied_without_moving_the_watermark() -> None:
    """Replay a row that was too far in the future by the clock of its epoch and is now valid."""
    (letter,) = run_local_script(
        session_window(),
        [build_input_at_times(0), build_input_at_times(100), build_input_at_times(50)],
        SCHEMA,
        flush=False,
    ).letters
    value = b'{"ts": 900000, "u": "b", "id": 1, "f": 1.0}'
    letter |= {"reason": "future", "event_time": 900 * MS, "value": value}
    script = [build_input_at_times(0), build_input_at_times(100), DeadLetterReplay()]
    result = run_local_script(session_window(), script, SCHEMA, letters=[letter], flush=False)
    assert (result.replays[0].applied, result.watermark_us, read_window_counts(result)) == (1, 100 * MS, [(0, 3, 1)])
    assert (result.counters.replayed, result.counters.rows_in, result.counters.rows_used) == (1, 3, 3)
    result = run_local_script(session_window(), [*script, DeadLetterReplay()], SCHEMA, letters=[letter])
    assert read_window_counts(result) == [(0, 3, 1), (100, 103, 1), (900, 903, 1)]
    assert (result.replays[1].applied, result.replays[1].before) == (0, 1)


def test_replay_corrects_an_expired_window_after_allowed_lateness_is_raised(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": "tumbling", "duration_ms": 10, "max_groups_per_window": 9, "group_by": ["u"]}
    settings["aggregations"] = [Aggregation(agg="count", as_="n")]
    reopen = {"late_data": "reopen", "lateness_ms": 0}
    before = Window(**settings, **reopen, allowed_lateness_ms=0)
    after = Window(**settings, **reopen, allowed_lateness_ms=1000)
    run_local_script(
        before,
        [build_input_at_times(1), build_input_at_times(50), build_input_at_times(2)],
        SCHEMA,
        flush=False,
        state_dir=str(tmp_path / "s"),
    )
    letters = run_local_script(
        before, [build_input_at_times(1), build_input_at_times(50), build_input_at_times(2)], SCHEMA, flush=False
    ).letters
    result = run_local_script(
        after, [DeadLetterReplay()], SCHEMA, flush=False, state_dir=str(tmp_path / "s"), letters=letters
    )
    assert (result.replays[0].applied, result.replays[0].remaining) == (1, {})


def test_late_rows_cannot_be_replayed_into_an_append_only_target() -> None:
    with pytest.raises(
        StartError,
        match=r"late rows cannot be replayed, because they correct windows in the target, but memory is append-only",
    ):
        run_local_script(
            session_window(),
            [build_input_at_times(0), build_input_at_times(100), build_input_at_times(2), DeadLetterReplay()],
            SCHEMA,
            upserts=False,
        )


def test_late_rows_cannot_be_replayed_when_late_data_is_drop() -> None:
    letters = run_local_script(
        session_window(), [build_input_at_times(0), build_input_at_times(100), build_input_at_times(2)], SCHEMA
    ).letters
    with pytest.raises(StartError, match=r'late_data = "drop" does not track the origin of a row'):
        run_local_script(
            session_window(late_data="drop"), [build_input_at_times(0), DeadLetterReplay()], SCHEMA, letters=letters
        )


def count_replay_copies(letters: int, rows_: int, keys: int, once: bool, window: Window) -> int:
    logic = compile_window(build_pipeline(window, ["a"]), {n: Field(n, t) for n, t in SCHEMA.items()})
    frame = pl.DataFrame({"__letters": [letters], "__rows": [rows_], "__keys": [keys], "__once": [once]})
    return int(frame.select(replay._count_copies(replay._all_late_together(logic))).item())


def test_number_of_late_copies_is_derived_from_dead_letters() -> None:
    """With `once`, the row is a unique Kafka record. Otherwise equal rows of a file have equal dead letters."""
    spec = session_window()
    assert count_replay_copies(3, 1, 1, False, spec) == 3
    assert count_replay_copies(3, 1, 1, True, spec) == 1  # a dead letter that was written twice
    assert count_replay_copies(2, 2, 1, False, spec) == 1  # the SQL made two rows of one key
    assert count_replay_copies(4, 2, 1, False, spec) == 2
    assert count_replay_copies(2, 2, 2, True, spec) == 1
    assert (
        count_replay_copies(2, 2, 2, False, spec) == 0
    )  # ambiguous: one row, or two equal rows that were late once each
    assert count_replay_copies(1, 2, 2, True, spec) == 0
    assert count_replay_copies(3, 0, 0, False, spec) == 0


def test_duplicate_dead_letter_of_a_kafka_record_is_applied_once(tmp_path: Path) -> None:
    """A dead-letter target with at-least-once delivery may duplicate a dead letter, even after the replay."""
    run_options: dict[str, Any] = {"flush": False, "state_dir": str(tmp_path)}
    (letter,) = run_local_script(
        session_window(),
        [build_input_at_times(0), build_input_at_times(100), build_input_at_times(50)],
        SCHEMA,
        **run_options,
    ).letters
    letter |= {"topic": "t", "partition": 0, "offset": 7}
    first = run_local_script(session_window(), [DeadLetterReplay()], SCHEMA, letters=[letter] * 2, **run_options)
    assert (first.replays[0].applied, read_window_counts(first)) == (2, [(50, 53, 1)])
    second = run_local_script(session_window(), [DeadLetterReplay()], SCHEMA, letters=[letter] * 3, **run_options)
    assert (second.replays[0].applied, second.replays[0].before, read_window_counts(second)) == (0, 3, [])


def test_replay_limit_takes_oldest_dead_letters_and_never_splits_equal_ones() -> None:
    script = [build_input_at_times(0), build_input_at_times(100), build_input_at_times(50, 50, 60, 70)]
    result = run_local_script(session_window(), [*script, DeadLetterReplay(1)], SCHEMA)
    assert (result.replays[0].applied, read_window_counts(result)) == (2, [(0, 3, 1), (50, 53, 2), (100, 103, 1)])
    result = run_local_script(
        session_window(), [*script, DeadLetterReplay(1), DeadLetterReplay(1), DeadLetterReplay()], SCHEMA
    )
    assert [r.applied for r in result.replays] == [2, 1, 1]


# -- rows that fail again ----------------------------------------------------------------------------------------------


def build_undecodable_dead_letters(*values: bytes, **more: Any) -> list[dict[str, Any]]:
    """Return the dead letters of undecodable rows as an epoch writes them."""
    (like,) = run_local_script(
        session_window(),
        [build_input_at_times(0), build_input_at_times(100), build_input_at_times(50)],
        SCHEMA,
        flush=False,
    ).letters
    nothing = dict.fromkeys(
        ("event_time", "cause", "watermark", "watermark_source", "late_us", "windows_missed", "windows")
    )
    return [like | nothing | {"reason": "undecodable", "epoch": 0, "value": value, **more} for value in values]


GOOD = b'{"ts": 900000, "u": "b", "id": 1, "f": 1.0}'
LATE_NOW = b'{"ts": 30000, "u": "b", "id": 1, "f": 1.0}'


def test_undecodable_row_stays_one_dead_letter_and_counts_its_attempts() -> None:
    letters = build_undecodable_dead_letters(b"{broken", GOOD, b"{broken")
    script = [
        build_input_at_times(0),
        build_input_at_times(100),
        DeadLetterReplay(dry=True),
        DeadLetterReplay(),
        DeadLetterReplay(),
        DeadLetterReplay(dry=True),
    ]
    result = run_local_script(session_window(), script, SCHEMA, letters=letters, on_error="dlq")
    assert [(r.applied, dict(r.remaining), r.before) for r in result.replays] == [
        (1, {"bad again: no event time": 2}, 0),
        (1, {"bad again: no event time": 2}, 0),
        (0, {"bad again: no event time": 2}, 1),
        (0, {"bad again: no event time": 2}, 1),
    ]
    assert result.letters == [], "none was doubled"
    assert (result.counters.rows_bad, result.counters.replayed) == (0, 1)
    assert read_window_counts(result) == [(0, 3, 1), (100, 103, 1), (900, 903, 1)]


@pytest.mark.parametrize("has_topic", select_cases([False, True]))
@pytest.mark.parametrize("step", KILL_POINTS)
def test_replay_attempt_counts_once_at_every_kill_point(tmp_path: Path, step: str, has_topic: bool) -> None:
    """Repeat a replay that is killed at `step`, then replay again. A killed attempt counts only if it was committed."""
    place = {"topic": "t", "partition": 0, "offset": 7} if has_topic else {}
    letters = [*build_undecodable_dead_letters(b"{broken", **place), *build_undecodable_dead_letters(GOOD, LATE_NOW)]
    store = lambda: FilesStore(tmp_path, "law")  # noqa: E731
    start = [
        build_input_at_times(0),
        build_input_at_times(100),
        DriverCrash(step),
        DeadLetterReplay(),
        DeadLetterReplay(),
    ]
    result = run_local_script(
        session_window(), start, SCHEMA, letters=letters, on_error="dlq", store=store, flush=False
    )
    assert [r["reason"] for r in result.letters] == ["late"], "the one that can be read by now, and is late"
    assert result.counters.replayed == 3
    assert read_window_counts(result) == [(0, 3, 1), (30, 33, 1)]
    with store().peek() as seen:
        assert seen is not None
        ledger = AttemptLedger.from_commit(seen.commit, seen.read_list)
    judged = ledger.with_attempts(pl.DataFrame(letters, schema={f.name: f.polars for f in LETTER}))
    committed = step in ("commit.after", "write.before", "write.after", "note.before", "note.after")
    assert judged.select("__applied", "__tries").rows() == [(False, 3 if committed else 2), (True, 0), (True, 0)]


def test_dry_run_changes_nothing_and_predicts_the_replay(tmp_path: Path) -> None:
    letters = build_undecodable_dead_letters(b"{broken", GOOD, LATE_NOW)
    start = [build_input_at_times(0), build_input_at_times(100)]
    run_local_script(
        session_window(), start, SCHEMA, flush=False, state_dir=str(tmp_path), letters=letters, on_error="dlq"
    )
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    tell = run_local_script(
        session_window(),
        [DeadLetterReplay(dry=True)],
        SCHEMA,
        flush=False,
        state_dir=str(tmp_path),
        letters=letters,
        on_error="dlq",
    ).replays[0]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"} == before
    real = run_local_script(
        session_window(), [DeadLetterReplay(), DeadLetterReplay(), DeadLetterReplay()], SCHEMA, flush=False, state_dir=str(tmp_path), letters=letters,
        on_error="dlq",
    )  # fmt: skip
    assert (tell.applied, tell.remaining, tell.renewed) == (2, {"bad again: no event time": 1}, {"late": 1})
    assert (real.replays[0].applied, real.replays[0].remaining, real.replays[0].renewed) == (
        tell.applied,
        tell.remaining,
        tell.renewed,
    )
    assert [r.applied for r in real.replays] == [2, 1, 0], "the late letter corrects its window in the next replay"
    assert [r["reason"] for r in real.letters] == ["late"]


@pytest.mark.parametrize("kind", ["session", "tumbling"])
def test_row_that_late_data_drop_would_lose_stays_a_dead_letter(kind: str) -> None:
    shape = {
        "kind": "tumbling",
        "duration_ms": 10,
        "max_groups_per_window": 9,
        "gap_ms": None,
        "max_session_duration_ms": None,
    }
    spec = session_window(late_data="drop", **(shape if kind == "tumbling" else {}))
    letters = build_undecodable_dead_letters(LATE_NOW, GOOD)
    result = run_local_script(
        spec,
        [build_input_at_times(0), build_input_at_times(100), DeadLetterReplay(dry=True), DeadLetterReplay()],
        SCHEMA,
        letters=letters,
        on_error="dlq",
    )
    for told_ in result.replays:
        assert (told_.applied, dict(told_.remaining)) == (1, {replay.DROPPED: 1})
    assert (result.counters.rows_late, len(final_table_rows(result))) == (0, 3)


def test_row_that_a_join_would_drop_as_late_stays_a_dead_letter() -> None:
    join = Join(
        kind="inner", left_source="a", right_source="b", left_keys=["u"], right_keys=["u"], time_window_ms=10,
        source_idleness_ms=1000,
    )  # fmt: skip
    both = MicroBatch({s: [{"ts": t * MS, "u": "b", "id": 1, "f": 1.0} for t in (0, 100)] for s in ("a", "b")})
    letters = build_undecodable_dead_letters(LATE_NOW, b'{"ts": 100000, "u": "b", "id": 2, "f": 1.0}')
    script = [both, DeadLetterReplay(dry=True), DeadLetterReplay()]
    result = run_local_script(join, script, SCHEMA, sources=("a", "b"), letters=letters, on_error="dlq", flush=False)
    for told_ in result.replays:
        assert (told_.applied, dict(told_.remaining)) == (1, {replay.DROPPED: 1})
    assert sorted(r["left_id"] for r in result.rows) == [1, 1, 2], "the good one finds its partner"


def test_remaining_dead_letters_do_not_block_later_ones() -> None:
    letters = [*build_undecodable_dead_letters(b"{broken"), *build_undecodable_dead_letters(GOOD, epoch=1)]
    result = run_local_script(
        session_window(),
        [build_input_at_times(0), build_input_at_times(100), DeadLetterReplay(1), DeadLetterReplay(1)],
        SCHEMA,
        letters=letters,
        on_error="dlq",
    )
    assert [r.applied for r in result.replays] == [0, 1]


def test_replay_applies_nothing_when_late_rows_are_refused() -> None:
    late = run_local_script(
        session_window(),
        [build_input_at_times(0), build_input_at_times(100), build_input_at_times(50)],
        SCHEMA,
        flush=False,
    ).letters
    published: list[int] = []
    with pytest.raises(StartError, match="nothing was replayed"):
        run_local_script(
            session_window(), [build_input_at_times(0), build_input_at_times(100), DeadLetterReplay()], SCHEMA, upserts=False, letters=[*late, *build_undecodable_dead_letters(GOOD)],
            on_error="dlq", flush=False, on_publish=lambda rows: published.append(rows.height),
        )  # fmt: skip
    assert published == [1], "the session at 0 alone"


def test_remaining_late_dead_letters_count_their_attempts(tmp_path: Path) -> None:
    script = [
        build_input_at_times(0, 3),
        build_input_at_times(7, 10),
        build_input_at_times(200),
        build_input_at_times(5),
        DeadLetterReplay(),
        DeadLetterReplay(),
    ]
    result = run_local_script(
        session_window(max_session_duration_ms=8), script, SCHEMA, state_dir=str(tmp_path), flush=False
    )
    assert [r.remaining for r in result.replays] == [{windows.CAPPED: 1}] * 2
    with FilesStore(tmp_path, "law").peek() as seen:
        assert seen is not None
        attempt_ledger = AttemptLedger.from_commit(seen.commit, seen.read_list)
    assert attempt_ledger.with_attempts(pl.DataFrame(result.letters, schema={f.name: f.polars for f in LETTER}))[
        "__tries"
    ].to_list() == [2]


def test_attempt_counts_survive_cleanup_and_fork_and_are_verified(tmp_path: Path) -> None:
    """The attempts survive the removal of old epochs and a fork, and verification reports a damaged ledger."""
    letters = build_undecodable_dead_letters(b"{broken")
    more = [build_input_at_times(200 + n) for n in range(40)]  # several rounds of garbage collection
    script = [
        build_input_at_times(0),
        build_input_at_times(100),
        DeadLetterReplay(),
        *more[:20],
        DeadLetterReplay(),
        *more[20:],
    ]
    run_local_script(
        session_window(), script, SCHEMA, letters=letters, on_error="dlq", state_dir=str(tmp_path), flush=False
    )
    store, frame = FilesStore(tmp_path, "law"), pl.DataFrame(letters, schema={f.name: f.polars for f in LETTER})

    def tries(of_store: FilesStore) -> list[int]:
        with of_store.peek() as seen:
            assert seen is not None
            return AttemptLedger.from_commit(seen.commit, seen.read_list).with_attempts(frame)["__tries"].to_list()

    assert tries(store) == [2]
    assert not verify_state(store).problems
    assert store.fork("copy") is not None
    assert tries(FilesStore(tmp_path, "copy")) == [2]
    (listed,) = store.manifest(store.epochs()[-1]).tried
    with (tmp_path / "law" / listed).open("a") as file:
        file.write("0 1 1\n")
    assert listed.rpartition("/")[2] in " ".join(map(str, verify_state(store).problems))
