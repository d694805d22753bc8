"""A standalone Spark cluster on loopback: a master, and workers with one core each. Tests can kill and stall executors.

Each worker has its own address, working directory and cache, like a machine. Spark retries a task elsewhere only on
another host.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.support import spark_jvm

from slackwater.testing.services import SECONDS, Process, free_port

WORKERS = 2
# Settings of a pipeline on the cluster. Code generation is off, because an executor lives for only a few epochs
SPARK = f"""
[spark]
"spark.executor.memory" = "600m"
"spark.executor.cores" = "1"
"spark.executor.extraJavaOptions" = "{spark_jvm.QUICK} {spark_jvm.ARCHIVE}"
"spark.driver.memory" = "800m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.task.maxFailures" = "100"
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"""


@dataclass
class SparkCluster:
    """A running cluster. `address` is a value for SPARK_MASTER. Logs are in `home`."""

    home: Path
    port: int = field(default_factory=free_port)
    master: Process | None = None
    workers: dict[int, Process] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def driver_environment(self) -> dict[str, str]:
        """Return the environment variables with which a driver uses this cluster and the Java of its executors."""
        return {"SPARK_MASTER": self.address, **spark_jvm.JAVA_HOME}

    def start(self) -> None:
        self.master = self._start_process("master", "Master", "I have been elected leader", "--port", str(self.port))
        for number in range(WORKERS):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        flags = (
            "--cores",
            "1",
            "--memory",
            "1g",
            "--work-dir",
            str(self._worker_directory(number) / "work"),
            self.address,
        )
        host = f"127.0.0.{number + 1}"
        ready = "Successfully registered with master"
        self.workers[number] = self._start_process(
            f"worker{number}", "Worker", ready, *flags, host=host, work_folder=self._worker_directory(number)
        )

    def _worker_directory(self, number: int) -> Path:
        """Return the directory of a worker."""
        return self.home / f"machine{number}"

    def _start_process(
        self, name: str, role: str, ready: str, *flags: str, host: str = "127.0.0.1", work_folder: Path | None = None
    ) -> Process:
        """Start a process, and return it when its log contains `ready`. `work_folder`: its working directory."""
        place = work_folder or self.home
        place.mkdir(exist_ok=True)
        log = self.home / f"{name}.log"
        log.unlink(missing_ok=True)
        command = [spark_jvm.EXECUTABLE, "-cp", spark_jvm.CLASS_PATH, "-Xmx300m"]
        command += [*spark_jvm.QUICK.split(), *spark_jvm.ARCHIVE.split()]
        command += [f"org.apache.spark.deploy.{role.lower()}.{role}", "--host", host, "--webui-port", "0"]
        environment = {"SPARK_HOME": str(spark_jvm.SPARK), "SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable}
        environment |= {"SPARK_SCALA_VERSION": "2.13"}  # PySpark's own folder does not contain the version
        environment |= {"SLACKWATER_CACHE_DIR": str(place / "cache"), **spark_jvm.JAVA_HOME}
        process = Process([*command, *flags], log, {"env": {**os.environ, **environment}, "cwd": place})
        process.start()
        until = time.monotonic() + SECONDS
        while ready not in log.read_text(errors="replace"):
            process.check_running(f"the {name}")
            assert time.monotonic() < until, f"the {name} does not say {ready!r}: {process.tail()}"
            time.sleep(0.1)
        return process

    def list_executors(self) -> list[psutil.Process]:
        """Return the processes that run tasks."""
        return [p for worker in self.workers.values() for p in _list_child_processes(worker) if _is_executor(p)]

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, and delete its directory, like the loss of a machine."""
        worker = self.workers.pop(number)
        for process in _list_child_processes(worker):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.stop(signal.SIGKILL)
        shutil.rmtree(self._worker_directory(number), ignore_errors=True)

    @contextmanager
    def stall_executor(self, executor: psutil.Process) -> Iterator[None]:
        """Suspend an executor within the block, and resume it afterwards."""
        stopped = [executor]
        with suppress(psutil.NoSuchProcess):
            stopped += executor.children(recursive=True)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def stop(self) -> None:
        for number in list(self.workers):
            self.kill_worker(number)
        if self.master is not None:
            self.master.stop(signal.SIGKILL)


@contextmanager
def run_cluster(home: Path) -> Iterator[SparkCluster]:
    home.mkdir()
    cluster = SparkCluster(home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _list_child_processes(process: Process) -> list[psutil.Process]:
    assert process.child is not None
    try:
        return psutil.Process(process.child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except psutil.Error:
        return False
