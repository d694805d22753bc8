"""Format the figures as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.benchmark_cases import (
    FIRST_ROW_GOAL,
    FLOOR,
    IDLE_GOAL,
    IN_POSTGRES_GOAL,
    LATENCY_GOALS,
    NATIVE,
    POSTGRES,
    ROCKSDB,
    SKEWED_GOAL,
    SKEWED_STREAMS,
    SLACKWATER,
    TOUCHED_GOAL,
)
from benchmarks.kafka_topics import PARTITIONS
from benchmarks.worker_process import ROLES

_MIB = 1024**2


def format_report(report: dict[str, Any]) -> Iterator[str]:
    """Yield the whole report. Omit parts that were not run."""
    about = report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    yield f"\n{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, load {about['load_before']:.1f}; {versions}"
    if report["cases"]:
        yield from _speed_lines(report["cases"])
        yield from _floor_ratio_lines(report["cases"])
        yield from _small_epoch_lines(report["cases"])
        yield from _phase_lines(report["cases"])
        yield from _memory_lines(report["cases"])
    if report["idle_keys"]:
        yield from _idle_key_lines(report["idle_keys"])
    if report["skewed"]:
        yield from _skewed_join_lines(report["skewed"])
    if report["first_row_s"]:
        times = (f"{system} {_format_seconds(s)}" for system, s in report["first_row_s"].items())
        first_row_s = report["first_row_s"][SLACKWATER]
        met = _format_verdict(first_row_s is not None and first_row_s <= FIRST_ROW_GOAL)
        yield f"\nFrom process start to the first result row: {', '.join(times)}; goal {FIRST_ROW_GOAL:g} s  {met}"
    if report["in_postgres"]:
        yield from _postgres_state_lines(report["in_postgres"])
    if report["reopen"]:
        yield from _late_policy_lines(report["reopen"])
    if report["from_kafka"]:
        yield from _kafka_source_lines(report["from_kafka"])
    if report["latency"]:
        latency = report["latency"]
        times = (
            f"{name[:3]} {1000 * latency[name]:.0f} ms, goal {1000 * goal:.0f} ms {_format_verdict(latency[name] <= goal)}"
            for name, goal in LATENCY_GOALS.items()
        )
        yield (
            f"\nKafka append to Postgres row at {latency['rows_per_s']:,} rows/s: {'; '.join(times)} "
            f"({latency['windows']} windows of one second)"
        )
    if report["failed"]:
        yield f"\nFAILED, not measured: {', '.join(report['failed'])}"
    yield f"\nThe whole run took {report['took_s'] / 60:.0f} minutes; load {about['load_after']:.1f} at the end"


def _speed_lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "\nSeconds per epoch, median after warm-up, and speedup over the faster native store"
    yield _format_row("case", "HDFS", "RocksDB", "Slackw.", "rows/s", "times", "(means)", "(fastest)", "(CPU)", "goal")
    for case in cases:
        hdfs, rocksdb, ours = (case["systems"][s]["median_s"] for s in (*NATIVE, SLACKWATER))
        rate = f"{case['rows_per_epoch'] / ours:,.0f}"
        ratios = [f"{case[name]:.2f}" for name in ("ratio", "ratio_of_means", "ratio_of_fastest", "ratio_of_cpu")]
        times = [f"{seconds:.2f}" for seconds in (hdfs, rocksdb, ours)]
        yield _format_row(case["name"], *times, rate, *ratios, _format_goal(case["goal"]), _format_verdict(case["met"]))


def _floor_ratio_lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "\nRatio to the floor: the same epochs with a step that does nothing"
    yield _format_row(
        "case", "floor", "Slackw.", "times", "(means)", "(fastest)", "(CPU)", "at most", "CPU floor", "CPU here"
    )
    for case in cases:
        floor, ours = case["systems"][FLOOR], case["systems"][SLACKWATER]
        seconds = [f"{summary['median_s']:.2f}" for summary in (floor, ours)]
        times = [f"{case['times_floor'][figure]:.2f}" for figure in ("median_s", "mean_s", "fastest_s", "cpu_s")]
        spent = [f"{summary['cpu_s']:.2f}" for summary in (floor, ours)]
        yield _format_row(
            case["name"], *seconds, *times, _format_goal(case["floor_goal"]), *spent, _format_verdict(case["floor_met"])
        )


def _small_epoch_lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the figures of epochs that are so small that only the fixed cost of an epoch remains."""
    for case in cases:
        if case["seconds_goal"] is not None:
            ours, goal = case["systems"][SLACKWATER], case["seconds_goal"]
            yield (
                f"\nAn epoch of {case['rows_per_epoch']:,} rows: {ours['median_s']:.2f} s, goal {goal:g}  "
                f"{_format_verdict(ours['median_s'] <= goal)}; {ours['cpu_s']:.2f} s of CPU"
            )


def _phase_lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "\nSlackwater's epoch by phase, median seconds"
    for case in cases:
        yield f"{case['name']:<22}{_phase_breakdown(case['systems'][SLACKWATER])}"


def _memory_lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "\nPeak resident memory in MiB; largest state in rows, in MiB as reported, and in MiB of files at the end; output"
    yield _format_row("", "JVM", "driver", "workers", "total", "state", "reported", "files", "rows", "of input")
    for case in cases:
        times = f": peak {case['times_memory']:.2f} times that of the smaller native system, at most 1  {_format_verdict(case['times_memory'] <= 1)}"
        yield case["name"] + times + ("" if case["same_output"] else "  OUTPUTS DIFFER")
        for system, summary in case["systems"].items():
            sizes = [f"{summary['memory'][role] // _MIB:,}" for role in ROLES]
            state, out = summary["state"], summary["output"]
            state_sizes = [f"{state['rows']:,}", *(f"{state[unit] // _MIB:,}" for unit in ("bytes", "files"))]
            counted = f"{out['counted']:,}" if "counted" in out else f"#{out['checksum']:016x}"[:9]
            yield _format_row(f"  {system}", *sizes, *state_sizes, f"{out['rows']:,}", counted)


