"""`python -m benchmarks.driver_cost_per_epoch`: measure the driver's part of an epoch, by number of shards and Kafka partitions.

Shards and brokers are simulated (`benchmarks.simulated_shards_and_brokers`). The commit lists the segments of a hundred million keys, with the sizes
that merging would have produced, but their files do not exist. The driver's work is real, with a state on a disk: it plans the epoch,
creates tasks, parses and merges the reports of the shards, advances the watermark, commits, reads the staged output, publishes, and
updates metrics. Every sixteenth epoch removes garbage. The work of Spark and of the target is not included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import simulated_shards_and_brokers
from benchmarks.driver_cost_per_epoch_plot import draw_driver_cost
from benchmarks.run_statistics import describe_machine

SHARDS, PARTITIONS = (16, 64, 128, 256, 512), (1, 100, 1000)
KEYS, ROWS, EPOCHS = 100_000_000, 1_000_000, 32
GOAL_S, AT = 0.5, (256, 1000)
OTHERS = ("workers", "broker", "target", "page")  # parts whose seconds do not count as the driver's
PARTS = ("plan", "read", "ingest", "emit", "commit", "write", "note", "metrics", "between")
_NOW_US = 1_700_000_000_000_000
_EPOCH_US = 1_000_000


class DriverEpochCost(NamedTuple):
    """Seconds per epoch in the driver, median and longest. `parts` has the CPU seconds by part."""

    shards: int
    partitions: int
    cpu_s: float
    clock_s: float
    longest_cpu_s: float
    commit_bytes: int
    segments: int
    tasks_bytes: int
    tasks_s: float
    worker_s: float
    page_s: float
    parts: Mapping[str, float]


def measure_driver_cost(shards: int, partitions: int, epochs: int, profile: Any = None) -> DriverEpochCost:
    """Run this many epochs of a session window. The first quarter does not count."""
    with tempfile.TemporaryDirectory(prefix="slackwater-shards-") as home:
        run = _SimulatedRun(Path(home), shards, partitions)
        each: list[Mapping[str, tuple[float, float]]] = []
        for number in range(epochs):
            if profile is not None and number == epochs // 4:
                profile.enable()
            each.append(run.run_epoch(number))
        if profile is not None:
            profile.disable()
        figure = run.summarize_epochs(each[epochs // 4 :])
        run.close()
    return figure


class _SimulatedRun:
    def __init__(self, home: Path, shards: int, partitions: int) -> None:
        import slackwater as sw
        from slackwater.connectors.kafka.planner import KafkaPlanner
        from slackwater.connectors.kafka.source import KafkaSource
        from slackwater.core.schema import Field
        from slackwater.engine.engine_interface import SourceStats
        from slackwater.engine.epoch_driver import EpochDriver
        from slackwater.engine.observer import DriverCallbacks
        from slackwater.engine.stage_runner import StageRunner
        from slackwater.metrics import Metrics
        from slackwater.operators.registry import compile_window
        from slackwater.spark.tuning.source_statistics import source_stats
        from slackwater.state.files.store import FilesStore

        class Source(KafkaSource):
            """Kafka source that does not read with Spark."""

            def _read(self, session: Any, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> tuple[Any, bool]:
                return "rows", False

        self.shards, self.partitions, self.meter = shards, partitions, simulated_shards_and_brokers.DriverPartTimer()
        meter = self.meter
        pipeline = sw.Pipeline(
            name="shards",
            sources=(
                sw.Source(
                    name="events",
                    connection="kafka",
                    query=simulated_shards_and_brokers.TOPIC,
                    payload_format="json",
                    schema="user STRING, n BIGINT",
                ),
            ),
            transform=sw.Transform(
                window=sw.Window(
                    event_time_column="_event_ts",
                    kind="session",
                    gap_ms="30m",
                    max_session_duration_ms="1d",
                    max_groups_per_window=2 * KEYS,
                    group_by=["user"],
                    aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="n", as_="s")],
                )
            ),
            target=sw.Target(connection="lake", path="out", format="parquet"),
            connections={"kafka": sw.KafkaConnection(bootstrap_servers="none"), "lake": sw.FilesConnection()},
            state_store=sw.StateStore(kind="files", path=str(home)),
        )
        operator = compile_window(pipeline, {"user": Field("user", "string"), "n": Field("n", "bigint")})
        self.store = FilesStore(home, "shards")
        delta = ROWS // shards
        self.segments = simulated_shards_and_brokers.simulate_segment_row_counts(KEYS // shards, delta)
        each = max(ROWS // partitions, 1)
        broker = simulated_shards_and_brokers.build_broker(meter, partitions, each)
        self.source = Source(pipeline.sources[0], broker, None, "g")  # type: ignore[arg-type]
        self._newest = 0

        def collect_stats(parts: Mapping[str, int]) -> SourceStats:
            with meter.measure_part("workers"):  # the answer of the job
                statistics = {"rows": ROWS, "bad": 0, "newest": self._newest, "place": None}
                statistics |= {f"newest{n}": self._newest - n for n in range(len(parts))}
            return source_stats(statistics, parts, lambda mark: None)

        engine = simulated_shards_and_brokers.SimulatedEngine(operator, meter, KEYS // shards, delta, collect_stats)
        self.metrics = Metrics()
        hooks = DriverCallbacks(lambda: _NOW_US, on_status=self._update_metrics, faults=self)  # type: ignore[arg-type]
        ((name, stage_pipeline),) = pipeline.stage_pipelines.items()
        stage = StageRunner(name, stage_pipeline, operator, self.store, engine, hooks.faults.in_worker)
        (target,) = pipeline.per_target
        self.driver = EpochDriver(pipeline, [stage], self.store, {target: _DiscardingTarget(meter)}, hooks)
        self.driver.start(self.store.open(), shards, {}, "s")
        self.metrics.on_start(pipeline)
        self._fill_state()
        self.planner = KafkaPlanner(self.source, self.driver.state.sources["events"])

    def _fill_state(self) -> None:
        """Replace the state by one that lists the segments of all keys."""
        state = self.driver.state
        metas = tuple(
            tuple(simulated_shards_and_brokers.build_segment_metadata(0, s, n) for n in self.segments)
            for s in range(self.shards)
        )
        held = (KEYS // self.shards,) * self.shards
        stage = state.stages[0].model_copy(update={"segments": metas, "groups": held, "windows": held})
        self.driver.state = state.model_copy(update={"stages": (stage,)})

    def run_epoch(self, number: int) -> Mapping[str, tuple[float, float]]:
        from slackwater.connectors.source import combine_batches
        from slackwater.state.commit import BatchId

        self._newest = _NOW_US + number * _EPOCH_US
        self.meter.parts.clear()
        self.meter.switch_to("plan")
        began = time.monotonic()
        part = self.planner.next()
        assert part is not None
        record = self.driver.state.sources["events"]
        part_batch = part.read(None, self.store, number, record)  # type: ignore[arg-type]
        assert part_batch is not None
        batch = combine_batches(BatchId(checkpoint="c", batch=number), {"events": part_batch}, began)
        self.meter.switch_to("between")
        self.driver.run_batch(batch, 0)
        self.meter.switch_to("")
        return dict(self.meter.parts)

    def summarize_epochs(self, each: Sequence[Mapping[str, tuple[float, float]]]) -> DriverEpochCost:
        cpu = [sum(v[0] for k, v in one.items() if k and k not in OTHERS) for one in each]
        clock = [sum(v[1] for k, v in one.items() if k and k not in OTHERS) for one in each]
        state = self.driver.state
        sizes, tasks_s, worker_s = self._measure_tasks()
        began = time.process_time()
        self.store.manifest(state.epoch)
        page_s = time.process_time() - began
        return DriverEpochCost(
            self.shards,
            self.partitions,
            round(median(cpu), 4),
            round(median(clock), 4),
            round(max(cpu), 4),
            self.store.storage.sizes("manifests")[f"{state.epoch:09d}.json"],
            sum(len(s) for s in state.stages[0].segments),
            sizes,
            round(tasks_s, 4),
            round(worker_s, 4),
            round(page_s, 4),
            {name: round(median(one.get(name, (0.0, 0.0))[0] for one in each), 4) for name in PARTS},
        )

    def _measure_tasks(self) -> tuple[int, float, float]:
        """Return the bytes of the tasks, the seconds to serialize them, and the seconds to deserialize them in each task."""
        from pyspark import cloudpickle

        from slackwater.spark.worker_tasks import ingest_task

        driver = self.driver
        tasks = driver.stage.tasks(driver.state.stages[0], driver._clocks[driver.stage.name], driver.state.epoch + 1)
        began = time.process_time()
        text = cloudpickle.dumps(ingest_task(tasks))  # type: ignore[no-untyped-call]
        wrote = time.process_time()
        cloudpickle.loads(text)
        return len(text), wrote - began, time.process_time() - wrote

    # -- callbacks of the driver ----------------------------------------------------------------------------------

    def hit(self, point: str, epoch: int) -> None:
        name, _, when = point.partition(".")
        self.meter.switch_to(name if when == "before" else "between")

    def in_worker(self, epoch: int) -> None:
        return None

    def _update_metrics(self, status: Any) -> None:
        from prometheus_client import generate_latest

        with self.meter.measure_part("metrics"):
            self.metrics.update(status)
            generate_latest(self.metrics.registry)

    def close(self) -> None:
        self.store.close()


class _DiscardingTarget:
    """Target that discards all rows."""

    guarantee, upserts, description = "exactly once", False, "nowhere"

    def __init__(self, meter: simulated_shards_and_brokers.DriverPartTimer) -> None:
        self._meter = meter

    def publish(self, epoch: int, rows: Any, gone: Any = None, commit: str = "") -> None:
        with self._meter.measure_part("target"):
            assert len(rows)


def format_report(measurement: Mapping[str, Any]) -> Iterator[str]:
    about, figures = measurement["machine"], [DriverEpochCost(**f) for f in measurement["figures"]]
    yield (
        f"the driver's part of an epoch, {KEYS:,} keys, {ROWS:,} rows, {measurement['epochs']} epochs each, {about['cores']} cores, load "
        f"{about['load_before']:.1f} before and {about['load_after']:.1f} after"
    )
    yield (
        f"{'shards':>6} {'parts':>6} {'CPU s':>8} {'clock s':>8} {'longest':>8} {'commit':>10} {'segments':>8} {'tasks':>10} {'made s':>7} "
        f"{'read s':>7} {'look s':>7}  of it"
    )
    for f in figures:
        parts = ", ".join(f"{name} {1000 * s:.0f}" for name, s in f.parts.items() if s >= 0.001)
        yield (
            f"{f.shards:>6} {f.partitions:>6} {f.cpu_s:>8.3f} {f.clock_s:>8.3f} {f.longest_cpu_s:>8.3f} {f.commit_bytes:>10,} "
            f"{f.segments:>8,} {f.tasks_bytes:>10,} {f.tasks_s:>7.3f} {f.worker_s:>7.3f} {f.page_s:>7.3f}  {parts} ms"
        )
    for f in figures:
        if (f.shards, f.partitions) == AT:
            yield f"goal at {AT[0]} shards, {AT[1]:,} partitions: under {GOAL_S} CPU seconds: {'met' if f.cpu_s < GOAL_S else 'MISSED'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver_cost_per_epoch", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--partitions", type=int, nargs="+", default=PARTITIONS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    parser.add_argument("--json", type=Path, help="write all figures to this file; with --draw, read them from it")
    parser.add_argument("--draw", action="store_true", help="only draw the plot of the figures in --json")
    parser.add_argument("--profile", action="store_true", help="profile all epochs by function")
    options = parser.parse_args()
    measurement = json.loads(options.json.read_text()) if options.draw else _measure_all(options)
    if options.json and not options.draw:
        options.json.write_text(json.dumps(measurement) + "\n")
    print("\n".join(format_report(measurement)))
    if options.svg:
        options.svg.write_text(draw_driver_cost(measurement["figures"]))
    return 0


def _measure_all(options: argparse.Namespace) -> dict[str, Any]:
    import cProfile
    import pstats

    profile = cProfile.Profile(time.process_time) if options.profile else None
    about, figures = describe_machine(), list[DriverEpochCost]()
    for partitions in options.partitions:
        for shards in options.shards:
            figures.append(measure_driver_cost(shards, partitions, options.epochs, profile))
            print(f"{shards} shards, {partitions} partitions: {figures[-1].cpu_s:.3f} s", file=sys.stderr)
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(70)
    about["load_after"] = os.getloadavg()[0]
    return {"machine": about, "epochs": options.epochs, "figures": [f._asdict() for f in figures]}


if __name__ == "__main__":
    sys.exit(main())
