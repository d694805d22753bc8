"""A pipeline of one-minute counts, whose state, target and name can change between two starts.

input  in/00001.jsonl …   one row per minute and file ─▶ windows of a minute ─▶ a target of any kind
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.support.iceberg_tables import sql_catalog_options

import slackwater as sw
from slackwater.query.results import result_reader
from slackwater.runner.run import run

TARGETS = ("files", "delta", "iceberg", "postgres", "kafka")
MINUTE_US = 60_000_000
BEGIN_US = 1_704_067_200_000_000


@dataclass
class RestartablePipeline:
    """`target`: one of TARGETS. `state`: "files" or "postgres". `mode`: of tables, "merge" or "append"."""

    home: Path
    spark: Any
    target: str
    state: str = "files"
    mode: str = "merge"
    services: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"c{uuid.uuid4().hex[:12]}")
    name: str = "counts"
    formerly: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    expected: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        (self.home / "in").mkdir()
        self._files = 0
        self._urls: dict[str, str] = {}
        if self.target == "kafka":
            self.services["kafka"].create(self.topic)

    # -- the pipeline ------------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return f"{self.id}-results"

    def database_url(self, purpose: str) -> str:
        """Return the URL of the database for the state or the target."""
        if purpose not in self._urls:
            self._urls[purpose] = self.services["postgres"].database(f"{self.id}_{purpose}")
        return self._urls[purpose]

    def build_pipeline(self, per: int = 1) -> sw.Pipeline:
        connections: dict[str, Any] = {"lake": sw.FilesConnection()}
        if self.target == "files":
            target = sw.Target(connection="lake", path=str(self.home / "out"))
        elif self.target == "delta":
            connections["out"] = sw.DeltaConnection()
            target = sw.Target(connection="out", path=str(self.home / "out"), mode=self.mode)
        elif self.target == "iceberg":
            connections["out"] = sw.IcebergConnection(catalog="sql", options=sql_catalog_options(self.home))
            target = sw.Target(connection="out", table="shop.counts", mode=self.mode)
        elif self.target == "postgres":
            connections["out"] = sw.PostgresConnection(url=self.database_url("target"))
            target = sw.Target(connection="out", table="counts")
        else:
            connections["out"] = sw.KafkaConnection(bootstrap_servers=self.services["kafka"].address)
            target = sw.Target(connection="out", topic=self.topic, delivery="exactly_once")
        if self.state == "postgres":
            store = sw.StateStore(kind="postgres", url=self.database_url("state"), shards=1)
        else:
            store = sw.StateStore(kind="files", path=str(self.home / "state"), shards=1)
        window = sw.Window(
            kind="tumbling",
            duration_ms="1m",
            event_time_column="ts",
            lateness_ms="0s",
            group_by=["user"],
            max_groups_per_window=1000,
            aggregations=[sw.Aggregation(agg="count", as_="n")],
        )
        source = sw.Source(
            name="events",
            connection="lake",
            query=str(self.home / "in" / "*.jsonl"),
            format="json",
            schema="user STRING, ts TIMESTAMP",
            max_files_per_trigger=per,
        )
        described: dict[str, Any] = {
            "name": self.name,
            "connections": connections,
            "sources": [source],
            "window": window,
            "target": target,
            "state_store": store,
        }
        if self.formerly is not None:
            described["formerly"] = self.formerly
        return sw.pipeline(**{**described, **self.changes})

    # -- actions -------------------------------------------------------------------------------------------------------

    def write_input_files(self, *minutes: int) -> None:
        """Write one file per minute. Older files are read first."""
        for minute in minutes:
            self._files += 1
            timestamp = f"2024-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"
            (self.home / "in" / f"{self._files:05d}.jsonl").write_text(
                json.dumps({"user": "u", "ts": timestamp}) + "\n"
            )
            self.expected[minute] += 1

    def run_available_input(self, flush: bool = False, per: int = 1, **more: Any) -> None:
        """Run to the end of the input. Raises the errors of a start."""
        run(
            self.build_pipeline(per),
            available_now=True,
            flush=flush,
            spark=self.spark,
            on_notice=lambda level, line: self.lines.append(line),
            **more,
        )

    def copy_state(self, name: str) -> None:
        if self.state == "files":
            shutil.copytree(self.home / "state", self.home / name, dirs_exist_ok=True)
        else:
            self._copy_database(f"{self.id}_state", f"{self.id}_{name}")

    def restore_state(self, name: str) -> None:
        """Restore a copy. The copy remains, and can be restored again."""
        if self.state == "files":
            shutil.rmtree(self.home / "state")
            shutil.copytree(self.home / name, self.home / "state")
        else:
            self._copy_database(f"{self.id}_{name}", f"{self.id}_state")

    def _copy_database(self, origin: str, copy: str) -> None:
        with psycopg.connect(self.services["postgres"].url, autocommit=True) as db:
            db.execute(f"DROP DATABASE IF EXISTS {copy} WITH (FORCE)")
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (origin,))
            db.execute(f"CREATE DATABASE {copy} TEMPLATE {origin}")

    def empty_target(self) -> None:
        """Remove the target as a whole, or the rows of a table."""
        if self.target in ("files", "delta"):
            shutil.rmtree(self.home / "out", ignore_errors=True)
        elif self.target == "iceberg":
            from slackwater.connectors.iceberg.tables import IcebergTables

            tables = IcebergTables("sql", "default", sql_catalog_options(self.home))
            if tables.load("shop.counts") is not None:
                tables.catalog.drop_table("shop.counts")
        elif self.target == "postgres":
            with psycopg.connect(self.database_url("target"), autocommit=True) as db:
                db.execute("DO $$ BEGIN IF to_regclass('counts') IS NOT NULL THEN TRUNCATE counts; END IF; END $$")
        else:
            recreate_topic(self.services["kafka"], self.topic)

    def recreate_target(self) -> None:
        """Replace the target by another table with the same rows. Only the id of the table differs."""
        with psycopg.connect(self.database_url("target"), autocommit=True) as db:
            db.execute("CREATE TABLE other (LIKE counts INCLUDING ALL)")
            db.execute("INSERT INTO other SELECT * FROM counts")
            db.execute("DROP TABLE counts")
            db.execute("ALTER TABLE other RENAME TO counts")

    # -- results -------------------------------------------------------------------------------------------------------

    def read_counts_per_minute(self) -> Counter[int]:
        """Return the minutes in the target with their counts. A duplicate row counts twice."""
        counts_per_minute: Counter[int] = Counter()
        with closing(result_reader(self.build_pipeline())) as results:
            frame = results.read()
        if frame is not None:
            starts = frame["window_start"]
            if starts.dtype == pl.String:  # results from a topic are JSON
                starts = starts.str.to_datetime(time_unit="us", time_zone="UTC")
            for start, n in zip(starts.dt.timestamp("us").to_list(), frame["n"].to_list(), strict=True):
                counts_per_minute[(start - BEGIN_US) // MINUTE_US] += int(n)
        return counts_per_minute


def recreate_topic(kafka: Any, topic: str) -> None:
    """Delete a topic and create it again."""
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    end = time.monotonic() + 30
    while True:
        try:
            kafka.create(topic)
            return
        except KafkaException:  # the broker is still deleting it
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
