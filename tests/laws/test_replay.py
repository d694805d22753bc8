"""Dead letters applied again: after a replay the target holds the batch answer over all rows, as if none had been late.

Seeded runs with any disorder, deaths at named steps, several shards; the oracle is the naive loop.
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
def test_after_a_replay_the_target_holds_the_batch_answer(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            check(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {window(random.Random(seed))}") from error


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
@exhaustive(beside="test_replay.py::test_after_a_replay_the_target_holds_the_batch_answer")
def test_where_the_cap_binds_a_row_is_in_one_session_or_stays_a_letter(first: int) -> None:
    """gap 5, cap 11 … 24: sessions are cut; what cannot be put together is left, and nothing is in two of them."""
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


def test_a_late_row_joins_two_stored_sessions() -> None:
    """
    gap 3     [0 ── 2]     [8 ── 9]            both are stored, and gone from the state
    late                ● 5                    joins both
    """
    result = run_local(sessions(), [rows_at(0, 2, 8, 9), rows_at(100), rows_at(5), Replay()], SCHEMA)
    assert counts(result) == [(0, 12, 5), (100, 103, 1)]
    assert [(g["window_start"] // MS, g["u"]) for g in result.gone] == [(8, "a")]
    assert result.replays[0].reasons == {"late": 1, "supersede": 1}


def test_a_stored_session_that_is_joined_to_an_open_one_is_taken_back_until_that_closes() -> None:
    """
    gap 3     [0 ── 2]    stored      [8, open at watermark 8
    late                ● 5           behind the floor of the first (5), so a letter; it joins both
    """
    script = [rows_at(0, 2), rows_at(8), rows_at(5), Replay()]
    result = run_local(sessions(), script, SCHEMA, flush=False)
    assert (counts(result), result.replays[0].applied) == ([], 1)
    assert counts(run_local(sessions(), [*script, rows_at(10)], SCHEMA)) == [(0, 13, 5)]


def test_a_corrected_session_moves_the_floor_of_its_key() -> None:
    """
    gap 3     [0]   at watermark 8 the letter 4 (late, its own run) is applied: [4], floor 7
                    a row at 6 has 6 + 3 >= 8 and would begin a session within the gap of [4]: late
    """
    result = run_local(sessions(), [rows_at(0), rows_at(8), rows_at(4), Replay(), rows_at(6)], SCHEMA)
    assert counts(result) == [(0, 3, 1), (4, 7, 1), (8, 11, 1)]
    assert len(result.letters) == 2
    assert counts(run_local(sessions(), [rows_at(0), rows_at(8), rows_at(4), Replay(), rows_at(6), Replay()], SCHEMA)) == [
        (0, 3, 1), (4, 11, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("late", ["dlq", "reopen"])
def test_what_reaches_the_cap_is_left(late: str) -> None:
    """
    gap 3, cap 8     [0 ── 3]   [5 .. 10]     joined by 4 they would span 10
                     [30 .. 37][38 ── 40]     was cut at 38: a row at 36 belongs to one of both, but a batch would cut again
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
def test_what_is_not_stored_cannot_be_put_together_and_a_new_session_can(agg: str) -> None:
    spec = sessions(Aggregation(agg="count", as_="n"), Aggregation(agg=agg, column="f", as_="x"))
    result = run_local(spec, [rows_at(0), rows_at(100), rows_at(2), rows_at(50), Replay(), Replay()], SCHEMA)
    why = f'its window left the state, and the accumulators of "x" ({agg}) are not stored'
    assert [r.remaining for r in result.replays] == [{why: 1}, {why: 1}]
    assert [r.applied for r in result.replays] == [1, 0]
    assert counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]


def test_sessions_whose_rows_bring_their_gaps_are_left_where_they_are_stored() -> None:
    spec = sessions(gap_ms="gap")
    script = [
        RowsInput({"a": [{"ts": t * MS, "u": "a", "gap": 3} for t in times]}) for times in ([0], [100], [2], [50])
    ]
    result = run_local(spec, [*script, Replay()], {"u": "string", "gap": "bigint"})
    assert counts(result) == [(0, 3, 1), (50, 53, 1), (100, 103, 1)]
    assert list(result.replays[0].remaining) == [
        "its session left the state, and the last event of a session with a gap per row is not stored"
    ]


