"""Start a worker, sample the memory and CPU time of its process tree, and record when the first result row appears."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import join_queries
from benchmarks.benchmark_cases import NATIVE, Join, Window
from benchmarks.event_files import FILES_PER_EPOCH, SIDES
from benchmarks.kafka_topics import EventTopic
from slackwater.spark.tuning import worker_memory

_SAMPLE_S = 0.25
_SHARES_S = 2.0  # reading the share of each page stops the measured processes for tens of milliseconds
_TAIL = 3000
_PATIENCE_S = 30
ROLES = ("driver_jvm", "driver_python", "python_workers", "total")


class WorkerFailed(Exception):  # noqa: N818 - says what happened
    """Error of a worker. The message contains the end of its output."""


@dataclass
class ProcessTreeUsage:
    """Peak proportional set size in bytes by role: shared pages are divided among the processes that share them.

    A sample reads the resident memory of each process. Only when the total reaches a new maximum, and at most every
    `_SHARES_S` seconds, it also reads the proportional set sizes. `spent` has the samples: (wall-clock time, CPU seconds of
    all processes so far).
    """

    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    spent: list[tuple[float, float]] = field(default_factory=list)
    _cpu_by_pid: dict[int, float] = field(default_factory=dict)  # includes processes that have ended
    _most_resident: int = 0
    _read_at: float = -_SHARES_S

    def take_sample(self, root: psutil.Process) -> None:
        try:
            processes = [root, *root.children(recursive=True)]
            for process in processes:
                self._cpu_by_pid[process.pid] = sum(process.cpu_times()[:2])
            resident = sum(process.memory_info().rss for process in processes)
            now = time.monotonic()
            if resident > self._most_resident and now - self._read_at >= _SHARES_S:
                self._read_memory_shares(processes)
                self._most_resident, self._read_at = resident, now
        except psutil.Error:  # a process has just ended
            return
        self.spent.append((time.time(), sum(self._cpu_by_pid.values())))

    def _read_memory_shares(self, processes: list[psutil.Process]) -> None:
        now = dict.fromkeys(ROLES, 0)
        for process in processes:
            name, share = process.name(), read_proportional_memory_bytes(process)
            if process is processes[0]:
                now["driver_python"] = share
            elif name == "java":  # a process that Java forks briefly shares its memory, so count only one
                now["driver_jvm"] = max(now["driver_jvm"], share)
            elif name.startswith("python"):
                now["python_workers"] += share
        now["total"] = sum(now.values())
        self.peak = {role: max(peak, now[role]) for role, peak in self.peak.items()}


def read_proportional_memory_bytes(process: psutil.Process) -> int:
    """Return the memory of a process: its share of each resident page, where the system reports it."""
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.rss))


def run_worker(
    system: str, query: Window | Join, data: Path | EventTopic, work: Path, driver_memory: str
) -> dict[str, Any]:
    """Run a worker. Return its result with `epochs`, `memory`, `first_row_s`, `wall_s` and a summary of its `output`.

    `driver_memory`: the heap of native systems. Raise WorkerFailed if the worker fails.
    """
    work.mkdir(parents=True)
    job = {"system": system, type(query).__name__.lower(): asdict(query), "work": str(work)}
    job |= {"data": str(data)} if isinstance(data, Path) else {"topic": asdict(data)}
    job_file, log = work / "job.json", work / "log.txt"
    job_file.write_text(json.dumps(job | {"driver_memory": driver_memory}))
    usage, first_row, started = ProcessTreeUsage(), None, time.monotonic()
    with log.open("wb") as output:
        command = [sys.executable, "-m", "benchmarks.job_runner", str(job_file)]
        with subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=build_worker_environment()
        ) as process:
            root = psutil.Process(process.pid)
            try:
                while process.poll() is None:
                    usage.take_sample(root)
                    if first_row is None and _has_result_rows(work / "out"):
                        first_row = time.monotonic() - started
                    time.sleep(_SAMPLE_S)
            finally:
                kill_process_tree(root)
    if process.returncode:
        log_tail = log.read_text(errors="replace")[-_TAIL:]
        raise WorkerFailed(f"{system} ended with {process.returncode}:\n{log_tail}")
    wall = time.monotonic() - started
    result = json.loads((work / "result.json").read_text())
    result |= {"system": system, "memory": usage.peak, "first_row_s": first_row, "wall_s": wall}
    summary = _summarize_windows if isinstance(query, Window) else join_queries.summarize_joined_rows
    return result | {
        "epochs": _epochs_with_cpu(result["batches"], data, usage),
        "output": result.get("output") or summary(work / "out"),
        "state_on_disk": directory_bytes(work / ("checkpoint/state" if system in NATIVE else "state")),
    }


def directory_bytes(directory: Path) -> int:
    """Return the total size of the files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _epochs_with_cpu(
    batches: list[dict[str, Any]], data: Path | EventTopic, usage: ProcessTreeUsage
) -> list[dict[str, Any]]:
    """Return the batches with rows, one per FILES_PER_EPOCH files. Native operators add an empty batch at the end."""
    if isinstance(data, EventTopic):
        expected, batches = data.epochs, [batch for batch in batches if data.is_whole_epoch(batch["rows"])]
    else:
        side = data / SIDES[0]
        expected = len(list((side if side.exists() else data).glob("*.parquet"))) // FILES_PER_EPOCH
    if not expected <= len(batches) <= expected + 1:
        raise WorkerFailed(f"expected {expected} batches, found {len(batches)}")
    clock, spent = np.array(usage.spent).T
    for batch in batches:
        begin, end = np.interp([batch["began"], batch["began"] + batch["seconds"]], clock, spent)
        batch["cpu_s"] = float(end - begin)
    return batches[:expected]


def build_worker_environment() -> dict[str, str]:
    """Return the environment that `slackwater run` sets: workers use this Python, and one Polars thread each."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "POLARS_MAX_THREADS": "1"} | worker_memory.environment()


def exit_on_sigterm() -> None:
    """Exit on SIGTERM like on an interruption, so that child processes are ended too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def read_lines_or_none(lines: IO[str], wait_s: float) -> Iterator[str | None]:
    """Yield each line, and None whenever no line arrives within `wait_s` seconds."""
    arrived: SimpleQueue[str] = SimpleQueue()

    def read_all() -> None:
        for line in lines:
            arrived.put(line)
        arrived.put("")

    threading.Thread(target=read_all, daemon=True).start()
    while True:
        try:
            line = arrived.get(timeout=wait_s)
        except Empty:
            yield None
        else:
            if not line:
                return
            yield line


def kill_process_tree(root: psutil.Process) -> None:
    """End a process and its descendants, if they are still running."""
    if not root.is_running() or root.status() == psutil.STATUS_ZOMBIE:
        return
    processes = [*root.children(recursive=True), root]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, _PATIENCE_S)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _has_result_rows(out: Path) -> bool:
    return any(_file_row_count(path) for path in out.glob("*.parquet"))


def _file_row_count(path: Path) -> int:
    """Return the number of rows of a file, or 0 while it is being written."""
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowInvalid, OSError):
        return 0


def _summarize_windows(out: Path) -> dict[str, int]:
    """Return the number of result rows, and of the input rows that they aggregate."""
    tables = [pq.read_table(path, columns=["n"], partitioning=None) for path in sorted(out.glob("*.parquet"))]
    return {"rows": sum(len(t) for t in tables), "counted": sum(pc.sum(t["n"]).as_py() or 0 for t in tables)}
