"""`python -m benchmarks.bucket_and_disk_epochs`: compare state and results in a bucket with the local disk, in epochs of 200,000 rows.

Runs with the bucket and with the disk alternate. The S3 server (moto) uses the same cores, so its CPU time is part of the time of
the bucket; it is also reported separately. With `--state-only`, the results stay on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from tests.support.servers.object_store import FaultyProxy, S3Server

from benchmarks.benchmark_cases import CASES, SLACKWATER, WARM_UP
from benchmarks.event_files import write_stream_files
from benchmarks.run_statistics import summarize_runs
from benchmarks.window_queries import RESULTS, STATE
from benchmarks.worker_process import run_worker

GOAL = 0.7
_SHOWN = ("median_s", "fastest_s", "cpu_s", "phases_s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bucket_and_disk_epochs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--driver-memory", default="4g")
    parser.add_argument("--state-only", action="store_true")
    options = parser.parse_args()
    case = CASES[0]
    stream = replace(case.stream, epochs=options.epochs)
    runs: dict[str, list[dict[str, Any]]] = {"disk": [], "bucket": []}
    load, served = [], []
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-bench-") as root,
        S3Server.started() as s3,
        FaultyProxy.start_proxy(s3.port) as door,
    ):
        data = write_stream_files(stream, Path(root) / "data")
        os.environ["SLACKWATER_CACHE_DIR"] = f"{root}/cache"
        for name, value in s3.connection_options().items():
            os.environ[f"AWS_{name.upper()}"] = value
        for turn in range(options.rounds):
            for where in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                _set_storage_locations(s3 if where == "bucket" else None, options.state_only)
                before, work = _s3_server_cpu_seconds(s3), Path(root) / f"{where}-{turn}"
                load.append(os.getloadavg()[0])
                runs[where].append(run_worker(SLACKWATER, case.query, data, work, options.driver_memory))
                if where == "bucket":
                    served.append((_s3_server_cpu_seconds(s3) - before) / options.epochs)
        # another run, in which a proxy counts the requests
        _set_storage_locations(s3, options.state_only)
        os.environ["AWS_ENDPOINT"] = f"http://127.0.0.1:{door.port}"
        run_worker(SLACKWATER, case.query, data, Path(root) / "counted", options.driver_memory)
    summaries = {where: summarize_runs(results, WARM_UP) for where, results in runs.items()}
    disk, bucket = summaries["disk"], summaries["bucket"]
    shown_figures = {w: {k: f[k] for k in _SHOWN} for w, f in summaries.items()}
    print(json.dumps(shown_figures, indent=1, default=lambda x: round(x, 3)))
    print(
        f"bucket {bucket['median_s']:.2f} s, disk {disk['median_s']:.2f} s per epoch: "
        f"{disk['median_s'] / bucket['median_s']:.2f} times the throughput, goal {GOAL}; "
        f"of the fastest epochs {disk['fastest_s'] / bucket['fastest_s']:.2f}"
    )
    print(
        f"CPU time per epoch: bucket {bucket['cpu_s']:.2f} s, disk {disk['cpu_s']:.2f} s; in addition the S3 server "
        f"{statistics.median(served):.2f} s (starts and ends included)"
    )
    same = disk["output"] == bucket["output"]
    print(f"outputs equal: {same}; load before each run: {', '.join(f'{x:.1f}' for x in load)}")
    kinds = Counter(f"{method} {_request_kind(path)}" for method, path in door.seen)
    request_rates = ", ".join(f"{n / options.epochs:.2f} {kind}" for kind, n in kinds.most_common())
    print(f"{len(door.seen) / options.epochs:.1f} requests per epoch, starts and garbage included: {request_rates}")
    return int(not same)


def _set_storage_locations(s3: S3Server | None, state_only: bool) -> None:
    """Set the locations of the state and the results of the next run."""
    bucket = s3.create_bucket(f"b{uuid.uuid4().hex}") if s3 is not None else ""
    os.environ[STATE] = bucket
    os.environ[RESULTS] = bucket.replace("/state", "/out") if not state_only else ""


def _s3_server_cpu_seconds(s3: S3Server) -> float:
    """Return the CPU seconds of the S3 server so far."""
    assert s3.process.child is not None
    return sum(psutil.Process(s3.process.child.pid).cpu_times()[:2])


def _request_kind(path: str) -> str:
    """Return the folder of the state in the path of a request, or the first part of the path."""
    parts = path.split("?")[0].strip("/").split("/")[1:]
    return parts[2] if parts[:1] == ["state"] and len(parts) > 2 else (parts[0] if parts else "bucket")


if __name__ == "__main__":
    raise SystemExit(main())
