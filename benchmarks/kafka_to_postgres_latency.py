"""Measurements with Postgres: state in Postgres, and latency from Kafka to Postgres. They start and stop the services.

`python -m benchmarks.kafka_to_postgres_latency --rates 500 5000 50000 --kills 3` measures the latency at several rates, and how
long results are missing if the pipeline is killed with SIGKILL and started again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg
import pyarrow.compute as pc
import pyarrow.parquet as pq

import slackwater as sw
from benchmarks.benchmark_cases import LATENCY_ROWS_PER_S, LATENCY_SECONDS
from benchmarks.event_files import FILES_PER_EPOCH
from slackwater.config.toml import to_toml
from slackwater.testing.services import Kafka, Postgres

LOOK_S, LEAD_S = 0.01, 60.0


def compute_median_keys_per_epoch(data: Path) -> float:
    """Return the median number of distinct keys per epoch."""
    files = sorted(data.glob("*.parquet"))
    epochs = [files[i : i + FILES_PER_EPOCH] for i in range(0, len(files), FILES_PER_EPOCH)]
    return median(pc.count_distinct(pq.read_table(list(map(str, e)), columns=["k"])["k"]).as_py() for e in epochs)


def measure_kafka_to_postgres_latency(rows_per_s: int = LATENCY_ROWS_PER_S) -> dict[str, float]:
    """Return the seconds from the append of the record that ends a one-second window to the rows of the window in Postgres.

    Records are sent at `rows_per_s` with the wall clock as event time. The table is polled for new windows every LOOK_S.
    Both run in separate processes, so that they do not compete with the pipeline for its interpreter.
    """
    with Kafka.started() as kafka, Postgres.started() as postgres:
        kafka.create("events", 2)
        over = threading.Event()
        producing, watching = (
            TimeRecordingProcess(_produce_records, (kafka.address, rows_per_s)),
            TimeRecordingProcess(_poll_result_table, (postgres.url,)),
        )
        # the start of Spark and the first epochs, which catch up with earlier records, do not count
        threading.Timer(LATENCY_SECONDS + LEAD_S, over.set).start()
        try:
            sw.run(_build_pipeline(kafka.address, postgres.url), stop=over)
        finally:
            appended, seen = producing.stop_and_get_times(), watching.stop_and_get_times()
    windows = sorted(w for w in seen if w + 1 in appended)[-LATENCY_SECONDS:]
    delays = sorted(seen[w] - appended[w + 1] for w in windows)
    cuts = quantiles(delays, n=100, method="inclusive")
    return {"p50_s": cuts[49], "p99_s": cuts[98], "windows": len(delays), "rows_per_s": rows_per_s}


def _build_pipeline(kafka: str, postgres: str) -> sw.Pipeline:
    """Return a pipeline that writes counts and sums per second and key. `kafka`, `postgres`: the addresses of the services."""
    return sw.pipeline(
        name="latency",
        source=sw.KafkaConnection(bootstrap_servers=kafka),
        source_query="events",
        source_schema="k INT, v BIGINT",
        starting_offsets="latest",
        window=sw.Window(
            kind="tumbling",
            duration_ms="1s",
            group_by=["k"],
            max_groups_per_window=10_000,
            aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="v", as_="total")],
        ),
        target=sw.PostgresConnection(url=postgres),
        target_table="out",
        state_store=sw.StateStore(kind="postgres", url=postgres),
    )


Times = dict[int, float]  # wall-clock times by second of event time


class TimeRecordingProcess:
    """Process that runs next to the pipeline until `stop_and_get_times`, which returns the times that it recorded."""

    def __init__(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._over, self._times = context.Event(), context.Queue()
        self._process = context.Process(target=work, args=(*arguments, self._over, self._times), daemon=True)
        self._process.start()

    def stop_and_get_times(self) -> Times:
        self._over.set()
        times: Times = self._times.get(timeout=60)
        self._process.join()
        return times


def _produce_records(address: str, rows_per_s: int, over: Event, times: Queue[Times]) -> None:
    """Send records until `over`. Report when each second had its first record in both partitions."""
    from confluent_kafka import Producer

    producer, chance = Producer({"bootstrap.servers": address, "linger.ms": 5}), random.Random(1)
    began, sent, firsts = time.time(), 0, dict[tuple[int, int], float]()
    appended: Times = {}
    while not over.is_set():
        now = time.time()
        for _ in range(int((now - began) * rows_per_s) - sent):
            value, partition = json.dumps({"k": chance.randrange(100), "v": sent}), sent % 2
            producer.produce("events", value, partition=partition, timestamp=int(now * 1000))
            sent += 1
            first = firsts.setdefault((int(now), partition), now)
            appended[int(now)] = max(appended.get(int(now), 0.0), first)
        producer.poll(0)
        time.sleep(0.002)
    producer.flush(5)
    times.put(appended)


def _poll_result_table(url: str, over: Event, times: Queue[Times]) -> None:
    """Poll the table until `over`. Report when the rows of each window appeared. Windows appear in order of time."""
    later = "SELECT DISTINCT extract(epoch FROM window_start)::bigint FROM out WHERE window_start > to_timestamp(%s)"
    seen: Times = {}
    with psycopg.connect(url, autocommit=True) as db:
        while not over.is_set() and db.execute("SELECT to_regclass('out')").fetchone() == (None,):
            time.sleep(LOOK_S)
        while not over.is_set():
            for (start,) in db.execute(later, (max(seen, default=0),)):
                seen[start] = time.time()
            time.sleep(LOOK_S)
    times.put(seen)


def set_worker_postgres_url(url: str) -> None:
    """Set the database that workers use."""
    from benchmarks.job_runner import POSTGRES_URL

    os.environ[POSTGRES_URL] = url


# -- recovery ----------------------------------------------------------------------------------------------------------

_STEADY_S = 60.0  # how long the pipeline runs before each kill
_FRESH_S = 2.0  # results are fresh if the newest window ended at most this long ago


def measure_recovery_from_kills(kills: int, rows_per_s: int = LATENCY_ROWS_PER_S) -> list[float]:
    """Return for each kill the seconds until the results are at most two seconds old again.

    The pipeline is a process of its own. It is killed with SIGKILL, and started again at once.
    """
    with tempfile.TemporaryDirectory() as home, Kafka.started() as kafka, Postgres.started() as postgres:
        kafka.create("events", 2)
        config = Path(home) / "latency.toml"
        config.write_text(to_toml(_build_pipeline(kafka.address, postgres.url)))
        producing = TimeRecordingProcess(_produce_records, (kafka.address, rows_per_s))
        command, seconds = [sys.executable, "-m", "slackwater.cli.main", "run", str(config)], list[float]()
        pipeline = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _wait_for_fresh_results(postgres.url, pipeline)
            for _ in range(kills):
                time.sleep(_STEADY_S)
                pipeline.send_signal(signal.SIGKILL)
                pipeline.wait()
                began, pipeline = time.monotonic(), subprocess.Popen(command, stderr=subprocess.DEVNULL)
                time.sleep(_FRESH_S)  # until the results that were written before the kill are old
                _wait_for_fresh_results(postgres.url, pipeline)
                seconds.append(time.monotonic() - began)
        finally:
            pipeline.kill()
            pipeline.wait()
            producing.stop_and_get_times()
    return seconds


def _wait_for_fresh_results(url: str, pipeline: subprocess.Popen[bytes]) -> None:
    """Wait until the newest window in the table ended at most _FRESH_S ago."""
    newest = "SELECT extract(epoch FROM max(window_start)) + 1 FROM out"
    with psycopg.connect(url, autocommit=True) as db:
        while pipeline.poll() is None:
            exists = db.execute("SELECT to_regclass('out')").fetchone() != (None,)
            row = db.execute(newest).fetchone() if exists else None
            if row is not None and row[0] is not None and time.time() - float(row[0]) <= _FRESH_S:
                return
            time.sleep(LOOK_S)
    raise RuntimeError(f"the pipeline ended with exit code {pipeline.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_to_postgres_latency", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[LATENCY_ROWS_PER_S], help="records per second")
    parser.add_argument("--kills", type=int, default=0, help="how often to kill the pipeline")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    if len(options.rates) > 1:  # Spark keeps consumers of the previous broker, so each rate needs its own process
        for rate in options.rates:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.kafka_to_postgres_latency", "--rates", str(rate)], check=True
            )
    else:
        print(json.dumps(measure_kafka_to_postgres_latency(options.rates[0])), flush=True)
    if options.kills:
        seconds = measure_recovery_from_kills(options.kills)
        print(f"seconds until results are fresh after a kill: {', '.join(f'{s:.1f}' for s in seconds)}")


if __name__ == "__main__":
    main()
