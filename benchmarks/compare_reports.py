"""`python -m benchmarks.compare_reports OLD.json NEW.json`: compare seconds, CPU seconds and memory of two runs, case by case.

If the machines differ, seconds cannot be compared, and the command exits with 1 unless --unlike is set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark_cases import MEASURED, POSTGRES, ROCKSDB, SLACKWATER

_MIB = 1024**2
COMPARED = ("processor", "cores", "memory_gib", "python")  # properties of `figures.machine` that must be equal


class SystemMeasurements(NamedTuple):
    """Seconds and CPU seconds per epoch of one system in one case, and the peak memory of all its processes in MiB.

    A figure is None if it was not measured.
    """

    seconds: float | None
    cpu: float | None = None
    memory: float | None = None


def collect_system_measurements(report: Mapping[str, Any]) -> dict[tuple[str, str], SystemMeasurements]:
    """Return the figures of a report by case and system."""
    figures_by_case = {
        (case["name"], system): _summary_figures(case["systems"][system])
        for case in report["cases"]
        for system in MEASURED
        if system in case["systems"]
    }
    for part, names in _PARTS.items():
        part_report = report.get(part) or {}
        figures_by_case |= {(part, name): _summary_figures(part_report[name]) for name in names if name in part_report}
    first = report.get("first_row_s") or {}
    figures_by_case |= {("first_row_s", system): SystemMeasurements(seconds) for system, seconds in first.items()}
    latency = report.get("latency") or {}
    figures_by_case |= {
        ("latency", name): SystemMeasurements(latency[name]) for name in ("p50_s", "p99_s") if name in latency
    }
    return figures_by_case


_PARTS = {
    "idle_keys": ("few", "many"),
    "skewed": ("uniform", "skewed"),
    "in_postgres": (ROCKSDB, POSTGRES),
    "reopen": ("drop", "reopen"),
    "from_kafka": MEASURED,
}


def _summary_figures(summary: Mapping[str, Any]) -> SystemMeasurements:
    return SystemMeasurements(summary["median_s"], summary["cpu_s"], summary["memory"]["total"] / _MIB)


def machine_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the properties in which the machines of two reports differ."""
    pairs = [(name, old["machine"].get(name), new["machine"].get(name)) for name in COMPARED]
    pairs.append(("size", *("small" if r["options"].get("quick") else "full" for r in (old, new))))
    return [f"{name}: {a} and {b}" for name, a, b in pairs if a != b]


def format_comparison(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield both machines, and a row per case and system. A ratio below 1 means less than before."""
    for name, report in (("old", old), ("new", new)):
        yield f"{name}: {_machine_text(report)}"
    yield from (f"DIFFERENT MACHINES: {difference}" for difference in machine_differences(old, new))
    before, after = collect_system_measurements(old), collect_system_measurements(new)
    groups = ("seconds", "processor seconds", "peak MiB")
    yield "\n" + f"{'case':<24}{'system':<20}" + "".join(f"{group:>30}" for group in groups)
    yield f"{'':<44}" + f"{'old':>12}{'new':>10}{'times':>8}" * len(groups)
    for key in [*before, *(key for key in after if key not in before)]:
        pairs = zip(
            before.get(key, SystemMeasurements(None)), after.get(key, SystemMeasurements(None)), (2, 2, 0), strict=True
        )
        yield f"{key[0]:<24}{key[1]:<20}" + "".join(_old_new_ratio_cells(*pair) for pair in pairs)
    yield "\nSlackwater compared with each system of the same run, which had the same load"
    yield f"{'case':<24}{'beside':<20}{'old':>12}{'new':>10}{'times':>8}"
    for (case, system), current in after.items():
        ours = [figures.get((case, SLACKWATER)) for figures in (before, after)]
        other = before.get((case, system))
        if system == SLACKWATER or other is None or None in ours or not (current.seconds and other.seconds):
            continue
        ratios = [
            our_figures.seconds / beside.seconds
            for our_figures, beside in zip(ours, (other, current), strict=True)
            if our_figures and our_figures.seconds
        ]
        if len(ratios) == len(ours):
            yield f"{case:<24}{system:<20}" + _old_new_ratio_cells(*ratios, 2)


def _machine_text(report: Mapping[str, Any]) -> str:
    about = report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"{about.get('at', 'no date')}, {about.get('processor')}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"load {about['load_before']:.1f} before and {about.get('load_after', float('nan')):.1f} after; "
        f"Python {about['python']}, {versions}"
    )


def _old_new_ratio_cells(old: float | None, new: float | None, digits: int) -> str:
    """Return both values and the ratio of the new one to the old one."""
    texts = ["-" if value is None else f"{value:,.{digits}f}" for value in (old, new)]
    times = f"{new / old:.2f}" if old and new is not None else "-"
    return f"{texts[0]:>12}{texts[1]:>10}{times:>8}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_reports", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--unlike", action="store_true", help="exit with 0 even if the machines differ")
    options = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (options.old, options.new))
    print("\n".join(format_comparison(old, new)))
    differences = machine_differences(old, new)
    if differences and not options.unlike:
        print(
            f"the machines differ ({'; '.join(differences)}), so seconds cannot be compared; to exit with 0 anyway, set --unlike",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
