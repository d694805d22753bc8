"""Windows, rows, batches and scripts for the laws of the contract, and checks for every result."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import LocalResult, MicroBatch, QuietInterval

from slackwater.config.window import Aggregation, Window

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


def build_oracle_spec(
    kind: str,
    keys: Sequence[str] = ("u",),
    aggregations: Sequence[tuple[str, str, str | None]] = COUNTED,
    cap: int = CAP,
) -> naive_oracle.WindowSpec:
    given_ = {
        "session": {"gap_us": GAP * MS, "cap_us": cap * MS},
        "tumbling": {"duration_us": DURATION * MS},
        "hopping": {"duration_us": DURATION * MS, "hop_us": HOP * MS, "offset_us": OFFSET * MS},
    }[kind]
    return naive_oracle.WindowSpec(kind, keys, aggregations, **given_)


def build_window_from_spec(spec: naive_oracle.WindowSpec, **more: Any) -> Window:
    """Return the window of a spec in the form that a user writes."""
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


def comparable_rows(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return rows in a comparable form: sorted, without session ids and epochs, NaN as a word, zero without a sign."""
    drop = ("session_id", "_epoch")
    return sorted(
        repr(sorted((k, naive_oracle.hashable_value(v)) for k, v in r.items() if k not in drop)) for r in rows
    )


def check_row_count(result: LocalResult, rows_in: int, bad: int = 0) -> None:
    c = result.counters
    assert (c.rows_in, c.rows_bad) == (rows_in, bad)
    assert c.rows_sql + c.rows_bad == c.rows_used + c.rows_late + c.rows_refused + c.rows_bad
    assert c.rows_sql == rows_in - bad


def check_row_order(result: LocalResult, keys: Sequence[str]) -> None:
    """Check that rows are sorted by epoch, window start and keys, with NULL first and NaN last."""
    got = [(r["_epoch"], r["window_start"], *(naive_oracle.sort_rank(r[k]) for k in keys)) for r in result.rows]
    assert got == sorted(got)


def check_unique_identities(result: LocalResult, keys: Sequence[str]) -> None:
    names = [(r["window_start"], *(naive_oracle.hashable_value(r[k]) for k in keys)) for r in result.rows]
    assert len(set(names)) == len(names), "one identity was emitted twice"


# -- values of the rows -----------------------------------------------------------------------------------------------

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
def ordered_rows(draw: st.DrawFn, most: int = 24, values: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Draw rows in event-time order, some before 1970. `id` is a power of two, so a sum identifies the rows."""
    time_us = draw(st.sampled_from([-60 * MS, -(CAP + 1) * MS, -1, 0, OFFSET * MS, 3 * MS]))
    rows = []
    for n in range(draw(st.integers(1, most))):
        time_us += draw(STEP_US)
        row = {"ts": time_us, "id": 1 << n, "u": draw(st.sampled_from(["a", "a", "b", None]))}
        rows.append(row | {c: draw(st.sampled_from(VALUES[c][1])) for c in values})
    return rows


@st.composite
def micro_batches(draw: st.DrawFn, rows: Sequence[Any]) -> list[list[Any]]:
    """Draw micro-batches, some of them empty."""
    edges = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [list(rows[a:b]) for a, b in zip([0, *edges], [*edges, len(rows)], strict=True)]


@st.composite
def disordered_rows(draw: st.DrawFn, rows: Sequence[Any], lateness_ms: int) -> list[Any]:
    """Draw an arrival order in which no row is behind `newest seen - lateness`."""
    delay = draw(st.lists(st.integers(0, lateness_ms * MS), min_size=len(rows), max_size=len(rows)))
    return [r for _, r in sorted(zip(delay, rows, strict=True), key=lambda p: p[0] + p[1]["ts"])]


@st.composite
def two_source_script(draw: st.DrawFn, rows: Sequence[Any], quiet: bool = True) -> list[MicroBatch | QuietInterval]:
    """Draw a script over sources a and b: batches of one or both, empty batches, and quiet times near the idleness."""
    script: list[MicroBatch | QuietInterval] = []
    for batch in draw(micro_batches(rows)):
        a = [r for r in batch if draw(st.booleans())]
        script.append(MicroBatch({"a": a, "b": [r for r in batch if r not in a]}))
        if quiet and draw(st.integers(0, 2)) == 0:
            script.append(QuietInterval(draw(st.sampled_from([1, IDLE - 1, IDLE, 2 * IDLE]))))
    return script


def epoch_inputs(epochs: Iterable[Sequence[Any]]) -> list[MicroBatch]:
    return [MicroBatch({"a": e}) for e in epochs]
