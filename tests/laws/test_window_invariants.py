"""Laws of section 12 of the semantics, on the in-process engine, checked against the window oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.generators.row_strategies import (
    CAP,
    GAP,
    KINDS,
    MS,
    NAN,
    SHAPES,
    micro_batches,
    nonempty_epoch_inputs,
    ordered_rows,
)
from tests.laws.oracles import window_oracle
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window

SCHEMA = {"k": "double", "u": "string", "id": "bigint", "x": "bigint", "f": "double"}


def window_of_kind(kind: str, **given_: Any) -> Window:
    def agg(kind: str, column: str | None = None, **more: Any) -> Aggregation:
        return Aggregation(agg=kind, column=column, as_=f"{kind}_{column}", **more)

    aggregations = [
        agg("count"),
        agg("sum", "id"),
        agg("avg", "x"),
        *(agg(a, "f") for a in ("count", "min", "max", "first", "last")),
        agg("count_distinct", "f", mode="exact", max_distinct_values_per_group=1000),
    ]
    return Window(**{"group_by": ["k", "u"], "aggregations": aggregations, **SHAPES[kind], **given_})


def comparable_rows(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return comparable rows: sorted, without session ids and epochs, with NaN as text and zeros without a sign."""
    plain = [
        {k: window_oracle.canonical_value(v) for k, v in r.items() if k not in ("session_id", "_epoch")} for r in rows
    ]
    return sorted((tuple(sorted(r.items())) for r in plain), key=repr)


def check_row_counts(result: LocalResult, rows: int) -> None:
    c = result.counters
    assert c.rows_in == rows
    assert c.rows_sql + c.rows_bad == c.rows_used + c.rows_late + c.rows_refused + c.rows_bad
    assert c.rows_in == c.rows_sql + c.rows_bad


def run_and_check_row_counts(
    kind: str, epochs: Sequence[Sequence[Any]], given_: dict[str, Any] | None = None, **settings_: Any
) -> LocalResult:
    result = run_local_script(
        window_of_kind(kind, **(given_ or {})), nonempty_epoch_inputs(epochs), SCHEMA, **settings_
    )
    check_row_counts(result, sum(map(len, epochs)))
    return result


@pytest.mark.semantics("epochs")
@KINDS
@given(data=st.data())
def test_ordered_input_gives_the_batch_result(kind: str, data: st.DataObject) -> None:
    """Ordered input gives the batch result with no late rows, regardless of epochs and shards."""
    rows = data.draw(ordered_rows())
    expected = comparable_rows(window_oracle.compute_windows_over_all_rows(window_of_kind(kind), rows))
    for shards in (1, 3):
        result = run_and_check_row_counts(kind, data.draw(micro_batches(rows)), shards=shards)
        assert result.counters.rows_late == 0
        assert comparable_rows(result.rows) == expected


@pytest.mark.semantics("epoch-boundaries-and-late-rows")
@KINDS
@given(data=st.data())
def test_disorder_within_the_lateness_gives_the_batch_result(kind: str, data: st.DataObject) -> None:
    """A row within `lateness` of the newest row is never late, regardless of how rows are batched."""
    rows = data.draw(ordered_rows())
    lateness = data.draw(st.sampled_from([3, 15]))
    jitter = data.draw(st.lists(st.integers(0, lateness * MS), min_size=len(rows), max_size=len(rows)))
    shuffled = [r for _, r in sorted(zip(jitter, rows, strict=True), key=lambda p: p[0] + p[1]["ts"])]
    result = run_and_check_row_counts(kind, data.draw(micro_batches(shuffled)), {"lateness_ms": lateness})
    assert result.counters.rows_late == 0
    assert comparable_rows(result.rows) == comparable_rows(
        window_oracle.compute_windows_over_all_rows(window_of_kind(kind), rows)
    )


