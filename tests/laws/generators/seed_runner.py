"""Command line for thousands of seeded runs."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor


def hide_warnings() -> None:
    """Hide warnings, because seeded runs have many late rows, and each would log a line."""
    logging.getLogger("slackwater").setLevel(logging.ERROR)


def prepare_worker_process() -> None:
    """Relax garbage collection, and place the thousands of temporary directories in /dev/shm if it is writable."""
    gc.freeze()
    gc.set_threshold(50_000)
    if os.access("/dev/shm", os.W_OK):
        tempfile.tempdir = "/dev/shm"


def run_seeds(checked: Callable[[int], tuple[int, ...]], about: str, counted: Sequence[str], runs: int) -> None:
    """Check seeds in one process per core. `counted` names the numbers that `checked` returns."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = "1"
    began = time.monotonic()
    seeds = [options.only] if options.only is not None else list(range(options.seed, options.seed + options.runs))
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), prepare_worker_process) as pool:
        counts_per_seed = list(pool.map(checked, seeds, chunksize=max(len(seeds) // (20 * options.jobs), 1)))
    sums = ", ".join(f"{sum(n)} {name}" for n, name in zip(zip(*counts_per_seed, strict=True), counted, strict=True))
    print(f"{len(seeds)} seeds from {seeds[0]}: {sums}, {time.monotonic() - began:.0f} s")
