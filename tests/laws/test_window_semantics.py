"""Check the contract row by row: every type, several sources, idleness, late rows, bounds, and the time of emission.

The model is `naive_oracle.py`, which shares no code with the engine. `SLACKWATER_LAWS_EXAMPLES` raises the number of
examples.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.laws.generators.window_law_strategies import (
    CAP,
    EVERY,
    GAP,
    IDLE,
    KINDS,
    LAW,
    MS,
    PANES,
    SCHEMA,
    VALUES,
    build_oracle_spec,
    build_window_from_spec,
    check_row_count,
    check_row_order,
    check_unique_identities,
    comparable_rows,
    disordered_rows,
    epoch_inputs,
    micro_batches,
    ordered_rows,
    two_source_script,
)
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import KILL_POINTS, DriverCrash, MicroBatch, QuietInterval, run_local_script

from slackwater.errors import LimitExceededError
from slackwater.testing.memory_target import START_US

# -- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.semantics("aggregations")
@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_every_aggregation_matches_the_oracle(kind: str, data: st.DataObject) -> None:
    """Counts, sums, averages, extremes, first and last values match the oracle for any row order, batches and
    shards.
    """
    rows = data.draw(ordered_rows(most=16, values=tuple(VALUES)))
    keys = data.draw(st.sampled_from([("u",), ("f",), ("d", "b"), ("t", "y"), ("z", "s"), ("u", "f", "i")]))
    lateness = data.draw(st.sampled_from([0, 3, 30]))
    spec = build_oracle_spec(kind, keys, EVERY)
    arrival = data.draw(disordered_rows(rows, lateness))
    script = epoch_inputs(data.draw(micro_batches(arrival)))
    result = run_local_script(
        build_window_from_spec(spec, lateness_ms=lateness), script, SCHEMA, shards=data.draw(st.integers(1, 4))
    )
    assert comparable_rows(result.rows) == comparable_rows(naive_oracle.compute_windows_over_all_rows(spec, rows))
    assert result.counters.rows_late == 0
    check_row_count(result, len(rows))
    check_row_order(result, keys)
    check_unique_identities(result, keys)


@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_window_without_keys_is_one_group(kind: str, data: st.DataObject) -> None:
    rows = data.draw(ordered_rows())
    spec = build_oracle_spec(kind, ())
    result = run_local_script(
        build_window_from_spec(spec),
        epoch_inputs(data.draw(micro_batches(rows))),
        SCHEMA,
        shards=data.draw(st.integers(1, 3)),
    )
    assert comparable_rows(result.rows) == comparable_rows(naive_oracle.compute_windows_over_all_rows(spec, rows))


@pytest.mark.semantics("emission")
@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_run_without_flush_emits_exactly_the_windows_closed_by_the_watermark(kind: str, data: st.DataObject) -> None:
    """Without a flush, a run emits exactly the windows whose close or cut time the watermark has reached."""
    rows = data.draw(ordered_rows())
    lateness = data.draw(st.sampled_from([0, 3]))
    spec = build_oracle_spec(kind)
    arrival = data.draw(disordered_rows(rows, lateness))
    result = run_local_script(
        build_window_from_spec(spec, lateness_ms=lateness),
        epoch_inputs(data.draw(micro_batches(arrival))),
        SCHEMA,
        flush=False,
    )
    watermark = rows[-1]["ts"] - lateness * MS
    assert result.watermark_us == watermark
    ts = {r["id"]: r["ts"] for r in rows}

    def due(w: dict[str, Any]) -> bool:
        if kind != "session":
            return watermark >= w["window_end"]
        last = max(t for i, t in ts.items() if i & w["ids"])
        beyond = [r["ts"] for r in rows if r["u"] == w["u"] and last < r["ts"] <= last + spec.gap_us]
        return watermark >= w["window_start"] + spec.cap_us if beyond else watermark > last + spec.gap_us

    assert comparable_rows(result.rows) == comparable_rows(
        w for w in naive_oracle.compute_windows_over_all_rows(spec, rows) if due(w)
    )


# -- late rows -------------------------------------------------------------------------------------------------------


@pytest.mark.semantics("tumbling-and-hopping-windows")
@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_windows_of_two_sources_match_the_oracle(kind: str, data: st.DataObject) -> None:
    """For two sources with different lateness, of which one pauses, windows, late rows and the watermark match the
    oracle.
    """
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    lateness = {"a": data.draw(st.sampled_from([0, 4])), "b": data.draw(st.sampled_from([0, 30]))}
    script = data.draw(two_source_script(rows))
    spec = build_oracle_spec(kind)
    model = naive_oracle.PaneEpochOracle(spec, {s: ms * MS for s, ms in lateness.items()}, IDLE * MS)
    for item in script:
        if isinstance(item, QuietInterval):
            model.pass_quiet_time(item.ms * MS)
        else:
            model.add_epoch(item.rows)
    shards = data.draw(st.integers(1, 3))
    running = run_local_script(
        build_window_from_spec(spec), script, SCHEMA, ("a", "b"), shards=shards, flush=False, lateness_ms=lateness
    )
    closed = [w for w in model.window_rows() if model.watermark is not None and w["window_end"] <= model.watermark]
    assert comparable_rows(running.rows) == comparable_rows(closed)
    assert (running.watermark_us if model.watermark is not None else None) == model.watermark
    result = run_local_script(
        build_window_from_spec(spec), script, SCHEMA, ("a", "b"), shards=shards, lateness_ms=lateness
    )
    assert comparable_rows(result.rows) == comparable_rows(model.window_rows())
    assert (result.counters.rows_late, result.counters.late_windows) == (len(model.late), model.missed)
    check_row_count(result, len(rows))
    check_row_order(result, ("u",))
    check_unique_identities(result, ("u",))


@pytest.mark.semantics("late-rows-in-sessions")
@LAW
@given(data=st.data())
def test_sessions_match_the_oracle_under_any_disorder(data: st.DataObject) -> None:
    """For any disorder, the late rows and the session of each other row match the oracle, if no session reaches the
    cap.
    """
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=40))))
    lateness = data.draw(st.sampled_from([0, 4, 12]))
    epochs = data.draw(micro_batches(rows))
    spec = build_oracle_spec("session", cap=100_000)
    model = naive_oracle.SessionEpochOracle(spec, lateness * MS)
    for epoch in epochs:
        model.add_epoch(epoch)
    result = run_local_script(
        build_window_from_spec(spec, lateness_ms=lateness),
        epoch_inputs(epochs),
        SCHEMA,
        shards=data.draw(st.sampled_from([1, 4])),
    )
    assert comparable_rows(result.rows) == comparable_rows(model.window_rows())
    assert result.counters.rows_late == len(model.late)
    check_row_count(result, len(rows))


@pytest.mark.semantics("the-cap")
@LAW
@given(data=st.data())
def test_sessions_of_a_key_never_overlap_and_never_reach_the_maximum_duration(data: st.DataObject) -> None:
    """For any disorder, sessions of one key never overlap and are shorter than `max_session_duration`."""
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=40))))
    result = run_local_script(
        build_window_from_spec(build_oracle_spec("session")), epoch_inputs(data.draw(micro_batches(rows))), SCHEMA
    )
    check_unique_identities(result, ("u",))
    ts = {r["id"]: r["ts"] for r in rows}
    per_key: dict[Any, list[tuple[int, int]]] = {}
    for s in result.rows:
        members = sorted(t for i, t in ts.items() if i & s["ids"])
        assert members[0] == s["window_start"]
        assert members[-1] - members[0] < CAP * MS
        assert all(b - a <= GAP * MS for a, b in pairwise(members))
        per_key.setdefault(s["u"], []).append((members[0], members[-1]))
    for spans in per_key.values():
        spans.sort()
        for (start, last), (following, _) in pairwise(spans):
            assert following > last + GAP * MS or following >= start + CAP * MS, (start, last, following)
    assert sum(s["n"] for s in result.rows) == result.counters.rows_used
    check_row_count(result, len(rows))


# -- restart, shards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_crashes_and_resharding_with_two_sources_do_not_change_results(kind: str, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    script = data.draw(two_source_script(rows, quiet=False))
    crashes = data.draw(
        st.lists(st.tuples(st.integers(0, len(script) - 1), st.sampled_from(KILL_POINTS)), min_size=1, max_size=3)
    )
    torn: list[Any] = []
    for n, item in enumerate(script):
        torn += [*(DriverCrash(step) for position, step in crashes if position == n), item]
    window = build_window_from_spec(build_oracle_spec(kind), lateness_ms=2)
    first = run_local_script(window, script, SCHEMA, ("a", "b"), shards=1)
    second = run_local_script(
        window,
        torn,
        SCHEMA,
        ("a", "b"),
        shards=3,
        reshard_after=(data.draw(st.integers(0, len(torn) - 1)), data.draw(st.sampled_from([1, 2, 5]))),
    )
    assert comparable_rows(second.rows) == comparable_rows(first.rows)
    assert second.counters == first.counters
    assert second.watermark_us == first.watermark_us


# -- bounds and bad rows ---------------------------------------------------------------------------------------------


@pytest.mark.semantics("conservation")
@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_every_row_is_counted_once_as_used_late_refused_or_bad(kind: str, data: st.DataObject) -> None:
    """Each row is counted once as used, late, refused or bad, even with bad times and a limit that refuses groups."""
    rows: list[dict[str, Any]] = data.draw(st.permutations(data.draw(ordered_rows())))
    future = START_US + 2 * 86_400_000_000  # beyond max_future_ms even after the quiet times of the script
    spoilt = [r | {"ts": data.draw(st.sampled_from([None, future, r["ts"], r["ts"]]))} for r in rows]
    bad = [r for r in spoilt if r["ts"] in (None, future)]
    bound = {"max_groups_per_window": data.draw(st.integers(1, 3)), "on_state_cap": "drop_new_groups"}
    script = data.draw(two_source_script(spoilt))
    result = run_local_script(
        build_window_from_spec(build_oracle_spec(kind), **bound),
        script,
        SCHEMA,
        ("a", "b"),
        shards=data.draw(st.integers(1, 3)),
    )
    check_row_count(result, len(rows), len(bad))
    check_unique_identities(result, ("u",))
    if kind == "hopping":
        seen = {r["id"] for r in spoilt if any(w["ids"] & r["id"] for w in result.rows)}
        assert len(seen) == result.counters.rows_used
    else:
        assert sum(w["n"] for w in result.rows) == result.counters.rows_used


@pytest.mark.semantics("bounds")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the test kit leaves its store open on errors
@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_run_fails_at_one_group_more_than_max_groups_per_window(kind: str, data: st.DataObject) -> None:
    """`on_state_cap = "fail"` counts groups exactly over all shards: N groups pass, and N + 1 fail."""
    rows = data.draw(ordered_rows(values=("f",)))
    spec = build_oracle_spec(kind, ("u", "f"))
    per_window: dict[int, int] = {}
    for w in naive_oracle.compute_windows_over_all_rows(spec, rows):
        per_window[w["window_start"]] = per_window.get(w["window_start"], 0) + 1
    fullest = max(per_window.values())
    epochs, shards = epoch_inputs(data.draw(micro_batches(rows))), data.draw(st.integers(1, 4))
    run_local_script(build_window_from_spec(spec, max_groups_per_window=fullest), epochs, SCHEMA, shards=shards)
    assume(fullest > 1)
    with pytest.raises(LimitExceededError, match="max_groups_per_window"):
        run_local_script(build_window_from_spec(spec, max_groups_per_window=fullest - 1), epochs, SCHEMA, shards=shards)


@pytest.mark.semantics("bounds")
@LAW
@given(data=st.data())
def test_new_groups_are_admitted_by_first_event_time_then_key(data: st.DataObject) -> None:
    """`on_state_cap = "drop_new_groups"` admits groups in the order of first event time and key."""
    rows = data.draw(st.permutations(data.draw(ordered_rows(values=("f",)))))
    spec = build_oracle_spec("tumbling", ("u", "f"))
    first: dict[Any, Any] = {}
    for r in rows:
        start = naive_oracle.window_starts(spec, r["ts"])[0]
        group = (start, naive_oracle.hashable_value(r["u"]), naive_oracle.hashable_value(r["f"]))
        entry = (r["ts"], naive_oracle.sort_rank(r["u"]), naive_oracle.sort_rank(r["f"]))
        first[group] = min(first.get(group, entry), entry)
    admitted = {g for g in first if sum(o[0] == g[0] and first[o] < first[g] for o in first) < 2}
    bound = {"max_groups_per_window": 2, "on_state_cap": "drop_new_groups"}
    result = run_local_script(build_window_from_spec(spec, **bound), [MicroBatch({"a": rows})], SCHEMA, shards=1)
    assert {
        (w["window_start"], naive_oracle.hashable_value(w["u"]), naive_oracle.hashable_value(w["f"]))
        for w in result.rows
    } == admitted