@pytest.mark.semantics("epoch-boundaries-and-late-rows", "tumbling-and-hopping-windows")
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
@given(data=st.data())
def test_lateness_of_a_row_is_decided_for_each_window(kind: str, data: st.DataObject) -> None:
    """The watermark of the previous epoch decides for which of its windows a row is late."""
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    lateness = data.draw(st.sampled_from([0, 4]))
    epochs = [e for e in data.draw(micro_batches(rows)) if e]
    expected, late, missed = window_oracle.compute_windows_over_epochs(
        window_of_kind(kind, lateness_ms=lateness), epochs
    )
    result = run_and_check_row_counts(kind, epochs, {"lateness_ms": lateness})
    assert comparable_rows(result.rows) == comparable_rows(expected)
    assert (result.counters.rows_late, result.counters.late_windows) == (late, missed)


@given(data=st.data())
def test_disordered_sessions_match_the_oracle_over_used_rows(data: st.DataObject) -> None:
    """Identify the used rows by the sums of their ids. The cap is out of reach."""
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    far = {"max_session_duration_ms": "1d", "lateness_ms": data.draw(st.sampled_from([0, 4]))}
    result = run_and_check_row_counts(
        "session", data.draw(micro_batches(rows)), far, shards=data.draw(st.sampled_from([1, 4]))
    )
    used = sum(r["sum_id"] for r in result.rows)
    used_rows = [r for r in rows if r["id"] & used]
    assert len(used_rows) == result.counters.rows_used
    assert comparable_rows(result.rows) == comparable_rows(
        window_oracle.compute_windows_over_all_rows(window_of_kind("session", **far), used_rows)
    )
    check_windows_are_disjoint(result)


@given(data=st.data())
def test_disordered_sessions_never_overlap_or_reach_the_maximum_duration(data: st.DataObject) -> None:
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=50))))
    lateness = data.draw(st.sampled_from([0, 4, 30]))
    epochs = data.draw(micro_batches(rows))
    result = run_and_check_row_counts("session", epochs, {"lateness_ms": lateness})
    check_windows_are_disjoint(result)
    by_id = {r["id"]: r for r in rows}
    for session in result.rows:
        members = [by_id[1 << n]["ts"] for n in range(60) if session["sum_id"] >> n & 1]
        assert session["window_start"] == min(members)
        assert max(members) - min(members) < CAP * MS
        assert all(b - a <= GAP * MS for a, b in zip(sorted(members), sorted(members)[1:], strict=False))
    assert comparable_rows(
        run_and_check_row_counts("session", epochs, {"lateness_ms": lateness}, shards=5).rows
    ) == comparable_rows(result.rows)


def check_windows_are_disjoint(result: LocalResult) -> None:
    per_key: dict[Any, list[tuple[int, int]]] = {}
    for r in result.rows:
        per_key.setdefault((window_oracle.canonical_value(r["k"]), r["u"]), []).append(
            (r["window_start"], r["window_end"])
        )
    for spans in per_key.values():
        spans.sort()
        assert len({start for start, _ in spans}) == len(spans), "one identity was emitted twice"
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end


@pytest.mark.semantics("epochs")
@KINDS
@given(data=st.data())
def test_crash_at_any_step_changes_neither_results_nor_counters(kind: str, data: st.DataObject) -> None:
    """Crashes at any step and a different number of shards change neither results nor counters."""
    rows = data.draw(st.permutations(data.draw(ordered_rows(most=20))))
    epochs = nonempty_epoch_inputs(data.draw(micro_batches(rows)))
    dying: list[Any] = []
    for epoch in epochs:
        dying += [*data.draw(st.lists(st.sampled_from([DriverCrash(s) for s in KILL_POINTS]), max_size=1)), epoch]
    whole = run_local_script(window_of_kind(kind), epochs, SCHEMA)
    torn = run_local_script(window_of_kind(kind), dying, SCHEMA, reshard_after=data.draw(st.sampled_from([None, 0, 1])))
    assert comparable_rows(torn.rows) == comparable_rows(whole.rows)
    assert torn.counters == whole.counters


