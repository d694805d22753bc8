"""Workers start with a job without SQL. The queries of epochs use the same workers, and loops are compiled once."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from slackwater.spark import worker_daemon, worker_imports
from slackwater.spark.worker_tasks import run_on_partitions
from slackwater.spark.worker_warm_up import start_workers, warm_up

pytestmark = pytest.mark.spark


def test_queries_run_in_the_workers_that_a_job_without_sql_started(spark: Any, tmp_path: Path) -> None:
    def meet_other_worker(place: Path) -> None:
        """Wait until both tasks run, so that each has its own worker."""
        (place / str(os.getpid())).touch()
        deadline = time.monotonic() + 120
        while len(list(place.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    def run_in_job(numbers: Iterable[int]) -> Iterable[int]:
        meet_other_worker(tmp_path / "job")
        return numbers

    def run_in_query(table: Any) -> str:
        meet_other_worker(tmp_path / "query")
        return str(os.getpid())

    (tmp_path / "job").mkdir()
    (tmp_path / "query").mkdir()
    environment = dict(spark.sparkContext.environment)
    start_workers(spark, 2, run_in_job)
    assert spark.sparkContext.environment == environment
    started = {path.name for path in (tmp_path / "job").iterdir()}
    assert len(started) == 2
    assert set(run_on_partitions(spark.range(0, 2, 1, 2), ["id"], run_in_query)) == started


def test_failure_to_start_workers_early_is_not_reported(spark: Any) -> None:
    def fail(numbers: Iterable[int]) -> Iterable[int]:
        raise OSError("no memory")

    start_workers(spark, 1, fail)


def test_driver_compiles_loops_only_if_no_start_has_compiled_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops of sessions are loaded in another thread if they are compiled, because the driver emits sessions."""
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path))
    compiled: list[tuple[bool, bool]] = []

    def prepare_modules(*which: bool) -> None:
        if threading.current_thread() is threading.main_thread():
            compiled.append(which)

    monkeypatch.setattr(worker_imports, "prepare_modules", prepare_modules)
    warm_up(spark, 1, has_sessions=False, reads_files=True)
    assert compiled == [(False, True)]
    warm_up(spark, 1, has_sessions=False, reads_files=True)
    warm_up(spark, 1, has_sessions=False, reads_files=False)
    assert compiled == [(False, True)], "a second start compiled the loops"
    warm_up(spark, 1, has_sessions=True, reads_files=True)
    assert compiled == [(False, True), (True, True)], "other loops were not compiled"
    warm_up(spark, 1, has_sessions=True, reads_files=False)
    assert len(compiled) == 2
    shutil.rmtree(tmp_path / "loops")
    (tmp_path / "loops").touch()  # not a directory, so no marker can be created
    warm_up(spark, 1, has_sessions=False, reads_files=True)
    assert len(compiled) == 3


def test_workers_import_the_installed_pyspark(spark: Any) -> None:
    def find_pyspark(table: Any) -> str:
        import py4j
        import pyspark

        return f"{pyspark.__file__} {py4j.__file__}"

    import py4j
    import pyspark

    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == worker_daemon.NAME
    assert run_on_partitions(spark.range(1), ["id"], find_pyspark) == [f"{pyspark.__file__} {py4j.__file__}"]
