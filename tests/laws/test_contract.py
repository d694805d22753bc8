"""The contract followed row by row: every type, several sources, idleness, late rows, bounds, and when rows come out.

The model is `naive_oracle.py`, which shares no code with the engine. `SLACKWATER_LAWS_EXAMPLES` raises the number of examples.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.laws.oracles import naive_oracle

from slackwater.config.window import Aggregation, Window
from slackwater.errors import CapExceededError
from slackwater.testing.script import KILL_POINTS, START_US, Crash, LocalResult, Quiet, RowsInput, run_local

LAW = settings(
    max_examples=int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
MS = 1000
GAP, CAP, DURATION, HOP, OFFSET, IDLE = 5, 20, 12, 5, -2, 1000  # milliseconds
KINDS = ("tumbling", "hopping", "session")
PANES = ("tumbling", "hopping")
COUNTED = [("n", "count", None), ("ids", "sum", "id")]
NAN, INF = float("nan"), float("inf")


def spec_of(
    kind: str,
    keys: Sequence[str] = ("u",),
    aggregations: Sequence[tuple[str, str, str | None]] = COUNTED,
    cap: int = CAP,
) -> naive_oracle.Spec:
    given_ = {
        "session": {"gap_us": GAP * MS, "cap_us": cap * MS},
        "tumbling": {"duration_us": DURATION * MS},
        "hopping": {"duration_us": DURATION * MS, "hop_us": HOP * MS, "offset_us": OFFSET * MS},
    }[kind]
    return naive_oracle.Spec(kind, keys, aggregations, **given_)


def window_of(spec: naive_oracle.Spec, **more: Any) -> Window:
    """Return the window of a spec as a user writes it."""
    shape = {
        "session": {"gap_ms": spec.gap_us // MS, "max_session_duration_ms": spec.cap_us // MS},
        "tumbling": {"duration_ms": spec.duration_us // MS, "max_groups_per_window": 1000},
        "hopping": {
            "duration_ms": spec.duration_us // MS,
            "hop_ms": spec.hop_us // MS,
            "offset_ms": spec.offset_us // MS,
            "max_groups_per_window": 1000,
        },
    }[spec.kind]
    exact = {"mode": "exact", "max_distinct_values_per_group": 1000}
    aggregations = [
        Aggregation(agg=a, column=c, as_=n, **(exact if a == "count_distinct" else {})) for n, a, c in spec.aggregations
    ]
    given_ = {
        "group_by": list(spec.group_by),
        "aggregations": aggregations,
        "source_idleness_ms": IDLE,
        **shape,
    }
    return Window(kind=spec.kind, **{**given_, **more})


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows to compare: sorted, without session ids and epochs, NaN as a word, zero without a sign."""
    drop = ("session_id", "_epoch")
    return sorted(
        repr(sorted((k, naive_oracle.hashable_value(v)) for k, v in r.items() if k not in drop)) for r in rows
    )


def check_row_count(result: LocalResult, rows_in: int, bad: int = 0) -> None:
    c = result.counters
    assert (c.rows_in, c.rows_bad) == (rows_in, bad)
    assert c.rows_sql + c.rows_bad == c.rows_used + c.rows_late + c.rows_refused + c.rows_bad
    assert c.rows_sql == rows_in - bad


def check_order(result: LocalResult, keys: Sequence[str]) -> None:
    """Rows of one epoch: (window_start, keys; NULL first, NaN last); epochs ascend."""
    got = [(r["_epoch"], r["window_start"], *(naive_oracle.sort_rank(r[k]) for k in keys)) for r in result.rows]
    assert got == sorted(got)


def check_identities(result: LocalResult, keys: Sequence[str]) -> None:
    names = [(r["window_start"], *(naive_oracle.hashable_value(r[k]) for k in keys)) for r in result.rows]
    assert len(set(names)) == len(names), "one identity was emitted twice"


# -- what the rows are made of ---------------------------------------------------------------------------------------

