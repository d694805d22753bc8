"""Ten-second windows of each kind, and rows at chosen seconds."""

from __future__ import annotations

from typing import Any

from slackwater.config.window import Aggregation, Window

S = 1_000_000


def ten_second_window(kind: str = "tumbling", **more: Any) -> Window:
    shape: dict[str, Any] = {
        "tumbling": {"duration_ms": "10s", "max_groups_per_window": 100},
        "hopping": {"duration_ms": "10s", "hop_ms": "5s", "max_groups_per_window": 100},
        "session": {"gap_ms": "10s", "max_session_duration_ms": "1h"},
    }[kind]
    count = Aggregation(agg="count", as_="n")
    return Window(**{"kind": kind, "group_by": ["u"], "aggregations": [count], **shape, **more})


def rows_for_seconds(*seconds: float, partition: str | None = None) -> list[dict[str, Any]]:
    return [{"ts": int(s * S), "u": "x"} | ({"partition": partition} if partition else {}) for s in seconds]
