"""`python -m benchmarks.exact_float_sums --other CHECKOUT`: compare the cost of exact sums with the code of another checkout.

The two checkouts read the same files in alternating runs, each in a separate process. The cases are tumbling windows and sessions
with the sum and average, the standard deviation, or the maximum of a DOUBLE. The maximum shows the effect of other differences. The
figure is the median of the CPU seconds of Spark and its workers per epoch, without the first epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import psutil

WARM_UP = 3
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "tumbling, few keys, max": ("tumbling", 2_000, ("max",)),
    "tumbling, many keys": ("tumbling", 100_000, ("sum", "avg")),
    "tumbling, few keys": ("tumbling", 2_000, ("sum", "avg")),
    "session": ("session", 100_000, ("sum", "avg")),
    "tumbling, few keys, stddev": ("tumbling", 2_000, ("stddev",)),
    "session, stddev": ("session", 100_000, ("stddev",)),
}


def write_amount_files(folder: Path, keys: int, rows: int, epochs: int) -> None:
    """Write one file per epoch, with amounts of two decimals over 10 s of event time."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for epoch in range(epochs):
        ts = np.sort(rng.integers(0, 10_000_000, rows)) + 10_000_000 * epoch
        frame = pl.DataFrame({"k": rng.integers(0, keys, rows), "v": np.round(rng.uniform(0, 500, rows), 2), "ts": ts})
        frame = frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))
        path = folder / f"{epoch:04}.parquet"
        frame.write_parquet(path)
        os.utime(path, (1_600_000_000 + epoch, 1_600_000_000 + epoch))


def run_child_pipeline(kind: str, aggs: list[str], folder: str) -> None:
    """Run one pipeline over the files, and print the CPU seconds between commits."""
    import slackwater as sw

    shape: dict[str, Any] = (
        {"gap_ms": "30s", "max_session_duration_ms": "1h"}
        if kind == "session"
        else {"duration_ms": "1m", "max_groups_per_window": 10_000_000}
    )
    window = sw.Window(
        kind=kind,
        event_time_column="ts",
        group_by=["k"],
        lateness_ms="5s",
        aggregations=[sw.Aggregation(agg=a, column="v", as_=a) for a in aggs],
        **shape,
    )
    commits: list[float] = []
    with tempfile.TemporaryDirectory() as home:
        sw.run_streaming_pipeline(
            name="float-sums",
            source=sw.Source(
                name="events",
                connection=sw.FilesConnection(),
                query=f"{folder}/*.parquet",
                format="parquet",
                schema="k BIGINT, v DOUBLE, ts TIMESTAMP",
                max_files_per_trigger=1,
            ),
            window=window,
            target=sw.FilesConnection(),
            target_path=f"{home}/out",
            state_store=sw.StateStore(kind="files", path=f"{home}/state"),
            available_now=True,
            on_status=lambda status: commits.append(read_process_tree_cpu_seconds()),
        )
    print(json.dumps(np.diff(commits)[WARM_UP:].tolist()))


def read_process_tree_cpu_seconds() -> float:
    """Return the CPU seconds of this process and all its descendants."""
    this_process = psutil.Process()
    times = [p.cpu_times() for p in (this_process, *this_process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def measure_checkout_epochs(checkout: Path, kind: str, aggs: tuple[str, ...], folder: Path) -> list[float]:
    """Return the CPU seconds per epoch of one run with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{Path.cwd()}"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.exact_float_sums",
        "--child",
        kind,
        "--aggs",
        *aggs,
        "--folder",
        str(folder),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_float_sums", description=__doc__)
    parser.add_argument("--other", type=Path, help="a checkout of the code to compare with")
    parser.add_argument("--only", help="run only cases whose name begins with this")
    parser.add_argument("--rows", type=int, default=500_000, help="rows per epoch")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--aggs", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child_pipeline(options.child, options.aggs, options.folder)
        return
    if options.other is None:
        parser.error("--other is missing; expected a checkout to compare with")
    for name, (kind, keys, aggs) in CASES.items():
        if options.only and not name.startswith(options.only):
            continue
        took: dict[Path, list[float]] = {Path.cwd(): [], options.other: []}
        with tempfile.TemporaryDirectory() as home:
            write_amount_files(Path(home) / "in", keys, options.rows, options.epochs)
            for _ in range(options.rounds):
                for checkout, seconds in took.items():
                    seconds += measure_checkout_epochs(checkout, kind, aggs, Path(home) / "in")
        now, other = (median(seconds) for seconds in took.values())
        print(f"{name:28} {now:6.3f} s, other checkout {other:6.3f} s, ratio {now / other:5.2f}", flush=True)


if __name__ == "__main__":
    main()
