"""Errors as Python users see them: one line, without a chained exception, and with the configured logging."""

from __future__ import annotations

import errno
import io
import logging
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.errors import BadRowError, EpochError, SparkEndedError
from slackwater.runner import error_boundary, run_log


@pytest.fixture(autouse=True)
def remove_log_filters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the filters that hide log lines during an error, as in a new process. Restore them at the end."""
    monkeypatch.delenv("SLACKWATER_DEBUG", raising=False)
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in error_boundary._BRIDGE)]
    before = [(logger, list(logger.filters)) for logger in loggers]
    for logger, filters in before:
        logger.filters[:] = [f for f in filters if not isinstance(f, error_boundary._LogFilter)]
    yield
    for logger, filters in before:
        logger.filters[:] = filters


def raise_within_boundary(error: Exception, session: Any = None, committed: str = "") -> Exception:
    try:
        with error_boundary.ErrorBoundary("clicks", lambda: session, lambda: committed):
            try:
                raise KeyError("a trace of another library")
            except KeyError as cause:
                raise error from cause
    except Exception as found:
        return found
    raise AssertionError("nothing was raised")


def fake_spark_session(process: Any, port: int) -> Any:
    gateway = SimpleNamespace(proc=process, gateway_parameters=SimpleNamespace(address="127.0.0.1", port=port))
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))


def find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_slackwater_error_is_raised_without_its_cause() -> None:
    raised = raise_within_boundary(BadRowError("clicks: 1 bad row"))
    text = "".join(traceback.format_exception(raised))
    assert text.endswith("slackwater.errors.BadRowError: clicks: 1 bad row\n")
    assert "KeyError" not in text
    assert "another library" not in text


def test_debug_variable_shows_every_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_DEBUG", "1")
    assert "another library" in "".join(
        traceback.format_exception(raise_within_boundary(BadRowError("clicks: 1 bad row")))
    )


def build_service_error(module: str, text: str) -> Exception:
    kind = type("Broken", (Exception,), {"__module__": module})
    return kind(text)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/out/x"),
            'clicks: No space left on device: "/out/x"; committed',
        ),
        (
            build_service_error("psycopg.errors", "server closed the connection\nmore"),
            "clicks: server closed the connection;",
        ),
        (
            build_service_error("pyspark.errors.exceptions.captured", "[TABLE] gone\n\tat java"),
            "clicks: [TABLE] gone; committed",
        ),
        (
            build_service_error(
                "py4j.protocol",
                "An error occurred while calling o1.count.\n: org.apache.spark.SparkException: Job aborted\n"
                "Caused by: java.io.FileNotFoundException: file:/in/2.jsonl (Permission denied)\n\tat java",
            ),
            'clicks: "/in/2.jsonl" cannot be read (Permission denied); give this user read access; committed',
        ),
        (build_service_error("confluent_kafka.cimpl", "no broker"), "clicks: no broker; committed epochs are safe"),
    ],
)
def test_service_failure_is_reported_with_a_one_line_error(error: Exception, expected: str) -> None:
    raised = raise_within_boundary(error)
    assert type(raised) is EpochError
    assert str(raised).startswith(expected)
    assert "\n" not in str(raised)


CRASHED = """An error occurred while calling o54.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: \
org.apache.spark.SparkException: {failure}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (
            "Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.…'",
            "a Python worker of Spark was kill",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "Spark ran out of memory; give it more"),
    ],
)
def test_out_of_memory_is_reported_instead_of_the_closed_pipe(failure: str, expected: str) -> None:
    """Spark names the closed pipe as the cause. The killed process appears further up in the text."""
    raised = raise_within_boundary(build_service_error("py4j.protocol", CRASHED.format(failure=failure)))
    assert str(raised).startswith(f"clicks: {expected}")


