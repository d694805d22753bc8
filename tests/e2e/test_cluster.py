"""Runs on a cluster of two workers give the batch results after executors, workers and drivers are killed.

orders ──┬▶ sessions (window) ─┬▶ files      state: in a shared folder, or in Postgres
         │                     └▶ per_minute (window) ─▶ files
payments ┴▶ paid (join) ─▶ files
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.matrices.cluster_matrix import in_a_bucket
from tests.e2e.matrices.kill_matrix import Services
from tests.support import cluster as clusters
from tests.support.case_selection import exhaustive
from tests.support.cluster_faults import DrivenPipeline, kill_driver, run_through
from tests.support.order_pipeline import CONFIG, KILLS, check_targets, read_epoch, write_order_files
from tests.support.run_process import read_log, start_run


@exhaustive(beside="test_faults.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
@pytest.mark.parametrize("store", ["files", "postgres"])
def test_killed_executors_workers_and_drivers_change_no_result(store: str, request: Any, tmp_path: Path) -> None:
    where = 'kind = "files"\npath = "state"'
    if store == "postgres":
        where = f'kind = "postgres"\nurl = "{request.getfixturevalue("postgres").database("cluster")}"'
    config = tmp_path / "cluster.toml"
    config.write_text(CONFIG.format(store=where))
    orders, payments = write_order_files(tmp_path)
    seed = random.randrange(10**6)
    with clusters.run_cluster(tmp_path / "spark") as cluster:
        driven = DrivenPipeline(
            lambda: start_run(config, SPARK_MASTER=cluster.address),
            lambda: read_epoch(config, store),
            lambda: read_log(config),
        )
        faults = [("executor", "worker", "driver")[n % 3] for n in range(KILLS)]
        killed, process = run_through(cluster, driven, faults, random.Random(seed))
        kill_driver(process)
        process = start_run(config, "--flush", SPARK_MASTER=cluster.address)
        assert process.wait(timeout=580) == 0, f"seed {seed}: {read_log(config)}"
    assert sum(killed.values()) == KILLS, f"seed {seed}: it ended before all kills: {killed}"
    check_targets(tmp_path, orders, payments, f"seed {seed}")


@exhaustive(beside="test_faults.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_kafka_sessions_stored_only_in_a_bucket_survive_kills(kafka: Any, postgres: Any, tmp_path: Path) -> None:
    """The bucket holds state, results and dead letters. An executor and the driver are killed while requests fail."""
    arguments = argparse.Namespace(events=4000, kills=2, faults=5, rate=0.2, broken=0.002)
    (tmp_path / "pipelines").mkdir()
    services = Services(kafka, postgres, tmp_path / "pipelines")
    with clusters.run_cluster(tmp_path / "spark") as cluster:
        assert in_a_bucket(services, cluster, arguments, None)
