"""Run a pipeline from the command line with one source and three targets: a topic, a table and files.

SIGKILL ends the run between the targets. Each target must hold the batch result of its stage exactly once.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.e2e.matrices.kill_matrix import kill_process_group
from tests.support.case_selection import exhaustive
from tests.support.kafka_topics import read_messages
from tests.support.run_command_process import read_run_log, start_run_command

pytestmark = pytest.mark.slow

CONFIG = """
name = "shops"
[connections.lake]
kind = "files"
[connections.bus]
kind = "kafka"
bootstrap_servers = "${BROKER}"
[connections.warehouse]
kind = "postgres"
url = "${WAREHOUSE_URL}"
[[sources]]
name = "sales"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "shop STRING, amount INT, ts TIMESTAMP"
max_files_per_trigger = 1
[[stages]]
name = "minutes"
on_error = "dlq"
[stages.window]
kind = "tumbling"
duration_ms = "1m"
event_time_column = "ts"
lateness_ms = "10m"
group_by = ["shop"]
max_groups_per_window = 1000
[[stages.window.aggregations]]
agg = "count"
as = "sales"
[[stages.window.aggregations]]
agg = "sum"
column = "amount"
as = "amount"
[[stages]]
name = "hours"
[stages.window]
kind = "tumbling"
duration_ms = "1h"
max_groups_per_window = 10
[[stages.window.aggregations]]
agg = "sum"
column = "sales"
as = "sales"
[[stages.window.aggregations]]
agg = "max"
column = "amount"
as = "best"
[[targets]]
from = "minutes"
connection = "bus"
topic = "TOPIC"
delivery = "exactly_once"
[[targets]]
connection = "warehouse"
table = "hours"
[[targets]]
name = "copy"
from = "minutes"
connection = "lake"
path = "out"
[dead_letter]
connection = "lake"
path = "letters"
[state_store]
kind = "files"
path = "state"
"""


class PipelineRunner:
    def __init__(self, home: Path, broker: str, url: str, topic: str) -> None:
        self.config = home / "shops.toml"
        self.config.write_text(CONFIG.replace("TOPIC", topic))
        self.environment = {"BROKER": broker, "WAREHOUSE_URL": url}
        self.environment["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"

    def run_until_exit(self, *flags: str, crash_at: str | None = None) -> int:
        more = {"SLACKWATER_CRASH_AT": crash_at} if crash_at else {}
        process = start_run_command(self.config, *flags, **self.environment, **more)
        code = process.wait(600)
        kill_process_group(process)
        return code


def write_sales_files(home: Path) -> list[dict[str, Any]]:
    """Write six files of out-of-order rows. Rows without a time become dead letters."""
    rng, clock, sent = random.Random(11), dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC), list[dict[str, Any]]()
    (home / "in").mkdir()
    for number in range(6):
        rows = []
        for n in range(300):
            clock += dt.timedelta(seconds=rng.choice([0, 1, 5, 20]))
            ts = clock - dt.timedelta(seconds=rng.choice([0, 0, 0, 100, 400]))
            rows.append({"shop": f"s{rng.randrange(5)}", "amount": rng.randrange(100), "ts": ts.isoformat()})
            if n % 100 == 7:
                rows.append({"shop": "broken", "amount": n, "ts": None})
        (home / "in" / f"{number}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        os.utime(home / "in" / f"{number}.jsonl", (1_700_000_000 + number, 1_700_000_000 + number))
        sent += rows
    return sent


@exhaustive(beside="test_several_targets.py::test_kill_at_any_step_repeats_at_most_the_unrecorded_write")
def test_every_target_equals_the_batch_result_after_kills_between_targets(
    kafka: Any, postgres: Any, tmp_path: Path
) -> None:
    """State is in files. `test_kafka_pipeline_kill.py` keeps it in Postgres."""
    url, topic = postgres.database("shops"), "minutes-of-shops"
    kafka.create(topic, 1)
    rows, run = write_sales_files(tmp_path), PipelineRunner(tmp_path, kafka.address, url, topic)
    for step in ("write.after@1", "note.after@2", "note.before@4"):
        assert run.run_until_exit(crash_at=step) == -signal.SIGKILL, read_run_log(run.config)
    assert run.run_until_exit("--flush") == 0, read_run_log(run.config)
    minute, hour, best = Counter[Any](), Counter[Any](), dict[str, int]()
    amount = Counter[Any]()
    for row in rows:
        if row["ts"] is not None:
            minute[row["shop"], row["ts"][:16]] += 1
            amount[row["shop"], row["ts"][:16]] += row["amount"]
            hour[row["ts"][:13]] += 1
    for (_, start_time), total in amount.items():
        best[start_time[:13]] = max(best.get(start_time[:13], 0), total)
    expected = sorted((shop, start_time, n, amount[shop, start_time]) for (shop, start_time), n in minute.items())
    files = pl.concat(pl.read_parquet(p) for p in sorted((tmp_path / "out").glob("*.parquet")))
    of_files = files.select("shop", pl.col("window_start").dt.strftime("%Y-%m-%dT%H:%M"), "sales", "amount")
    assert sorted(of_files.rows()) == expected
    values = [json.loads(m.value()) for m in read_messages(kafka.address, topic)]
    assert sorted((v["shop"], v["window_start"][:16], v["sales"], v["amount"]) for v in values) == expected
    with psycopg.connect(url) as db:
        table = db.execute(
            "SELECT to_char(window_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24'), sales, best FROM hours"
        )
        assert sorted(table.fetchall()) == sorted((start_time, n, best[start_time]) for start_time, n in hour.items())
    letters = pl.concat(pl.read_parquet(p) for p in sorted((tmp_path / "letters").glob("*.parquet")))
    assert letters.height == sum(r["ts"] is None for r in rows) > 0
