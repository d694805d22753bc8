"""One measurement in a separate process: `python -m benchmarks.job_runner JOB.json` writes `result.json` next to the job."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from benchmarks import join_queries
from benchmarks.benchmark_cases import FLOOR, POSTGRES, SLACKWATER, Join, Window
from benchmarks.kafka_topics import EventTopic
from benchmarks.no_op_step_baseline import run_no_op_step_epochs
from benchmarks.window_queries import PROVIDER, run_native_window, run_slackwater_window
from slackwater.engine.observer import Status
from slackwater.spark.sessions.spark_jars import kafka_connector
from slackwater.spark.sessions.spark_session import start_session

POSTGRES_URL = "SLACKWATER_BENCH_POSTGRES"
_REPORTED_WITHIN_S = 60
_SESSION = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
}


class BatchProgressListener(StreamingQueryListener):
    """Listener that keeps the duration of each micro-batch, as Spark reports it for any query."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.terminated = Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        seconds = {name: ms / 1000 for name, ms in progress.durationMs.items()}
        if "triggerExecution" in seconds:
            whole = seconds.pop("triggerExecution")
            began = datetime.fromisoformat(progress.timestamp).timestamp()
            batch = {"rows": progress.numInputRows, "began": began, "seconds": whole, "durations": seconds}
            states = progress.stateOperators
            state_figures = {
                "state_rows": sum(s.numRowsTotal for s in states),
                "state_bytes": sum(s.memoryUsedBytes for s in states),
            }
            self.batches.append(batch | (state_figures if states else {}))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self.terminated.set()


def start_job_session(job: dict[str, Any]) -> SparkSession:
    """Start the Spark session of a job, as users of the system start it, with the same settings of Spark SQL for all systems.

    Slackwater starts the session itself, as `slackwater run` does, with its default heap. Native operators choose a state
    store and get a heap of `driver_memory`, because the HDFS store keeps its state there.
    """
    settings = dict(_SESSION)
    if "topic" in job:
        jars, _ = kafka_connector(version("pyspark"))
        settings["spark.jars"] = ",".join(map(str, jars))
    if job["system"] not in PROVIDER:
        return start_session({"spark.master": "local[2]", **settings})
    settings["spark.sql.streaming.stateStore.providerClass"] = PROVIDER[job["system"]]
    settings["spark.driver.memory"] = job["driver_memory"]
    builder = SparkSession.builder.master("local[2]").appName("slackwater-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class StatusLog:
    """Statuses that Slackwater reported, and the times at which epochs with rows ended."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.ends = [time.time()]

    def __call__(self, status: Status) -> None:
        self.statuses.append(status)
        if status.rows:
            self.ends.append(time.time())

    def list_timed_epochs(self) -> list[dict[str, Any]]:
        """Return each epoch, measured from the end of the previous one, so that planning, commit and pauses are included."""
        with_rows = [status for status in self.statuses if status.rows]
        return [
            {"rows": status.rows, "began": began, "seconds": end - began, "durations": {}}
            for status, (began, end) in zip(with_rows, pairwise(self.ends), strict=True)
        ]


def collect_epochs(progress: BatchProgressListener, run_log: StatusLog) -> list[dict[str, Any]]:
    """Return the epochs of a run, from Slackwater's statuses or, for native operators, from Spark's micro-batches."""
    if run_log.statuses:
        return run_log.list_timed_epochs()
    if not progress.terminated.wait(_REPORTED_WITHIN_S):
        raise TimeoutError("Spark did not report the end of the query within a minute")
    return progress.batches


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job to its end. Return its epochs, Slackwater's statuses, and for the floor the counted rows."""
    spark = start_job_session(job)
    progress, run_log, output = BatchProgressListener(), StatusLog(), None
    spark.streams.addListener(progress)
    data, work = EventTopic(**job["topic"]) if "topic" in job else Path(job["data"]), Path(job["work"])
    query = Join(**job["join"]) if "join" in job else Window(**job["window"])
    if job["system"] == FLOOR:
        counted = run_no_op_step_epochs(spark, query, data)
        batches, output = counted["batches"], counted["output"]
    else:
        if isinstance(query, Join):
            if job["system"] == SLACKWATER:
                join_queries.run_slackwater_join(spark, query, data, work, run_log)
            else:
                join_queries.run_native_join(spark, query, data, work)
        elif job["system"] in (SLACKWATER, POSTGRES):
            url = os.environ[POSTGRES_URL] if job["system"] == POSTGRES else None
            run_slackwater_window(spark, query, data, work, run_log, url)
        else:
            run_native_window(spark, query, data, work)
        batches = collect_epochs(progress, run_log)
    java = spark.sparkContext._jvm.System.getProperty("java.version")
    spark.stop()
    return {
        "batches": batches,
        "statuses": [_status_figures(status) for status in run_log.statuses if status.rows],
        "late": run_log.statuses[-1].counters.rows_late if run_log.statuses else None,
        "output": output,
        "java": java,
    }


def _status_figures(status: Status) -> dict[str, Any]:
    names = ("epoch", "rows", "emitted", "late", "seconds", "phases", "groups", "state_bytes", "buffered")
    return {name: value for name, value in asdict(status).items() if name in names}


def main() -> None:
    job_file = Path(sys.argv[1])
    result = run_job(json.loads(job_file.read_text()))
    job_file.with_name("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
