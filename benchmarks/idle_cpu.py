"""Measure the CPU time of an idle pipeline: all of its processes, as a share of one core.

    python -m benchmarks.idle_cpu [--settle 120] [--seconds 60]

The pipeline computes sessions over a directory with three rows. The JVM's compilers and the pause between two polls need
some time to settle, so the measurement begins after `settle` seconds. It takes `seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

CONFIG = """
name = "idle"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "in"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "2h"
event_time_column = "ts"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""


def read_cpu_seconds_by_process(pid: int) -> dict[int, tuple[str, float]]:
    """Return the CPU seconds of a process and its descendants, by process id, with their names."""
    root = psutil.Process(pid)
    return {p.pid: (p.name(), sum(p.cpu_times()[:2])) for p in [root, *root.children(recursive=True)]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--settle", type=float, default=120)
    arguments.add_argument("--seconds", type=float, default=60)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "in").mkdir()
        rows = [{"user": u, "ts": "2024-03-01T10:00:00Z"} for u in "abc"]
        (home / "in" / "0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        (home / "p.toml").write_text(CONFIG)
        command = [sys.executable, "-m", "slackwater.cli.main", "run", "p.toml"]
        with (home / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=home, stderr=log, env={**os.environ, "SPARK_MASTER": "local[2]"})
        try:
            while "epoch=0" not in (home / "log").read_text() and process.poll() is None:
                time.sleep(0.1)
            time.sleep(options.settle)
            before, began = read_cpu_seconds_by_process(process.pid), time.monotonic()
            time.sleep(options.seconds)
            after, took = read_cpu_seconds_by_process(process.pid), time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    shares = [(name, 100 * (s - before.get(pid, (name, 0.0))[1]) / took) for pid, (name, s) in after.items()]
    for name, share in shares:
        print(f"{name:12} {share:6.2f}%")
    print(f"{'all':12} {sum(s for _, s in shares):6.2f}% of one core over {took:.0f} s")


if __name__ == "__main__":
    main()
