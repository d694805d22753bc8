"""`python -m benchmarks.spark_tunings`: measure what each tuning of the Spark engine saves, alternating between with and without it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.benchmark_cases import CASES, SLACKWATER, WARM_UP, shrink_stream
from benchmarks.run import BenchmarkRun
from benchmarks.run_statistics import describe_machine
from benchmarks.worker_process import exit_on_sigterm
from slackwater.tuning_switches import VARIABLE

# the case in which each tuning matters most; benchmarks.payload_decoding measures json_workers, benchmarks.peers kafka_workers,
# and benchmarks.kafka_to_postgres_latency query_reuse
CASE_BY_TUNING = {
    "arrow_batch_size": "sessions-1m",
    "class_archive": "tiny-2k",
    "jvm_options": "tiny-2k",
    "expression_cache": "tiny-2k",
    "file_workers": "sessions-1m",
    "installed_pyspark": "tiny-2k",
    "preaggregation": "tumbling-1m",
    "quick_ack": "tiny-2k",
    "statistics": "sessions-1m",
    "worker_memory": "sessions-200k",
}

# these tunings apply only if Spark reads the files
SPARK_READS = frozenset(["arrow_batch_size", "expression_cache", "preaggregation", "statistics"])


def _median_figures(result: dict[str, Any]) -> dict[str, float]:
    """Return the medians of seconds and CPU seconds per epoch after the warm-up, and the seconds to the first row."""
    epochs = result["epochs"][WARM_UP:]
    return {
        "seconds": median(e["seconds"] for e in epochs),
        "cpu_s": median(e["cpu_s"] for e in epochs),
        "first_row_s": result["first_row_s"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_tunings", description=__doc__)
    parser.add_argument("tunings", nargs="*", help=f"which ones: {', '.join(CASE_BY_TUNING)} (all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the size")
    options = parser.parse_args()
    exit_on_sigterm()
    cases = {case.name: case for case in CASES}
    print(f"load {os.getloadavg()[0]:.1f}, {describe_machine()}")
    print(f"{'tuning':<18}{'case':<16}{'seconds':>18}{'CPU seconds':>18}{'first row':>18}   (with, without: saved)")
    with tempfile.TemporaryDirectory(prefix="slackwater-tunings-") as root:
        bench = BenchmarkRun(Path(root), 1, "6g")
        for tuning in options.tunings or CASE_BY_TUNING:
            case = cases[CASE_BY_TUNING[tuning]]
            stream = shrink_stream(case.stream) if options.quick else case.stream
            runs: dict[str, list[dict[str, float]]] = {"": [], tuning: []}
            for turn in range(options.rounds):
                for disabled in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                    os.environ[VARIABLE] = ",".join([disabled, *(["file_workers"] if tuning in SPARK_READS else [])])
                    name = f"{case.name} {'without ' + disabled if disabled else 'with all'}"
                    runs[disabled].append(
                        _median_figures(bench.run_system_on_stream(name, SLACKWATER, case.query, stream))
                    )
            os.environ.pop(VARIABLE)
            line = f"{tuning:<18}{case.name:<16}"
            for figure in ("seconds", "cpu_s", "first_row_s"):
                enabled, disabled_s = (median(r[figure] for r in runs[key]) for key in ("", tuning))
                line += f"{enabled:.2f}, {disabled_s:.2f}: {1 - enabled / disabled_s:>4.0%}".rjust(18)
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
