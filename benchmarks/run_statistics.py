"""Compute figures from runs."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from benchmarks.benchmark_cases import FLOOR, NATIVE, ROCKSDB, SLACKWATER, WARM_UP, BenchmarkCase, EventStream
from benchmarks.worker_process import ROLES


def describe_machine() -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("slackwater", "pyspark", "polars", "pyarrow")},
    }


def _processor_name() -> str:
    """Return the name of the processor, if the system provides it."""
    about = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", about.read_text(), re.MULTILINE) if about.exists() else []
    return names[0] if names else platform.machine()


def drop_single_runs(value: Any) -> Any:
    """Return a report without its individual runs, as it is kept for a release."""
    if isinstance(value, dict):
        return {name: drop_single_runs(inner) for name, inner in value.items() if name != "runs"}
    return [drop_single_runs(inner) for inner in value] if isinstance(value, list) else value


def summarize_runs(runs: list[dict[str, Any]], skip: int) -> dict[str, Any]:
    """Summarize the runs of one system: the epochs after the first `skip` of each run, and the peaks over all runs."""
    epochs = [epoch["seconds"] for run in runs for epoch in run["epochs"][skip:]]
    statuses = [status for run in runs for status in run["statuses"][skip:]]
    return {
        "median_s": median(epochs),
        "mean_s": mean(epochs),
        "fastest_s": min(epochs),
        "cpu_s": median(epoch["cpu_s"] for run in runs for epoch in run["epochs"][skip:]),
        "epochs_s": epochs,
        "phases_s": compute_median_phase_durations(statuses),
        "memory": {role: max(run["memory"][role] for run in runs) for role in ROLES},
        "state": _largest_state(runs),
        "output": runs[0]["output"],
        "runs": runs,
    }


def _largest_state(runs: list[dict[str, Any]]) -> dict[str, int]:
    """Return the largest state: its rows (keys, for windows), the bytes that the system reports, and the files at the end.

    Spark reports bytes in memory, and Slackwater bytes in files.
    """
    sizes = [(e["state_rows"], e["state_bytes"]) for run in runs for e in run["epochs"] if "state_rows" in e]
    for status in (status for run in runs for status in run["statuses"]):
        buffered = sum(side["rows"] for side in status["buffered"].values())
        sizes.append((buffered or status["groups"], status["state_bytes"]))
    return {
        "rows": max((rows for rows, _ in sizes), default=0),
        "bytes": max((size for _, size in sizes), default=0),
        "files": max(run["state_on_disk"] for run in runs),
    }


def compute_median_phase_durations(statuses: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median duration of each phase of Slackwater's epochs. The result is empty for native operators."""
    names = dict.fromkeys(name for status in statuses for name in status["phases"])
    return {name: median(status["phases"].get(name, 0.0) for status in statuses) for name in names}


def compute_late_policy_costs(runs: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Return the costs of a policy for late rows over all epochs: throughput, largest state, late rows, emitted rows."""
    return {
        "rows_per_s": rows / median([epoch["seconds"] for run in runs for epoch in run["epochs"][WARM_UP:]]),
        "state_bytes": max(status["state_bytes"] for run in runs for status in run["statuses"]),
        "late": runs[0]["late"],
        "emitted": sum(status["emitted"] for status in runs[0]["statuses"]),
    }


def compare_kafka_systems(
    runs: dict[str, list[dict[str, Any]]], summaries: dict[str, dict[str, Any]], stream: EventStream
) -> dict[str, Any]:
    """Compare Slackwater's epochs with the native operator and the floor, and the rows per second of whole processes."""
    ours, native = summaries[SLACKWATER], summaries[ROCKSDB]
    rows = stream.rows * stream.epochs
    return {
        "rows_per_epoch": stream.rows,
        "ratio": native["median_s"] / ours["median_s"],
        "ratio_of_cpu": native["cpu_s"] / ours["cpu_s"],
        "times_floor": ours["median_s"] / summaries[FLOOR]["median_s"],
        "rows_per_s": {
            system: rows / median(run["wall_s"] for run in system_runs) for system, system_runs in runs.items()
        },
        "same_output": all(run["output"] == ours["output"] for s in (SLACKWATER, ROCKSDB) for run in runs[s]),
    }


def _goal_met(goal: float | None, met: bool) -> bool | None:
    return None if goal is None else met


def compare_systems(case: BenchmarkCase, systems: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours = systems[SLACKWATER]
    ratio, of_means, of_fastest, of_cpu = (
        min(systems[s][figure] for s in NATIVE) / ours[figure]
        for figure in ("median_s", "mean_s", "fastest_s", "cpu_s")
    )
    floor = systems[FLOOR]
    times_floor = {figure: ours[figure] / floor[figure] for figure in ("median_s", "mean_s", "fastest_s", "cpu_s")}
    return {
        "name": case.name,
        "rows_per_epoch": case.rows,
        "goal": case.goal,
        "ratio": ratio,
        "ratio_of_means": of_means,
        "ratio_of_fastest": of_fastest,
        "ratio_of_cpu": of_cpu,
        "met": _goal_met(case.goal, case.goal is not None and ratio >= case.goal),
        "times_memory": ours["memory"]["total"] / min(systems[s]["memory"]["total"] for s in NATIVE),
        "times_floor": times_floor,
        "floor_goal": case.floor,
        "floor_met": _goal_met(case.floor, case.floor is not None and times_floor["median_s"] <= case.floor),
        "seconds_goal": case.seconds,
        "same_output": all(
            run["output"] == ours["output"] for s in (*NATIVE, SLACKWATER) for run in systems[s]["runs"]
        ),
        "systems": systems,
    }