def test_rows_without_a_usable_gap_are_left() -> None:
    spec = sessions(gap_ms="gap")
    rows_ = RowsInput({"a": [{"ts": 0, "u": "a", "gap": -1}, {"ts": 0, "u": "a", "gap": 3}]})
    result = run_local(spec, [rows_, Replay()], {"u": "string", "gap": "bigint"}, on_error="dlq")
    assert result.replays[0].remaining == {replay.NO_GAP: 1}
    assert counts(result) == [(0, 3, 1)]


def test_bad_rows_are_read_again_as_any_others_and_move_no_watermark() -> None:
    """A row that was too far in the future by the clock of its epoch, and is not any more."""
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


def test_a_window_that_was_gone_is_not_kept_again_because_more_lateness_is_allowed_since(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": "tumbling", "duration_ms": 10, "max_groups_per_window": 9, "group_by": ["u"]}
    settings["aggregations"] = [Aggregation(agg="count", as_="n")]
    reopen = {"late_data": "reopen", "lateness_ms": 0}
    before = Window(**settings, **reopen, allowed_lateness_ms=0)
    after = Window(**settings, **reopen, allowed_lateness_ms=1000)
    run_local(before, [rows_at(1), rows_at(50), rows_at(2)], SCHEMA, flush=False, state_dir=str(tmp_path / "s"))
    letters = run_local(before, [rows_at(1), rows_at(50), rows_at(2)], SCHEMA, flush=False).letters
    result = run_local(after, [Replay()], SCHEMA, flush=False, state_dir=str(tmp_path / "s"), letters=letters)
    assert (result.replays[0].applied, result.replays[0].remaining) == (1, {})


def test_a_target_that_only_adds_rows_cannot_be_corrected() -> None:
    with pytest.raises(
        StartError,
        match=r"late rows cannot be replayed, because they correct windows in the target, but memory is append-only",
    ):
        run_local(sessions(), [rows_at(0), rows_at(100), rows_at(2), Replay()], SCHEMA, upserts=False)


def test_a_policy_that_carries_no_origin_cannot_replay_late_rows() -> None:
    letters = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(2)], SCHEMA).letters
    with pytest.raises(StartError, match=r'late_data = "drop" does not track the origin of a row'):
        run_local(sessions(late_data="drop"), [rows_at(0), Replay()], SCHEMA, letters=letters)


def copies(letters: int, rows_: int, keys: int, once: bool, window: Window) -> int:
    logic = compile_window(build_pipeline(window, ["a"]), {n: Field(n, t) for n, t in SCHEMA.items()})
    frame = pl.DataFrame({"__letters": [letters], "__rows": [rows_], "__keys": [keys], "__once": [once]})
    return int(frame.select(replay._count_copies(replay._all_late_together(logic))).item())


def test_how_often_a_row_was_late_follows_from_its_letters() -> None:
    """`once`: a record of a topic, which is there once; else equal rows of a file have equal letters."""
    spec = sessions()
    assert copies(3, 1, 1, False, spec) == 3
    assert copies(3, 1, 1, True, spec) == 1  # a letter that was written again
    assert copies(2, 2, 1, False, spec) == 1  # the SQL made two rows of it, of one key
    assert copies(4, 2, 1, False, spec) == 2
    assert copies(2, 2, 2, True, spec) == 1
    assert copies(2, 2, 2, False, spec) == 0  # of one row, or of two equal ones each of which was late once?
    assert copies(1, 2, 2, True, spec) == 0
    assert copies(3, 0, 0, False, spec) == 0


def test_a_letter_of_a_topic_that_was_written_twice_is_applied_once(tmp_path: Path) -> None:
    """A target of letters that is at least once may hold one twice; the second may even come after the replay."""
    run_options: dict[str, Any] = {"flush": False, "state_dir": str(tmp_path)}
    (letter,) = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, **run_options).letters
    letter |= {"topic": "t", "partition": 0, "offset": 7}
    first = run_local(sessions(), [Replay()], SCHEMA, letters=[letter] * 2, **run_options)
    assert (first.replays[0].applied, counts(first)) == (2, [(50, 53, 1)])
    second = run_local(sessions(), [Replay()], SCHEMA, letters=[letter] * 3, **run_options)
    assert (second.replays[0].applied, second.replays[0].before, counts(second)) == (0, 3, [])


