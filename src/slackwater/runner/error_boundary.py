"""Where errors leave for the user: one line of our own, without the traces of Spark, its bridge or a driver of a database.

    what was raised                         what the user gets
    a SlackwaterError                       itself, and nothing chained to it
    anything while Spark's process is gone  SparkEndedError: how it ended, what was committed last, what to do
    an error of a service or the system     EpochError with its one line
    anything else                           itself: a bug of ours, which keeps its trace

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

from slackwater.errors import EpochError, SlackwaterError, SparkEndedError
from slackwater.sources import spark_connect
from slackwater.sources.base import spark_error_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("slackwater")

_SERVICES = ("pyspark", "py4j", "grpc", "psycopg", "confluent_kafka", "deltalake", "pyiceberg")
_BRIDGE = ("py4j.clientserver", "py4j.java_gateway")
_ANALYSIS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SECONDS = 3.0  # a process that was killed takes a moment to be gone


def error_boundary(
    where: str, session: Callable[[], SparkSession | None] = lambda: None, committed: Callable[[], str] = lambda: ""
) -> AbstractContextManager[None]:
    """Let only errors of ours out. `where`: the pipeline; `committed`: what was committed last, as a sentence."""
    return _ErrorBoundary(where, session, committed)


class _ErrorBoundary(AbstractContextManager[None]):
    """No generator: contextlib gives an error that is raised again its former trace back, with the frames of the bridge."""

    def __init__(self, where: str, session: Callable[[], SparkSession | None], committed: Callable[[], str]) -> None:
        self._where, self._session, self._committed = where, session, committed
        self._all = bool(os.environ.get("SLACKWATER_DEBUG"))
        self._restore_logging: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        if not self._all:
            self._restore_logging = _hide_bridge()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if not isinstance(error, Exception):
                return
            shown_error = _user_error(error, self._where, self._session(), self._committed)
            if self._all and shown_error is not error:
                raise shown_error from error
            if isinstance(shown_error, SlackwaterError) and not self._all:
                raise shown_error.with_traceback(None) from None
        finally:
            self._restore_logging()


def _user_error(error: Exception, where: str, spark: SparkSession | None, committed: Callable[[], str]) -> Exception:
    how = None if spark is None or isinstance(error, SparkEndedError) else spark_exit(spark)
    if how is not None:
        last = committed()
        return SparkEndedError(
            f"{where}: Spark's process {how}; {last + '; ' if last else ''}start again, it goes on from the last commit. If "
            'this comes again, give Spark more memory ("spark.driver.memory" in [spark], 2g unless set) or read less per '
            "epoch (max_files_per_trigger, max_offsets_per_trigger)"
        )
    text = None if isinstance(error, SlackwaterError) else service_error_text(error)
    return error if text is None else EpochError(f"{where}: {text}; what was committed stays; fix that and start again")


def service_error_text(error: Exception) -> str | None:
    """The one line of an error of a service or of the system; None for any other, which is a bug."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f': "{error.filename}"' if error.filename is not None else "")
    service = type(error).__module__.partition(".")[0]
    if service not in _SERVICES:
        return None
    server = postgres_server(error) if service == "psycopg" else None
    return spark_error_reason(error) if server is None else f"Postgres at {server}: {spark_error_reason(error)}"


def postgres_server(error: Exception) -> str | None:
    """Return `host:port/database` of the connection that raised a driver's error; None where it cannot be known."""
    trace, server = error.__traceback__, None
    while trace is not None:
        connection: Any = trace.tb_frame.f_locals.get("self")
        connection = getattr(connection, "connection", connection)  # of a cursor
        if type(connection).__module__.partition(".")[0] == "psycopg" and hasattr(connection, "info"):
            try:
                server_info = connection.info
                server = f"{server_info.host}:{server_info.port}/{server_info.dbname}"
            except Exception:  # it was closed meanwhile, and forgot where it was
                log.debug("a closed connection does not know its server")
        trace = trace.tb_next
    return server


def spark_exit(spark: SparkSession, seconds: float = _SECONDS) -> str | None:
    """How Spark's process ended; None while it is up."""
    if spark_connect.is_connect(spark):
        return (
            None
            if spark_connect.server_answers(spark)
            else f"({spark_connect.describe_session(spark)}) does not answer any more"
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
            return f"(process {process.pid}) does not answer any more"
    return None if code is None else f"(process {process.pid}) {_outcome(code)}"


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark's process has ended, by the cheapest look at it."""
    if spark_connect.is_connect(spark):
        return not spark_connect.server_answers(spark)
    gateway: Any = getattr(spark.sparkContext, "_gateway", None)
    process = getattr(gateway, "proc", None)
    if process is not None:
        return process.poll() is not None
    return gateway is not None and not _is_listening(gateway)


def _outcome(code: int) -> str:
    """An exit code of Spark's process in words; the numbers are Spark's `SparkExitCode`."""
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return "was killed (SIGKILL), as the system does when memory runs out"
    if code < 0:
        return f"was ended by signal {-code}"
    return "ran out of memory (exit code 52)" if code == 52 else f"ended by itself (exit code {code})"


def _is_listening(gateway: Any) -> bool:
    """Whether somebody listens where Spark's process did."""
    parameters = gateway.gateway_parameters
    try:
        with socket.create_connection((parameters.address, parameters.port), timeout=_SECONDS):
            return True
    except OSError:
        return False


class _LogFilter(logging.Filter):
    """Errors that are raised as well, and told by us: the log's own lines of them go to ours, for those who debug."""

    def filter(self, record: logging.LogRecord) -> bool:
        of_user = record.name == "root" and f"{os.sep}py4j{os.sep}" not in record.pathname
        if record.levelno < logging.ERROR or of_user:
            return True
        log.debug("%s: %s", record.name, record.getMessage())
        return False


def _hide_bridge() -> Callable[[], None]:
    """Keep the stack traces that Spark's bridge logs out of the user's log, until the result is called.

    By filters of its own loggers, and one of the root for what it logs there: handlers and levels are the user's. A root
    without handlers gets one of its own accord as soon as something is logged to it, and every line of ours would come twice;
    meanwhile it has the one that Python falls back on anyway.
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


def hide_traces(spark: SparkSession) -> Callable[[], None]:
    """The same for Spark's log of failed analyses, which goes to standard error whatever the user's logging says. To be
    called when Spark is up. The thread that waits for Spark's counters says in our log that its connection is gone."""
    from pyspark.logger import PySparkLogger

    counters: Any = None if spark_connect.is_connect(spark) else getattr(spark.sparkContext, "_accumulatorServer", None)
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
