"""`python -m benchmarks.long_run`: tiny epochs in a row: whether time, memory, files and connections stay what they are.

A pipeline in a process of its own reads one file of two thousand rows per epoch, as fast as it can. Files come a few epochs before
they are read and go some time after, as under a retention; results stay. From time to time all its processes are looked at.
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

from benchmarks.cases import FEW, Stream, Window
from benchmarks.data import SCHEMA, frames
from benchmarks.figures import machine
from benchmarks.long_run_plot import drawn
from benchmarks.worker_process import clean_up_when_ended, ended, environment

ROWS, AHEAD, KEPT, LOOKS = 2_000, 10, 200, 200
_MIB = 1024**2
_POOL = 50  # different epochs; then the same again, later
_WARM = 0.1  # of the epochs: compilers are at work


class Look(NamedTuple):
    """The processes of a pipeline after `epoch` epochs; `seconds` and `cpu_s` are per epoch since the look before."""

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


FLAT = ("seconds", "cpu_s", "jvm_mib", "python_mib", "state_files", "state_mib", "open_files", "connections", "threads")


def child(home: Path, postgres: str | None) -> None:
    """The pipeline itself; prints the number of each epoch."""
    import slackwater as sw
    from benchmarks.systems import window_spec

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
            max_files_per_trigger=1,
        ),
        window=window_spec(Window("session", 10)),
        target=lake,
        target_path=str(home / "out"),
        target_format="parquet",
        state_store=store,
        spark_settings={"spark.master": "local[2]", "spark.driver.memory": "2g"},
        on_status=lambda status: print(status.epoch, flush=True) if status.rows else None,
    )


class Feed:
    """Files for the epochs to come, a few ahead; those of long ago are taken away."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._next, self._gone = directory, 0, 0
        stream = Stream(FEW, ROWS, step_s=1, epochs=_POOL)
        self._pool = list(frames(stream))
        self._seconds = stream.epochs * stream.step_s
        directory.mkdir(parents=True)

    def reach(self, epoch: int) -> None:
        """So many epochs have been read."""
        import polars as pl

        while self._next < epoch + AHEAD:
            later = pl.duration(seconds=self._next // _POOL * self._seconds)
            frame = self._pool[self._next % _POOL].with_columns(pl.col("ts") + later)
            written = self._directory / f".{self._next}"
            frame.write_parquet(written)
            written.rename(self._file(self._next))
            self._next += 1
        while self._gone < epoch - KEPT:
            self._file(self._gone).unlink()
            self._gone += 1

    def _file(self, epoch: int) -> Path:
        return self._directory / f"{epoch:08d}.parquet"


def watched(home: Path, epochs: int, postgres: str | None) -> Iterator[Look]:
    """Run the pipeline for so many epochs and look at it now and then. Raises RuntimeError if it ends before."""
    feed, every = Feed(home / "in"), max(epochs // LOOKS, 5)
    feed.reach(0)
    command = [sys.executable, "-m", "benchmarks.long_run", "--child", str(home)]
    command += ["--postgres", postgres] if postgres else []
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()) as process,
    ):
        root, spent = psutil.Process(process.pid), dict[int, float]()
        try:
            assert process.stdout is not None
            before, looked_at_s, cpu = 0, time.monotonic(), 0.0
            for done, _ in enumerate(process.stdout, start=1):
                feed.reach(done)
                if done - before >= every or done == epochs:
                    now, used = time.monotonic(), _spent(root, spent)
                    each = done - before
                    yield _look(root, home, done, (now - looked_at_s) / each, (used - cpu) / each)
                    before, looked_at_s, cpu = done, now, used
                if done >= epochs:
                    return
            raise RuntimeError(f"the pipeline ended: {(home / 'log').read_text(errors='replace')[-2000:]}")
        finally:
            ended(root)


def _spent(root: psutil.Process, spent: dict[int, float]) -> float:
    """Processor seconds of all processes up to now, also of those that have ended since a look."""
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            spent[process.pid] = sum(process.cpu_times()[:2])
    return sum(spent.values())


def _look(root: psutil.Process, home: Path, epoch: int, seconds: float, cpu: float) -> Look:
    jvm = python = files = connections = threads = 0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            resident = process.memory_info().rss
            jvm, python = (jvm + resident, python) if process.name() == "java" else (jvm, python + resident)
            files += process.num_fds()
            threads += process.num_threads()
            connections += len(process.net_connections("inet"))
    sizes = list(_sizes(home / "state"))
    return Look(
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
    )


def _sizes(directory: Path) -> Iterator[int]:
    """Yield the sizes of the files below a directory, in bytes. Some files vanish in the meantime."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                yield (Path(folder) / name).stat().st_size


def growth(looks: Sequence[Look]) -> Mapping[str, tuple[float, float, float]]:
    """Per figure: its median in the first and in the last quarter of the warm looks, and the last over the first."""
    last = looks[-1].epoch
    warm = [look for look in looks if look.epoch > _WARM * last] or list(looks)
    part = max(len(warm) // 4, 1)
    growth_by_name = {}
    for name in FLAT:
        first, final = (median(getattr(look, name) for look in some) for some in (warm[:part], warm[-part:]))
        growth_by_name[name] = (first, final, final / first if first else float(final > 0) + 1.0)
    return growth_by_name


def lines(measurement: Mapping[str, Any]) -> Iterator[str]:
    about, looks = measurement["machine"], [Look(**look) for look in measurement["looks"]]
    yield (
        f"{looks[-1].epoch:,} epochs of {ROWS:,} rows, state in {measurement['state']}, {about['cores']} cores, load {about['load_before']:.1f} before "
        f"and {about['load_after']:.1f} after"
    )
    yield f"{'':<16}{'first quarter':>14}{'last quarter':>14}{'times':>8}"
    for name, (first, final, times) in growth(looks).items():
        yield f"{name:<16}{first:>14,.3f}{final:>14,.3f}{times:>8.2f}"
    slowest = max(b.seconds for _, b in pairwise(looks)) if len(looks) > 1 else looks[0].seconds
    yield f"slowest stretch of epochs: {slowest:.3f} s each"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--epochs", type=int, default=20_000)
    parser.add_argument("--state", choices=["files", "postgres"], default="files")
    parser.add_argument("--svg", type=Path, help="draw the plot there")
    parser.add_argument("--json", type=Path, help="write all figures there; with --draw read them from there")
    parser.add_argument("--draw", action="store_true", help="no run: the plot of figures that are there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--postgres", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.postgres)
        return 0
    clean_up_when_ended()
    if options.draw:
        measurement = json.loads(options.json.read_text())
    else:
        measurement = _run(options.epochs, options.state)
        if options.json:
            options.json.write_text(json.dumps(measurement) + "\n")
    print("\n".join(lines(measurement)))
    if options.svg:
        options.svg.write_text(drawn([look["epoch"] for look in measurement["looks"]], measurement["looks"]))
    return 0


def _run(epochs: int, state: str) -> dict[str, Any]:
    from slackwater.testing.services import Postgres

    about, looks = machine(), list[Look]()
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-flat-") as home,
        Postgres.started() if state == "postgres" else nullcontext() as server,
    ):
        for look in watched(Path(home), epochs, server.url if server else None):
            looks.append(look)
            print(f"{look.epoch:,} epochs: {look.seconds:.3f} s, {look.cpu_s:.3f} s of CPU each", file=sys.stderr)
    about["load_after"] = os.getloadavg()[0]
    return {"machine": about, "state": state, "looks": [look._asdict() for look in looks]}


if __name__ == "__main__":
    sys.exit(main())
