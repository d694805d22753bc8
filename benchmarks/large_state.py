"""`python -m benchmarks.large_state`: measure epochs, restarts, memory and bytes on disk by the number of keys in the state.

For each number of keys, a pipeline of sessions first loads the keys, a million per epoch. Then it runs epochs that each touch 100,000
random keys. The first of these are not timed, because large segments are still merged in the background. The pipeline is killed, and
a new start reads one more epoch. No session closes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import psutil

from benchmarks import line_charts
from benchmarks.benchmark_cases import Window
from benchmarks.event_files import START
from benchmarks.run_statistics import describe_machine
from benchmarks.window_queries import build_event_source, build_slackwater_window
from benchmarks.worker_process import (
    ProcessTreeUsage,
    build_worker_environment,
    directory_bytes,
    exit_on_sigterm,
    read_lines_or_none,
)

KEYS = (100_000, 1_000_000, 10_000_000, 50_000_000)
STORES = ("files", "postgres", "bucket")
GOAL = 1.3
_LOADED, _TOUCHED, _EPOCHS, _WARM_UP = 1_000_000, 100_000, 60, 40
_SAMPLE_S, _SECONDS = 0.25, 600
_MIB = 1024**2


class LargeState(NamedTuple):
    """Figures of one number of keys: medians per epoch, the time from a start to its first commit, peak memory, bytes of the state."""

    store: str
    keys: int
    load_keys_per_s: float
    epoch_s: float
    epoch_cpu_s: float
    slowest_epoch_s: float
    restart_s: float
    memory_mib: dict[str, float]
    state_mib: float


class StatusLine(NamedTuple):
    """The end of an epoch: the time, the CPU seconds of all processes until then, and the rows and keys that the pipeline reports."""

    ended_s: float
    cpu_s: float
    rows: int
    keys: int


def run_child_pipeline(home: Path, store: str, options: Mapping[str, Any]) -> None:
    """Run the pipeline until it is killed. Print a line per epoch."""
    import slackwater as sw

    lake = sw.FilesConnection()
    sw.run_streaming_pipeline(
        name="large",
        source=build_event_source(home / "in"),
        window=build_slackwater_window(Window("session", 3600)).model_copy(update={"max_groups_per_window": 10**9}),
        target=lake,
        target_path=str(home / "out"),
        target_format="parquet",
        state_store=sw.StateStore(kind="postgres" if store == "postgres" else "files", **options),
        spark_settings={"spark.master": "local[2]"},
        on_status=lambda status: print(status.rows, status.groups, flush=True) if status.rows else None,
    )


def write_epoch(home: Path, number: int, keys: np.ndarray) -> None:
    """Write the two files of an epoch, with a row per key. Their times are within the second `number` of the stream."""
    (home / "in").mkdir(exist_ok=True)
    spread = pl.Series(number * 1_000_000 + np.arange(len(keys)) * 1_000_000 // len(keys))
    frame = pl.select(
        k=pl.format("user-{}", pl.lit(pl.Series(keys))),
        ts=START + pl.duration(microseconds=pl.lit(spread)),
        v=pl.lit(pl.Series(keys % 100 * 1.0)),
    )
    for part in range(2):
        path = home / "in" / f"{number:05d}-{part}.parquet"
        written = path.with_name(f".{path.name}")
        frame[part::2].write_parquet(written)
        os.utime(written, (number * 2 + part, number * 2 + part))
        written.rename(path)


@contextmanager
def _running_pipeline(home: Path, store: str, options: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.large_state", "--child", str(home), store, json.dumps(options)]
    with (
        (home / "log").open("a") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=build_worker_environment()
        ) as process,
    ):
        try:
            yield process
        finally:
            root = psutil.Process(process.pid)
            for child in root.children(recursive=True):
                child.kill()
            process.kill()


def _await_epochs(process: subprocess.Popen[str], usage: ProcessTreeUsage, epochs: int, home: Path) -> list[StatusLine]:
    """Wait for the ends of this many epochs. Raise RuntimeError if the pipeline ends or nothing happens for long."""
    root, statuses, last = psutil.Process(process.pid), list[StatusLine](), time.monotonic()
    assert process.stdout is not None
    for line in read_lines_or_none(process.stdout, _SAMPLE_S):
        now = time.monotonic()
        usage.take_sample(root)
        if line is not None:
            rows, keys = map(int, line.split())
            statuses.append(StatusLine(now, usage.spent[-1][1], rows, keys))
            last = now
            if len(statuses) == epochs:
                return statuses
        elif now - last > _SECONDS:
            break
    raise RuntimeError(f"the pipeline ended or stood still: {(home / 'log').read_text()[-3000:]}")


def measure_large_state(
    home: Path, store: str, keys: int, options: Mapping[str, str], read_size: Callable[[], int]
) -> LargeState:
    """Measure one number of keys. `read_size` returns the bytes of the state."""
    rng, loads = np.random.default_rng(7), -(-keys // _LOADED)
    for number in range(loads):
        write_epoch(home, number, np.arange(number * _LOADED, min((number + 1) * _LOADED, keys)))
    with _running_pipeline(home, store, options) as process:
        loaded = _await_epochs(process, ProcessTreeUsage(), loads, home)
    for number in range(loads, loads + _EPOCHS):
        write_epoch(
            home, number, rng.choice(keys, size=_TOUCHED, replace=False) if keys > _TOUCHED else np.arange(keys)
        )
    usage = ProcessTreeUsage()
    with _running_pipeline(home, store, options) as process:
        touched = _await_epochs(process, usage, _EPOCHS, home)
        time.sleep(1)
    assert touched[-1].keys == keys, f"found {touched[-1].keys} keys in the state, expected {keys}"
    write_epoch(home, loads + _EPOCHS, np.arange(_TOUCHED))
    began = time.monotonic()
    with _running_pipeline(home, store, options) as process:
        (first,) = _await_epochs(process, ProcessTreeUsage(), 1, home)
    assert first.keys == keys
    timed = touched[_WARM_UP - 1 :]
    seconds = [b.ended_s - a.ended_s for a, b in pairwise(timed)]
    return LargeState(
        store,
        keys,
        (keys - min(_LOADED, keys)) / (loaded[-1].ended_s - loaded[0].ended_s) if loads > 1 else 0.0,
        round(median(seconds), 3),
        round((timed[-1].cpu_s - timed[0].cpu_s) / (len(timed) - 1), 3),
        round(max(seconds), 3),
        round(first.ended_s - began, 2),
        {role: round(peak / _MIB) for role, peak in usage.peak.items()},
        round(read_size() / _MIB, 1),
    )


def measure_store(root: Path, store: str, keys: int) -> LargeState:
    """Start the service of the store, and measure one number of keys."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{store}-{keys}-", dir=root)))
        if store == "postgres":
            from slackwater.testing.services import Postgres

            server = stack.enter_context(Postgres.started())
            return measure_large_state(home, store, keys, {"url": server.url}, lambda: _postgres_bytes(server.url))
        if store == "bucket":
            from tests.support.servers.object_store import S3Server

            s3 = stack.enter_context(S3Server.started())
            os.environ |= {f"AWS_{name.upper()}": value for name, value in s3.connection_options().items()}
            os.environ["SLACKWATER_CACHE_DIR"] = str(home / "cache")
            path = s3.create_bucket("large")
            return measure_large_state(home, store, keys, {"path": path}, lambda: directory_bytes(home / "cache"))
        path = str(home / "state")
        return measure_large_state(home, store, keys, {"path": path}, lambda: directory_bytes(home / "state"))


