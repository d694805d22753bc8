"""`python -m benchmarks.long_run`: run a pipeline for long, and show whether time, memory, files or connections grow.

With `--epochs`, a pipeline in a separate process reads one file of two thousand rows per epoch, as fast as it can. Files are written
a few epochs before they are read. With `--minutes`, a file of 200,000 rows arrives every second, and an epoch starts every five seconds.
Files are removed some time after they are read, as under a retention. Results are kept. All processes are sampled from time to time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.benchmark_cases import FEW, MANY, EventStream, Window
from benchmarks.event_files import SCHEMA, generate_epoch_frames
from benchmarks.long_run_plot import draw_long_run
from benchmarks.run_statistics import describe_machine
from benchmarks.worker_process import build_worker_environment, exit_on_sigterm, kill_process_tree, read_lines_or_none

AHEAD, KEPT, LOOKS = 10, 200, 200
_MIB = 1024**2
_WARM = 0.1  # share of the epochs that warm up the compilers and do not count
_EPOCH_S = 5  # seconds between the epochs of a run with a rate
_WAIT_S = 0.05


class Load(NamedTuple):
    """The rows that a pipeline reads, and the gap of its sessions.

    Each epoch of `stream` is a file. The files are repeated with later times. If `paced`, a file arrives every `step_s` seconds.
    """

    stream: EventStream
    gap_s: int
    paced: bool


TINY = Load(EventStream(FEW, 2_000, step_s=1, epochs=50), gap_s=10, paced=False)
PACED = Load(EventStream(MANY, 200_000, step_s=1, epochs=30), gap_s=3, paced=True)


class ResourceSample(NamedTuple):
    """Resources of a pipeline's processes after `epoch` epochs. `seconds` and `cpu_s` are per epoch since the previous sample.

    `unread_files` is the number of input files that wait for an epoch.
    """

    epoch: int
    seconds: float
    cpu_s: float
    jvm_mib: float
    python_mib: float
    state_files: int
    state_mib: float
    open_files: int
    connections: int
    threads: int
    unread_files: int = 0


FLAT = (
    "seconds",
    "cpu_s",
    "jvm_mib",
    "python_mib",
    "state_files",
    "state_mib",
    "open_files",
    "connections",
    "threads",
    "unread_files",
)


def run_child_pipeline(home: Path, load: Load, postgres: str | None) -> None:
    """Run the pipeline, and print the number of files of each epoch."""
    import slackwater as sw
    from benchmarks.window_queries import build_slackwater_window

    lake = sw.FilesConnection()
    store = (
        sw.StateStore(kind="postgres", url=postgres)
        if postgres
        else sw.StateStore(kind="files", path=str(home / "state"))
    )
    sw.run_streaming_pipeline(
        name="flat",
        source=sw.Source(
            name="events",
            connection=lake,
            query=f"{home}/in/*.parquet",
            format="parquet",
            schema=SCHEMA,
            max_files_per_trigger=None if load.paced else 1,
        ),
        window=build_slackwater_window(Window("session", load.gap_s)),
        target=lake,
        target_path=str(home / "out"),
        target_format="parquet",
        state_store=store,
        trigger_interval=f"{_EPOCH_S}s" if load.paced else None,
        spark_settings={"spark.master": "local[2]", "spark.driver.memory": "2g"},
        on_status=lambda status: print(status.rows // load.stream.rows, flush=True) if status.rows else None,
    )


class InputWriter:
    """Writer of the input files. It stays a few files ahead of the pipeline or follows the clock, and removes old files."""

    def __init__(self, directory: Path, load: Load) -> None:
        self._directory, self._load, self._next, self._gone = directory, load, 0, 0
        self._began = time.monotonic()
        self._pool = list(generate_epoch_frames(load.stream))
        directory.mkdir(parents=True)

    def write_and_remove_files(self, read: int) -> int:
        """Write and remove files after the pipeline has read this many. Return the number of files that it has not read."""
        import polars as pl

        stream = self._load.stream
        elapsed = (time.monotonic() - self._began) / stream.step_s
        while self._next < (elapsed if self._load.paced else read + AHEAD):
            later = pl.duration(seconds=self._next // stream.epochs * stream.epochs * stream.step_s)
            frame = self._pool[self._next % stream.epochs].with_columns(pl.col("ts") + later)
            written = self._directory / f".{self._next}"
            frame.write_parquet(written)
            written.rename(self._path_of_file(self._next))
            self._next += 1
        while self._gone < read - KEPT:
            self._path_of_file(self._gone).unlink()
            self._gone += 1
        return self._next - read

    def _path_of_file(self, number: int) -> Path:
        return self._directory / f"{number:08d}.parquet"


def run_and_sample_pipeline(home: Path, load: Load, epochs: int, postgres: str | None) -> Iterator[ResourceSample]:
    """Run the pipeline for this many epochs and yield samples. Raise RuntimeError if it ends earlier."""
    feed, every = InputWriter(home / "in", load), max(epochs // LOOKS, 5)
    feed.write_and_remove_files(0)
    command = [sys.executable, "-m", "benchmarks.long_run", "--child", str(home)]
    command += ["--paced"] if load.paced else []
    command += ["--postgres", postgres] if postgres else []
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=build_worker_environment()
        ) as process,
    ):
        root, spent = psutil.Process(process.pid), dict[int, float]()
        try:
            assert process.stdout is not None
            done, read, before, sampled_s, cpu = 0, 0, 0, time.monotonic(), 0.0
            for line in read_lines_or_none(process.stdout, _WAIT_S):
                unread = feed.write_and_remove_files(read)
                if line is None:
                    continue
                done, read = done + 1, read + int(line)
                if done - before >= every or done == epochs:
                    now, used = time.monotonic(), _cpu_seconds(root, spent)
                    each = done - before
                    yield _take_sample(root, home, done, (now - sampled_s) / each, (used - cpu) / each, unread)
                    before, sampled_s, cpu = done, now, used
                if done >= epochs:
                    return
            raise RuntimeError(f"the pipeline ended: {(home / 'log').read_text(errors='replace')[-2000:]}")
        finally:
            kill_process_tree(root)


def _cpu_seconds(root: psutil.Process, spent: dict[int, float]) -> float:
    """Return the CPU seconds of all processes so far, including processes that have ended since an earlier sample."""
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            spent[process.pid] = sum(process.cpu_times()[:2])
    return sum(spent.values())


def _take_sample(
    root: psutil.Process, home: Path, epoch: int, seconds: float, cpu: float, unread: int
) -> ResourceSample:
    jvm = python = files = connections = threads = 0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            resident = process.memory_info().rss
            jvm, python = (jvm + resident, python) if process.name() == "java" else (jvm, python + resident)
            files += process.num_fds()
            threads += process.num_threads()
            connections += len(process.net_connections("inet"))
    sizes = list(_file_sizes(home / "state"))
    return ResourceSample(
        epoch,
        round(seconds, 4),
        round(cpu, 4),
        round(jvm / _MIB, 1),
        round(python / _MIB, 1),
        len(sizes),
        round(sum(sizes) / _MIB, 2),
        files,
        connections,
        threads,
        unread,
    )


def _file_sizes(directory: Path) -> Iterator[int]:
    """Yield the sizes of the files below a directory, in bytes. Skip files that are removed meanwhile."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                yield (Path(folder) / name).stat().st_size


