"""Life cycle of a run: a killed Spark, a bad row in Python, an interrupt during the start, and probes of an image."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil
import pytest
from tests.support import deploy_files
from tests.support.case_selection import exhaustive, select_cases
from typer.testing import CliRunner

from slackwater.cli.main import app

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = """
name = "life"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "lake"
query = "in"
format = "json"
schema = "user STRING, ts TIMESTAMP, wait BIGINT"

[transform]
sql = "SELECT * FROM source"

[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "2h"
event_time_column = "ts"
group_by = ["user"]

[[transform.window.aggregations]]
agg = "count"
as = "n"

[[transform.window.aggregations]]
agg = "tests.support.slow_sum_aggregator:SlowSumAggregator"
columns = { wait = "wait" }
as = "waited"

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"

[spark]
"spark.master" = "local[1]"
"spark.sql.shuffle.partitions" = "1"
"""
SCRIPT = """
import logging, sys, threading
import slackwater as sw
{before}
try:
    sw.run(sw.load("life.toml"), **{flags})
finally:
    print("over", flush=True)
{after}
"""


class LoggedProcess:
    """A process whose output goes to one file."""

    def __init__(self, home: Path, *command: str, program: str = sys.executable, **more: str) -> None:
        self.home, self.log = home, home / "said"
        with self.log.open("ab") as log:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **more}
            self.process = subprocess.Popen([program, *command], stdout=log, stderr=log, cwd=home, env=environment)

    def read_output(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 400  # a limit for broken runs only
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, self.read_output()
            time.sleep(0.02)

    def find_java_processes(self) -> list[psutil.Process]:
        java_processes = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
                java_processes += [process] if process.name() == "java" else []
        return java_processes

    def wait_for_exit(self) -> int:
        try:
            return self.process.wait(400)
        finally:
            self.process.kill()


@pytest.fixture
def pipeline_directory(tmp_path: Path) -> Path:
    (tmp_path / "life.toml").write_text(CONFIG)
    (tmp_path / "in").mkdir()
    write_event_file(tmp_path, 1)
    return tmp_path


def write_event_file(home: Path, number: int, wait: int | None = None, ts: str = "2024-03-01T10:00:00Z") -> None:
    part = home / f"{number}.part"
    part.write_text(json.dumps({"user": "a", "ts": ts, "wait": wait}) + "\n")
    part.rename(home / "in" / f"{number}.jsonl")


def read_committed_epoch(home: Path) -> int:
    return max((int(p.stem) for p in (home / "state" / "life" / "manifests").glob("*.json")), default=-1)


def expect_no_stack_traces(text: str) -> None:
    for foreign in ("Traceback", "py4j", "Py4J", "at org.", "at java.", "internal error", "Exception ignored"):
        assert foreign not in text, text


@pytest.mark.parametrize("within", [True, False])
@exhaustive(beside="test_run_errors_and_logging.py::test_ended_spark_process_is_reported_instead_of_other_errors")
def test_killed_spark_causes_one_line_error_and_next_start_continues(pipeline_directory: Path, within: bool) -> None:
    """Kill Spark between two epochs or within one, as the system does when memory runs out."""
    child = LoggedProcess(pipeline_directory, "-m", "slackwater.cli.main", "run", "life.toml")
    child.wait_for(lambda: read_committed_epoch(pipeline_directory) == 0 and "epoch=0" in child.read_output())
    if within:
        write_event_file(pipeline_directory, 2, wait=600_000)
        planned = (
            pipeline_directory / "state" / "life" / "offsets"
        )  # the files of an epoch are listed there before they are read
        child.wait_for(lambda: list(planned.glob("000000001*")))
    (java,) = child.find_java_processes()
    java.kill()
    assert child.wait_for_exit() == 1
    text = child.read_output()
    expect_no_stack_traces(text)
    lines = text.splitlines()
    assert lines[0].endswith(' "events": files in, at its first file; results in "out"') or "slackwater " in lines[0]
    assert "state in files" in lines[0] and ", new; reads " in lines[0]
    assert "starting Spark" in lines[1]
    assert " is up after " in lines[2]
    assert lines[-1].startswith(f"error: life: Spark's process (process {java.pid}) was killed (SIGKILL)")
    assert "; epoch 0 was committed last, at 20" in lines[-1]
    assert "start again" in lines[-1]
    assert text.count("error:") == 1

    write_event_file(pipeline_directory, 2)
    again = LoggedProcess(
        pipeline_directory, "-m", "slackwater.cli.main", "run", "life.toml", "--available-now", "--flush"
    )
    assert again.wait_for_exit() == 0
    assert ", at epoch 0, committed 20" in again.read_output()
    assert "after 1 file; results in" in again.read_output()
    assert "life: epoch 2, 2 rows in" in again.read_output()


@exhaustive(beside="test_run_errors_and_logging.py::test_ended_spark_process_is_reported_instead_of_other_errors")
def test_python_process_logs_runs_and_can_run_again_after_spark_is_killed(pipeline_directory: Path) -> None:
    """The process catches the error and runs the pipeline again with a new Spark."""
    again = "sw.run(sw.load('life.toml'), available_now=True, flush=True)"
    script = SCRIPT.format(before="", flags={}, after="").replace(
        "finally:",
        f"except sw.SlackwaterError as error:\n    print('caught:', error, flush=True)\n    {again}\nfinally:",
    )
    child = LoggedProcess(pipeline_directory, "-c", script)
    child.wait_for(lambda: read_committed_epoch(pipeline_directory) == 0)
    (java,) = child.find_java_processes()
    java.kill()
    assert child.wait_for_exit() == 0
    text = child.read_output()
    expect_no_stack_traces(text)
    assert text.count("caught: life: Spark's process") == 1
    assert text.count("INFO slackwater ") == 2, "each start"
    assert text.count("starting Spark") == 2
    assert " INFO pipeline=life epoch=0 rows=1 " in text
    assert "life: ended after " in text
    assert text.splitlines()[-1] == "over"


@pytest.mark.parametrize("logging", ["", "logging.basicConfig(level=logging.INFO, format='mine %(name)s %(message)s')"])
@exhaustive(beside="test_run_errors_and_logging.py::test_slackwater_error_is_raised_without_its_cause")
def test_bad_row_raises_one_line_error_in_python(pipeline_directory: Path, logging: str) -> None:
    write_event_file(pipeline_directory, 1, ts="nonsense")
    child = LoggedProcess(
        pipeline_directory, "-c", SCRIPT.format(before=logging, flags={"available_now": True}, after="")
    )
    assert child.wait_for_exit() == 1
    text = child.read_output()
    lines = [line for line in text.splitlines() if not line.startswith("mine py4j.")]  # the script enables these logs
    assert lines[-1].startswith("slackwater.errors.BadRowError: life: ")
    assert text.count("(1 undecodable") == 1
    assert text.count("Traceback") == 1, "where the script called"
    for foreign in ("Py4J", "Python Proxy", "another exception", "direct cause", "pyspark"):
        assert foreign not in text, text


OWN = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
import slackwater as sw
spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
frame = spark.createDataFrame([], "user string, ts timestamp")
pipeline = sw.load("life.toml")
print("begin", file=sys.stderr, flush=True)
for work in (
    lambda: sw.batch(frame, pipeline.transform.window, "SELECT nope FROM source"),
    lambda: sw.run(pipeline, spark=spark, available_now=True),
):
    try:
        work()
    except sw.SlackwaterError as error:
        print("caught:", error, file=sys.stderr, flush=True)
"""


@exhaustive(beside="test_run_errors_and_logging.py::test_py4j_errors_are_hidden_and_py4j_loggers_are_restored")
def test_analysis_error_in_user_spark_session_is_one_line(pipeline_directory: Path) -> None:
    config = pipeline_directory / "life.toml"
    config.write_text(config.read_text().replace("SELECT * FROM source", "SELECT nope FROM source"))
    child = LoggedProcess(pipeline_directory, "-c", OWN)
    assert child.wait_for_exit() == 0
    text = child.read_output().split("begin\n")[1]
    expect_no_stack_traces(text)
    assert text.count("caught: ") == 2
    assert text.count("nope") == 2
    assert "QueryContextLogger" not in text


def test_interrupt_during_spark_start_exits_and_leaves_no_process(pipeline_directory: Path) -> None:
    child = LoggedProcess(pipeline_directory, "-m", "slackwater.cli.main", "run", "life.toml")
    child.wait_for(lambda: "starting Spark" in child.read_output() and child.find_java_processes())
    started = child.find_java_processes()
    child.process.send_signal(signal.SIGINT)
    assert child.wait_for_exit() == 130
    text = child.read_output()
    expect_no_stack_traces(text)
    assert "is up after" not in text
    assert text.splitlines()[-1].endswith("stopped while Spark was starting; nothing was read or committed")
    gone, alive = psutil.wait_procs(started, timeout=120)
    assert (len(gone), alive) == (len(started), [])


@exhaustive(beside="test_spark_jobs_and_jvm_calls_per_epoch.py::test_epoch_takes_one_spark_job_and_few_jvm_calls")
def test_files_source_runs_without_spark_checkpoint_files(pipeline_directory: Path) -> None:
    """When Slackwater lists the files, only the commits record where to continue."""
    epochs = 40
    config = (
        (pipeline_directory / "life.toml")
        .read_text()
        .replace('format = "json"', 'format = "json"\nmax_files_per_trigger = 1')
    )
    (pipeline_directory / "life.toml").write_text(config)
    for number in range(2, epochs + 1):
        write_event_file(pipeline_directory, number)
    child = LoggedProcess(pipeline_directory, "-m", "slackwater.cli.main", "run", "life.toml", "--available-now")
    assert child.wait_for_exit() == 0, child.read_output()
    assert read_committed_epoch(pipeline_directory) == epochs - 1
    files = [p for p in (pipeline_directory / "state" / "life" / "checkpoint").rglob("*") if p.is_file()]
    assert files == []


def fetch_probe(port: int, path: str) -> tuple[int, str] | None:
    """Return the status and the run phase of a probe response, or None if the server does not respond."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)["phase"]
    except HTTPError as error:
        return error.code, json.load(error)["phase"]
    except (URLError, OSError):
        return None


@pytest.mark.parametrize("stop_moment", select_cases(["while Spark starts", "within an epoch"]))
def test_container_entry_point_answers_probes_and_stops_within_grace_period(
    pipeline_directory: Path, stop_moment: str
) -> None:
    """Run the entry point of the Dockerfile with the probes and the stop signal of the Kubernetes manifest."""
    pod = deploy_files.read_kubernetes_deployment()["spec"]["template"]["spec"]
    live, ready = (pod["containers"][0][n]["httpGet"]["path"] for n in ("livenessProbe", "readinessProbe"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pipeline_directory.joinpath("tmp").mkdir()
    environment = {
        n: v.replace("/tmp", str(pipeline_directory / "tmp")) for n, v in deploy_files.read_image_environment().items()
    }
    environment.pop("SLACKWATER_CACHE")  # the cache of jars, which is elsewhere on this machine
    values = {deploy_files.PIPELINE: str(pipeline_directory / "life.toml"), deploy_files.PORT: str(port)}
    words = [values.get(word, word) for word in deploy_files.read_image_command()]
    assert words[:3] == ["tini", "--", "slackwater"]
    program = str(Path(sys.executable).with_name("slackwater"))
    child = LoggedProcess(pipeline_directory, *words[3:], program=program, **environment)
    if stop_moment == "while Spark starts":
        child.wait_for(lambda: "starting Spark" in child.read_output() and child.find_java_processes())
        assert (fetch_probe(port, live), fetch_probe(port, ready)) == ((200, "starting"), (503, "starting"))
        child.process.send_signal(signal.SIGTERM)
        assert child.wait_for_exit() == 143
        expect_no_stack_traces(child.read_output())
        assert read_committed_epoch(pipeline_directory) == -1
        return
    seen = []

    def is_ready() -> bool:
        answer = fetch_probe(port, ready)
        seen.extend([answer] if answer else [])
        return answer is not None and answer[0] == 200

    child.wait_for(is_ready)
    assert {code for code, phase in seen if phase == "reading"} == {200}
    assert {code for code, phase in seen if phase != "reading"} <= {503}
    assert fetch_probe(port, live) == (200, "reading")
    child.wait_for(lambda: read_committed_epoch(pipeline_directory) == 0)

    write_event_file(pipeline_directory, 2, wait=10_000)
    child.wait_for(
        lambda: list((pipeline_directory / "state" / "life" / "offsets").glob("000000001*"))
    )  # the epoch is in progress
    child.process.send_signal(signal.SIGTERM)
    began, after = time.monotonic(), []
    while child.process.poll() is None and time.monotonic() - began < 400:
        after += [answer for answer in (fetch_probe(port, ready),) if answer]
        time.sleep(0.05)
    assert child.wait_for_exit() == 0
    assert time.monotonic() - began < pod["terminationGracePeriodSeconds"]
    assert set(after) <= {(200, "reading"), (503, "stopping"), (503, "ended")}
    assert "reading" not in [phase for _, phase in after[after.index((503, "stopping")) :]]
    expect_no_stack_traces(child.read_output())
    assert "stopping after the current epoch" in child.read_output()
    assert read_committed_epoch(pipeline_directory) == 1
    verified = CliRunner().invoke(app, ["state", "verify", str(pipeline_directory / "life.toml")])
    assert verified.exit_code == 0, verified.output
    assert verified.output.startswith("life: sound (epochs 0 to 1, ")
