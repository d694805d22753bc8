"""One measurement in a process of its own: `python -m benchmarks.worker JOB.json`; `result.json` beside it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime
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

from benchmarks import joins
from benchmarks.cases import POSTGRES, SLACKWATER, Join, Window
from benchmarks.systems import PROVIDER, run_native, run_slackwater
from slackwater.engine.status import Status

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


class Progress(StreamingQueryListener):
    """Keeps the time of every micro-batch, as Spark itself reports it for any query."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.terminated = Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to keep."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        seconds = {name: ms / 1000 for name, ms in progress.durationMs.items()}
        if "triggerExecution" in seconds:
            whole = seconds.pop("triggerExecution")
            began = datetime.fromisoformat(progress.timestamp).timestamp()
            batch = {"rows": progress.numInputRows, "began": began, "seconds": whole, "durations": seconds}
            states = progress.stateOperators
            told = {
                "state_rows": sum(s.numRowsTotal for s in states),
                "state_bytes": sum(s.memoryUsedBytes for s in states),
            }
            self.batches.append(batch | (told if states else {}))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to keep."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self.terminated.set()


@dataclass
class Epochs:
    """Keeps the time of every epoch, as Slackwater tells it: from the end of the one before, so that planning, commit, notes and
    whatever lies between two epochs are part of it. They follow each other without a pause."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)

    def __call__(self, status: Status) -> None:
        now = time.time()
        if status.rows:
            before = self.batches[-1] if self.batches else None
            began = now - status.seconds if before is None else before["began"] + before["seconds"]
            whole = {"rows": status.rows, "began": began, "seconds": now - began}
            self.batches.append(whole | {"durations": dict(status.phases)})
        self.statuses.append(status)


def session(job: dict[str, Any]) -> SparkSession:
    """The same settings for every system; only the native ones have a state store to choose."""
    builder = SparkSession.builder.master("local[2]").appName("slackwater-bench")
    for key, value in _SESSION.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.memory", job["driver_memory"])
    if job["system"] in PROVIDER:
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", PROVIDER[job["system"]])
    return builder.getOrCreate()


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job to its end: the micro-batches as Spark timed them, or the epochs as Slackwater told them."""
    spark = session(job)
    progress, epochs = Progress(), Epochs()
    spark.streams.addListener(progress)
    data, work = Path(job["data"]), Path(job["work"])
    query = Join(**job["join"]) if "join" in job else Window(**job["window"])
    if isinstance(query, Join):
        if job["system"] == SLACKWATER:
            joins.run_slackwater(spark, query, data, work, epochs)
        else:
            joins.run_native(spark, query, data, work)
    elif job["system"] in (SLACKWATER, POSTGRES):
        url = os.environ[POSTGRES_URL] if job["system"] == POSTGRES else None
        run_slackwater(spark, query, data, work, epochs, url)
    else:
        run_native(spark, query, data, work)
    ours = job["system"] in (SLACKWATER, POSTGRES)
    if not ours and not progress.terminated.wait(_REPORTED_WITHIN_S):
        raise TimeoutError("Spark did not report the end of the query within a minute")
    java = spark.sparkContext._jvm.System.getProperty("java.version")
    spark.stop()
    return {
        "batches": epochs.batches if ours else progress.batches,
        "statuses": [_kept(status) for status in epochs.statuses if status.rows],
        "late": epochs.statuses[-1].counters.rows_late if ours else None,
        "java": java,
    }


def _kept(status: Status) -> dict[str, Any]:
    names = ("epoch", "rows", "emitted", "late", "seconds", "phases", "groups", "state_bytes", "buffered")
    return {name: value for name, value in asdict(status).items() if name in names}


def main() -> None:
    job_file = Path(sys.argv[1])
    result = measure(json.loads(job_file.read_text()))
    job_file.with_name("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