def test_internal_error_is_raised_with_its_original_type_and_trace() -> None:
    raised = raise_within_boundary(ZeroDivisionError("ours"))
    assert type(raised) is ZeroDivisionError
    assert "another library" in "".join(traceback.format_exception(raised))


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed (SIGKILL), as the system does when memory runs out"),
        ("import sys; sys.exit(52)", "ran out of memory (exit code 52)"),
        ("import sys; sys.exit(3)", "ended by itself (exit code 3)"),
        ("import os; os.kill(os.getpid(), 15)", "was ended by signal 15"),
    ],
)
def test_ended_spark_process_is_reported_instead_of_other_errors(code: str, how: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code])
    process.wait()
    raised = raise_within_boundary(
        ConnectionRefusedError(111, "Connection refused"),
        fake_spark_session(process, find_free_port()),
        "epoch 7 was last",
    )
    assert type(raised) is SparkEndedError
    assert str(raised).startswith(
        f"clicks: Spark's process (process {process.pid}) {how}; epoch 7 was last; start again to continue from the "
    )
    assert '"spark.driver.memory" in [spark]' in str(raised)


def test_running_spark_process_is_not_reported_as_ended() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        session = fake_spark_session(None, server.getsockname()[1])
        assert type(raise_within_boundary(EpochError("clicks: epoch 3 failed"), session)) is EpochError
    assert (
        type(raise_within_boundary(EpochError("clicks: epoch 3 failed"), fake_spark_session(None, find_free_port())))
        is SparkEndedError
    )


def test_py4j_errors_are_hidden_and_py4j_loggers_are_restored() -> None:
    bridge, stream = logging.getLogger("py4j.clientserver"), io.StringIO()
    handler = logging.StreamHandler(stream)
    bridge.addHandler(handler)
    before = (list(bridge.filters), bridge.level, bridge.propagate, bridge.disabled)
    try:
        with error_boundary.ErrorBoundary("clicks"):
            bridge.error("There was an exception while executing the Python Proxy on the Python Side.")
            bridge.warning("a warning stays")
        bridge.error("after it")
    finally:
        bridge.removeHandler(handler)
    assert stream.getvalue() == "a warning stays\nafter it\n"
    assert (list(bridge.filters), bridge.level, bridge.propagate, bridge.disabled) == before


ROOT = """
import logging
from slackwater.runner import error_boundary
with error_boundary.ErrorBoundary("clicks"):
    logging.getLogger("mine").warning("of the user")
    code = compile("import logging; logging.error('of the bridge')", "/lib/py4j/java_gateway.py", "exec")
    exec(code)
    logging.error("of the user, too")
print(logging.getLogger().handlers, logging.getLogger().filters)
"""


def test_py4j_log_lines_are_hidden_and_do_not_configure_logging() -> None:
    """`logging.error` adds a handler to a root logger without one. Every later line would appear twice."""
    done = subprocess.run([sys.executable, "-c", ROOT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[] []\n", "of the user\nof the user, too\n")


# -- log lines of a run from Python ----------------------------------------------------------------------------------

HEARS = """
import logging, sys
from slackwater.runner import run_log
{before}
with run_log.log_to_stderr() as notice:
    notice("info", "said")
log = logging.getLogger("slackwater")
print(len(log.handlers), log.level, log.propagate)
"""


def run_logging_script(before: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", HEARS.format(before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_log_lines_go_to_stderr_if_logging_is_not_configured() -> None:
    out, err = run_logging_script("")
    assert err.endswith("Z INFO said\n")
    assert len(err.splitlines()) == 1
    assert out == "0 0 True\n"


def test_configured_logging_gets_each_line_once_and_sets_the_level() -> None:
    assert run_logging_script("logging.basicConfig(level=logging.INFO, format='mine %(message)s')") == (
        "0 0 True\n",
        "mine said\n",
    )
    assert run_logging_script("logging.basicConfig(level=logging.WARNING)") == ("0 0 True\n", "")
    assert run_logging_script("logging.getLogger('slackwater').setLevel(logging.ERROR)") == ("0 40 True\n", "")


def test_missing_commit_is_reported_as_nothing_committed() -> None:
    assert run_log.describe_last_commit(None) == "nothing was committed yet"
