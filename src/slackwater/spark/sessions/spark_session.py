"""Start Spark without its start-up output, or open a session on a Spark Connect server or on the caller's Spark.

The environment variable SPARK_REMOTE (sc://host:15002) selects a server. `"spark.remote"` in [spark] takes precedence.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads import avro
from slackwater.connectors.source import spark_error_reason
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic
from slackwater.spark import worker_daemon
from slackwater.spark.sessions import jvm_launch
from slackwater.spark.tuning import worker_memory
from slackwater.spark.tuning.shuffle_tuning import MOST_ROWS
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "OFF",
    # Spark puts these before spark.executor.extraJavaOptions, whose values win
    "spark.executor.defaultJavaOptions": avro.JAVA_OPTIONS,
}
_FEW_TASKS = 4
_FEW_TASKS_DEFAULTS = {"spark.buffer.pageSize": "16m"}  # if few tasks share the heap, Spark chooses 32m or 64m
_OTHER_PYTHON = frozenset(["spark.pyspark.python", "spark.pyspark.driver.python"])  # settings of another interpreter
_KEY = "spark.remote"
_NEEDED = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


_starting = False


def is_spark_starting() -> bool:
    """Return whether Spark is still starting. No data has been read yet, so the process can be stopped immediately."""
    return _starting


def worker_settings(slots: int | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return default settings for the tasks of a local Spark.

    Args:
        slots: How many tasks run at a time. None on a cluster.
        settings: The settings of the user.
    """
    if slots is None:
        return {}
    defaults = _FEW_TASKS_DEFAULTS if slots <= _FEW_TASKS else {}
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    is_this_python = python == sys.executable and not _OTHER_PYTHON & settings.keys()
    if is_this_python and is_enabled("installed_pyspark"):
        return defaults | {"spark.python.daemon.module": worker_daemon.NAME}
    return defaults


