"""A pipeline on a cluster of two workers whose executors, worker and driver are killed on the way: the batch answer comes out.

orders ──┬▶ sessions (window) ─┬▶ files      state: in a folder that all see, or in Postgres
         │                     └▶ per_minute (window) ─▶ files
payments ┴▶ paid (join) ─▶ files
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import cluster as clusters
from tests.support.cluster import Cluster
from tests.support.effort import long
from tests.support.orders import CONFIG, KILLS, check, committed, written
from tests.support.runs import said, start

from slackwater.testing.services import SECONDS


@long(beside="test_kill.py::test_kill_nine_at_random_moments_loses_and_doubles_nothing")
@pytest.mark.parametrize("store", ["files", "postgres"])
def test_executors_workers_and_drivers_that_are_killed(store: str, request: Any, tmp_path: Path) -> None:
    where = 'kind = "files"\npath = "state"'
    if store == "postgres":
        where = f'kind = "postgres"\nurl = "{request.getfixturevalue("postgres").database("cluster")}"'
    config = tmp_path / "cluster.toml"
    config.write_text(CONFIG.format(store=where))
    orders, payments = written(tmp_path)
    seed = random.randrange(10**6)
    with clusters.started(tmp_path / "spark") as cluster:
        killed = run_through(cluster, config, store, random.Random(seed))
        process = start(config, "--flush", SPARK_MASTER=cluster.address)
        assert process.wait(timeout=580) == 0, f"seed {seed}: {said(config)}"
    assert sum(killed.values()) == KILLS, f"seed {seed}: it ended before all kills: {killed}"
    check(tmp_path, orders, payments, f"seed {seed}")


def run_through(cluster: Cluster, config: Path, store: str, rng: random.Random) -> Counter[str]:
    """Kill an executor, a worker or the driver whenever some epochs were committed, until there were enough of them."""
    killed, process = Counter[str](), start(config, SPARK_MASTER=cluster.address)
    for nth in range(KILLS):
        goal = committed(config, store) + rng.randrange(1, 4)
        while committed(config, store) < goal and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        time.sleep(rng.uniform(0, 1))  # at any moment of an epoch
        what = ("executor", "worker", "driver")[nth % 3]
        if what == "executor":
            until = time.monotonic() + SECONDS
            while not (there := cluster.executors()):  # one that was killed is started anew
                assert time.monotonic() < until, said(config)
                time.sleep(0.05)
            rng.choice(there).kill()
        elif what == "worker":
            cluster.kill_worker(number := rng.choice(sorted(cluster.workers)))
            cluster.start_worker(number)
        else:
            end(process)
            process = start(config, SPARK_MASTER=cluster.address)
        killed[what] += 1
    end(process)
    return killed


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
