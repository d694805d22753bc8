"""Error boundary: users see one-line errors, without stack traces of Spark, Py4J or a database driver.

    error raised                                 error that the user gets
    SlackwaterError                              the error itself, without a cause
    any error after the Spark process has ended  SparkEndedError: how Spark ended, what was committed last, what to do
    an error from a service or the system        EpochError with one line of the error
    any other error                              the error itself with its trace, because it is a bug in Slackwater

`SLACKWATER_DEBUG=1` keeps every trace.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.source import spark_error_reason
from slackwater.errors import EpochError, SlackwaterError, SparkEndedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("slackwater")

_SERVICES = ("pyspark", "py4j", "grpc", "psycopg", "confluent_kafka", "deltalake", "pyiceberg")
_BRIDGE = ("py4j.clientserver", "py4j.java_gateway")
_ANALYSIS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SECONDS = 3.0  # how long to wait for a killed process to end, or for a connection


class ErrorBoundary(AbstractContextManager[None]):
    """A context manager that replaces errors as the table in the module docstring describes.

    It is not a generator, because contextlib would restore the traceback, including Py4J's frames.

    Args:
        pipeline: The name of the pipeline.
        session: Returns the Spark session; None before Spark has started.
        committed: Returns a sentence about the last commit.
    """

    def __init__(
        self,
        pipeline: str,
        session: Callable[[], SparkSession | None] = lambda: None,
        committed: Callable[[], str] = lambda: "",
    ) -> None:
        self._pipeline, self._session, self._committed = pipeline, session, committed
        self._keeps_traces = bool(os.environ.get("SLACKWATER_DEBUG"))
        self._restore_logging: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        if not self._keeps_traces:
            self._restore_logging = _hide_bridge()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if not isinstance(error, Exception):
                return
            shown_error = _user_error(error, self._pipeline, self._session(), self._committed)
            if self._keeps_traces and shown_error is not error:
                raise shown_error from error
            if isinstance(shown_error, SlackwaterError) and not self._keeps_traces:
                raise shown_error.with_traceback(None) from None
        finally:
            self._restore_logging()


def _user_error(error: Exception, pipeline: str, spark: SparkSession | None, committed: Callable[[], str]) -> Exception:
    exit_text = None if spark is None or isinstance(error, SparkEndedError) else _spark_exit(spark)
    if exit_text is not None:
        commit_text = committed()
        return SparkEndedError(
            f"{pipeline}: Spark's process {exit_text}; {commit_text + '; ' if commit_text else ''}start again "
            "to continue from the last commit"
            '; if this happens again, give Spark more memory ("spark.driver.memory" in '
            "[spark], 2g by default) or read less per epoch (max_files_per_trigger, max_offsets_per_trigger)"
        )
    text = None if isinstance(error, SlackwaterError) else describe_service_error(error)
    return (
        error
        if text is None
        else EpochError(f"{pipeline}: {text}; committed epochs are safe; fix the cause, and start again")
    )


def describe_service_error(error: Exception) -> str | None:
    """Return one line for an error from a service or the operating system. Return None for any other error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f': "{error.filename}"' if error.filename is not None else "")
    service = type(error).__module__.partition(".")[0]
    if service not in _SERVICES:
        return None
    server = _postgres_server(error) if service == "psycopg" else None
    return spark_error_reason(error) if server is None else f"Postgres at {server}: {spark_error_reason(error)}"


def _postgres_server(error: Exception) -> str | None:
    """Return `host:port/database` of the connection that raised a Postgres error; None if unknown."""
    trace, server = error.__traceback__, None
    while trace is not None:
        connection: Any = trace.tb_frame.f_locals.get("self")
        connection = getattr(connection, "connection", connection)  # of a cursor
        if type(connection).__module__.partition(".")[0] == "psycopg" and hasattr(connection, "info"):
            try:
                server_info = connection.info
                server = f"{server_info.host}:{server_info.port}/{server_info.dbname}"
            except Exception:  # a closed connection has no address
                log.debug("a closed connection does not know its server")
        trace = trace.tb_next
    return server


