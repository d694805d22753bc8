"""`python -m benchmarks.run`: Slackwater beside Spark's own operators, in one run, on the same data."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import (
    FIRST_ROW,
    FIRST_ROW_STREAM,
    FIRST_ROW_WINDOW,
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
    Case,
    Join,
    Orders,
    Stream,
    Window,
    chosen,
    quick,
)
from benchmarks.data import generate
from benchmarks.figures import compared, machine, policy_costs, summarised
from benchmarks.postgres import environment, latency, touched_keys
from benchmarks.process import WorkerFailed, run_worker
from benchmarks.report import lines
from slackwater.testing.services import Postgres


class Bench:
    """One invocation: a directory for data and results, and what every measurement shares."""

    def __init__(self, root: Path, rounds: int, driver_memory: str) -> None:
        self._root, self._rounds, self._driver_memory = root, rounds, driver_memory
        self._runs = 0

    def case(self, case: Case) -> dict[str, Any]:
        """Every system once per round, in turning order: a slow minute of the machine hits all alike."""
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in MEASURED}
        for turn in range(self._rounds):
            for system in MEASURED[turn % len(MEASURED) :] + MEASURED[: turn % len(MEASURED)]:
                runs[system].append(self.measure(case.name, system, case.query, case.stream))
        systems = {system: summarised(results, WARM_UP) for system, results in runs.items()}
        return compared(case, systems)

    def idle_keys(self, small: bool) -> dict[str, Any]:
        """Epochs over the same active keys with few and with many idle keys in the state, in turn."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in IDLE_STREAMS}
        streams = {name: quick(stream) if small else stream for name, stream in IDLE_STREAMS.items()}
        for turn in range(self._rounds):
            for name in list(streams)[:: 1 if turn % 2 == 0 else -1]:
                runs[name].append(self.measure(f"{IDLE} ({name})", SLACKWATER, IDLE_WINDOW, streams[name]))
        found = {name: summarised(results, WARM_UP + streams[name].load_epochs) for name, results in runs.items()}
        keys = {name: stream.idle_keys for name, stream in streams.items()}
        return found | {"keys": keys, "ratio": found["many"]["median_s"] / found["few"]["median_s"]}

    def skewed(self, small: bool) -> dict[str, Any]:
        """The same join without and with a hot key, in turn."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SKEWED_STREAMS}
        for turn in range(self._rounds):
            for name in list(SKEWED_STREAMS)[:: 1 if turn % 2 == 0 else -1]:
                stream = quick(SKEWED_STREAMS[name]) if small else SKEWED_STREAMS[name]
                runs[name].append(self.measure(f"{SKEWED} ({name})", SLACKWATER, SKEWED_JOIN, stream))
        found = {name: summarised(results, WARM_UP) for name, results in runs.items()}
        return found | {"ratio": found["skewed"]["median_s"] / found["uniform"]["median_s"]}

    def in_postgres(self, small: bool) -> dict[str, Any]:
        """Sessions with their state in Postgres, beside Spark's native operator on RocksDB."""
        case = IN_POSTGRES_CASE
        stream = quick(case.stream) if small else case.stream
        runs: dict[str, list[dict[str, Any]]] = {ROCKSDB: [], POSTGRES: []}
        for turn in range(self._rounds):
            for system in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                with Postgres.started() as server:
                    environment(server.url)
                    runs[system].append(self.measure(IN_POSTGRES, system, case.query, stream))
        found = {system: summarised(results, WARM_UP) for system, results in runs.items()}
        touched = touched_keys(generate(stream, self._root / "data")) / found[POSTGRES]["median_s"]
        return found | {
            "ratio": found[ROCKSDB]["median_s"] / found[POSTGRES]["median_s"],
            "touched_keys_per_s": touched,
            "same_output": found[ROCKSDB]["output"] == found[POSTGRES]["output"],
        }

    def reopen(self, small: bool) -> dict[str, Any]:
        """Sessions over the same rows, the late ones dropped or correcting what was emitted, in turn."""
        stream = quick(REOPEN_STREAM) if small else REOPEN_STREAM
        runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in REOPEN_WINDOWS}
        for turn in range(self._rounds):
            for policy in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                runs[policy].append(self.measure(f"{REOPEN} ({policy})", SLACKWATER, REOPEN_WINDOWS[policy], stream))
        found = {policy: summarised(results, WARM_UP) for policy, results in runs.items()}
        return {policy: found[policy] | policy_costs(runs[policy], stream.rows) for policy in found}

    def first_row(self) -> dict[str, float | None]:
        """Seconds from process start to the first result row, by system: the median of the rounds."""
        times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for _ in range(self._rounds):
            for system in SYSTEMS:
                result = self.measure(FIRST_ROW, system, FIRST_ROW_WINDOW, FIRST_ROW_STREAM)
                times[system].append(result["first_row_s"])
        return {system: sorted(seconds)[len(seconds) // 2] for system, seconds in times.items()}

    def measure(self, name: str, system: str, query: Window | Join, stream: Stream | Orders) -> dict[str, Any]:
        data = generate(stream, self._root / "data")
        self._runs += 1
        print(f"{name}: {system} …", file=sys.stderr, end=" ", flush=True)
        result = run_worker(system, query, data, self._root / f"run-{self._runs}", self._driver_memory)
        print(f"{result['wall_s']:.0f} s", file=sys.stderr, flush=True)
        return result


def main() -> int:
    """0 also when goals are missed; 1 when a measurement failed."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as root:
        bench = Bench(Path(root), options.rounds, options.driver_memory)
        only = options.only
        report: dict[str, Any] = {"machine": machine(), "options": vars(options) | {"json": None}}
        report |= {
            "cases": [],
            "idle_keys": None,
            "skewed": None,
            "first_row_s": None,
            "in_postgres": None,
            "reopen": None,
            "latency": None,
        }
        failed = False
        try:
            for case in chosen(only, options.quick):
                report["cases"].append(bench.case(case))
            if not only or IDLE in only:
                report["idle_keys"] = bench.idle_keys(options.quick)
            if not only or SKEWED in only:
                report["skewed"] = bench.skewed(options.quick)
            if not only or FIRST_ROW in only:
                report["first_row_s"] = bench.first_row()
            if not only or IN_POSTGRES in only:
                report["in_postgres"] = bench.in_postgres(options.quick)
            if not only or REOPEN in only:
                report["reopen"] = bench.reopen(options.quick)
            if not only or LATENCY in only:
                report["latency"] = latency()
        except WorkerFailed as error:
            print(error, file=sys.stderr)
            failed = True
    print("\n".join(lines(report)))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test, no measurement")
    parser.add_argument("--only", type=_names, default=[], metavar="CASE,…", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, help="runs of every system per case (2; with --quick 1)")
    parser.add_argument("--driver-memory", default="6g", help="heap of each JVM (6g)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 2)
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f'"{name}" is no case; there are {", ".join(NAMES)}')
    return names


if __name__ == "__main__":
    sys.exit(main())
