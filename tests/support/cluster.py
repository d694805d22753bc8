"""A standalone cluster of Spark on loopback: a master, and workers with one core each, whose executors can be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from slackwater.testing.services import SECONDS, Process, free_port

WORKERS = 2
_SPARK = Path(pyspark.__file__).parent


@dataclass
class Cluster:
    """`address` is a master as SPARK_MASTER takes it. Logs are in `home`."""

    home: Path
    port: int = field(default_factory=free_port)
    master: Process | None = None
    workers: dict[int, Process] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.master = self._started("master", "Master", "I have been elected leader", "--port", str(self.port))
        for number in range(WORKERS):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        work = self.home / f"work{number}"
        flags = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.address)
        self.workers[number] = self._started(f"worker{number}", "Worker", "Successfully registered with master", *flags)

    def _started(self, name: str, role: str, ready: str, *flags: str) -> Process:
        """The process, once its log has the line."""
        log = self.home / f"{name}.log"
        log.unlink(missing_ok=True)
        command = ["java", "-cp", f"{_SPARK}/jars/*", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"org.apache.spark.deploy.{role.lower()}.{role}", "--host", "127.0.0.1", "--webui-port", "0"]
        own = {"SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        own |= {"SPARK_SCALA_VERSION": "2.13"}  # which PySpark's own folder does not tell
        process = Process([*command, *flags], log, {"env": {**os.environ, **own}, "cwd": self.home})
        process.start()
        until = time.monotonic() + SECONDS
        while ready not in log.read_text(errors="replace"):
            process.must_live(f"the {name}")
            assert time.monotonic() < until, f"the {name} does not say {ready!r}: {process.tail()}"
            time.sleep(0.1)
        return process

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks."""
        return [p for worker in self.workers.values() for p in _below(worker) if _is_executor(p)]

    def kill_worker(self, number: int) -> None:
        """With its executors, as a machine that is gone."""
        worker = self.workers.pop(number)
        for process in _below(worker):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.stop(signal.SIGKILL)

    def stop(self) -> None:
        for number in list(self.workers):
            self.kill_worker(number)
        if self.master is not None:
            self.master.stop(signal.SIGKILL)


@contextmanager
def started(home: Path) -> Iterator[Cluster]:
    home.mkdir()
    cluster = Cluster(home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _below(process: Process) -> list[psutil.Process]:
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