def _idle_key_lines(idle: dict[str, Any]) -> Iterator[str]:
    yield (
        f"\nEpochs with idle keys in the state: {idle['ratio']:.2f} times as long with many as with few, "
        f"goal at most {IDLE_GOAL}  {_format_verdict(idle['ratio'] <= IDLE_GOAL)}"
    )
    for name, keys in idle["keys"].items():
        summary = idle[name]
        peak = summary["memory"]["total"] // _MIB
        yield f"{keys:>11,} idle keys {summary['median_s']:.2f} s: {_phase_breakdown(summary)}; peak {peak:,} MiB"


def _skewed_join_lines(skewed: dict[str, Any]) -> Iterator[str]:
    yield (
        f"\nA join with a key that has 1% of the rows: {skewed['ratio']:.2f} times as long as without, "
        f"goal at most {SKEWED_GOAL}  {_format_verdict(skewed['ratio'] <= SKEWED_GOAL)}"
    )
    for name in SKEWED_STREAMS:
        summary = skewed[name]
        peak, state = summary["memory"]["total"] // _MIB, summary["state"]
        yield (
            f"  {name:<8} {summary['median_s']:.2f} s, {summary['cpu_s']:.2f} s of CPU: {_phase_breakdown(summary)}; {summary['output']['rows']:,} pairs, "
            f"state {state['rows']:,} rows, {state['bytes'] // _MIB:,} MiB, peak {peak:,} MiB"
        )


def _postgres_state_lines(summary: dict[str, Any]) -> Iterator[str]:
    ours, native = summary[POSTGRES], summary[ROCKSDB]
    yield (
        f"\nSessions with their state in Postgres: {ours['median_s']:.2f} s per epoch (mean {ours['mean_s']:.2f} s), {summary['ratio']:.2f} times as fast as "
        f"RocksDB ({native['median_s']:.2f} s; of the means {native['mean_s'] / ours['mean_s']:.2f}), goal {IN_POSTGRES_GOAL}  {_format_verdict(summary['ratio'] >= IN_POSTGRES_GOAL)}"
    )
    yield (
        f"  {summary['touched_keys_per_s']:,.0f} updated keys per second end to end, goal {TOUCHED_GOAL:,}  "
        f"{_format_verdict(summary['touched_keys_per_s'] >= TOUCHED_GOAL)}"
        + ("" if summary["same_output"] else "  OUTPUTS DIFFER")
    )
    yield f"  {_phase_breakdown(ours)}"


def _late_policy_lines(costs_by_policy: dict[str, Any]) -> Iterator[str]:
    """Yield the cost of corrections: `reopen` compared with `drop` over the same rows."""
    drop, reopen = costs_by_policy["drop"], costs_by_policy["reopen"]
    speed, state = reopen["rows_per_s"] / drop["rows_per_s"], reopen["state_bytes"] / drop["state_bytes"]
    yield f"\nLate rows as corrections: {speed:.2f} times the throughput of drop, {state:.2f} times the state"
    for policy, costs in costs_by_policy.items():
        yield (
            f"  {policy:<8}{costs['rows_per_s']:>11,.0f} rows/s  state {costs['state_bytes'] / _MIB:,.1f} MiB  "
            f"{costs['late']:,} late rows that were not used  {costs['emitted']:,} emitted  {_phase_breakdown(costs)}"
        )


def _kafka_source_lines(summary: dict[str, Any]) -> Iterator[str]:
    ours, native, floor = (summary[system] for system in (SLACKWATER, ROCKSDB, FLOOR))
    yield (
        f"\nSessions from Kafka, {summary['rows_per_epoch']:,} rows per epoch as JSON in {PARTITIONS} partitions: {ours['median_s']:.2f} s, "
        f"{summary['ratio']:.2f} times as fast as RocksDB ({native['median_s']:.2f} s; by CPU {summary['ratio_of_cpu']:.2f}), "
        f"{summary['times_floor']:.2f} times the floor ({floor['median_s']:.2f} s)"
    )
    rates = ", ".join(f"{system} {rate:,.0f}" for system, rate in summary["rows_per_s"].items())
    yield f"  rows per second from process start to end: {rates}" + (
        "" if summary["same_output"] else "  OUTPUTS DIFFER"
    )
    yield f"  {_phase_breakdown(ours)}"


def _phase_breakdown(summary: dict[str, Any]) -> str:
    """Return the phases, and the time that Spark spends around them."""
    rest = summary["median_s"] - sum(summary["phases_s"].values())
    return "  ".join(f"{name} {s:.2f}" for name, s in (summary["phases_s"] | {"around": rest}).items())


def _format_row(name: str, *cells: str) -> str:
    return f"{name:<22}" + "".join(f"{cell:>11}" for cell in cells)


def _format_seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def _format_goal(goal: float | None) -> str:
    return "-" if goal is None else f"{goal:g}"


def _format_verdict(met: bool | None) -> str:
    """Return "met" or "MISSED", or an empty string if a figure has no goal."""
    return "" if met is None else "met" if met else "MISSED"
