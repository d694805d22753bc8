"""Split a stream of three kinds of events with SQL, join them again with two joins, and compare with plain loops.

events ─┬▶ orders (SQL) ───┐
        ├▶ payments (SQL) ─┴▶ paid (join) ─┐
        └▶ parcels (SQL) ──────────────────┴▶ sent (join) ─▶ target
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing import LocalPipeline

SCHEMA = {"kind": "string", "id": "bigint", "amount": "bigint"}


def filter_stage(kind: str) -> sw.Stage:
    return sw.Stage(
        name=f"{kind}s", from_="events", sql=f"SELECT id, amount, _event_ts FROM source WHERE kind = '{kind}'"
    )


def join_stage(name: str, left: str, right: str, key: str) -> sw.Stage:
    spec = sw.Join(
        kind="inner",
        left_source=left,
        right_source=right,
        left_keys=[key],
        right_keys=["id"],
        time_window_ms=60,
        lateness_ms=1000,
        output_right_columns=["amount"],
        left_prefix="",
        right_prefix=f"{right}_",
    )
    return sw.Stage(name=name, join=spec)


def split_and_join_pipeline() -> sw.Pipeline:
    stages = [filter_stage(kind) for kind in ("order", "payment", "parcel")]
    stages += [join_stage("paid", "orders", "payments", "id"), join_stage("sent", "paid", "parcels", "id")]
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="events", dataframe=object())],
        connections={"tables": sw.DeltaConnection()},
        stages=stages,
        target=sw.Target(connection="tables", path="out", mode="append"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def compute_joined_rows(rows: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    kinds = {k: [r for r in rows if r["kind"] == k] for k in ("order", "payment", "parcel")}
    paid = [
        (o["id"], o["amount"], p["amount"], max(o["ts"], p["ts"]))
        for o in kinds["order"]
        for p in kinds["payment"]
        if o["id"] == p["id"] and abs(o["ts"] - p["ts"]) <= 60_000
    ]
    return sorted(
        (*one[:3], p["amount"], max(one[3], p["ts"]))
        for one in paid
        for p in kinds["parcel"]
        if one[0] == p["id"] and abs(one[3] - p["ts"]) <= 60_000
    )


@pytest.mark.parametrize("seed", select_cases(range(3)))
def test_stream_split_by_sql_and_joined_twice_matches_plain_loops(spark: Any, seed: int) -> None:
    rng, every = random.Random(seed), list[dict[str, Any]]()
    time_ms = 0
    with LocalPipeline(
        split_and_join_pipeline(), SCHEMA, session=spark, shards=rng.choice([1, 2]), capture_losses=False
    ) as test:
        for _ in range(4):
            rows = []
            for _ in range(rng.randrange(6, 14)):
                time_ms += rng.choice([0, 3, 11])
                kind = rng.choice(["order", "payment", "parcel", "other"])
                rows.append(
                    {"kind": kind, "id": rng.randrange(2), "amount": rng.randrange(9), "_event_ts": time_ms * 1000}
                )
            if rng.random() < 0.6:
                test.crash(rng.choice(KILL_POINTS), shards=rng.choice([None, 3]))
            test.pipe([{**r, "_event_ts": _iso_time(r["_event_ts"])} for r in rows])
            every += [{**r, "ts": r["_event_ts"]} for r in rows]
        test.flush()
        result = test.result()
    columns = ("id", "amount", "payments_amount", "parcels_amount", "_event_ts")
    assert sorted(tuple(r[c] for c in columns) for r in result.rows) == compute_joined_rows(every)
    assert compute_joined_rows(every), "the seeds join something"
    assert result.counters.late == {}


def _iso_time(us: int) -> str:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)).isoformat()