VALUES: dict[str, tuple[str, list[Any]]] = {
    "i": ("int", [None, 0, 7, -(1 << 31), (1 << 31) - 1]),
    "x": ("bigint", [None, 0, 5, -(1 << 40), 1 << 40]),
    "f": ("double", [None, NAN, -0.0, 0.0, 2.5, -1.25, INF]),
    "d": (
        "decimal(10,2)",
        [None, Decimal("0.01"), Decimal("-99999999.99"), Decimal("99999999.99"), Decimal("0.00")],
    ),
    "s": ("string", [None, "", "a", "B", "é"]),
    "b": ("boolean", [None, True, False]),
    "t": ("timestamp", [None, -1, 0, 1_600_000_000_000_001]),
    "y": ("date", [None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "z": ("binary", [None, b"", b"\x00", b"\xff"]),
}
SCHEMA = {"id": "bigint", "u": "string", **{c: t for c, (t, _) in VALUES.items()}}
NUMBERS = ("i", "x", "f", "d")
EVERY = [*COUNTED] + [
    (f"{agg}_{c}", agg, c)
    for c in VALUES
    for agg in (
        "count",
        "min",
        "max",
        "first",
        "last",
        "count_distinct",
        *(("sum", "avg") if c in NUMBERS else ()),
    )
]
STEP_US = st.sampled_from(
    [
        0,
        0,
        1,
        MS,
        GAP * MS - 1,
        GAP * MS,
        GAP * MS + 1,
        DURATION * MS,
        (CAP - GAP) * MS,
        CAP * MS - 1,
        CAP * MS,
        40 * MS,
    ]
)


@st.composite
def ascending(draw: st.DrawFn, most: int = 24, values: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows in event-time order from before 1970 on; `id` is a power of two, so that a sum names its rows."""
    time_us = draw(st.sampled_from([-60 * MS, -(CAP + 1) * MS, -1, 0, OFFSET * MS, 3 * MS]))
    rows = []
    for n in range(draw(st.integers(1, most))):
        time_us += draw(STEP_US)
        row = {"ts": time_us, "id": 1 << n, "u": draw(st.sampled_from(["a", "a", "b", None]))}
        rows.append(row | {c: draw(st.sampled_from(VALUES[c][1])) for c in values})
    return rows


@st.composite
def cut(draw: st.DrawFn, rows: Sequence[Any]) -> list[list[Any]]:
    """Micro-batches, some of them empty."""
    edges = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [list(rows[a:b]) for a, b in zip([0, *edges], [*edges, len(rows)], strict=True)]


@st.composite
def jittered(draw: st.DrawFn, rows: Sequence[Any], lateness_ms: int) -> list[Any]:
    """An arrival order in which no row is behind `newest seen - lateness`."""
    delay = draw(st.lists(st.integers(0, lateness_ms * MS), min_size=len(rows), max_size=len(rows)))
    return [r for _, r in sorted(zip(delay, rows, strict=True), key=lambda p: p[0] + p[1]["ts"])]


@st.composite
def two_sources(draw: st.DrawFn, rows: Sequence[Any], quiet: bool = True) -> list[RowsInput | Quiet]:
    """A script over sources a and b: batches of either or both, empty ones, and quiet times around the idleness."""
    script: list[RowsInput | Quiet] = []
    for batch in draw(cut(rows)):
        a = [r for r in batch if draw(st.booleans())]
        script.append(RowsInput({"a": a, "b": [r for r in batch if r not in a]}))
        if quiet and draw(st.integers(0, 2)) == 0:
            script.append(Quiet(draw(st.sampled_from([1, IDLE - 1, IDLE, 2 * IDLE]))))
    return script


def rows_inputs(epochs: Iterable[Sequence[Any]]) -> list[RowsInput]:
    return [RowsInput({"a": e}) for e in epochs]


# -- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_every_aggregation_of_every_type_is_the_oracle_s(kind: str, data: st.DataObject) -> None:
    """However the rows are ordered within the lateness, cut into batches and spread over shards."""
    rows = data.draw(ascending(most=16, values=tuple(VALUES)))
    keys = data.draw(st.sampled_from([("u",), ("f",), ("d", "b"), ("t", "y"), ("z", "s"), ("u", "f", "i")]))
    lateness = data.draw(st.sampled_from([0, 3, 30]))
    spec = spec_of(kind, keys, EVERY)
    arrival = data.draw(jittered(rows, lateness))
    script = rows_inputs(data.draw(cut(arrival)))
    result = run_local(window_of(spec, lateness_ms=lateness), script, SCHEMA, shards=data.draw(st.integers(1, 4)))
    assert table(result.rows) == table(naive_oracle.batch_answer(spec, rows))
    assert result.counters.rows_late == 0
    check_row_count(result, len(rows))
    check_order(result, keys)
    check_identities(result, keys)


@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_no_keys_at_all_is_one_group(kind: str, data: st.DataObject) -> None:
    rows = data.draw(ascending())
    spec = spec_of(kind, ())
    result = run_local(window_of(spec), rows_inputs(data.draw(cut(rows))), SCHEMA, shards=data.draw(st.integers(1, 3)))
    assert table(result.rows) == table(naive_oracle.batch_answer(spec, rows))


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_what_is_due_at_the_watermark_is_out_and_nothing_else(kind: str, data: st.DataObject) -> None:
    """Without a flush: exactly the windows whose close, or settled cut, the watermark has reached."""
    rows = data.draw(ascending())
    lateness = data.draw(st.sampled_from([0, 3]))
    spec = spec_of(kind)
    arrival = data.draw(jittered(rows, lateness))
    result = run_local(window_of(spec, lateness_ms=lateness), rows_inputs(data.draw(cut(arrival))), SCHEMA, flush=False)
    watermark = rows[-1]["ts"] - lateness * MS
    assert result.watermark_us == watermark
    ts = {r["id"]: r["ts"] for r in rows}

    def due(w: dict[str, Any]) -> bool:
        if kind != "session":
            return watermark >= w["window_end"]
        last = max(t for i, t in ts.items() if i & w["ids"])
        beyond = [r["ts"] for r in rows if r["u"] == w["u"] and last < r["ts"] <= last + spec.gap_us]
        return watermark >= w["window_start"] + spec.cap_us if beyond else watermark > last + spec.gap_us

    assert table(result.rows) == table(w for w in naive_oracle.batch_answer(spec, rows) if due(w))


# -- late rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_panes_of_two_sources_under_any_disorder_are_judged_as_the_contract_says(
    kind: str, data: st.DataObject
) -> None:
    """Different lateness per source, one going quiet and coming back: answer, numbers and watermark are the model's."""
    rows = data.draw(st.permutations(data.draw(ascending())))
    lateness = {"a": data.draw(st.sampled_from([0, 4])), "b": data.draw(st.sampled_from([0, 30]))}
    script = data.draw(two_sources(rows))
    spec = spec_of(kind)
    model = naive_oracle.JudgingOracle(spec, {s: ms * MS for s, ms in lateness.items()}, IDLE * MS)
    for item in script:
        if isinstance(item, Quiet):
            model.quiet(item.ms * MS)
        else:
            model.epoch(item.rows)
    shards = data.draw(st.integers(1, 3))
    running = run_local(window_of(spec), script, SCHEMA, ("a", "b"), shards, flush=False, lateness_ms=lateness)
    closed = [w for w in model.answer() if model.watermark is not None and w["window_end"] <= model.watermark]
    assert table(running.rows) == table(closed)
    assert (running.watermark_us if model.watermark is not None else None) == model.watermark
    result = run_local(window_of(spec), script, SCHEMA, ("a", "b"), shards, lateness_ms=lateness)
    assert table(result.rows) == table(model.answer())
    assert (result.counters.rows_late, result.counters.late_windows) == (len(model.late), model.missed)
    check_row_count(result, len(rows))
    check_order(result, ("u",))
    check_identities(result, ("u",))


@LAW
@given(data=st.data())
def test_sessions_under_any_disorder_are_judged_as_the_contract_says(data: st.DataObject) -> None:
    """The cap is out of reach; which rows are late, and which session each other row is in, are the model's."""
    rows = data.draw(st.permutations(data.draw(ascending(most=40))))
    lateness = data.draw(st.sampled_from([0, 4, 12]))
    epochs = data.draw(cut(rows))
    spec = spec_of("session", cap=100_000)
    model = naive_oracle.JudgingSessions(spec, lateness * MS)
    for epoch in epochs:
        model.epoch(epoch)
    result = run_local(
        window_of(spec, lateness_ms=lateness),
        rows_inputs(epochs),
        SCHEMA,
        shards=data.draw(st.sampled_from([1, 4])),
    )
    assert table(result.rows) == table(model.answer())
    assert result.counters.rows_late == len(model.late)
    check_row_count(result, len(rows))


@LAW
@given(data=st.data())
def test_sessions_of_a_key_never_overlap_and_never_reach_the_cap(data: st.DataObject) -> None:
    """next start > previous last + gap, or a cut at the cap; whatever the disorder."""
    rows = data.draw(st.permutations(data.draw(ascending(most=40))))
    result = run_local(window_of(spec_of("session")), rows_inputs(data.draw(cut(rows))), SCHEMA)
    check_identities(result, ("u",))
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
def test_dying_twice_with_two_sources_and_another_shard_count_changes_nothing(kind: str, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(data.draw(ascending())))
    script = data.draw(two_sources(rows, quiet=False))
    crashes = data.draw(
        st.lists(st.tuples(st.integers(0, len(script) - 1), st.sampled_from(KILL_POINTS)), min_size=1, max_size=3)
    )
    torn: list[Any] = []
    for n, item in enumerate(script):
        torn += [*(Crash(step) for position, step in crashes if position == n), item]
    window = window_of(spec_of(kind), lateness_ms=2)
    first = run_local(window, script, SCHEMA, ("a", "b"), shards=1)
    second = run_local(
        window,
        torn,
        SCHEMA,
        ("a", "b"),
        shards=3,
        reshard_after=data.draw(st.integers(0, len(torn) - 1)),
        reshard_to=data.draw(st.sampled_from([1, 2, 5])),
    )
    assert table(second.rows) == table(first.rows)
    assert second.counters == first.counters
    assert second.watermark_us == first.watermark_us


# -- bounds and bad rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_every_row_has_a_number(kind: str, data: st.DataObject) -> None:
    """Disorder, a bound that refuses new groups, rows without a time and rows from the future: all are counted."""
    rows: list[dict[str, Any]] = data.draw(st.permutations(data.draw(ascending())))
    future = START_US + 2 * 86_400_000_000  # beyond max_future_ms also after the quiet times of the script
    spoilt = [r | {"ts": data.draw(st.sampled_from([None, future, r["ts"], r["ts"]]))} for r in rows]
    bad = [r for r in spoilt if r["ts"] in (None, future)]
    bound = {"max_groups_per_window": data.draw(st.integers(1, 3)), "on_state_cap": "drop_new_groups"}
    script = data.draw(two_sources(spoilt))
    result = run_local(window_of(spec_of(kind), **bound), script, SCHEMA, ("a", "b"), data.draw(st.integers(1, 3)))
    check_row_count(result, len(rows), len(bad))
    check_identities(result, ("u",))
    if kind == "hopping":
        seen = {r["id"] for r in spoilt if any(w["ids"] & r["id"] for w in result.rows)}
        assert len(seen) == result.counters.rows_used
    else:
        assert sum(w["n"] for w in result.rows) == result.counters.rows_used


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the kit leaves its store open on errors
@pytest.mark.parametrize("kind", PANES)
@LAW
@given(data=st.data())
def test_the_group_after_the_last_allowed_one_hits_the_cap(kind: str, data: st.DataObject) -> None:
    """`fail` is exact over all shards: N groups pass, N + 1 do not."""
    rows = data.draw(ascending(values=("f",)))
    spec = spec_of(kind, ("u", "f"))
    per_window: dict[int, int] = {}
    for w in naive_oracle.batch_answer(spec, rows):
        per_window[w["window_start"]] = per_window.get(w["window_start"], 0) + 1
    fullest = max(per_window.values())
    epochs, shards = rows_inputs(data.draw(cut(rows))), data.draw(st.integers(1, 4))
    run_local(window_of(spec, max_groups_per_window=fullest), epochs, SCHEMA, shards=shards)
    assume(fullest > 1)
    with pytest.raises(CapExceededError, match="max_groups_per_window"):
        run_local(window_of(spec, max_groups_per_window=fullest - 1), epochs, SCHEMA, shards=shards)


@LAW
@given(data=st.data())
def test_new_groups_are_admitted_by_first_event_time_then_key(data: st.DataObject) -> None:
    rows = data.draw(st.permutations(data.draw(ascending(values=("f",)))))
    spec = spec_of("tumbling", ("u", "f"))
    first: dict[Any, Any] = {}
    for r in rows:
        start = naive_oracle.starts_of(spec, r["ts"])[0]
        group = (start, naive_oracle.hashable_value(r["u"]), naive_oracle.hashable_value(r["f"]))
        entry = (r["ts"], naive_oracle.sort_rank(r["u"]), naive_oracle.sort_rank(r["f"]))
        first[group] = min(first.get(group, entry), entry)
    admitted = {g for g in first if sum(o[0] == g[0] and first[o] < first[g] for o in first) < 2}
    bound = {"max_groups_per_window": 2, "on_state_cap": "drop_new_groups"}
    result = run_local(window_of(spec, **bound), [RowsInput({"a": rows})], SCHEMA, shards=1)
    assert {
        (w["window_start"], naive_oracle.hashable_value(w["u"]), naive_oracle.hashable_value(w["f"]))
        for w in result.rows
    } == admitted
