"""Compute the results of a config `Window` in simple loops over rows. Every engine must agree with these slow loops.

This oracle uses the config classes of Slackwater. `naive_oracle.py` does not share a class with Slackwater.

Rows are dicts with `ts` (int microseconds), key and value columns. Results are lists of dicts with `window_start` and
`window_end` in microseconds.
"""

from __future__ import annotations

import decimal
import fractions
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slackwater.config.window import Aggregation, Window

Row = Mapping[str, Any]


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key for Spark's order: NULL first, NaN above all numbers, -0.0 equal to 0.0."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and value != value:
        return (2, 0)
    return (1, value)


def canonical_value(value: Any) -> Any:
    """Return a hashable representative of equal values: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def compute_windows_over_all_rows(window: Window, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the windows of all rows, without late rows."""
    rows = list(rows)
    return (
        _session_windows(window, rows)
        if window.kind == "session"
        else _pane_windows(window, [(r, s) for r in rows for s in _window_starts(window, r)])
    )


def _window_starts(window: Window, row: Row) -> list[int]:
    """Return the starts of the windows that contain a row."""
    duration, hop = (window.duration_ms or 0) * 1000, (window.hop_ms or window.duration_ms or 0) * 1000
    offset, ts = window.offset_ms * 1000, row["ts"]
    last = (ts - offset) // hop * hop + offset
    starts = []
    while last + duration > ts:
        starts.append(last)
        last -= hop
    return starts[::-1]


def _pane_windows(window: Window, pairs: Iterable[tuple[Row, int]]) -> list[dict[str, Any]]:
    """Return tumbling or hopping windows of (row, window start) pairs."""
    groups: dict[Any, list[Row]] = {}
    for row, start in pairs:
        groups.setdefault((start, tuple(canonical_value(row[k]) for k in window.group_by)), []).append(row)
    return [
        {
            "window_start": start,
            "window_end": start + (window.duration_ms or 0) * 1000,
            **_group_key_columns(window, members[0]),
            **aggregate(window.aggregations, members),
        }
        for (start, _), members in groups.items()
    ]