def start_session(
    settings: dict[str, str] | None = None, notice: Callable[[str, str], None] = lambda level, line: None
) -> SparkSession:
    """Return the running Spark session, or start Spark without its start-up output.

    `notice`: a function that receives the level and the text of each progress message. Raises StartError if Spark
    cannot start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Spark Connect loads gRPC, whose fork handlers abort forks
    for name, setting in worker_memory.environment().items():
        os.environ.setdefault(name, setting)
    from pyspark.sql import SparkSession

    if (url := server_address(settings or {})) is not None:
        session = start_connect_session(url, settings or {})
        notice("info", f"Spark {session.version}, {spark_connect_support.describe_session(session)}")
        return session
    _drop_ended_spark()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if jvm_launch.find_default_java() is None and jvm_launch.find_fast_java() is None:
        raise StartError(
            "Spark needs Java, which was not found; install Java 17 or later, or set JAVA_HOME", Topic.NOT_INSTALLED
        )
    builder = SparkSession.builder.appName("slackwater")
    if "spark.master" not in (settings or {}) and "--master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        builder = builder.master(os.environ.get("SPARK_MASTER", "local[*]"))
    slots = jvm_launch.count_task_slots(settings or {})
    defaults = _DEFAULTS | worker_settings(slots, settings or {})
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    notice("info", "starting Spark, which takes 5 to 30 s …")
    began = time.monotonic()
    options = jvm_launch.jvm_options(settings or {})
    archive = jvm_launch.use_class_archive(options, is_local=slots is not None)
    with _stderr_to_file() as log, _keep_interrupt_handler(), archive:
        try:
            _silence_error_logs()
            session = builder.getOrCreate()
        except Exception as error:
            reason, advice = _failure_reason(error, log)
            raise StartError(f"Spark did not start ({reason}); {advice}", Topic.SPARK_START) from None
    took = time.monotonic() - began
    virtual_machine: Any = session._jvm
    java_version = virtual_machine.System.getProperty("java.version")
    notice(
        "info",
        f"Spark {session.version} is up after {took:.0f} s, {session.sparkContext.master}, Java {java_version}",
    )
    return session


def _failure_reason(error: Exception, log: Path) -> tuple[str, str]:
    """Return the reason why Spark did not start, and advice. `log`: the file with the output of Java."""
    if type(error).__module__.startswith("py4j"):
        advice = "check the settings in [spark], and that a cluster has free cores and memory"
        return spark_error_reason(error), advice
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else str(error), "check that java -version reports 17 or later"


@contextmanager
def mark_spark_starting() -> Iterator[None]:
    """Make `is_spark_starting` return True within this context."""
    global _starting
    _starting = True
    try:
        yield
    finally:
        _starting = False


def _drop_ended_spark() -> None:
    """Make PySpark forget a session whose JVM has exited. Otherwise, PySpark would keep returning this session."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _silence_error_logs() -> None:
    """Prevent PySpark from logging Java stack traces when Spark rejects a query. The error is raised anyway."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep the caller's SIGINT handler within this context. PySpark's handler would kill the epoch in progress."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _stderr_to_file() -> Iterator[Path]:
    """Redirect the standard error of this process to a file within this context, and yield the path of the file.

    A JVM that starts within this context writes to the file as long as it runs.
    """
    with tempfile.NamedTemporaryFile(prefix="slackwater-spark-", suffix=".log", delete=False) as file:
        path = Path(file.name)
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        path.unlink(missing_ok=True)


def private_session(session: SparkSession, shards: int) -> SparkSession:
    """Return a new session on the same Spark, with separate views and the settings that a pipeline needs.

    `shards`: the number of shuffle partitions.
    """
    private = (
        spark_connect_support.new_session(session)
        if spark_connect_support.is_connect(session)
        else session.newSession()
    )
    for key, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(shards),
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(MOST_ROWS),
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        # By default, Spark's fast hash table has room for 65,000 groups. If an epoch has more groups, Spark looks up
        # each row in two tables.
        "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
        "spark.sql.streaming.metricsEnabled": "false",
        # To plan the next batch, the checkpoint needs only the previous batch.
        "spark.sql.streaming.minBatchesToRetain": "4",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    }.items():
        if spark_connect_support.is_connect(private) and key == "spark.sql.execution.arrow.pyspark.fallback.enabled":
            continue  # Spark Connect does not have this setting and would log a warning
        private.conf.set(key, value)
    if private.conf.get("spark.ui.enabled", "true") == "false":
        private.conf.set("spark.sql.ui.explainMode", "simple")  # the UI is off, so no detailed plan text is needed
    if spark_connect_support.is_local_spark(session):
        # On a single machine, no shuffle file is lost, so checksums for repeated shuffle tasks are useless.
        for key in ("enabled", "enableFullRetryOnMismatch"):
            private.conf.set(f"spark.sql.shuffle.orderIndependentChecksum.{key}", "false")
    if spark_connect_support.is_connect(private):
        private.conf.set("spark.sql.debug.maxToStringFields", "100000")  # `row_wise_plan_check` reads plans as text
    return private


def list_files_locally(session: SparkSession) -> None:
    """Make Spark list input files in the driver instead of in a job. This is faster for files on local disks."""
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000")


# -- Spark Connect -----------------------------------------------------------------------------------------------------


def server_address(settings: Mapping[str, str]) -> str | None:
    """Return the configured address of a Spark Connect server. None if no server is configured.

    Raises StartError if the address is invalid, or if the settings name both a server and a Spark master.
    """
    address = settings.get(_KEY) or os.environ.get("SPARK_REMOTE")
    if not address:
        return None
    if "spark.master" in settings:
        source = f'"{_KEY}"' if _KEY in settings else "SPARK_REMOTE"
        raise StartError(
            f'[spark] sets "spark.master", but {source} names a Spark Connect server, which has its own master; remove '
            "one of the two settings",
            Topic.SPARK_CONNECT,
        )
    if not address.startswith("sc://"):
        raise StartError(
            f'"{address}" is not the address of a Spark Connect server; expected sc://host:15002 in SPARK_REMOTE, or '
            f'in "{_KEY}" of [spark]',
            Topic.SPARK_CONNECT,
        )
    return address


def start_connect_session(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Open a session with the given settings on a Spark Connect server.

    Raises StartError if the server does not respond, or if a setting cannot be changed per session.
    """
    session: Any = _connect_class()(connection=url)
    endpoint = spark_connect_support.server_endpoint(session)
    if not spark_connect_support.is_server_reachable(session):
        raise StartError(
            f"Spark Connect at {endpoint}: no server answers; start the server, or correct SPARK_REMOTE",
            Topic.SPARK_CONNECT,
        )
    session.client.set_retry_policies(spark_connect_support.retry_policies())
    try:
        server = session.version
    except Exception as error:
        raise StartError(
            f"Spark Connect at {endpoint}: {spark_error_reason(error)}; expected a Spark Connect server, 4.0 or later",
            Topic.SPARK_CONNECT,
        ) from None
    if spark_connect_support.spark_version(session) < (4, 0):
        raise StartError(
            f"Spark Connect at {endpoint}: " + mismatch(f"Spark {server}", "Spark 4.0 or later"), Topic.SPARK_CONNECT
        )
    for key, value in settings.items():
        if key == _KEY:
            continue
        try:
            session.conf.set(key, value)
        except Exception:
            raise StartError(
                f'[spark] "{key}" cannot be set over Spark Connect, because it is a server setting; start the '
                f"server with --conf {key}=…, and remove the key from [spark]",
                Topic.SPARK_CONNECT,
            ) from None
    return session


def _connect_class() -> Any:
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise StartError(
            f"Spark Connect needs packages that are not installed ({spark_error_reason(error)}); run: pip install "
            "'slackwater[connect]'",
            Topic.NOT_INSTALLED,
        ) from None
    except Exception as error:  # for example, PySpark's Protobuf messages were generated for another version
        raise StartError(
            f"the Spark Connect client of this PySpark cannot be loaded ({spark_error_reason(error)}); install the "
            "version of protobuf that it needs",
            Topic.SPARK_CONNECT,
        ) from None
    return ConnectSession


def check_session_settings(session: SparkSession, where: str) -> None:
    """Raise StartError if a setting of the caller's session would change the meaning of a pipeline's SQL.

    Over Spark Connect, a plan runs with the settings of the session that created it. `where`: the prefix of messages.
    """
    for key, expected in _NEEDED.items():
        setting = session.conf.get(key)
        if str(setting).casefold() != expected.casefold():
            raise StartError(
                f"{where}: over Spark Connect, a batch uses the settings of your session; "
                + mismatch(f'{key} = "{setting}"', f'"{expected}"; run spark.conf.set("{key}", "{expected}")'),
                Topic.SPARK_CONNECT,
            )
