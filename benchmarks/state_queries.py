"""`python -m benchmarks.state_queries`: measure the duration of queries of a state, and their cost for a running pipeline.

fetch: queries of random keys in a state of a million open sessions in files, after a few epochs with changes
cost: the sessions of the case `reopen` (drop), alone and next to a process that sends a number of queries per second
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import slackwater as sw
from benchmarks.benchmark_cases import REOPEN_STREAM, REOPEN_WINDOWS, SLACKWATER, WARM_UP, shrink_stream
from benchmarks.event_files import write_stream_files
from benchmarks.run_statistics import describe_machine, summarize_runs
from benchmarks.worker_process import run_worker
from slackwater.connectors.console.connector import ConsoleTarget
from slackwater.connectors.source import Batch
from slackwater.core.schema import Field
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.stage_runner import StageRunner
from slackwater.operators.registry import compile_window
from slackwater.query.state_view import StateView
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.pipeline_setup import build_pipeline
from slackwater.testing.rows_without_spark import PolarsRowPreparer

S = 1_000_000
PER_SECOND = 20


def build_state(directory: str, sessions: int) -> None:
    """Write a state with this many open sessions. Five further epochs change a twentieth of them each."""
    window = sw.Window(
        kind="session",
        gap_ms="30m",
        max_session_duration_ms="1d",
        lateness_ms="1h",
        group_by=["user"],
        max_groups_per_window=2 * sessions,
        aggregations=[sw.Aggregation(agg="count", as_="events"), sw.Aggregation(agg="sum", column="v", as_="total")],
    )
    pipeline = build_pipeline(window, ["a"])
    logic = compile_window(pipeline, {"user": Field("user", "string"), "v": Field("v", "bigint")})
    store, clock = FilesStore(directory, pipeline.name), 4 * 10**15
    ((name, stage_pipeline),) = pipeline.stage_pipelines.items()
    hooks = DriverCallbacks(lambda: clock)
    stage = StageRunner(
        name, stage_pipeline, logic, store, LocalEngine(PolarsRowPreparer(logic, ["a"])), hooks.faults.in_worker
    )
    driver = EpochDriver(pipeline, [stage], store, dict.fromkeys(pipeline.per_target, ConsoleTarget()), hooks)
    driver.start(store.open(), 2, {})
    chance = np.random.default_rng(1)
    first = pl.DataFrame(
        {
            "ts": chance.integers(0, 1200 * S, sessions),
            "user": "user-" + pl.Series(np.arange(sessions)).cast(pl.String),
            "v": chance.integers(0, 100, sessions),
        }
    )
    for number in range(6):
        some = first if number == 0 else first[chance.integers(0, sessions, sessions // 20)]
        rows = some.with_columns(pl.col("ts") + 5 * S * number)
        driver.run_batch(Batch(BatchId(checkpoint="bench", batch=number), {}, {"a": rows}), 0)
    store.close()


def measure_fetch_latency(directory: str, sessions: int, count: int) -> dict[str, float]:
    """Return the milliseconds per `fetch` of a random key, and the number of segments."""
    times = []
    with sw.open_state(directory) as view:
        segments = [len(shard) for shard in view.manifest().segments]
        for key in np.random.default_rng(2).integers(0, sessions, count):
            began = time.perf_counter()
            rows = view.fetch(f"user-{key}")
            times.append(1000 * (time.perf_counter() - began))
            assert rows.height == 1
    return {"p50_ms": statistics.median(times), "p99_ms": float(np.quantile(times, 0.99)), "segments": sum(segments)}


def send_queries(directory: Path, per_second: int) -> None:
    """Query a random key this many times per second, until killed. Print a line per hundred answers."""
    while not list(directory.glob("*/manifests/*.json")):
        time.sleep(0.1)
    with sw.open_state(directory) as view:
        keys, times = _sample_keys(view), list[float]()
        while True:
            began = time.perf_counter()
            rows = view.fetch(random.choice(keys))
            assert rows["_epoch"].n_unique() <= 1
            times.append(1000 * (time.perf_counter() - began))
            if len(times) % 100 == 0:
                print(json.dumps({"answers": len(times), "p50_ms": statistics.median(times)}), flush=True)
                keys = _sample_keys(view)
            time.sleep(max(1 / per_second - (time.perf_counter() - began), 0))


def _sample_keys(view: StateView) -> list[dict[str, Any]]:
    some = view.scan(limit=2000)
    return list(some.select(some.columns[: some.columns.index("window_start")]).iter_rows(named=True))


def measure_pipeline_slowdown(root: Path, rounds: int, per_second: int, small: bool) -> dict[str, Any]:
    """Measure a pipeline, alternating between without queries and with a process that queries its state."""
    stream = shrink_stream(REOPEN_STREAM) if small else REOPEN_STREAM
    data, runs, reader_reports = (
        write_stream_files(stream, root / "data"),
        {"alone": [], "queried": []},
        list[dict[str, Any]](),
    )
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            work = root / f"{name}-{turn}"
            command = [sys.executable, "-m", "benchmarks.state_queries", "--ask", str(work / "state")]
            command += ["--per-second", str(per_second)]
            querier = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if name == "queried" else None
            try:
                runs[name].append(run_worker(SLACKWATER, REOPEN_WINDOWS["drop"], data, work, "6g"))
            finally:
                if querier is not None:
                    querier.kill()
                    lines = querier.communicate()[0].splitlines()
                    reader_reports += [json.loads(lines[-1])] if lines else []
    summaries = {name: summarize_runs(results, WARM_UP) for name, results in runs.items()}
    return {
        **{name: figures["median_s"] for name, figures in summaries.items()},
        "cost": summaries["queried"]["median_s"] / summaries["alone"]["median_s"] - 1,
        "answers": reader_reports,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_queries", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--per-second", type=int, default=PER_SECOND)
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke test; the figures mean nothing")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        send_queries(options.ask, options.per_second)
    sessions = 20_000 if options.quick else options.sessions
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="slackwater-queries-") as root:
        build_state(f"{root}/million", sessions)
        figures = measure_fetch_latency(f"{root}/million", sessions, 1000)
        print(
            f"fetch of a key among {sessions:,} open sessions in {figures['segments']} segments: p50 {figures['p50_ms']:.2f} ms, "
            f"p99 {figures['p99_ms']:.2f} ms (goal: p50 under 5 ms)",
            flush=True,
        )
        cost = measure_pipeline_slowdown(Path(root), options.rounds, options.per_second, options.quick)
        print(
            f"an epoch with {options.per_second} queries per second: {cost['queried']:.2f} s, alone {cost['alone']:.2f} s: "
            f"{100 * cost['cost']:+.1f}% (goal: under 5%); {cost['answers']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
