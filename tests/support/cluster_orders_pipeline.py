"""A pipeline of sessions, windows over sessions and a join of two file sources, with its expected results.

orders ──┬▶ sessions (window) ─┬▶ files
         │                     └▶ per_minute (window) ─▶ files
payments ┴▶ paid (join) ─▶ files
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from tests.support.cluster import SPARK

KILLS = int(os.environ.get("SLACKWATER_KILLS", "3"))
FILES, ROWS = 4 + 3 * KILLS, 300  # per source
STEP_US, DISORDER_US = 50_000, 3_000_000  # time between two orders, and their disorder
GAP_US, MINUTE_US, WITHIN_US = 5_000_000, 60_000_000, 20_000_000
START_US = 1_709_251_200_000_000

CONFIG = f"""name = "cluster"
{SPARK}"spark.speculation" = "true"

[connections.lake]
kind = "files"

[[sources]]
name = "orders"
connection = "lake"
query = "orders/*.jsonl"
format = "json"
schema = "id BIGINT, user STRING, _event_ts TIMESTAMP"
max_files_per_trigger = 1

[[sources]]
name = "payments"
connection = "lake"
query = "payments/*.jsonl"
format = "json"
schema = "id BIGINT, paid BIGINT, _event_ts TIMESTAMP"
max_files_per_trigger = 1

[[stages]]
name = "sessions"
from = "orders"

[stages.window]
kind = "session"
gap_ms = "5s"
max_session_duration_ms = "10m"
lateness_ms = "10s"
group_by = ["user"]

[[stages.window.aggregations]]
agg = "count"
as = "n"

[[stages]]
name = "per_minute"
from = "sessions"

[stages.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["user"]
max_groups_per_window = 1000

[[stages.window.aggregations]]
agg = "count"
as = "sessions"

[[stages.window.aggregations]]
agg = "sum"
column = "n"
as = "orders"

[[stages]]
name = "paid"
from = ["orders", "payments"]

[stages.join]
kind = "left"
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["id"]
lower_ms = 0
upper_ms = "20s"
lateness_ms = "10s"

[[targets]]
from = "sessions"
connection = "lake"
path = "sessions"

[[targets]]
from = "per_minute"
connection = "lake"
path = "per_minute"

[[targets]]
from = "paid"
connection = "lake"
path = "paid"

[state_store]
{{store}}
"""


def read_latest_committed_epoch(config: Path, store: str) -> int:
    """Return the latest committed epoch, or -1. Reads the state from outside of the run."""
    if store == "files":
        return max(
            (int(p.stem) for p in (config.parent / "state" / "cluster" / "manifests").glob("*.json")), default=-1
        )
    url = next(line.split('"')[1] for line in config.read_text().splitlines() if line.startswith("url"))
    with psycopg.connect(url) as db:
        if db.execute("SELECT to_regclass('slackwater_pipelines')").fetchone() == (None,):
            return -1
        row = db.execute("SELECT max(epoch) FROM slackwater_pipelines").fetchone()
    return -1 if row is None or row[0] is None else int(row[0])


def write_orders_and_payments(
    home: Path, files: int = FILES
) -> tuple[list[tuple[int, str, int]], list[tuple[int, int, int]]]:
    """Write and return orders (id, user, µs), slightly out of order, and payments (id, paid, µs)."""
    rng = random.Random(11)
    orders, payments = [], []
    for number in range(files * ROWS):
        time_us = START_US + number * STEP_US - rng.randrange(DISORDER_US)
        orders.append((number, f"u{rng.randrange(60)}", time_us))
        payments.append((rng.randrange(max(number - 300, 0), number + 1), number, START_US + number * STEP_US))
    for name, rows, names in (("orders", orders, ("id", "user")), ("payments", payments, ("id", "paid"))):
        (home / name).mkdir()
        for file in range(files):
            path = home / name / f"{file:03d}.jsonl"
            some_rows = rows[file * ROWS : (file + 1) * ROWS]
            lines = [
                {names[0]: a, names[1]: b, "_event_ts": f"{to_utc_datetime(time_us):%Y-%m-%dT%H:%M:%S.%fZ}"}
                for a, b, time_us in some_rows
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            os.utime(path, (START_US // 10**6 + file,) * 2)
    return orders, payments


def to_utc_datetime(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)


def compute_expected_sessions(orders: list[tuple[int, str, int]]) -> list[tuple[str, int, int, int]]:
    """Return (user, first time, last time plus the gap, number of rows) of each session."""
    times: dict[str, list[int]] = defaultdict(list)
    for _, user, time_us in orders:
        times[user].append(time_us)
    result = []
    for user, each in times.items():
        each.sort()
        begin = 0
        for n in range(1, len(each) + 1):
            if n == len(each) or each[n] - each[n - 1] > GAP_US:
                result.append((user, each[begin], each[n - 1] + GAP_US, n - begin))
                begin = n
    return result


def compute_expected_order_payment_pairs(
    orders: list[tuple[int, str, int]], payments: list[tuple[int, int, int]]
) -> list[tuple[int, int | None]]:
    payments_by_order: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, paid, ordered_us in payments:
        payments_by_order[number].append((paid, ordered_us))
    result: list[tuple[int, int | None]] = []
    for number, _, ordered_us in orders:
        near = [paid for paid, when in payments_by_order[number] if 0 <= when - ordered_us <= WITHIN_US]
        result += [(number, paid) for paid in near] or [(number, None)]
    return result


def read_target_rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    frame = pl.read_parquet(folder / "*.parquet").select(columns)
    times = [c for c, kind in frame.schema.items() if isinstance(kind, pl.Datetime)]
    return sorted(frame.with_columns(pl.col(times).dt.epoch("us")).rows())


def check_target_rows(
    home: Path, orders: list[tuple[int, str, int]], payments: list[tuple[int, int, int]], message: str = ""
) -> None:
    """Check that all targets contain the batch answer."""
    expected = compute_expected_sessions(orders)
    assert read_target_rows(home / "sessions", "user", "window_start", "window_end", "n") == sorted(expected), message
    minutes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for user, _, end, n in expected:
        minutes[user, end // MINUTE_US * MINUTE_US].append(n)
    expected_minutes = sorted((user, start_us, len(each), sum(each)) for (user, start_us), each in minutes.items())
    assert read_target_rows(home / "per_minute", "user", "window_start", "sessions", "orders") == expected_minutes, (
        message
    )
    paid = pl.read_parquet(home / "paid" / "*.parquet")
    assert Counter(paid.select("left_id", "right_paid").rows()) == Counter(
        compute_expected_order_payment_pairs(orders, payments)
    ), message
