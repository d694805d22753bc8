"""Compute sales per shop and minute, the best three shops, and refused rows, and kill the pipeline.

The pipeline reads from Kafka and writes to Postgres, Kafka and files.

events ─▶ sales (SQL) ─▶ per_minute (window) ─┬▶ top (SQL) ─▶ a table
       │                                      └▶ a topic
       └▶ refused (SQL) ─▶ files

After a final run with a flush, each of the three targets must equal the result of plain loops over all events.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from confluent_kafka import Producer
from tests.support.case_selection import exhaustive
from tests.support.kafka_topics import START_MS, read_messages
from tests.support.run_command_process import read_run_log, start_run_command

KILLS = int(os.environ.get("SLACKWATER_KILLS", "1"))
EVENTS = 3_000 + 3_000 * KILLS
STEP_MS = 40  # time between events
MINUTE_MS = 60_000

CONFIG = """name = "shop"
trigger_interval_ms = 200

[connections.bus]
kind = "kafka"
bootstrap_servers = "{broker}"

[connections.warehouse]
kind = "postgres"
url = "{url}"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "bus"
query = "{topic}"
schema = "shop STRING, kind STRING, amount BIGINT"
max_offsets_per_trigger = 500

[[stages]]
name = "sales"
from = "events"
sql = "SELECT shop, amount, _event_ts FROM source WHERE kind = 'sale'"

[[stages]]
name = "per_minute"

[stages.window]
kind = "tumbling"
duration_ms = "1m"
lateness_ms = "10s"
group_by = ["shop"]
max_groups_per_window = 1000

[[stages.window.aggregations]]
agg = "count"
as = "n"

[[stages.window.aggregations]]
agg = "sum"
column = "amount"
as = "amount"

[[stages]]
name = "top"
sql = \"\"\"
SELECT window_start, shop, n, place FROM (
  SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY n DESC, shop) AS place FROM source
) WHERE place <= 3
\"\"\"

[[stages]]
name = "refused"
from = "events"
sql = "SELECT shop, kind, amount, _partition AS part, _offset AS place FROM source WHERE kind <> 'sale'"

[[targets]]
from = "top"
connection = "warehouse"
table = "top"

[[targets]]
from = "per_minute"
connection = "bus"
topic = "{topic}-minutes"
delivery = "exactly_once"

[[targets]]
from = "refused"
connection = "lake"
path = "refused"

[state_store]
kind = "postgres"
url = "{url}"
"""


@exhaustive(beside="test_several_targets.py::test_kill_at_any_step_repeats_at_most_the_unrecorded_write")
def test_postgres_kafka_and_files_targets_equal_the_batch_result_after_kills(
    kafka: Any, postgres: Any, tmp_path: Path
) -> None:
    url, topic = postgres.database("shop"), f"shop-{os.getpid()}"
    kafka.create(topic, 3)
    kafka.create(f"{topic}-minutes", 1)
    config = tmp_path / "shop.toml"
    config.write_text(CONFIG.format(broker=kafka.address, url=url, topic=topic))
    events = produce_events(kafka.address, topic)
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for kill in range(KILLS):
        before, process = read_committed_epoch(url), start_run_command(config)
        until, goal = time.monotonic() + 400, before + rng.randrange(1, 5)
        while read_committed_epoch(url) < goal and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.0))
        assert process.poll() is None, f"it ended before kill {kill} of seed {seed}: {read_run_log(config)}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = start_run_command(config, "--flush")
    assert process.wait(timeout=580) == 0, read_run_log(config)
    minutes = Counter[tuple[str, int]]()
    amounts = Counter[tuple[str, int]]()
    for e in events:
        if e["kind"] == "sale":
            key = (e["shop"], e["ms"] // MINUTE_MS * MINUTE_MS)
            minutes[key] += 1
            amounts[key] += e["amount"]
    assert read_topic_rows(kafka, f"{topic}-minutes") == sorted((*key, n, amounts[key]) for key, n in minutes.items())
    assert read_table_rows(url) == best_shops_per_minute(minutes)
    refused = pl.read_parquet(tmp_path / "refused" / "*.parquet")
    not_sales = [(e["shop"], e["kind"], e["amount"]) for e in events if e["kind"] != "sale"]
    assert sorted(refused.select("shop", "kind", "amount").rows()) == sorted(not_sales)
    assert refused.select("part", "place").is_duplicated().sum() == 0


def produce_events(address: str, topic: str) -> list[dict[str, Any]]:
    """Produce events out of order by less than the lateness, with record timestamps. One in seven is not a sale."""
    rng, events = random.Random(7), list[dict[str, Any]]()
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 50})
    for n in range(EVENTS):
        ms = START_MS + n * STEP_MS + rng.randrange(4000)
        event = {
            "shop": f"s{min(rng.randrange(12), rng.randrange(12))}",
            "kind": "sale" if rng.randrange(7) else "return",
            "amount": rng.randrange(100),
        }
        producer.produce(topic, json.dumps(event), partition=n % 3, timestamp=ms)
        events.append({**event, "ms": ms})
    assert producer.flush(60) == 0
    return events


def best_shops_per_minute(minutes: Counter[tuple[str, int]]) -> list[tuple[int, str, int, int]]:
    ranked = []
    for minute in {m for _, m in minutes}:
        top = sorted((-n, shop) for (shop, m), n in minutes.items() if m == minute)[:3]
        ranked += [(minute, shop, -n, place) for place, (n, shop) in enumerate(top, 1)]
    return sorted(ranked)


def read_table_rows(url: str) -> list[tuple[int, str, int, int]]:
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT (extract(epoch FROM window_start) * 1000)::bigint, shop, n, place FROM top"
        ).fetchall()
    return sorted(tuple(row) for row in rows)


def read_topic_rows(broker: Any, topic: str) -> list[tuple[str, int, int, int]]:
    """Return the rows that a `read_committed` consumer sees."""
    rows = []
    for message in read_messages(broker.address, topic):
        row = json.loads(message.value())
        ms = int(_parse_utc_time(row["window_start"]).timestamp() * 1000)
        rows.append((row["shop"], ms, row["n"], row["amount"]))
    return sorted(rows)


def _parse_utc_time(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def read_committed_epoch(url: str) -> int:
    """Return the latest committed epoch, read directly from Postgres, or -1."""
    with psycopg.connect(url) as db:
        if db.execute("SELECT to_regclass('slackwater_pipelines')").fetchone() == (None,):
            return -1
        row = db.execute("SELECT epoch FROM slackwater_pipelines").fetchone()
    return -1 if row is None else int(row[0])