def _postgres_bytes(url: str) -> int:
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(row[0]) if row else 0


def format_report(measurement: Mapping[str, Any]) -> Iterator[str]:
    about, results = measurement["machine"], [LargeState(**result) for result in measurement["results"]]
    yield f"{about['cores']} cores, load {about['load_before']:.1f} before and {about['load_after']:.1f} after"
    yield "| state | keys | loaded keys/s | epoch, s | epoch, CPU s | slowest, s | restart, s | memory, MiB (JVM, driver, workers) | state, MiB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in results:
        memory = r.memory_mib
        parts = f"{memory['driver_jvm']:,.0f}, {memory['driver_python']:,.0f}, {memory['python_workers']:,.0f}"
        yield (
            f"| {r.store} | {r.keys:,} | {r.load_keys_per_s:,.0f} | {r.epoch_s:.2f} | {r.epoch_cpu_s:.2f} | {r.slowest_epoch_s:.2f} "
            f"| {r.restart_s:.1f} | {memory['total']:,.0f} ({parts}) | {r.state_mib:,.0f} |"
        )
    for store in dict.fromkeys(r.store for r in results):
        epoch_s = {r.keys: r.epoch_s for r in results if r.store == store}
        if 1_000_000 in epoch_s and max(epoch_s) > 1_000_000:
            ratio = epoch_s[max(epoch_s)] / epoch_s[1_000_000]
            verdict = "met" if ratio <= GOAL else "MISSED"
            yield f"{store}: {max(epoch_s):,} keys take {ratio:.2f} times as long as 1,000,000 (goal {GOAL}: {verdict})"


def draw_large_state(results: Sequence[LargeState]) -> str:
    """Return an SVG: a panel per figure and a line per store, over the number of keys."""
    most = max(r.keys for r in results)
    panels = []
    figures: tuple[tuple[str, Callable[[LargeState], float]], ...] = (
        ("Seconds per epoch with 100,000 touched keys", lambda r: r.epoch_s),
        ("Seconds from a start after a kill to its first commit", lambda r: r.restart_s),
        ("Peak memory, MiB", lambda r: r.memory_mib["total"]),
        ("State, MiB", lambda r: r.state_mib),
    )
    for name, figure in figures:
        lines = [
            (store, [(float(r.keys), float(figure(r))) for r in results if r.store == store])
            for store in dict.fromkeys(r.store for r in results)
        ]
        ticks = [(most * part / 5, f"{most * part / 5 / 1e6:g} M keys") for part in range(6)]
        number = "{:,.0f}".format if "MiB" in name else "{:.2f}".format
        panels.append(line_charts.LineChart(name, lines, ticks, most, number=number))
    return line_charts.draw_line_charts(
        "Epochs, restarts, memory and bytes by the number of keys", panels, line_charts.ChartLayout(150, 60, 170)
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_state", description=__doc__)
    parser.add_argument("--keys", type=lambda text: [int(float(n)) for n in text.split(",")], default=list(KEYS))
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(STORES))
    parser.add_argument("--directory", type=Path, help="for the files, instead of the temporary directory")
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    parser.add_argument("--json", type=Path, help="add all figures to this file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        home, store, settings = options.child
        run_child_pipeline(Path(home), store, json.loads(settings))
        return 0
    exit_on_sigterm()
    about, results = describe_machine(), list[LargeState]()
    with tempfile.TemporaryDirectory(prefix="slackwater-large-", dir=options.directory) as root:
        for store in options.stores:
            for keys in options.keys:
                results.append(measure_store(Path(root), store, keys))
                print(results[-1], file=sys.stderr, flush=True)
    about["load_after"] = os.getloadavg()[0]
    measurement = {"machine": about, "results": [result._asdict() for result in results]}
    print("\n".join(format_report(measurement)))
    if options.json:
        options.json.write_text(json.dumps(measurement) + "\n")
    if options.svg:
        options.svg.write_text(draw_large_state(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
