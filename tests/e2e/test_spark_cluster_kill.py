"""Runs on a cluster of two workers give the batch results after executors, workers and drivers are killed.

orders ──┬▶ sessions (window) ─┬▶ files      state: in Postgres, or in a bucket
         │                     └▶ per_minute (window) ─▶ files
payments ┴▶ paid (join) ─▶ files
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from tests.e2e.matrices.cluster_fault_matrix import run_pipeline_in_bucket
from tests.e2e.matrices.kill_matrix import KafkaAndPostgres
from tests.support import cluster as clusters
from tests.support.case_selection import exhaustive
from tests.support.cluster_faults import PipelineUnderTest, inject_faults, kill_driver
from tests.support.cluster_orders_pipeline import (
    CONFIG,
    KILLS,
    check_target_rows,
    read_latest_committed_epoch,
    write_orders_and_payments,
)
from tests.support.run_command_process import read_run_log, start_run_command


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_killed_executors_workers_and_drivers_change_no_result(postgres: Any, tmp_path: Path) -> None:
    """State is in Postgres. `make faults` also kills runs with state in a shared folder."""
    config = tmp_path / "cluster.toml"
    config.write_text(CONFIG.format(store=f'kind = "postgres"\nurl = "{postgres.database("cluster")}"'))
    orders, payments = write_orders_and_payments(tmp_path)
    seed = random.randrange(10**6)
    with clusters.run_cluster(tmp_path / "spark") as cluster:
        driven = PipelineUnderTest(
            lambda: start_run_command(config, **cluster.driver_environment),
            lambda: read_latest_committed_epoch(config, "postgres"),
            lambda: read_run_log(config),
        )
        faults = [("executor", "worker", "driver")[n % 3] for n in range(KILLS)]
        killed, process = inject_faults(cluster, driven, faults, random.Random(seed))
        kill_driver(process)
        process = start_run_command(config, "--flush", **cluster.driver_environment)
        assert process.wait(timeout=580) == 0, f"seed {seed}: {read_run_log(config)}"
    assert sum(killed.values()) == KILLS, f"seed {seed}: it ended before all kills: {killed}"
    check_target_rows(tmp_path, orders, payments, f"seed {seed}")


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_kafka_sessions_stored_only_in_a_bucket_survive_kills(kafka: Any, postgres: Any, tmp_path: Path) -> None:
    """The bucket holds state, results and dead letters. An executor and the driver are killed while requests fail."""
    arguments = argparse.Namespace(events=4000, kills=2, faults=5, rate=0.2, broken=0.002, epochs=10)
    (tmp_path / "pipelines").mkdir()
    services = KafkaAndPostgres(kafka, postgres, tmp_path / "pipelines")
    with clusters.run_cluster(tmp_path / "spark") as cluster:
        assert run_pipeline_in_bucket(services, cluster, arguments, None)
