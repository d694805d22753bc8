"""`python -m benchmarks.fixed_epoch_cost`: measure epochs of few rows, whose cost is the fixed cost of an epoch.

The figures per epoch, after the warm-up, are calls into Spark's process, jobs, seconds, and CPU seconds of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import slackwater as sw
from slackwater.engine.observer import Status

ROWS, EPOCHS, WARM_UP = 2_000, 60, 20
KINDS = ("session", "tumbling")
ROLES = ("driver", "jvm", "workers")


@dataclass
class CallCounts:
    """Counts of the commands to Spark's process, by kind. All of them pass through one method of its bridge."""

    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


@contextmanager
def count_jvm_calls() -> Iterator[CallCounts]:
    """Count the calls of this process into Spark's process, except those that only release an object there."""
    from py4j.clientserver import ClientServerConnection

    plain, calls = ClientServerConnection.send_command, CallCounts()

    def send_command(self: Any, command: str) -> Any:
        if not command.startswith("m\nd\n"):
            calls.count += 1
            calls.kinds[" ".join(command.split("\n")[:3:2]) if command[0] == "c" else command.split("\n")[0]] += 1
        return plain(self, command)

    ClientServerConnection.send_command = send_command
    try:
        yield calls
    finally:
        ClientServerConnection.send_command = plain


def count_started_jobs(spark: Any) -> int:
    """Return the number of jobs that Spark has started so far."""
    return int(spark._jsc.sc().dagScheduler().numTotalJobs())


def build_user_window_pipeline(home: Path, kind: str, files: int = 1) -> sw.Pipeline:
    lake = sw.FilesConnection()
    shape: dict[str, Any] = (
        {"gap_ms": "10s", "max_session_duration_ms": "10m"}
        if kind == "session"
        else {"duration_ms": "1m", "max_groups_per_window": 1_000_000}
    )
    return sw.pipeline(
        name="tiny",
        source=sw.Source(
            name="events",
            connection=lake,
            query=str(home / "in"),
            format="json",
            schema="user STRING, x BIGINT, at BIGINT",
            max_files_per_trigger=files,
        ),
        window=sw.Window(
            kind=kind,
            **shape,
            event_time_column="at",
            event_time_unit="ms",
            lateness_ms="5s",
            group_by=["user"],
            aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="x", as_="total")],
        ),
        target=lake,
        target_path=str(home / "out"),
        state_store=sw.StateStore(kind="files", path=str(home / "state")),
    )


def write_json_event_files(home: Path, epochs: int) -> None:
    (home / "in").mkdir()
    for n in range(epochs):
        start_ms = 1_700_000_000_000 + n * 20_000
        rows = [{"user": f"u{i % 500}", "x": i, "at": start_ms + i * 10} for i in range(ROWS)]
        path = home / "in" / f"{n:04}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))


@dataclass
class EpochReadings:
    """Figures at the end of each epoch."""

    spark: Any
    calls: CallCounts
    readings: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, status: Status) -> None:
        if not status.rows:
            return
        calls = self.calls.count
        reading = {
            "calls": calls,
            "jobs": count_started_jobs(self.spark),
            "clock": time.monotonic(),
            **_cpu_seconds_by_role(),
        }
        self.calls.count = calls  # calls of this method are not part of the epoch
        self.readings.append(reading)

    def mean_per_epoch(self, name: str) -> float:
        values = [r[name] for r in self.readings[WARM_UP:]]
        return (values[-1] - values[0]) / (len(values) - 1)


def _cpu_seconds_by_role() -> dict[str, float]:
    """Return the CPU seconds so far of this process, of Spark's process, and of its Python workers."""
    me, seconds_by_role = psutil.Process(), dict.fromkeys(ROLES, 0.0)
    for one in (me, *me.children(recursive=True)):
        try:
            role = "driver" if one == me else "jvm" if one.name() == "java" else "workers"
            seconds_by_role[role] += sum(one.cpu_times()[:2])
        except psutil.Error:  # the process has just ended
            continue
    return seconds_by_role


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixed_epoch_cost", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--calls", action="store_true", help="list the calls by kind")
    options = parser.parse_args()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in (("spark.ui.showConsoleProgress", "false"), ("spark.log.level", "OFF")):
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="slackwater-tiny-") as root, count_jvm_calls() as calls:
        home = Path(root)
        write_json_event_files(home, options.epochs)
        epochs = EpochReadings(spark, calls)
        sw.run(build_user_window_pipeline(home, options.kind), available_now=True, spark=spark, on_status=epochs)
        total = len(epochs.readings)
    spent = {role: epochs.mean_per_epoch(role) for role in ROLES}
    clocks = [r["clock"] for r in epochs.readings]
    fastest = median(sorted(b - a for a, b in zip(clocks[WARM_UP:], clocks[WARM_UP + 1 :], strict=False)))
    print(
        f"{options.kind}, {ROWS:,} rows per epoch, {total} epochs: {epochs.mean_per_epoch('calls'):.1f} calls, {epochs.mean_per_epoch('jobs'):.2f} "
        f"jobs, {fastest:.3f} s (median), {sum(spent.values()):.3f} CPU seconds per epoch ("
        + ", ".join(f"{role} {seconds:.3f}" for role, seconds in spent.items())
        + ")"
    )
    if options.calls:
        for name, count in calls.kinds.most_common(40):
            print(f"  {count / total:>8.2f}  {name}")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