def compute_growth_by_figure(samples: Sequence[ResourceSample]) -> Mapping[str, tuple[float, float, float]]:
    """Return, for each figure, its median in the first and the last quarter of the warm samples, and the ratio last / first."""
    last = samples[-1].epoch
    warm = [sample for sample in samples if sample.epoch > _WARM * last] or list(samples)
    part = max(len(warm) // 4, 1)
    growth_by_name = {}
    for name in FLAT:
        first, final = (median(getattr(sample, name) for sample in some) for some in (warm[:part], warm[-part:]))
        growth_by_name[name] = (first, final, final / first if first else float(final > 0) + 1.0)
    return growth_by_name


def format_report(measurement: Mapping[str, Any]) -> Iterator[str]:
    about, samples = measurement["machine"], [ResourceSample(**sample) for sample in measurement["looks"]]
    yield (
        f"{samples[-1].epoch:,} epochs, {measurement['rows']}, state in {measurement['state']}, {about['cores']} cores, load {about['load_before']:.1f} before "
        f"and {about['load_after']:.1f} after"
    )
    yield f"{'':<16}{'first quarter':>14}{'last quarter':>14}{'times':>8}"
    for name, (first, final, times) in compute_growth_by_figure(samples).items():
        yield f"{name:<16}{first:>14,.3f}{final:>14,.3f}{times:>8.2f}"
    slowest = max(b.seconds for _, b in pairwise(samples)) if len(samples) > 1 else samples[0].seconds
    yield f"slowest epochs between two samples: {slowest:.3f} s each"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--epochs", type=int, default=20_000, help="tiny epochs, as fast as possible")
    amount.add_argument("--minutes", type=int, help="minutes with 200,000 rows per second")
    parser.add_argument("--state", choices=["files", "postgres"], default="files")
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    parser.add_argument("--json", type=Path, help="write all figures to this file; with --draw, read them from it")
    parser.add_argument("--draw", action="store_true", help="only draw the plot of the figures in --json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--postgres", help=argparse.SUPPRESS)
    parser.add_argument("--paced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child_pipeline(options.child, PACED if options.paced else TINY, options.postgres)
        return 0
    exit_on_sigterm()
    if options.draw:
        measurement = json.loads(options.json.read_text())
    else:
        load, epochs = (PACED, options.minutes * 60 // _EPOCH_S) if options.minutes else (TINY, options.epochs)
        measurement = _run_measurement(load, epochs, options.state)
        if options.json:
            options.json.write_text(json.dumps(measurement) + "\n")
    print("\n".join(format_report(measurement)))
    if options.svg:
        options.svg.write_text(
            draw_long_run([sample["epoch"] for sample in measurement["looks"]], measurement["looks"])
        )
    return 0


def _run_measurement(load: Load, epochs: int, state: str) -> dict[str, Any]:
    from slackwater.testing.services import Postgres

    about, samples = describe_machine(), list[ResourceSample]()
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-flat-") as home,
        Postgres.started() if state == "postgres" else nullcontext() as server,
    ):
        for sample in run_and_sample_pipeline(Path(home), load, epochs, server.url if server else None):
            samples.append(sample)
            print(f"{sample.epoch:,} epochs: {sample.seconds:.3f} s, {sample.cpu_s:.3f} s of CPU each", file=sys.stderr)
    about["load_after"] = os.getloadavg()[0]
    rows = f"{load.stream.rows:,} rows per {'second' if load.paced else 'epoch'}"
    return {"machine": about, "state": state, "rows": rows, "looks": [sample._asdict() for sample in samples]}


if __name__ == "__main__":
    sys.exit(main())
