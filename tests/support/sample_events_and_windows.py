"""Rows and windows that several Spark tests share."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl

import slackwater as sw

SCHEMA = "user STRING, i INT, l BIGINT, d DOUBLE, m DECIMAL(10,2), s STRING, b BOOLEAN, t TIMESTAMP, ts TIMESTAMP"
NAN = float("nan")


def build_every_aggregation() -> list[sw.Aggregation]:
    aggregations = [sw.Aggregation(agg="count", as_="n")]
    for column in ("i", "l", "d", "m", "s", "b", "t"):
        for agg in ("count", "min", "max", "first", "last"):
            aggregations.append(sw.Aggregation(agg=agg, column=column, as_=f"{agg}_{column}"))
        aggregations.append(sw.Aggregation(agg="count_distinct", column=column, as_=f"approx_{column}"))
        aggregations.append(
            sw.Aggregation(
                agg="count_distinct",
                column=column,
                mode="exact",
                max_distinct_values_per_group=99,
                as_=f"exact_{column}",
            )
        )
    for column in ("i", "l", "d", "m"):
        for agg in ("sum", "avg"):
            aggregations.append(sw.Aggregation(agg=agg, column=column, as_=f"{agg}_{column}"))
    return aggregations


def format_iso_time(second: int) -> str:
    return (dt.datetime(2024, 3, 1) + dt.timedelta(seconds=second)).isoformat() + "Z"


def to_microseconds(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp() * 1_000_000)


def build_rows_of_every_type(n: int = 60) -> list[dict[str, Any]]:
    rows = []
    for k in range(n):
        rows.append(
            {
                "user": [None, "a", "b"][k % 3],
                "i": None if k % 7 == 0 else k - 20,
                "l": None if k % 5 == 0 else (k - 30) * 2**33,
                "d": None if k % 11 == 0 else [0.0, -0.0, 1.5, "NaN"][k % 4],
                "m": None if k % 13 == 0 else f"{k}.25",
                "s": None if k % 4 == 0 else ["", "x", "ü"][k % 3],
                "b": None if k % 6 == 0 else k % 2 == 0,
                "t": None if k % 9 == 0 else format_iso_time(k * 3600),
                "ts": format_iso_time(k * 7 + (k % 3) * 5),
            }
        )
    return rows


WINDOWS = {
    "session": {"kind": "session", "gap_ms": "20s", "max_session_duration_ms": "2m"},
    "tumbling": {"kind": "tumbling", "duration_ms": "1m", "max_groups_per_window": 1000},
    "hopping": {
        "kind": "hopping",
        "duration_ms": "1m",
        "hop_ms": "25s",
        "offset_ms": "3s",
        "max_groups_per_window": 1000,
    },
}


def build_window_with_every_aggregation(kind: str, **settings: Any) -> sw.Window:
    defaults = {"event_time_column": "ts", "group_by": ["user"], "aggregations": build_every_aggregation()} | WINDOWS[
        kind
    ]
    return sw.Window(**(defaults | settings))


def to_comparable_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    times = [c for c, t in frame.schema.items() if isinstance(t, pl.Datetime)]
    rows = frame.with_columns(pl.col(times).dt.timestamp("us")).to_dicts()
    return [{k: "NaN" if isinstance(v, float) and v != v else v for k, v in r.items()} for r in rows]


def build_simple_session_window(**settings: Any) -> sw.Window:
    defaults = {
        "kind": "session", "gap_ms": "20s", "max_session_duration_ms": "1h", "event_time_column": "ts", "group_by": ["user"],
        "aggregations": [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="i", as_="total")],
    }  # fmt: skip
    return sw.Window(**(defaults | settings))


SIMPLE = "user STRING, i INT, ts TIMESTAMP"


def build_event_rows(first: int, last: int, step: int = 5, user: str = "a") -> list[dict[str, Any]]:
    return [{"user": user, "i": 1, "ts": format_iso_time(s)} for s in range(first, last, step)]
