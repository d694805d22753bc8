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
from tests.laws.generators.replays import AGGREGATIONS, GAP, MS, SCHEMA, check, plain_lines, rows, script, table, window
from tests.support.case_selection import exhaustive, select_cases
from tests.support.script import KILL_POINTS, Crash, LocalResult, Replay, RowsInput, build_pipeline, run_local

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

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "40"))


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_replay_brings_the_target_to_the_batch_answer(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            check(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {window(random.Random(seed))}") from error


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
@exhaustive(beside="test_replay.py::test_replay_brings_the_target_to_the_batch_answer")
def test_replay_at_the_session_cap_never_puts_a_row_in_two_sessions(first: int) -> None:
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
        input_rows = [row for row in rows(rng) if row["id"]]
        items = script(rng, input_rows, crashes=True)
        once = run_local(spec, [*items, Replay()], SCHEMA)
        twice = run_local(spec, [*items, Replay(), Replay()], SCHEMA)
        assert plain_lines(table(once)) == plain_lines(table(twice)), seed
        remaining = sum(once.replays[-1].remaining.values())
        assert set(once.replays[-1].remaining) <= {windows.CAPPED}
        held: list[tuple[Any, int, int]] = []
        members = 0
        for row in table(once):
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
        assert sum(r["n"] for r in table(once)) == members.bit_count() == len(input_rows) - remaining, seed


def rows_at(*times: int, user: str = "a", value: float | None = 1.0) -> RowsInput:
    return RowsInput({"a": [{"ts": t * MS, "u": user, "id": 1, "f": value} for t in times]})


def sessions(*aggregations: Aggregation, **more: Any) -> Window:
    defaults: dict[str, Any] = {"kind": "session", "gap_ms": 3, "max_session_duration_ms": 20, "group_by": ["u"]}
    named = aggregations or (Aggregation(agg="count", as_="n"),)
    return Window(aggregations=named, **{**defaults, "late_data": "dlq", **more})


def counts(result: LocalResult) -> list[tuple[int, int, int]]:
    return sorted((r["window_start"] // MS, r["window_end"] // MS, r["n"]) for r in table(result))


def test_replayed_late_row_merges_two_stored_sessions() -> None:
    """
    gap 3     [0 ── 2]     [8 ── 9]            both are in the target and not in the state
    late                ● 5                    merges both
    """
    result = run_local(sessions(), [rows_at(0, 2, 8, 9), rows_at(100), rows_at(5), Replay()], SCHEMA)
    assert counts(result) == [(0, 12, 5), (100, 103, 1)]
    assert [(g["window_start"] // MS, g["u"]) for g in result.gone] == [(8, "a")]
    assert result.replays[0].reasons == {"late": 1, "supersede": 1}


def test_stored_session_merged_into_an_open_one_is_retracted_until_close() -> None:
    """
    gap 3     [0 ── 2]    stored      [8, open at watermark 8
    late                ● 5           behind the floor of the first (5), so a dead letter that merges both
    """
    script = [rows_at(0, 2), rows_at(8), rows_at(5), Replay()]
    result = run_local(sessions(), script, SCHEMA, flush=False)
    assert (counts(result), result.replays[0].applied) == ([], 1)
    assert counts(run_local(sessions(), [*script, rows_at(10)], SCHEMA)) == [(0, 13, 5)]


def test_corrected_session_raises_the_floor_of_its_key() -> None:
    """
    gap 3     [0]   at watermark 8 the dead letter 4 (late, a separate run) is applied: [4], floor 7
                    a row at 6 has 6 + 3 >= 8 and would start a session within the gap of [4]: late
    """
    result = run_local(sessions(), [rows_at(0), rows_at(8), rows_at(4), Replay(), rows_at(6)], SCHEMA)
    assert counts(result) == [(0, 3, 1), (4, 7, 1), (8, 11, 1)]
    assert len(result.letters) == 2
    assert counts(run_local(sessions(), [rows_at(0), rows_at(8), rows_at(4), Replay(), rows_at(6), Replay()], SCHEMA)) == [
        (0, 3, 1), (4, 11, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("late", ["dlq", "reopen"])
def test_replay_leaves_rows_that_would_exceed_the_session_cap(late: str) -> None:
    """
    gap 3, cap 8     [0 ── 3]   [7 ── 10]     merged by a row at 5 they would span 10
                     [30 .. 37][38 ── 40]     cut at 38; a row at 35 in a cut session stays a dead letter
    """
    spec = sessions(max_session_duration_ms=8, late_data=late)
    script = [
        rows_at(0, 3),
        rows_at(7, 10),
        rows_at(30, 33, 36, 37, 38, 40),
        rows_at(200),
        rows_at(5),
        rows_at(35),
        rows_at(60),
        Replay(),
    ]
    result = run_local(spec, script, SCHEMA)
    assert result.replays[0].remaining == {windows.CAPPED: 2}
    assert result.replays[0].applied == 1
    assert [c for c in counts(result) if c[0] == 60] == [(60, 63, 1)]


@pytest.mark.parametrize("agg", ["first", "count_distinct", "avg"])
def test_replay_merges_only_stored_accumulators_but_adds_new_sessions(agg: str) -> None:
    spec = sessions(Aggregation(agg="count", as_="n"), Aggregation(agg=agg, column="f", as_="x"))
    result = run_local(spec, [rows_at(0), rows_at(100), rows_at(2), rows_at(50), Replay(), Replay()], SCHEMA)
    why = f'its window left the state, and the accumulators of "x" ({agg}) are not stored'
    assert [r.remaining for r in result.replays] == [{why: 1}, {why: 1}]
    assert [r.applied for r in result.replays] == [1, 0]
    assert counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]


def test_replay_does_not_correct_stored_sessions_with_a_gap_per_row() -> None:
    spec = sessions(gap_ms="gap")
    script = [
        RowsInput({"a": [{"ts": t * MS, "u": "a", "gap": 3} for t in times]}) for times in ([0], [100], [2], [50])
    ]
    result = run_local(spec, [*script, Replay()], {"u": "string", "gap": "bigint"})
    assert counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]
    assert list(result.replays[0].remaining) == [
        "its session left the state, and the last event of a session with a gap per row is not stored"
    ]


def test_replay_leaves_rows_without_a_valid_gap() -> None:
    spec = sessions(gap_ms="gap")
    rows_ = RowsInput({"a": [{"ts": 0, "u": "a", "gap": -1}, {"ts": 0, "u": "a", "gap": 3}]})
    result = run_local(spec, [rows_, Replay()], {"u": "string", "gap": "bigint"}, on_error="dlq")
    assert result.replays[0].remaining == {replay.NO_GAP: 1}
    assert counts(result) == [(0, 3, 1)]


def test_replayed_bad_rows_are_applied_without_moving_the_watermark() -> None:
    """Replay a row that was too far in the future by the clock of its epoch and is now valid."""
    (letter,) = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, flush=False).letters
    value = b'{"ts": 900000, "u": "b", "id": 1, "f": 1.0}'
    letter |= {"reason": "future", "event_time": 900 * MS, "value": value}
    script = [rows_at(0), rows_at(100), Replay()]
    result = run_local(sessions(), script, SCHEMA, letters=[letter], flush=False)
    assert (result.replays[0].applied, result.watermark_us, counts(result)) == (1, 100 * MS, [(0, 3, 1)])
    assert (result.counters.replayed, result.counters.rows_in, result.counters.rows_used) == (1, 3, 3)
    result = run_local(sessions(), [*script, Replay()], SCHEMA, letters=[letter])
    assert counts(result) == [(0, 3, 1), (100, 103, 1), (900, 903, 1)]
    assert (result.replays[1].applied, result.replays[1].before) == (0, 1)


def test_replay_corrects_an_expired_window_after_allowed_lateness_is_raised(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": "tumbling", "duration_ms": 10, "max_groups_per_window": 9, "group_by": ["u"]}
    settings["aggregations"] = [Aggregation(agg="count", as_="n")]
    reopen = {"late_data": "reopen", "lateness_ms": 0}
    before = Window(**settings, **reopen, allowed_lateness_ms=0)
    after = Window(**settings, **reopen, allowed_lateness_ms=1000)
    run_local(before, [rows_at(1), rows_at(50), rows_at(2)], SCHEMA, flush=False, state_dir=str(tmp_path / "s"))
    letters = run_local(before, [rows_at(1), rows_at(50), rows_at(2)], SCHEMA, flush=False).letters
    result = run_local(after, [Replay()], SCHEMA, flush=False, state_dir=str(tmp_path / "s"), letters=letters)
    assert (result.replays[0].applied, result.replays[0].remaining) == (1, {})


def test_late_rows_cannot_be_replayed_into_an_append_only_target() -> None:
    with pytest.raises(
        StartError,
        match=r"late rows cannot be replayed, because they correct windows in the target, but memory is append-only",
    ):
        run_local(sessions(), [rows_at(0), rows_at(100), rows_at(2), Replay()], SCHEMA, upserts=False)


def test_late_rows_cannot_be_replayed_when_late_data_is_drop() -> None:
    letters = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(2)], SCHEMA).letters
    with pytest.raises(StartError, match=r'late_data = "drop" does not track the origin of a row'):
        run_local(sessions(late_data="drop"), [rows_at(0), Replay()], SCHEMA, letters=letters)


def copies(letters: int, rows_: int, keys: int, once: bool, window: Window) -> int:
    logic = compile_window(build_pipeline(window, ["a"]), {n: Field(n, t) for n, t in SCHEMA.items()})
    frame = pl.DataFrame({"__letters": [letters], "__rows": [rows_], "__keys": [keys], "__once": [once]})
    return int(frame.select(replay._count_copies(replay._all_late_together(logic))).item())


def test_number_of_late_copies_is_derived_from_dead_letters() -> None:
    """With `once`, the row is a unique Kafka record. Otherwise equal rows of a file have equal dead letters."""
    spec = sessions()
    assert copies(3, 1, 1, False, spec) == 3
    assert copies(3, 1, 1, True, spec) == 1  # a dead letter that was written twice
    assert copies(2, 2, 1, False, spec) == 1  # the SQL made two rows of one key
    assert copies(4, 2, 1, False, spec) == 2
    assert copies(2, 2, 2, True, spec) == 1
    assert copies(2, 2, 2, False, spec) == 0  # ambiguous: one row, or two equal rows that were late once each
    assert copies(1, 2, 2, True, spec) == 0
    assert copies(3, 0, 0, False, spec) == 0


def test_duplicate_dead_letter_of_a_kafka_record_is_applied_once(tmp_path: Path) -> None:
    """A dead-letter target with at-least-once delivery may duplicate a dead letter, even after the replay."""
    run_options: dict[str, Any] = {"flush": False, "state_dir": str(tmp_path)}
    (letter,) = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, **run_options).letters
    letter |= {"topic": "t", "partition": 0, "offset": 7}
    first = run_local(sessions(), [Replay()], SCHEMA, letters=[letter] * 2, **run_options)
    assert (first.replays[0].applied, counts(first)) == (2, [(50, 53, 1)])
    second = run_local(sessions(), [Replay()], SCHEMA, letters=[letter] * 3, **run_options)
    assert (second.replays[0].applied, second.replays[0].before, counts(second)) == (0, 3, [])


def test_replay_limit_takes_oldest_dead_letters_and_never_splits_equal_ones() -> None:
    script = [rows_at(0), rows_at(100), rows_at(50, 50, 60, 70)]
    result = run_local(sessions(), [*script, Replay(1)], SCHEMA)
    assert (result.replays[0].applied, counts(result)) == (2, [(0, 3, 1), (50, 53, 2), (100, 103, 1)])
    result = run_local(sessions(), [*script, Replay(1), Replay(1), Replay()], SCHEMA)
    assert [r.applied for r in result.replays] == [2, 1, 1]


# -- rows that fail again ----------------------------------------------------------------------------------------------


def bad_letters(*values: bytes, **more: Any) -> list[dict[str, Any]]:
    """Return the dead letters of undecodable rows as an epoch writes them."""
    (like,) = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, flush=False).letters
    nothing = dict.fromkeys(
        ("event_time", "cause", "watermark", "watermark_source", "late_us", "windows_missed", "windows")
    )
    return [like | nothing | {"reason": "undecodable", "epoch": 0, "value": value, **more} for value in values]


GOOD = b'{"ts": 900000, "u": "b", "id": 1, "f": 1.0}'
LATE_NOW = b'{"ts": 30000, "u": "b", "id": 1, "f": 1.0}'


def test_undecodable_row_stays_one_dead_letter_and_counts_its_attempts() -> None:
    letters = bad_letters(b"{broken", GOOD, b"{broken")
    script = [rows_at(0), rows_at(100), Replay(dry=True), Replay(), Replay(), Replay(dry=True)]
    result = run_local(sessions(), script, SCHEMA, letters=letters, on_error="dlq")
    assert [(r.applied, dict(r.remaining), r.before) for r in result.replays] == [
        (1, {"bad again: no event time": 2}, 0),
        (1, {"bad again: no event time": 2}, 0),
        (0, {"bad again: no event time": 2}, 1),
        (0, {"bad again: no event time": 2}, 1),
    ]
    assert result.letters == [], "none was doubled"
    assert (result.counters.rows_bad, result.counters.replayed) == (0, 1)
    assert counts(result) == [(0, 3, 1), (100, 103, 1), (900, 903, 1)]


@pytest.mark.parametrize("topic", select_cases([False, True]))
@pytest.mark.parametrize("step", KILL_POINTS)
def test_replay_attempt_counts_once_at_every_kill_point(tmp_path: Path, step: str, topic: bool) -> None:
    """Repeat a replay that is killed at `step`, then replay again. A killed attempt counts only if it was committed."""
    place = {"topic": "t", "partition": 0, "offset": 7} if topic else {}
    letters = [*bad_letters(b"{broken", **place), *bad_letters(GOOD, LATE_NOW)]
    store = lambda: FilesStore(tmp_path, "law")  # noqa: E731
    start = [rows_at(0), rows_at(100), Crash(step), Replay(), Replay()]
    result = run_local(sessions(), start, SCHEMA, letters=letters, on_error="dlq", store=store, flush=False)
    assert [r["reason"] for r in result.letters] == ["late"], "the one that can be read by now, and is late"
    assert result.counters.replayed == 3
    assert counts(result) == [(0, 3, 1), (30, 33, 1)]
    with store().peek() as seen:
        assert seen is not None
        ledger = AttemptLedger.from_commit(seen.commit, seen.read_list)
    judged = ledger.with_attempts(pl.DataFrame(letters, schema={f.name: f.polars for f in LETTER}))
    committed = step in ("commit.after", "write.before", "write.after", "note.before", "note.after")
    assert judged.select("__applied", "__tries").rows() == [(False, 3 if committed else 2), (True, 0), (True, 0)]


def test_dry_run_changes_nothing_and_predicts_the_replay(tmp_path: Path) -> None:
    letters = bad_letters(b"{broken", GOOD, LATE_NOW)
    start = [rows_at(0), rows_at(100)]
    run_local(sessions(), start, SCHEMA, flush=False, state_dir=str(tmp_path), letters=letters, on_error="dlq")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    tell = run_local(
        sessions(), [Replay(dry=True)], SCHEMA, flush=False, state_dir=str(tmp_path), letters=letters, on_error="dlq"
    ).replays[0]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"} == before
    real = run_local(
        sessions(), [Replay(), Replay(), Replay()], SCHEMA, flush=False, state_dir=str(tmp_path), letters=letters,
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
    spec = sessions(late_data="drop", **(shape if kind == "tumbling" else {}))
    letters = bad_letters(LATE_NOW, GOOD)
    result = run_local(
        spec, [rows_at(0), rows_at(100), Replay(dry=True), Replay()], SCHEMA, letters=letters, on_error="dlq"
    )
    for told_ in result.replays:
        assert (told_.applied, dict(told_.remaining)) == (1, {replay.DROPPED: 1})
    assert (result.counters.rows_late, len(table(result))) == (0, 3)


def test_row_that_a_join_would_drop_as_late_stays_a_dead_letter() -> None:
    join = Join(
        kind="inner", left_source="a", right_source="b", left_keys=["u"], right_keys=["u"], time_window_ms=10,
        source_idleness_ms=1000,
    )  # fmt: skip
    both = RowsInput({s: [{"ts": t * MS, "u": "b", "id": 1, "f": 1.0} for t in (0, 100)] for s in ("a", "b")})
    letters = bad_letters(LATE_NOW, b'{"ts": 100000, "u": "b", "id": 2, "f": 1.0}')
    script = [both, Replay(dry=True), Replay()]
    result = run_local(join, script, SCHEMA, sources=("a", "b"), letters=letters, on_error="dlq", flush=False)
    for told_ in result.replays:
        assert (told_.applied, dict(told_.remaining)) == (1, {replay.DROPPED: 1})
    assert sorted(r["left_id"] for r in result.rows) == [1, 1, 2], "the good one finds its partner"


def test_remaining_dead_letters_do_not_block_later_ones() -> None:
    letters = [*bad_letters(b"{broken"), *bad_letters(GOOD, epoch=1)]
    result = run_local(
        sessions(), [rows_at(0), rows_at(100), Replay(1), Replay(1)], SCHEMA, letters=letters, on_error="dlq"
    )
    assert [r.applied for r in result.replays] == [0, 1]


def test_replay_applies_nothing_when_late_rows_are_refused() -> None:
    late = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, flush=False).letters
    published: list[int] = []
    with pytest.raises(StartError, match="nothing was replayed"):
        run_local(
            sessions(), [rows_at(0), rows_at(100), Replay()], SCHEMA, upserts=False, letters=[*late, *bad_letters(GOOD)],
            on_error="dlq", flush=False, on_publish=lambda rows: published.append(rows.height),
        )  # fmt: skip
    assert published == [1], "the session at 0 alone"


def test_remaining_late_dead_letters_count_their_attempts(tmp_path: Path) -> None:
    script = [rows_at(0, 3), rows_at(7, 10), rows_at(200), rows_at(5), Replay(), Replay()]
    result = run_local(sessions(max_session_duration_ms=8), script, SCHEMA, state_dir=str(tmp_path), flush=False)
    assert [r.remaining for r in result.replays] == [{windows.CAPPED: 1}] * 2
    with FilesStore(tmp_path, "law").peek() as seen:
        assert seen is not None
        attempt_ledger = AttemptLedger.from_commit(seen.commit, seen.read_list)
    assert attempt_ledger.with_attempts(pl.DataFrame(result.letters, schema={f.name: f.polars for f in LETTER}))[
        "__tries"
    ].to_list() == [2]


def test_attempt_ledger_survives_cleanup_and_fork_and_is_verified(tmp_path: Path) -> None:
    """The attempts survive the removal of old epochs and a fork, and verification reports a damaged ledger."""
    letters = bad_letters(b"{broken")
    more = [rows_at(200 + n) for n in range(40)]  # several rounds of garbage collection
    script = [rows_at(0), rows_at(100), Replay(), *more[:20], Replay(), *more[20:]]
    run_local(sessions(), script, SCHEMA, letters=letters, on_error="dlq", state_dir=str(tmp_path), flush=False)
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
