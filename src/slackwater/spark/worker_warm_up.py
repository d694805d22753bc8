"""Start the Python workers before the first epoch, while the JVM prepares its first query.

    JVM       Spark runs ─▶ binds the SQL ─▶ plans a first query ─────────────▶ the query, in the same workers ─▶ first epoch
    workers        ╰──────▶ a job without SQL: import modules, load loops ────╯

Loops are compiled once per machine, in the driver. After that, every process loads them from Numba's cache.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.connectors import spark_connect_support
from slackwater.spark import worker_imports
from slackwater.spark.sessions import spark_jars
from slackwater.spark.worker_tasks import run_on_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("slackwater")

# Workers with different environments are separate. Spark adds this variable for queries, but not for jobs without SQL.
_ENVIRONMENT_OF_QUERIES = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
_FILES_WITH_LOOPS = ("core/numba_loops.py", "core/numba_hashing.py", "windows/session_loops/*.py")


def warm_up(session: SparkSession, workers: int, loops: bool, reads_files: bool) -> None:
    """Start the Python workers, and make them import the modules that they need.

    Args:
        session: The Spark session.
        workers: The number of workers.
        loops: Whether to load the loops that build sessions.
        reads_files: Whether workers may read Parquet files.
    """
    if loops or reads_files:
        load_loops = partial(worker_imports.import_modules, loops, reads_files)
        if not _marker_of_compiled_loops().exists():
            load_loops()  # otherwise, each worker would compile them
            mark_loops_as_compiled()
        elif loops:  # the driver runs loops when it emits sessions
            threading.Thread(target=load_loops, daemon=True).start()
    if not spark_connect_support.is_connect(session):
        task = partial(worker_imports.import_in_job, loops, reads_files)
        threading.Thread(target=start_workers, args=(session, workers, task), daemon=True).start()
    run_on_partitions(
        session.range(0, workers, 1, workers), ["id"], partial(worker_imports.import_in_query, loops, reads_files)
    )


def mark_loops_as_compiled() -> None:
    """Create a file that tells later starts that Numba's cache contains the loops."""
    marker = _marker_of_compiled_loops()
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        log.debug("%s cannot be created: %s", marker, error)


def _marker_of_compiled_loops() -> Path:
    """Return the path of the marker file for these versions of Python, Numba and the source files."""
    home = Path(__file__).parents[1]
    files = sorted(file for pattern in _FILES_WITH_LOOPS for file in home.glob(pattern))
    parts = [sys.version, metadata.version("numba"), *(f"{file} {file.stat().st_mtime_ns}" for file in files)]
    return spark_jars.cache_directory() / "loops" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def start_workers(session: SparkSession, workers: int, task: Callable[[Iterable[int]], Iterable[int]]) -> None:
    """Run a job without SQL in the workers that will run queries. If it fails, the first query starts the workers.

    Args:
        session: The Spark session, which does not use Spark Connect.
        workers: The number of workers.
        task: A function that converts the numbers of a partition.
    """
    context = session.sparkContext
    before = context.environment
    context.environment = (
        _ENVIRONMENT_OF_QUERIES | before
    )  # a new object, because other threads may iterate over the old one
    try:
        context.parallelize(range(workers), workers).mapPartitions(task).count()
    except Exception as error:
        log.debug("the workers cannot be started early: %s", error)
    finally:
        context.environment = before
