"""From runs to figures, and from figures to lines."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from statistics import mean, median
from typing import Any

import psutil

from benchmarks.cases import IDLE_GOAL, NATIVE, SLACKWATER, Case

_MB = 1024**2
_ROLES = ("driver_jvm", "driver_python", "python_workers", "total")


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("slackwater", "pyspark", "polars", "pyarrow")},
    }


def summarised(runs: list[dict[str, Any]], skip: int) -> dict[str, Any]:
    """One system's runs as one: epochs after the first `skip` of each run, peaks over all."""
    epochs = [epoch["seconds"] for run in runs for epoch in run["epochs"][skip:]]
    statuses = [status for run in runs for status in run["statuses"][skip:]]
    return {
        "median_s": median(epochs),
        "mean_s": mean(epochs),
        "epochs_s": epochs,
        "phases_s": median_phases(statuses),
        "memory": {role: max(run["memory"][role] for run in runs) for role in _ROLES},
        "output": runs[0]["output"],
        "runs": runs,
    }


def median_phases(statuses: list[dict[str, Any]]) -> dict[str, float]:
    """Slackwater's own account of its epochs, phase by phase; empty for the native operators."""
    names = dict.fromkeys(name for status in statuses for name in status["phases"])
    return {name: median(status["phases"].get(name, 0.0) for status in statuses) for name in names}


def compared(case: Case, systems: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours = systems[SLACKWATER]
    ratio = min(systems[s]["median_s"] for s in NATIVE) / ours["median_s"]
    return {
        "name": case.name,
        "rows_per_epoch": case.stream.rows,
        "goal": case.goal,
        "ratio": ratio,
        "ratio_of_means": min(systems[s]["mean_s"] for s in NATIVE) / ours["mean_s"],
        "met": ratio >= case.goal,
        "same_output": all(run["output"] == ours["output"] for s in systems.values() for run in s["runs"]),
        "systems": systems,
    }


def print_report(report: dict[str, Any]) -> None:
    about = report["machine"]
    print(f"\n{about['cores']} cores, {about['memory_gib']} GiB, load {about['load_before']:.1f} at the start, ", end="")
    print(", ".join(f"{name} {number}" for name, number in about["versions"].items()))
    if not report["cases"]:
        return
    print("\nSeconds per epoch, median after warm-up; ratios to the faster native store")
    print(f"{'case':<21}{'HDFS':>8}{'RocksDB':>9}{'Slackw.':>9}{'rows/s':>11}{'ratio':>8}{'(mean)':>8}{'goal':>7}")
    for case in report["cases"]:
        hdfs, rocksdb, ours = (case["systems"][s]["median_s"] for s in (*NATIVE, SLACKWATER))
        print(
            f"{case['name']:<21}{hdfs:>8.2f}{rocksdb:>9.2f}{ours:>9.2f}{case['rows_per_epoch'] / ours:>11,.0f}"
            f"{case['ratio']:>8.2f}{case['ratio_of_means']:>8.2f}{case['goal']:>7.1f}  {_verdict(case['met'])}"
        )
    print("\nWhere Slackwater's epoch goes, median seconds")
    for case in report["cases"]:
        print(f"{case['name']:<21}{phases_line(case['systems'][SLACKWATER])}")
    print(f"\n{'Peak memory, MiB':<37}{'JVM':>8}{'driver':>8}{'workers':>9}{'total':>8}{'output rows':>14}{'of input':>12}")
    for case in report["cases"]:
        for system, found in case["systems"].items():
            sizes = [found["memory"][role] // _MB for role in _ROLES]
            out = found["output"]
            print(f"{case['name']:<21}{system:<16}", end="")
            print(f"{sizes[0]:>8,}{sizes[1]:>8,}{sizes[2]:>9,}{sizes[3]:>8,}{out['rows']:>14,}{out['counted']:>12,}")
        print(f"{'':<21}{'outputs agree' if case['same_output'] else 'OUTPUTS DIFFER'}")


def phases_line(found: dict[str, Any]) -> str:
    """The phases and what Spark spends around them."""
    rest = found["median_s"] - sum(found["phases_s"].values())
    return "  ".join(f"{name} {seconds:.2f}" for name, seconds in (found["phases_s"] | {"around": rest}).items())


def idle_lines(idle: dict[str, Any] | None) -> list[str]:
    if idle is None:
        return []
    few, many = idle["few"], idle["many"]
    return [
        f"\nEpoch with {many['idle_keys']:,} idle keys {many['median_s']:.2f} s, with {few['idle_keys']:,} {few['median_s']:.2f} s: "
        f"{idle['ratio']:.2f} times, goal at most {IDLE_GOAL}  {_verdict(idle['ratio'] <= IDLE_GOAL)}",
        f"  {many['idle_keys']:,}: {phases_line(many)}",
        f"  {few['idle_keys']:,}: {phases_line(few)}",
    ]


def first_row_lines(times: dict[str, float | None] | None) -> list[str]:
    if times is None:
        return []
    shown = ", ".join(f"{name} {'never' if s is None else f'{s:.1f} s'}" for name, s in times.items())
    return [f"\nFrom process start to the first result row: {shown}"]


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"
