"""`python -m benchmarks.run`: compare Slackwater with Spark's own operators, on the same data."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.benchmark_cases import (
    FIRST_ROW,
    FIRST_ROW_STREAM,
    FIRST_ROW_WINDOW,
    FROM_KAFKA,
    FROM_KAFKA_STREAM,
    FROM_KAFKA_SYSTEMS,
    FROM_KAFKA_WINDOW,
    IDLE,
    IDLE_STREAMS,
    IDLE_WINDOW,
    IN_POSTGRES,
    IN_POSTGRES_CASE,
    LATENCY,
    MEASURED,
    NAMES,
    POSTGRES,
    REOPEN,
    REOPEN_STREAM,
    REOPEN_WINDOWS,
    ROCKSDB,
    SKEWED,
    SKEWED_JOIN,
    SKEWED_STREAMS,
    SLACKWATER,
    SYSTEMS,
    WARM_UP,
    BenchmarkCase,
    EventStream,
    Join,
    OrderStream,
    Window,
    select_cases,
    shrink_stream,
)
from benchmarks.event_files import write_stream_files
from benchmarks.kafka_to_postgres_latency import (
    compute_median_keys_per_epoch,
    measure_kafka_to_postgres_latency,
    set_worker_postgres_url,
)
from benchmarks.kafka_topics import EventTopic, fill_topic
from benchmarks.report import format_report
from benchmarks.run_statistics import (
    compare_kafka_systems,
    compare_systems,
    compute_late_policy_costs,
    describe_machine,
    drop_single_runs,
    summarize_runs,
)
from benchmarks.worker_process import WorkerFailed, exit_on_sigterm, run_worker
from slackwater.testing.services import Kafka, Postgres

RESULTS = Path(__file__).parent / "results"


class BenchmarkRun:
    """One run of the benchmarks: the directory for data and results, and the settings of all measurements."""

    def __init__(self, root: Path, rounds: int, driver_memory: str) -> None:
        self._root, self._rounds, self._driver_memory = root, rounds, driver_memory
        self._runs = 0

    def run_case(self, case: BenchmarkCase) -> dict[str, Any]:
        """Run every system once per round, in rotating order, so that a slow minute of the machine affects all of them."""
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in MEASURED}
        for turn in range(self._rounds):
            for system in MEASURED[turn % len(MEASURED) :] + MEASURED[: turn % len(MEASURED)]:
                runs[system].append(self.run_system_on_stream(case.name, system, case.query, case.stream))
        systems = {system: summarize_runs(results, WARM_UP) for system, results in runs.items()}
        return compare_systems(case, systems)

    def measure_idle_keys(self, small: bool) -> dict[str, Any]:
        """Measure epochs over the same active keys, alternating between few and many idle keys in the state."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in IDLE_STREAMS}
        streams = {name: shrink_stream(stream) if small else stream for name, stream in IDLE_STREAMS.items()}
        for turn in range(self._rounds):
            for name in list(streams)[:: 1 if turn % 2 == 0 else -1]:
                runs[name].append(self.run_system_on_stream(f"{IDLE} ({name})", SLACKWATER, IDLE_WINDOW, streams[name]))
        summaries = {
            name: summarize_runs(results, WARM_UP + streams[name].load_epochs) for name, results in runs.items()
        }
        keys = {name: stream.idle_keys for name, stream in streams.items()}
        return summaries | {"keys": keys, "ratio": summaries["many"]["median_s"] / summaries["few"]["median_s"]}

    def measure_skewed_join(self, small: bool) -> dict[str, Any]:
        """Measure a join, alternating between without and with a hot key."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SKEWED_STREAMS}
        for turn in range(self._rounds):
            for name in list(SKEWED_STREAMS)[:: 1 if turn % 2 == 0 else -1]:
                stream = shrink_stream(SKEWED_STREAMS[name]) if small else SKEWED_STREAMS[name]
                runs[name].append(self.run_system_on_stream(f"{SKEWED} ({name})", SLACKWATER, SKEWED_JOIN, stream))
        summaries = {name: summarize_runs(results, WARM_UP) for name, results in runs.items()}
        return summaries | {"ratio": summaries["skewed"]["median_s"] / summaries["uniform"]["median_s"]}

    def measure_postgres_state(self, small: bool) -> dict[str, Any]:
        """Compare sessions whose state is in Postgres with Spark's native operator on RocksDB."""
        case = IN_POSTGRES_CASE
        stream = shrink_stream(case.stream) if small else case.stream
        runs: dict[str, list[dict[str, Any]]] = {ROCKSDB: [], POSTGRES: []}
        for turn in range(self._rounds):
            for system in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                with Postgres.started() as server:
                    set_worker_postgres_url(server.url)
                    runs[system].append(self.run_system_on_stream(IN_POSTGRES, system, case.query, stream))
        summaries = {system: summarize_runs(results, WARM_UP) for system, results in runs.items()}
        touched = (
            compute_median_keys_per_epoch(write_stream_files(stream, self._root / "data"))
            / summaries[POSTGRES]["mean_s"]
        )  # some epochs also merge the staged rows of earlier ones
        return summaries | {
            "ratio": summaries[ROCKSDB]["median_s"] / summaries[POSTGRES]["median_s"],
            "touched_keys_per_s": touched,
            "same_output": summaries[ROCKSDB]["output"] == summaries[POSTGRES]["output"],
        }

    def measure_late_policies(self, small: bool) -> dict[str, Any]:
        """Measure sessions over the same rows, alternating between dropping late rows and correcting results with them."""
        stream = shrink_stream(REOPEN_STREAM) if small else REOPEN_STREAM
        runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in REOPEN_WINDOWS}
        for turn in range(self._rounds):
            for policy in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                runs[policy].append(
                    self.run_system_on_stream(f"{REOPEN} ({policy})", SLACKWATER, REOPEN_WINDOWS[policy], stream)
                )
        summaries = {policy: summarize_runs(results, WARM_UP) for policy, results in runs.items()}
        return {
            policy: summaries[policy] | compute_late_policy_costs(runs[policy], stream.rows) for policy in summaries
        }

    def measure_kafka_source(self, small: bool) -> dict[str, Any]:
        """Measure sessions over a topic with JSON, for each system in turn."""
        stream = shrink_stream(FROM_KAFKA_STREAM) if small else FROM_KAFKA_STREAM
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in FROM_KAFKA_SYSTEMS}
        with Kafka.started() as kafka:
            topic = fill_topic(kafka, stream)
            for turn in range(self._rounds):
                for system in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                    runs[system].append(self.run_system(FROM_KAFKA, system, FROM_KAFKA_WINDOW, topic))
        summaries = {system: summarize_runs(results, WARM_UP) for system, results in runs.items()}
        return summaries | compare_kafka_systems(runs, summaries, stream)

    def measure_first_row(self) -> dict[str, float | None]:
        """Return the median seconds from process start to the first result row, by system."""
        times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for _ in range(self._rounds):
            for system in SYSTEMS:
                data = write_stream_files(FIRST_ROW_STREAM, self._root / "data")
                result = self.run_system(FIRST_ROW, system, FIRST_ROW_WINDOW, data)
                times[system].append(result["first_row_s"])
        return {system: sorted(seconds)[len(seconds) // 2] for system, seconds in times.items()}

    def run_system_on_stream(
        self, name: str, system: str, query: Window | Join, stream: EventStream | OrderStream
    ) -> dict[str, Any]:
        return self.run_system(name, system, query, write_stream_files(stream, self._root / "data"))

    def run_system(self, name: str, system: str, query: Window | Join, data: Path | EventTopic) -> dict[str, Any]:
        self._runs += 1
        print(f"{name}: {system} …", file=sys.stderr, end=" ", flush=True)
        result = run_worker(system, query, data, self._root / f"run-{self._runs}", self._driver_memory)
        print(f"{result['wall_s']:.0f} s", file=sys.stderr, flush=True)
        return result


PARTS: dict[
    str, tuple[str, Callable[[BenchmarkRun, bool], Any]]
] = {  # measurements other than cases: their names, and their keys in the report
    IDLE: ("idle_keys", BenchmarkRun.measure_idle_keys),
    SKEWED: ("skewed", BenchmarkRun.measure_skewed_join),
    FIRST_ROW: ("first_row_s", lambda bench, small: bench.measure_first_row()),
    IN_POSTGRES: ("in_postgres", BenchmarkRun.measure_postgres_state),
    REOPEN: ("reopen", BenchmarkRun.measure_late_policies),
    FROM_KAFKA: ("from_kafka", BenchmarkRun.measure_kafka_source),
    LATENCY: ("latency", lambda bench, small: measure_kafka_to_postgres_latency()),
}


def main() -> int:
    """Return 0 even if goals are missed, and 1 if a measurement failed. The other measurements run and are reported anyway."""
    options, began = _parse_options(), time.monotonic()
    exit_on_sigterm()
    settings = {name: getattr(options, name) for name in ("quick", "only", "rounds", "driver_memory")}
    report: dict[str, Any] = {"machine": describe_machine(), "options": settings, "cases": [], "failed": []}
    report |= dict.fromkeys(key for key, _ in PARTS.values())
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as root:
        bench = BenchmarkRun(Path(root), options.rounds, options.driver_memory)
        for case in select_cases(options.only, options.quick):
            with _record_failure(report, case.name):
                report["cases"].append(bench.run_case(case))
            _write_report(report, began, options)
        for name, (key, measure) in PARTS.items():
            if not options.only or name in options.only:
                with _record_failure(report, name):
                    report[key] = measure(bench, options.quick)
                _write_report(report, began, options)
    print("\n".join(format_report(report)))
    return int(bool(report["failed"]))


def _write_report(report: dict[str, Any], began: float, options: argparse.Namespace) -> None:
    """Write the figures so far, so that a run that is stopped early keeps them."""
    report["machine"]["load_after"] = os.getloadavg()[0]
    report["took_s"] = time.monotonic() - began
    for path, figures in ((options.json, report), (options.keep, drop_single_runs(report))):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(figures, indent=1) + "\n")


@contextmanager
def _record_failure(report: dict[str, Any], name: str) -> Iterator[None]:
    try:
        yield
    except WorkerFailed as error:
        print(error, file=sys.stderr)
        report["failed"].append(name)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke test; the figures mean nothing")
    parser.add_argument("--only", type=_parse_case_names, default=[], metavar="CASE,…", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=1, help="runs of every system per case (1)")
    parser.add_argument("--driver-memory", default="6g", help="heap of the native systems (6g)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures to this file")
    parser.add_argument(
        "--keep",
        type=_parse_release_path,
        metavar="NAME",
        help="also write the summaries to benchmarks/results/NAME.json",
    )
    return parser.parse_args()


def _parse_release_path(text: str) -> Path:
    if not re.fullmatch(r"\w[\w.+-]*", text) or text == "latest":
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a name of a release; expected letters, digits, ".", "-" and "+"'
        )
    return RESULTS / f"{text}.json"


def _parse_case_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f'"{name}" is not a case; expected one of {", ".join(NAMES)}')
    return names


if __name__ == "__main__":
    sys.exit(main())
