"""`python -m benchmarks.session_step_without_spark`: measure the session step of one shard without Spark, from an Arrow table to segments.

The current step and the previous one (whole arrays, `tests/support/session_window_reference.py`) alternate on the same rows in one process,
each with a separate state. They run once with default memory settings, and once with those of workers
(`slackwater.spark.tuning.worker_memory`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
from tests.support import session_window_reference

from slackwater.config.window import Aggregation, Window
from slackwater.core.hashing import mix_bits
from slackwater.core.schema import Field
from slackwater.operators.base import Operator, ShardTask
from slackwater.operators.registry import bind_window
from slackwater.spark import operator_input
from slackwater.spark.tuning import worker_memory
from slackwater.state.commit import SegmentMetadata
from slackwater.state.files.shard import FileShard
from slackwater.storage.local import LocalStorage
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import session_ingest

WARM_UP = 3
KEYS, LATENESS_US = 100_000, 5_000_000
CASES = {
    "sessions-200k": (100_000, 10),
    "sessions-1m": (500_000, 50),
}  # rows and seconds per epoch, of one of two shards
STEPS = {"former": session_window_reference.ingest_rows, "present": session_ingest.ingest_session_rows}
FIGURES = ("seconds", "processor", "faults")


@dataclass
class ShardState:
    """State of one shard in files, and its watermark."""

    root: Path
    operator: Operator
    metas: tuple[SegmentMetadata, ...] = ()
    watermark: int = NO_WATERMARK

    def __post_init__(self) -> None:
        for folder in ("segments", "outputs"):
            (self.root / folder).mkdir(parents=True)

    def ingest(self, epoch: int, table: pa.Table) -> None:
        """Ingest the rows of an epoch as a worker does."""
        state = FileShard(LocalStorage(str(self.root)), 0, epoch, self.metas)
        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        task = ShardTask(self.operator, state, 0, self.watermark, self.watermark)
        self.metas = self.operator.ingest(task, operator_input.to_ingest_rows(self.operator, rows)).segments

    def advance_watermark(self, table: pa.Table) -> None:
        self.watermark = max(self.watermark, int(table["__ts"].to_numpy().max()) - LATENESS_US)


def build_session_operator() -> Operator:
    """Return the operator of the session cases."""
    aggregations = [
        Aggregation(agg="count", as_="n"),
        Aggregation(agg="sum", column="v", as_="total"),
        Aggregation(agg="max", column="v", as_="most"),
    ]
    window = Window(
        kind="session",
        gap_ms="30s",
        max_session_duration_ms="2h",
        lateness_ms=LATENESS_US // 1000,
        group_by=["k"],
        max_groups_per_window=50_000_000,
        aggregations=aggregations,
    )
    return bind_window("step", window, {"k": Field("k", "string"), "v": Field("v", "double")})


def generate_event_table(rng: np.random.Generator, epoch: int, rows: int, seconds: int) -> pa.Table:
    """Return the table that Spark passes to a worker: batches of ten thousand rows, up to two seconds out of order."""
    ids = rng.integers(KEYS, size=rows)
    event_s = (epoch + rng.random(rows)) * seconds - rng.random(rows) * 2
    table = pa.table(
        {
            "__kh": mix_bits(ids, np.zeros(rows, dtype=np.int64)),
            "__ts": 1_709_251_200_000_000 + (event_s * 1e6).astype(np.int64),
            "k": pl.select(pl.format("user-{}", pl.lit(pl.Series(ids)))).to_series().to_arrow().cast(pa.string()),
            "v": rng.random(rows) * 100,
        }
    )
    return pa.Table.from_batches(table.to_batches(max_chunksize=10_000))


def measure_step_versions(case: str, epochs: int) -> dict[str, dict[str, list[float]]]:
    """Return, by step and figure, the values of the epochs after the warm-up."""
    rows, seconds = CASES[case]
    rng, samples = np.random.default_rng(7), {name: defaultdict[str, list[float]](list) for name in STEPS}
    with tempfile.TemporaryDirectory(prefix="slackwater-step-") as root:
        shards = {name: ShardState(Path(root) / name, build_session_operator()) for name in STEPS}
        for epoch in range(epochs):
            table = generate_event_table(rng, epoch, rows, seconds)
            for name in STEPS if epoch % 2 else reversed(STEPS):
                session_ingest.ingest_session_rows = STEPS[name]
                before = _resource_usage()
                shards[name].ingest(epoch, table)
                if epoch >= WARM_UP:
                    for figure, began, end in zip(FIGURES, before, _resource_usage(), strict=True):
                        samples[name][figure].append(end - began)
                shards[name].advance_watermark(table)
    samples["present"]["resident"] = [psutil.Process().memory_info().rss / 1e6]
    return samples


def _resource_usage() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session_step_without_spark", description=__doc__)
    parser.add_argument("case", choices=list(CASES), nargs="?", default="sessions-1m")
    parser.add_argument("--epochs", type=int, default=13)
    parser.add_argument("--child", choices=["plain", "kept"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.child == "kept":
            worker_memory.keep_freed_memory()
        print(json.dumps(measure_step_versions(options.case, options.epochs)))
        return
    rows, _ = CASES[options.case]
    load = os.getloadavg()[0]
    print(
        f"{options.case}: {rows:,} rows and {KEYS:,} keys per shard, {options.epochs - WARM_UP} epochs, load {load:.1f}"
    )
    print(f"{'memory':<10}{'step':<10}{'seconds':>9}{'processor':>11}{'page faults':>13}")
    for child in ("plain", "kept"):
        environment = {
            **os.environ,
            "POLARS_MAX_THREADS": "1",
            **(worker_memory.environment() if child == "kept" else {}),
        }
        command = [
            sys.executable,
            "-m",
            "benchmarks.session_step_without_spark",
            options.case,
            "--child",
            child,
            "--epochs",
            str(options.epochs),
        ]
        samples: dict[str, Any] = json.loads(
            subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
        )
        medians = {name: {figure: median(samples[name][figure]) for figure in FIGURES} for name in STEPS}
        for name, figures in medians.items():
            print(
                f"{child:<10}{name:<10}{figures['seconds']:>9.3f}{figures['processor']:>11.3f}{figures['faults']:>13,.0f}"
            )
        times = [medians["former"][f] / medians["present"][f] for f in ("seconds", "processor")]
        resident = samples["present"]["resident"][0]
        print(f"{child:<10}{'times':<10}{times[0]:>9.2f}{times[1]:>11.2f}     resident at the end {resident:,.0f} MB")


if __name__ == "__main__":
    main()