def _session_windows(window: Window, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return session windows. For each key in event-time order, a gap or the cap starts the next session."""
    gap, cap = int(window.gap_ms or 0) * 1000, (window.max_session_duration_ms or 0) * 1000
    per_key: dict[Any, list[Row]] = {}
    for row in rows:
        per_key.setdefault(tuple(canonical_value(row[k]) for k in window.group_by), []).append(row)
    sessions = []
    for members in per_key.values():
        members.sort(key=lambda r: r["ts"])
        current: list[Row] = []
        for row in members:
            if current and (row["ts"] - current[-1]["ts"] > gap or row["ts"] - current[0]["ts"] >= cap):
                sessions.append(_session_row(window, current, row["ts"] - current[-1]["ts"] <= gap, gap, cap))
                current = []
            current.append(row)
        sessions.append(_session_row(window, current, False, gap, cap))
    return sessions


def _session_row(window: Window, rows: list[Row], capped: bool, gap: int, cap: int) -> dict[str, Any]:
    start, end = rows[0]["ts"], rows[-1]["ts"] + gap
    return {
        **_group_key_columns(window, rows[0]),
        "window_start": start,
        "window_end": min(end, start + cap) if capped else end,
        **aggregate(window.aggregations, rows),
    }


def _group_key_columns(window: Window, row: Row) -> dict[str, Any]:
    return {k: row[k] for k in window.group_by}


def aggregate(aggregations: Sequence[Aggregation], rows: list[Row]) -> dict[str, Any]:
    """Return the output columns of one group."""
    return {a.as_: _aggregate_one(a, rows) for a in aggregations}


def _aggregate_one(a: Aggregation, rows: list[Row]) -> Any:
    """Compute one aggregation over the rows of a group. All except `count(*)` skip NULLs."""
    if a.column is None:
        return len(rows)
    if a.agg in ("min_by", "max_by"):
        return _compute_min_max_by(a, rows)
    pairs = [(r["ts"], r[a.column or ""]) for r in rows if r[a.column] is not None]
    values = [v for _, v in pairs]
    if a.agg == "count":
        return len(values)
    if a.agg == "count_distinct":
        return len({canonical_value(v) for v in values})
    if a.agg in ("collect_set", "collect_list", "top_k"):
        return _collect_values(a, pairs)
    if not values:
        return None
    pick: dict[str, Callable[[], Any]] = {
        "var": lambda: _variance(values),
        "stddev": lambda: None if len(values) < 2 else math.sqrt(_variance(values) or 0.0),
        "approx_quantile": lambda: float(sorted(values, key=sort_key)[_quantile_index(a.quantile or 0.0, len(values))]),
        "sum": lambda: _sum(values),
        "avg": lambda: _average(values),
        "min": lambda: min(values, key=sort_key),
        "max": lambda: max(values, key=sort_key),
        "first": lambda: min(pairs, key=lambda p: (p[0], sort_key(p[1])))[1],
        "last": lambda: max(pairs, key=lambda p: (p[0], sort_key(p[1])))[1],
    }
    return pick[a.agg]()


def _compute_min_max_by(a: Aggregation, rows: list[Row]) -> Any:
    """Return the value of the smallest or largest pair of `by` and value. The value may be NULL, but `by` may not."""
    value, by = a.column or "", a.by or ""
    pairs = [(sort_key(r[by]), sort_key(r[value]), r[value]) for r in rows if r[by] is not None]
    if not pairs:
        return None
    return (min if a.agg == "min_by" else max)(pairs, key=lambda p: p[:2])[2]


def _collect_values(a: Aggregation, pairs: list[tuple[int, Any]]) -> list[Any]:
    if a.agg == "collect_list":
        return [v for _, v in sorted(pairs, key=lambda p: (p[0], sort_key(p[1])))]
    counts: dict[Any, tuple[Any, int]] = {}
    for _, value in pairs:
        counts[canonical_value(value)] = value, counts.get(canonical_value(value), (value, 0))[1] + 1
    distinct = sorted(counts.values(), key=lambda c: sort_key(c[0]))
    if a.agg == "collect_set":
        return [v for v, _ in distinct]
    return [{"value": v, "count": n} for v, n in sorted(distinct, key=lambda c: -c[1])[: a.k]]


def _variance(values: list[Any]) -> float | None:
    """Return the sample variance, computed in exact fractions; NaN if a value is not finite."""
    if len(values) < 2:
        return None
    if not all(math.isfinite(v) for v in values):
        return math.nan
    exact = [fractions.Fraction(v) for v in values]
    mean = sum(exact, fractions.Fraction(0)) / len(exact)
    return _to_float(sum(((v - mean) * (v - mean) for v in exact), fractions.Fraction(0)) / (len(exact) - 1))


def _to_float(value: fractions.Fraction) -> float:
    """Return the nearest double; infinity beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _quantile_index(quantile: float, n: int) -> int:
    """Return the index of the smallest value whose rank reaches the quantile."""
    return max(math.ceil(fractions.Fraction(str(quantile)) * n) - 1, 0)


def _sum(values: list[Any]) -> Any:
    """Return the sum. Floats are added as exact fractions and rounded once, to infinity beyond the largest double."""
    if isinstance(values[0], float) and all(map(math.isfinite, values)):
        return _to_float(sum(map(fractions.Fraction, values), fractions.Fraction(0)))
    with decimal.localcontext(prec=100):  # decimals are added in the context, 28 digits by default
        return sum(values)


def _average(values: list[Any]) -> Any:
    if not isinstance(values[0], decimal.Decimal):
        total = _sum(values)
        if isinstance(total, float) and math.isinf(total) and all(map(math.isfinite, values)):
            return _to_float(sum(map(fractions.Fraction, values), fractions.Fraction(0)) / len(values))
        return total / len(values)
    scale = -int(values[0].as_tuple().exponent) + 4
    exact = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
    return exact.quantize(exact.divide(_sum(values), len(values)), decimal.Decimal(1).scaleb(-scale))


def compute_windows_over_epochs(
    window: Window, epochs: Sequence[Sequence[Row]]
) -> tuple[list[dict[str, Any]], int, int]:
    """Compute tumbling or hopping windows of one source, epoch by epoch.

    Compare each window of a row with the watermark of the previous epoch. Return the windows, the number of rows that
    are late for all their windows, and the number of missed (row, window) pairs.
    """
    duration, lateness = (window.duration_ms or 0) * 1000, window.lateness_ms * 1000
    watermark, newest = None, None
    pairs: list[tuple[Row, int]] = []
    late = missed = 0
    for rows in epochs:
        for row in rows:
            starts = _window_starts(window, row)
            open_ = [s for s in starts if watermark is None or s + duration > watermark]
            pairs += [(row, s) for s in open_]
            late += not open_
            missed += len(starts) - len(open_)
        times = [r["ts"] for r in rows]
        newest = max([*times, *([newest] if newest is not None else [])], default=None)
        if newest is not None:
            watermark = newest - lateness
    return _pane_windows(window, pairs), late, missed
