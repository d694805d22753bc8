"""Check `late_data = "dlq"`: a row that is late for at least one window becomes one dead letter.

Crashes and the number of shards do not change the dead letters.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.generators.golden_window_scripts import SCHEMA, SCRIPTS, SHAPES
from tests.laws.generators.window_law_strategies import (
    IDLE,
    LAW,
    MS,
    PANES,
    build_oracle_spec,
    build_window_from_spec,
    epoch_inputs,
    micro_batches,
    ordered_rows,
    two_source_script,
)
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window

IDS = {"id": "bigint", "u": "string"}

# -- goldens: the timelines are those of test_golden_window_results.py -------------------------------------------------------------

GOLDENS: dict[
    str, list[tuple[Any, ...]]
] = {  # event time, watermark, late by, windows missed and their starts, in milliseconds
    "tumbling": [(-3, 7, 10, 1, "[-10]"), (9, 10, 1, 1, "[0]")],
    "hopping": [(3, 7, 4, 1, "[-4]")],
    "session": [(21, 28, 7, 1, None)],
}


def read_dead_letters(result: LocalResult) -> list[tuple[Any, ...]]:
    letters = []
    for r in result.letters:
        starts = r["windows"] and str([_to_milliseconds(t) for t in json.loads(r["windows"])])
        assert (r["reason"], r["pipeline"], r["source"], r["cause"]) == ("late", "law", "a", "lateness")
        assert (r["watermark_source"], r["epoch"]) == ("a", r["_epoch"])
        assert json.loads(r["value"])["ts"] == r["event_time"]
        letters.append((r["event_time"] // MS, r["watermark"] // MS, r["late_us"] // MS, r["windows_missed"], starts))
    return sorted(letters)


def _to_milliseconds(text: str) -> int:
    import datetime as dt

    return round(
        (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(milliseconds=1)
    )


def run_window_with_dead_letters(kind: str, script: list[Any], **more: Any) -> LocalResult:
    aggregations = [Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="x", as_="x")]
    window = Window(group_by=["u"], aggregations=aggregations, late_data="dlq", **SHAPES[kind])
    result = run_local_script(window, script, SCHEMA, **more)
    counters = result.counters
    assert counters.letters.get("late", 0) == len(result.letters) == counters.rows_late + counters.rows_partly_late
    return result


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", SHAPES)
def test_golden_input_produces_the_expected_dead_letters(kind: str, shards: int) -> None:
    assert read_dead_letters(run_window_with_dead_letters(kind, SCRIPTS[kind], shards=shards)) == GOLDENS[kind]


@pytest.mark.parametrize("step", KILL_POINTS)
@pytest.mark.parametrize("kind", SHAPES)
def test_crashes_in_every_epoch_neither_lose_nor_duplicate_dead_letters(kind: str, step: str) -> None:
    """Dead letters are part of the commit, and are published like results."""
    script = [item for epoch in SCRIPTS[kind] for item in (DriverCrash(step), epoch)]
    assert read_dead_letters(run_window_with_dead_letters(kind, [*script, DriverCrash(step)])) == GOLDENS[kind]


def test_log_reports_late_rows_sent_to_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    run_window_with_dead_letters("tumbling", SCRIPTS["tumbling"])
    run_window_with_dead_letters("hopping", SCRIPTS["hopping"])
    assert [m for m in caplog.messages if "late" in m] == [
        "law: epoch 1: 1 late row was sent to the dead letters (watermark 1970-01-01T00:00:00.007000Z): "
        "u=b at 1969-12-31T23:59:59.990000Z",
        "law: epoch 2: 1 late row was sent to the dead letters (watermark 1970-01-01T00:00:00.010000Z): "
        "u=a at 1970-01-01T00:00:00Z",
        "law: epoch 1: 1 late row was sent to the dead letters, 1 of them late for some windows only "
        "(watermark 1970-01-01T00:00:00.007000Z)",
    ]


def test_dead_letter_lists_at_most_a_hundred_missed_windows() -> None:
    window = Window(
        kind="hopping", duration_ms=300, hop_ms=1, max_groups_per_window=9, late_data="dlq",
        aggregations=[Aggregation(agg="count", as_="n")],
    )  # fmt: skip
    script = [MicroBatch({"a": [{"ts": 1000 * MS}]}), MicroBatch({"a": [{"ts": 0}]})]
    (letter,) = run_local_script(window, script, {}).letters
    assert letter["windows_missed"] == 300
    starts = [_to_milliseconds(t) for t in json.loads(letter["windows"])]
    assert starts == list(range(-299, -199))


# -- laws ------------------------------------------------------------------------------------------------------------


def read_dead_letter_ids(result: LocalResult) -> list[int]:
    return sorted(json.loads(r["value"])["id"] for r in result.letters)


@pytest.mark.semantics("tumbling-and-hopping-windows")
@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_late_row_of_tumbling_or_hopping_windows_is_one_dead_letter_with_missed_windows(
    kind: str, data: st.DataObject
) -> None:
    """Each row that is late for at least one window becomes one dead letter, which lists the windows that it missed."""
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    script = data.draw(two_source_script(rows))
    spec = build_oracle_spec(kind)
    model = naive_oracle.PaneEpochOracle(spec, {"a": 0, "b": 4 * MS}, IDLE * MS)
    missed: dict[int, list[int]] = {}
    idle: set[int] = set()
    for item in script:
        if isinstance(item, QuietInterval):
            model.pass_quiet_time(item.ms * MS)
            continue
        for source, given_ in item.rows.items():
            for row in given_:
                starts = [
                    s
                    for s in naive_oracle.window_starts(spec, row["ts"])
                    if model.watermark is not None and s + spec.duration_us <= model.watermark
                ]
                if starts:
                    missed[row["id"]] = starts
                if source in model.lost:  # the watermark advanced without this source
                    idle.add(row["id"])
        model.add_epoch(item.rows)
    position, step = data.draw(st.integers(0, len(script))), data.draw(st.sampled_from(KILL_POINTS))
    # a crash forgets quiet time that was too short for a commit; the model does not know this
    brief = any(isinstance(item, QuietInterval) and item.ms < IDLE for item in script)
    bound: dict[str, Any] = {}
    if data.draw(st.booleans()):
        bound = {"max_groups_per_window": data.draw(st.integers(1, 3)), "on_state_cap": "drop_new_groups"}
    result = run_local_script(
        build_window_from_spec(spec, late_data="dlq", **bound),
        script if brief else [*script[:position], DriverCrash(step), *script[position:]],
        IDS,
        ("a", "b"),
        shards=data.draw(st.integers(1, 3)),
        lateness_ms={"a": 0, "b": 4},
    )
    assert read_dead_letter_ids(result) == sorted(missed)
    for r in result.letters:
        row = json.loads(r["value"])["id"]
        assert (r["windows_missed"], len(json.loads(r["windows"]))) == (len(missed[row]), len(missed[row]))
        assert round(_to_milliseconds(json.loads(r["windows"])[0])) * MS == missed[row][0]
        assert r["cause"] == ("idle" if row in idle else "lateness")
    counters = result.counters
    assert counters.letters.get("late", 0) == len(missed) == counters.rows_late + counters.rows_partly_late
    late_idle = sum(r["cause"] == "idle" for r in result.letters)
    assert counters.late.get("idle", 0) <= late_idle
    assert counters.late.get("idle", 0) == late_idle or kind == "hopping"


@LAW
@given(data=st.data())
def test_late_row_of_sessions_becomes_one_dead_letter(data: st.DataObject) -> None:
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=40))))
    lateness = data.draw(st.sampled_from([0, 4, 12]))
    epochs = data.draw(micro_batches(rows))
    spec = build_oracle_spec("session", cap=100_000)
    model = naive_oracle.SessionEpochOracle(spec, lateness * MS)
    for epoch in epochs:
        model.add_epoch(epoch)
    script: list[Any] = epoch_inputs(epochs)
    position, step = data.draw(st.integers(0, len(script))), data.draw(st.sampled_from(KILL_POINTS))
    script = [*script[:position], DriverCrash(step), *script[position:]]
    window = build_window_from_spec(spec, lateness_ms=lateness, late_data="dlq")
    result = run_local_script(window, script, IDS, shards=data.draw(st.sampled_from([1, 4])))
    assert read_dead_letter_ids(result) == sorted(r["id"] for r in model.late)
    assert result.counters.letters.get("late", 0) == result.counters.rows_late == len(model.late)


@LAW
@given(data=st.data())
def test_row_of_sessions_split_at_the_maximum_duration_is_used_or_a_dead_letter(data: st.DataObject) -> None:
    """A row that fits in no session after a cut is late. Each row is in a session or in a dead letter, not in both."""
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=40))))
    window = build_window_from_spec(build_oracle_spec("session"), late_data="dlq")
    result = run_local_script(window, epoch_inputs(data.draw(micro_batches(rows))), IDS)
    used = sum(s["ids"] for s in result.rows)
    assert used + sum(read_dead_letter_ids(result)) == sum(r["id"] for r in rows)
    assert used & sum(read_dead_letter_ids(result)) == 0