@given(data=st.data())
def test_rows_of_a_slower_source_are_not_late(data: st.DataObject) -> None:
    """Read all rows of one source first. The watermark waits for the other source."""
    rows = data.draw(ordered_rows())
    tags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    fast = [r for r, t in zip(rows, tags, strict=True) if t]
    slow = [r for r, t in zip(rows, tags, strict=True) if not t]
    items: list[Any] = [MicroBatch({"a": [r]}) for r in fast] + [MicroBatch({"b": [r]}) for r in slow]
    both = run_local_script(window_of_kind("session"), items, SCHEMA, sources=("a", "b"))
    assert both.counters.rows_late == 0
    assert comparable_rows(both.rows) == comparable_rows(
        window_oracle.compute_windows_over_all_rows(window_of_kind("session"), rows)
    )


def test_idle_source_releases_the_watermark_and_late_rows_count_as_idle() -> None:
    """
    a   0 ........ 100 ms, then on to 200
    b   0, then nothing: idle after 60 s of activity time; a row of b at 10 ms is late because b was idle
    """

    def row(ts: int) -> dict[str, Any]:
        return {"ts": ts * MS, "k": 1.5, "u": "a", "id": 1, "x": 1, "f": 1.0}

    shape = window_of_kind("tumbling")
    held = [MicroBatch({"a": [row(0), row(100)], "b": [row(0)]}), MicroBatch({"a": [row(200)]})]
    before = run_local_script(shape, held, SCHEMA, sources=("a", "b"), flush=False)
    assert before.watermark_us == 0
    assert before.rows == []
    idle = run_local_script(
        shape, [*held, QuietInterval(59_000), QuietInterval(1_000)], SCHEMA, sources=("a", "b"), flush=False
    )
    assert idle.watermark_us == 0, "all sources idle: the watermark stays"
    busy = [
        *held,
        QuietInterval(59_000),
        MicroBatch({"a": [row(201)]}),
        QuietInterval(1_000),
        MicroBatch({"a": [row(300)]}),
        MicroBatch({"b": [row(10)]}),
    ]
    after = run_local_script(shape, busy, SCHEMA, sources=("a", "b"), flush=False)
    assert after.watermark_us == 300 * MS
    assert after.counters.late == {"idle": 1}
    assert [s.idle for s in after.statuses[-1].sources] == [False, False]


def test_rows_of_an_epoch_are_sorted_by_window_and_key() -> None:
    rows = [
        {"ts": t * MS, "k": k, "u": u, "id": 1, "x": 1, "f": 1.0}
        for t in (13, 1)
        for k in (NAN, 1.5, None)
        for u in ("b", None)
    ]
    output_rows = run_and_check_row_counts("tumbling", [rows]).rows
    got = [(r["window_start"], window_oracle.canonical_value(r["k"]), r["u"]) for r in output_rows]
    expected = [(s * MS, k, u) for s in (0, 12) for k in (None, 1.5, "NaN") for u in (None, "b")]
    assert got == expected


@pytest.mark.semantics("bounds", "conservation")
@given(data=st.data())
def test_rows_refused_by_max_groups_per_window_are_counted(data: st.DataObject) -> None:
    """Rows of refused groups are counted, and no window has more groups than the limit."""
    rows = data.draw(st.permutations(data.draw(ordered_rows())))
    for kind in SHAPES:
        few = {"max_groups_per_window": 3, "on_state_cap": "drop_new_groups"}
        result = run_and_check_row_counts(
            kind, data.draw(micro_batches(rows)), few, shards=data.draw(st.sampled_from([1, 2]))
        )
        used = sum(r["count_None"] for r in result.rows)
        assert used == result.counters.rows_used or kind == "hopping"
        per_window: dict[int, int] = {}
        if kind != "session":
            for r in result.rows:
                per_window[r["window_start"]] = per_window.get(r["window_start"], 0) + 1
            assert max(per_window.values(), default=0) <= 3


def test_group_and_window_counts_return_to_zero_after_the_flush() -> None:
    """The counts that limit the state follow every opened and closed window, so they end at zero."""
    rows = [{"ts": t * 3 * MS, "k": float(t % 7), "u": "a", "id": 1, "x": 1, "f": 1.0} for t in range(200)]
    for kind in SHAPES:
        result = run_and_check_row_counts(kind, [rows[n : n + 9] for n in range(0, 200, 9)])
        assert max(s.groups for s in result.statuses) > 0
        assert result.statuses[-1].groups == 0, kind
        assert result.statuses[-1].windows_active == 0, kind