def _spark_exit(spark: SparkSession, seconds: float = _SECONDS) -> str | None:
    """Describe how Spark's process ended; None while it runs. `seconds`: how long to wait for its exit code."""
    if spark_connect_support.is_connect(spark):
        return (
            None
            if spark_connect_support.is_server_reachable(spark)
            else f"({spark_connect_support.describe_session(spark)}) no longer answers"
        )
    gateway: Any = getattr(spark.sparkContext, "_gateway", None)
    if gateway is None:
        return None
    process = getattr(gateway, "proc", None)
    if process is None:
        return None if _is_listening(gateway) else "is gone"
    code = process.poll()
    if code is None and not _is_listening(gateway):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"(process {process.pid}) no longer answers"
    return None if code is None else f"(process {process.pid}) {_exit_text(code)}"


def has_spark_ended(spark: SparkSession) -> bool:
    """Return whether Spark's process has ended, using the cheapest check: an idle run calls this every second."""
    if spark_connect_support.is_connect(spark):
        return not spark_connect_support.is_server_reachable(spark)
    gateway: Any = getattr(spark.sparkContext, "_gateway", None)
    process = getattr(gateway, "proc", None)
    if process is not None:
        return process.poll() is not None
    return gateway is not None and not _is_listening(gateway)


def _exit_text(code: int) -> str:
    """Describe the exit code of Spark's process, using the numbers of Spark's `SparkExitCode`."""
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return "was killed (SIGKILL), as the system does when memory runs out"
    if code < 0:
        return f"was ended by signal {-code}"
    return "ran out of memory (exit code 52)" if code == 52 else f"ended by itself (exit code {code})"


def _is_listening(gateway: Any) -> bool:
    """Return whether a process is listening on the port of Spark's process."""
    parameters = gateway.gateway_parameters
    try:
        with socket.create_connection((parameters.address, parameters.port), timeout=_SECONDS):
            return True
    except OSError:
        return False


class _LogFilter(logging.Filter):
    """Moves the log lines of errors that are also raised to the debug log of Slackwater."""

    def filter(self, record: logging.LogRecord) -> bool:
        of_user = record.name == "root" and f"{os.sep}py4j{os.sep}" not in record.pathname
        if record.levelno < logging.ERROR or of_user:
            return True
        log.debug("%s: %s", record.name, record.getMessage())
        return False


def _hide_bridge() -> Callable[[], None]:
    """Keep Py4J's stack traces out of the user's log until the returned function is called.

    Filters are added to Py4J's loggers and to the root logger; the user's handlers and levels are unchanged. A root
    logger without handlers would get one when its first line is logged, and then every Slackwater line would appear
    twice. Therefore, it temporarily gets Python's last-resort handler, which Python would use anyway.
    """
    root = logging.getLogger()
    undo = _install_filters([root, *(logging.getLogger(name) for name in _BRIDGE)])
    fallback = None if root.handlers else logging.lastResort
    if fallback is not None:
        root.addHandler(fallback)

    def restore() -> None:
        undo()
        if fallback is not None:
            root.removeHandler(fallback)

    return restore


def hide_stack_traces(spark: SparkSession) -> Callable[[], None]:
    """Prevent Spark from logging failed analyses to standard error, until the returned function is called.

    Spark must be running. The user's logging settings do not affect these lines. Errors in the thread that receives
    Spark's accumulators go to the debug log of Slackwater.
    """
    from pyspark.logger import PySparkLogger

    counters: Any = (
        None if spark_connect_support.is_connect(spark) else getattr(spark.sparkContext, "_accumulatorServer", None)
    )
    if counters is not None:
        counters.handle_error = lambda request, address: log.debug("Spark's counters: the connection is gone")
    logger_of: Callable[[str], logging.Logger] = PySparkLogger.getLogger
    return _install_filters([logger_of(name) for name in _ANALYSIS])


def _install_filters(loggers: Sequence[logging.Logger]) -> Callable[[], None]:
    hide = _LogFilter()
    for logger in loggers:
        logger.addFilter(hide)

    def undo() -> None:
        for logger in loggers:
            logger.removeFilter(hide)

    return undo
