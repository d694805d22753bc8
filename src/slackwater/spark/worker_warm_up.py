"""Start the Python workers before the first epoch, while the JVM prepares its first query.

    JVM       Spark runs ─▶ binds the SQL ─▶ plans a first query ─────────────▶ the query, in the same workers ─▶ first epoch
    workers        ╰──────▶ a job without SQL: import modules, load loops ────╯

The loops of sessions and hashes are compiled once per machine, in the driver. After that, every process loads them from
Numba's cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
_environment_lock = threading.Lock()  # several pipelines may start in one process
_HASH_LOOPS = ("core/numba_loops.py", "core/numba_hashing.py")  # the files with the loops
_SESSION_LOOPS = ("core/numba_loops.py", "windows/session_loops/*.py")


def warm_up(session: SparkSession, workers: int, has_sessions: bool, reads_files: bool) -> None:
    """Start the Python workers, and make them import the modules that they need.

    Args:
        session: The Spark session.
        workers: The number of workers.
        has_sessions: Whether to load the loops that build sessions.
        reads_files: Whether workers may read Parquet files.
    """
    prepare = partial(worker_imports.prepare_modules, has_sessions, reads_files)
    if not all(marker.exists() for marker in _markers(has_sessions, reads_files)):
        prepare()  # otherwise, each worker would compile the loops
        mark_loops_as_compiled(has_sessions, reads_files)
    elif has_sessions:  # the driver runs loops when it emits sessions
        threading.Thread(target=prepare, daemon=True).start()
    if not spark_connect_support.is_connect(session):
        task = partial(worker_imports.import_in_job, has_sessions, reads_files)
        threading.Thread(target=start_workers, args=(session, workers, task), daemon=True).start()
    query_task = partial(worker_imports.import_in_query, has_sessions, reads_files)
    run_on_partitions(session.range(0, workers, 1, workers), ["id"], query_task)


def mark_loops_as_compiled(has_sessions: bool, reads_files: bool) -> None:
    """Create files that tell later starts that Numba's cache contains the loops. See `warm_up` for the arguments."""
    for marker in _markers(has_sessions, reads_files):
        try:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            log.debug("%s cannot be created: %s", marker, error)


def _markers(has_sessions: bool, reads_files: bool) -> list[Path]:
    """Return the path of the marker file for each set of loops, for these versions of Python, Numba and the source files."""
    home = Path(__file__).parents[1]
    versions = [sys.version, metadata.version("numba"), metadata.version("llvmlite")]
    versions.append(os.environ.get("NUMBA_CACHE_DIR", ""))
    markers = []
    for patterns in [_SESSION_LOOPS] * has_sessions + [_HASH_LOOPS] * reads_files:
        files = sorted(file for pattern in patterns for file in home.glob(pattern))
        parts = [*versions, *(f"{file} {file.stat().st_mtime_ns}" for file in files)]
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        markers.append(spark_jars.cache_directory() / "loops" / key)
    return markers


def start_workers(session: SparkSession, workers: int, task: Callable[[Iterable[int]], Iterable[int]]) -> None:
    """Run a job without SQL in the workers that will run queries. If it fails, the first query starts the workers.

    Args:
        session: The Spark session, which does not use Spark Connect.
        workers: The number of workers.
        task: A function that converts the numbers of a partition.
    """
    context = session.sparkContext
    try:
        job = context.parallelize(range(workers), workers).mapPartitions(task)
        with _environment_lock:
            before = context.environment
            # a new object, because other threads may iterate over the old one
            context.environment = _ENVIRONMENT_OF_QUERIES | before
            try:
                _ = job._jrdd  # PySpark reads the environment here, and keeps the result for `collect`
            finally:
                context.environment = before
        job.collect()
    except Exception as error:
        log.debug("the workers cannot be started early: %s", error)
