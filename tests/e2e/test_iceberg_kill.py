"""Kill `slackwater run` repeatedly with SIGKILL while it writes to an Iceberg table over REST.

Meanwhile, responses to commits are lost, requests are duplicated and snapshots expire. PyIceberg and DuckDB must read the
batch result from the table.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.e2e.matrices.kill_matrix import kill_process_group
from tests.support.case_selection import exhaustive
from tests.support.iceberg_tables import IcebergCatalogTable
from tests.support.run_command_process import read_run_log, start_run_command
from tests.support.servers.iceberg_rest_catalog import IcebergRestCatalog
from tests.support.servers.object_store import Fault, FaultyProxy

from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.slow

GAP_S = 60
CONFIG = """name = "killed"
[connections.lake]
kind = "files"
[connections.tables]
kind = "iceberg"
catalog = "rest"
options = {{ uri = "http://127.0.0.1:{port}" }}
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, x BIGINT, us BIGINT"
max_files_per_trigger = 1
[transform.window]
kind = "session"
gap_ms = "{gap}s"
max_session_duration_ms = "12h"
event_time_column = "us"
event_time_unit = "us"
lateness_ms = "3s"
late_data = "reopen"
allowed_lateness_ms = "1h"
group_by = ["user"]
aggregations = [{{ agg = "count", as = "n" }}, {{ agg = "sum", column = "x", as = "total" }}]
[target]
connection = "tables"
table = "{table}"
[state_store]
kind = "files"
path = "state"
"""
TRUTH = f"""
    SELECT "user", make_timestamp(min(us)), make_timestamp(max(us) + {GAP_S}000000), count(*), sum(x)::BIGINT FROM (
        SELECT *, sum(fresh) OVER (PARTITION BY "user" ORDER BY us ROWS UNBOUNDED PRECEDING) AS nth FROM (
            SELECT *, coalesce(us - lag(us) OVER (PARTITION BY "user" ORDER BY us) > {GAP_S}000000, true)::INT AS fresh
            FROM read_json('{{files}}', columns = {{{{user: 'VARCHAR', x: 'BIGINT', us: 'BIGINT'}}}})))
    GROUP BY "user", nth"""


def write_event_files(home: Path, events: int, files: int) -> None:
    """Write several days of out-of-order events of a few users at a time.

    One row in a hundred is minutes late and extends an emitted session.
    """
    rng, time_us = random.Random(5), 1_700_000_000_000_000
    (home / "in").mkdir()
    each = events // files
    for number in range(files):
        lines = []
        for n in range(each):
            time_us += rng.randrange(3_000_000)
            late = rng.randrange(600_000_000) if rng.random() < 0.01 else rng.randrange(2_000_000)
            user = f"u{rng.randrange(25) + (number * each + n) // 1000}"
            lines.append(json.dumps({"user": user, "x": rng.randrange(100), "us": time_us - late}))
        path = home / "in" / f"{number:04}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def random_catalog_faults(seed: int) -> Callable[[str, str], Fault]:
    """Return a judge that disturbs half of the commits, and a few of the other requests."""
    rng = random.Random(seed)

    def judge(method: str, path: str) -> Fault:
        if method == "POST" and re.search(r"/tables/[^/]+$", path):
            return rng.choice(("lost", "twice", "503", "dropped", "", "", "", ""))
        return rng.choice(("dropped", "lost")) if method == "GET" and rng.random() < 0.02 and "/tables/" in path else ""

    return judge


def read_committed_epoch(home: Path) -> int:
    return max(FilesStore(str(home / "state"), "killed").epochs(), default=-1)


@exhaustive(beside="test_iceberg_kill_points.py::test_crashes_and_catalog_faults_neither_lose_nor_duplicate_rows")
def test_iceberg_table_equals_the_batch_result_after_kills_and_catalog_faults(
    rest_catalog: IcebergRestCatalog, tmp_path: Path
) -> None:
    kills = int(os.environ.get("SLACKWATER_KILLS", "1"))  # `make faults` sets more
    events, files = (200_000, 75) if kills > 10 else (6_000, 6)
    write_event_files(tmp_path, events, files)
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    seed = random.randrange(10**6)
    rng, expired = random.Random(seed), 0
    fast = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
    with FaultyProxy.start_proxy(rest_catalog.port) as door:
        door.judge = random_catalog_faults(seed)
        config = tmp_path / "killed.toml"
        config.write_text(CONFIG.format(port=door.port, gap=GAP_S, table=lake.name))
        for kill in range(kills):
            before, process = read_committed_epoch(tmp_path), start_run_command(config, **fast)
            goal, until = before + rng.randrange(3), time.monotonic() + 400
            while read_committed_epoch(tmp_path) <= goal and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if kill % 3 == 0 and read_committed_epoch(tmp_path) > 0:
                lake.expire_old_snapshots()  # while the run continues
                expired += 1
            time.sleep(rng.uniform(0, 0.5))
            assert process.poll() is None, f"seed {seed}: it ended before kill {kill}: {read_run_log(config)[-3000:]}"
            kill_process_group(process)
            process.wait()
        for _ in range(10):  # a start fails with a one-line error if a response is lost while it opens the table
            process = start_run_command(config, "--flush", **fast)
            if process.wait(timeout=600) == 0:
                break
        assert process.returncode == 0, f"seed {seed}: {read_run_log(config)[-3000:]}"
        faults = {fault for _, _, fault in door.faults}
    lake.expire_old_snapshots()
    with duckdb.connect() as db:
        expected = sorted(db.execute(TRUTH.format(files=tmp_path / "in" / "*.jsonl")).fetchall())
    assert len(expected) > events // 50
    columns = ["user", "window_start", "window_end", "n", "total"]
    frame = lake.read_rows().select(columns)
    assert sorted(map(to_naive_utc, frame.rows())) == list(map(to_naive_utc, expected)), f"seed {seed}"
    assert sorted(map(to_naive_utc, lake.read_rows_with_duckdb(", ".join(f'"{c}"' for c in columns)))) == list(
        map(to_naive_utc, expected)
    )
    assert lake.count_snapshots() == 1
    assert "Traceback" not in read_run_log(config)
    assert faults, f"seed {seed}: the catalog answered every request"
    if kills > 10:
        assert faults >= {"lost", "twice", "503", "dropped"} and expired >= 5


def to_naive_utc(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row with times in UTC without a time zone."""
    return tuple(
        v.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(v, dt.datetime) and v.tzinfo else v for v in row
    )
