"""`python -m benchmarks.profile_epoch CASE`: show where an epoch of Slackwater spends its time."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.benchmark_cases import CASES, SLACKWATER, WARM_UP, shrink_stream
from benchmarks.event_files import write_stream_files
from benchmarks.run_statistics import compute_median_phase_durations
from benchmarks.worker_process import WorkerFailed, run_worker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_epoch", description=__doc__)
    parser.add_argument("case", choices=[case.name for case in CASES], nargs="?", default=CASES[0].name)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the size")
    parser.add_argument("--driver-memory", default="6g", help="heap of the JVM (6g)")
    options = parser.parse_args()
    case = next(case for case in CASES if case.name == options.case)
    stream = shrink_stream(case.stream) if options.quick else case.stream
    case = replace(case, stream=stream)
    with tempfile.TemporaryDirectory(prefix="slackwater-profile-") as root:
        data = write_stream_files(stream, Path(root) / "data")
        try:
            result = run_worker(SLACKWATER, case.query, data, Path(root) / "run", options.driver_memory)
        except WorkerFailed as error:
            print(error, file=sys.stderr)
            return 1
    epochs, statuses = result["epochs"][WARM_UP:], result["statuses"][WARM_UP:]
    whole = median(epoch["seconds"] for epoch in epochs)
    phases = compute_median_phase_durations(statuses)
    print(f"{case.name}: {case.rows:,} rows per epoch, {len(epochs)} epochs, median {whole:.3f} s")
    for name, seconds in (phases | {"around": whole - sum(phases.values())}).items():
        print(f"  {name:<24}{seconds:>8.3f} s{seconds / whole:>7.0%}")
    print("Epoch by epoch: seconds, rows emitted, groups, state bytes")
    for status in result["statuses"]:
        print(f"{status['seconds']:>8.3f}{status['emitted']:>12,}{status['groups']:>12,}{status['state_bytes']:>15,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
