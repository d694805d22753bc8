"""Two stages on Spark from a TOML config: a join and a window over the joined rows, and sessions and a window."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.case_selection import exhaustive
from tests.support.order_payment_joins import write_order_and_payment_files
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.config import toml

pytestmark = pytest.mark.spark

CONFIG = """
name = "revenue"

[connections.lake]
kind = "files"

[connections.warehouse]
kind = "postgres"
url = "${WAREHOUSE_URL}"

[[sources]]
name = "orders"
connection = "lake"
query = "HOME/order_id/*.jsonl"
format = "json"
schema = "order_id INT, region STRING, amount DOUBLE, ts TIMESTAMP"
max_files_per_trigger = 1

[[sources]]
name = "payments"
connection = "lake"
query = "HOME/paid_order/*.jsonl"
format = "json"
schema = "paid_order BIGINT, region STRING, method STRING, ts TIMESTAMP"
max_files_per_trigger = 1

[[stages]]
name = "paid"

[stages.join]
kind = "left"
left_source = "orders"
right_source = "payments"
left_keys = ["order_id", "region"]
right_keys = ["paid_order", "region"]
lower_ms = "-20s"
upper_ms = "30s"
event_time_column = "ts"
lateness_ms = "2m"

[[stages]]
name = "per_minute"
sql = "SELECT left_region AS region, left_amount AS amount, right_method IS NOT NULL AS paid, _event_ts FROM source"

[stages.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["region", "paid"]
max_groups_per_window = 1000

[[stages.window.aggregations]]
agg = "count"
as = "orders"

[[stages.window.aggregations]]
agg = "sum"
column = "amount"
as = "amount"

[target]
connection = "warehouse"
table = "per_minute"

[state_store]
STATE
"""
FILES = 'kind = "files"\npath = "HOME/state"'
POSTGRES = 'kind = "postgres"\nurl = "${WAREHOUSE_URL}"'


@pytest.mark.matrix
@pytest.mark.parametrize("state", [pytest.param(POSTGRES, id="postgres"), pytest.param(FILES, id="files")])
@exhaustive(beside="test_slackwater_test_command.py::test_join_followed_by_window_over_topics_passes")
def test_window_over_joined_rows_matches_the_batch_result(
    runner: SparkPipelineRunner, postgres: Any, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two runs flushes. The table equals the batch result of Spark over the whole input."""
    write_order_and_payment_files(runner, 21)
    url = postgres.database(f"revenue_{'files' if state == FILES else 'postgres'}")
    monkeypatch.setenv("WAREHOUSE_URL", url)
    path = tmp_path / "revenue.toml"
    path.write_text(CONFIG.replace("STATE", state).replace("HOME", str(runner.home)))
    pipeline = toml.load(path)
    assert toml.loads(sw.to_toml(pipeline)) == pipeline
    statuses: list[Any] = []
    for flush in (False, True):
        sw.run(pipeline, available_now=True, flush=flush, spark=runner.spark, on_status=statuses.append)
    for name in ("order_id", "paid_order"):
        schema = pipeline.sources[0 if name == "order_id" else 1].schema_
        runner.spark.read.schema(schema).json(str(runner.home / name)).createOrReplaceTempView(name[0])
    batch = runner.spark.sql(
        "SELECT o.region, p.method IS NOT NULL, unix_timestamp(date_trunc('MINUTE', CASE WHEN p.ts > o.ts THEN p.ts ELSE o.ts END)),"
        " count(*), sum(amount) FROM o LEFT JOIN p ON o.order_id = p.paid_order AND o.region = p.region"
        " AND p.ts BETWEEN o.ts - INTERVAL 20 SECONDS AND o.ts + INTERVAL 30 SECONDS GROUP BY 1, 2, 3"
    ).collect()
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT region, paid, extract(epoch FROM window_start)::bigint, orders, amount FROM per_minute"
        ).fetchall()
    assert sorted(map(repr, rows)) == sorted(repr(tuple(r)) for r in batch)
    assert len(rows) > 10
    last = statuses[-1]
    assert (last.window_kind, last.windows_active) == ("tumbling", 0)
    assert last.counters.emitted == {"close": last.counters.rows_emitted - last.counters.emitted.get("flush", 0)} | (
        {"flush": last.counters.emitted["flush"]} if "flush" in last.counters.emitted else {}
    )
    assert last.counters.rows_emitted == len(rows)


@pytest.mark.matrix
def test_stages_docs_example_counts_visits_per_hour(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the config of docs/stages.md in two runs, the second with a flush: sessions, and a window over them."""
    page = (Path(__file__).parents[2] / "docs" / "stages.md").read_text()
    text, *_ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(runner.home)
    rng, clock, clicks = random.Random(7), dt.datetime(2024, 3, 1, tzinfo=dt.UTC), list[dict[str, str]]()
    for _ in range(600):
        clock += dt.timedelta(seconds=rng.choice([1, 60, 300, 900]))
        clicks.append({"user": f"u{rng.randrange(12)}", "page": "/", "ts": clock.isoformat()})
    (runner.home / "clicks").mkdir()
    file = runner.home / "busy.toml"
    file.write_text(text.replace('format = "json"', 'format = "json"\nmax_files_per_trigger = 3'))
    pipeline = toml.load(file)
    for number in range(12):
        part = clicks[50 * number : 50 * (number + 1)]
        (runner.home / "clicks" / f"{number:02}.jsonl").write_text("".join(json.dumps(c) + "\n" for c in part))
        if number in (5, 11):
            status = sw.run(pipeline, available_now=True, flush=number == 11, spark=runner.spark)
    visit_counts: Counter[tuple[dt.datetime, bool]] = Counter()
    summed: Counter[tuple[dt.datetime, bool]] = Counter()
    for user in {c["user"] for c in clicks}:
        times = sorted(dt.datetime.fromisoformat(c["ts"]) for c in clicks if c["user"] == user)
        visits = [[times[0]]]
        for time in times[1:]:
            if time - visits[-1][-1] <= dt.timedelta(minutes=30):
                visits[-1].append(time)
            else:
                visits.append([time])
        for visit in visits:
            end = visit[-1] + dt.timedelta(minutes=30)
            hour = end.replace(minute=0, second=0, microsecond=0)
            visit_counts[hour, len(visit) == 1] += 1
            summed[hour, len(visit) == 1] += len(visit)
    frame = pl.read_parquet(runner.home / "out" / "**" / "*.parquet").select(
        "window_start", "bounced", "visits", "clicks"
    )
    assert {(r[0], r[1]): r[2] for r in frame.iter_rows()} == dict(visit_counts)
    assert {(r[0], r[1]): r[3] for r in frame.iter_rows()} == dict(summed)
    assert frame.height == len(visit_counts) > 10
    assert status is not None and status.counters.rows_in == 600