def test_a_limit_takes_the_oldest_letters_and_does_not_part_equal_ones() -> None:
    script = [rows_at(0), rows_at(100), rows_at(50, 50, 60, 70)]
    result = run_local(sessions(), [*script, Replay(1)], SCHEMA)
    assert (result.replays[0].applied, counts(result)) == (2, [(0, 3, 1), (50, 53, 2), (100, 103, 1)])
    result = run_local(sessions(), [*script, Replay(1), Replay(1), Replay()], SCHEMA)
    assert [r.applied for r in result.replays] == [2, 1, 1]


# -- bad rows that are bad again ---------------------------------------------------------------------------------------


def bad_letters(*values: bytes, **more: Any) -> list[dict[str, Any]]:
    """Letters of rows that could not be decoded, as an epoch wrote them."""
    (like,) = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, flush=False).letters
    nothing = dict.fromkeys(
        ("event_time", "cause", "watermark", "watermark_source", "late_us", "windows_missed", "windows")
    )
    return [like | nothing | {"reason": "undecodable", "epoch": 0, "value": value, **more} for value in values]


GOOD = b'{"ts": 900000, "u": "b", "id": 1, "f": 1.0}'
LATE_NOW = b'{"ts": 30000, "u": "b", "id": 1, "f": 1.0}'


def test_what_is_bad_again_stays_the_same_letter_and_counts_its_tries() -> None:
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
def test_a_try_counts_once_wherever_a_replay_is_killed(tmp_path: Path, step: str, topic: bool) -> None:
    """A replay that dies at `step` is repeated, which is one more try only if the first was committed; then another one."""
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


def test_a_dry_run_changes_nothing_and_foretells_what_a_replay_does(tmp_path: Path) -> None:
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
def test_what_a_policy_would_drop_as_late_stays_a_letter(kind: str) -> None:
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


def test_what_a_join_would_drop_as_late_stays_a_letter() -> None:
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


def test_letters_that_stay_do_not_keep_others_from_their_turn() -> None:
    letters = [*bad_letters(b"{broken"), *bad_letters(GOOD, epoch=1)]
    result = run_local(
        sessions(), [rows_at(0), rows_at(100), Replay(1), Replay(1)], SCHEMA, letters=letters, on_error="dlq"
    )
    assert [r.applied for r in result.replays] == [0, 1]


def test_nothing_is_applied_where_the_late_ones_cannot_be() -> None:
    late = run_local(sessions(), [rows_at(0), rows_at(100), rows_at(50)], SCHEMA, flush=False).letters
    published: list[int] = []
    with pytest.raises(StartError, match="nothing was replayed"):
        run_local(
            sessions(), [rows_at(0), rows_at(100), Replay()], SCHEMA, upserts=False, letters=[*late, *bad_letters(GOOD)],
            on_error="dlq", flush=False, on_publish=lambda rows: published.append(rows.height),
        )  # fmt: skip
    assert published == [1], "the session at 0 alone"


def test_late_letters_that_are_left_count_their_tries(tmp_path: Path) -> None:
    script = [rows_at(0, 3), rows_at(7, 10), rows_at(200), rows_at(5), Replay(), Replay()]
    result = run_local(sessions(max_session_duration_ms=8), script, SCHEMA, state_dir=str(tmp_path), flush=False)
    assert [r.remaining for r in result.replays] == [{windows.CAPPED: 1}] * 2
    with FilesStore(tmp_path, "law").peek() as seen:
        assert seen is not None
        attempt_ledger = AttemptLedger.from_commit(seen.commit, seen.read_list)
    assert attempt_ledger.with_attempts(pl.DataFrame(result.letters, schema={f.name: f.polars for f in LETTER}))[
        "__tries"
    ].to_list() == [2]


def test_the_count_of_tries_is_kept_forked_and_verified(tmp_path: Path) -> None:
    """Through the removal of old epochs, to a fork, and told if it is damaged."""
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
