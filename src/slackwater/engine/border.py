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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slackwater.errors import EpochError, SlackwaterError, SparkEndedError
from slackwater.sources.base import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("slackwater")

_SERVICES = ("pyspark", "py4j", "psycopg", "confluent_kafka", "deltalake")
_BRIDGE = ("py4j.clientserver", "py4j.java_gateway")
_ANALYSIS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SECONDS = 3.0  # a process that was killed takes a moment to be gone


@contextmanager
def errors(
    where: str, session: Callable[[], SparkSession | None] = lambda: None, committed: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Let only errors of ours out. `where`: the pipeline; `committed`: what was committed last, as a sentence."""
    debug = bool(os.environ.get("SLACKWATER_DEBUG"))
    try:
        with _quiet(debug):
            yield
    except Exception as error:
        found = _told(error, where, session(), committed)
        if debug:
            if found is error:
                raise
            raise found from error
        if isinstance(found, SlackwaterError):
            raise found.with_traceback(None) from None
        raise


def _told(error: Exception, where: str, spark: SparkSession | None, committed: Callable[[], str]) -> Exception:
    how = None if spark is None or isinstance(error, SparkEndedError) else ended(spark)
    if how is not None:
        text = committed()
        return SparkEndedError(
            f"{where}: Spark's process {how}; {text + '; ' if text else ''}start again, it goes on from the last commit. If "
            'this comes again, give Spark more memory ("spark.driver.memory" in [spark], 2g unless set) or read less per '
            "epoch (max_files_per_trigger, max_offsets_per_trigger)"
        )
    if isinstance(error, SlackwaterError):
        return error
    if isinstance(error, OSError) and error.strerror:
        named = f': "{error.filename}"' if error.filename is not None else ""
        return EpochError(f"{where}: {error.strerror}{named}; what was committed stays: mend that and start again")
    if type(error).__module__.partition(".")[0] in _SERVICES:
        return EpochError(f"{where}: {reason(error)}; what was committed stays: mend that and start again")
    return error


def ended(spark: SparkSession, seconds: float = _SECONDS) -> str | None:
    """How Spark's process ended; None while it is up."""
    gateway: Any = getattr(spark.sparkContext, "_gateway", None)
    if gateway is None:
        return None
    process = getattr(gateway, "proc", None)
    if process is None:
        return None if _answers(gateway) else "is gone"
    code = process.poll()
    if code is None and not _answers(gateway):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"(process {process.pid}) does not answer any more"
    return None if code is None else f"(process {process.pid}) {_outcome(code)}"


def _outcome(code: int) -> str:
    """An exit code of Spark's process in words; the numbers are Spark's `SparkExitCode`."""
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return "was killed (SIGKILL), as the system does when memory runs out"
    if code < 0:
        return f"was ended by signal {-code}"
    return "ran out of memory (exit code 52)" if code == 52 else f"ended by itself (exit code {code})"


def _answers(gateway: Any) -> bool:
    """Whether somebody listens where Spark's process did."""
    at = gateway.gateway_parameters
    try:
        with socket.create_connection((at.address, at.port), timeout=_SECONDS):
            return True
    except OSError:
        return False


class _Hide(logging.Filter):
    """Errors that are raised as well, and told by us: the log's own lines of them go to ours, for those who debug."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        log.debug("%s: %s", record.name, record.getMessage())
        return False


@contextmanager
def _quiet(debug: bool) -> Iterator[None]:
    """Keep the stack traces that Spark's bridge logs out of the user's log for the time of a run.

    Filters of its own loggers, taken away afterwards: handlers and levels are the user's.
    """
    undo = None if debug else _hidden([logging.getLogger(name) for name in _BRIDGE])
    try:
        yield
    finally:
        if undo is not None:
            undo()


def hide_analysis() -> Callable[[], None]:
    """The same for Spark's log of failed analyses, which goes to standard error whatever the user's logging says; undone by
    the result. To be called when Spark is up: it loads PySpark."""
    from pyspark.logger import PySparkLogger

    logger_of: Callable[[str], logging.Logger] = PySparkLogger.getLogger
    return _hidden([logger_of(name) for name in _ANALYSIS])


def _hidden(loggers: Sequence[logging.Logger]) -> Callable[[], None]:
    hide = _Hide()
    for logger in loggers:
        logger.addFilter(hide)

    def undo() -> None:
        for logger in loggers:
            logger.removeFilter(hide)

    return undo
