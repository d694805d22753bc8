"""A standalone cluster of Spark on loopback: a master, and workers with one core each, whose executors can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from slackwater.testing.services import free_port

WORKERS = 2
_SPARK = Path(pyspark.__file__).parent
_SECONDS = 300  # a bound on waiting for a process that lives


@dataclass
class Cluster:
    """`address` is a master as SPARK_MASTER takes it. Logs are in `home`."""

    home: Path
    port: int = field(default_factory=free_port)
    master: subprocess.Popen[bytes] | None = None
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.master = self._started("master", "Master", "--port", str(self.port))
        self._waits_for("master", "I have been elected leader")
        for number in range(WORKERS):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        work = self.home / f"work{number}"
        flags = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.address)
        self.workers[number] = self._started(f"worker{number}", "Worker", *flags)
        self._waits_for(f"worker{number}", "Successfully registered with master")

    def _started(self, name: str, role: str, *flags: str) -> subprocess.Popen[bytes]:
        log = self.home / f"{name}.log"
        log.unlink(missing_ok=True)
        command = ["java", "-cp", f"{_SPARK}/jars/*", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [
            f"org.apache.spark.deploy.{role.lower()}.{role}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *flags,
        ]
        own = {"SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        own |= {"SPARK_SCALA_VERSION": "2.13"}  # which PySpark's own folder does not tell
        with log.open("wb") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **own}, cwd=self.home, start_new_session=True
            )

    def _waits_for(self, name: str, line: str) -> None:
        log, until = self.home / f"{name}.log", time.monotonic() + _SECONDS
        while line not in log.read_text(errors="replace"):
            process = self.master if name == "master" else self.workers[int(name.removeprefix("worker"))]
            assert process is not None
            assert process.poll() is None, f"the {name} ended: {log.read_text(errors='replace')[-2000:]}"
            assert time.monotonic() < until, f"the {name} does not say {line!r}"
            time.sleep(0.1)

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks."""
        found = [child for worker in self.workers.values() for child in _children(worker.pid)]
        return [p for p in found if _is_executor(p)]

    def kill_worker(self, number: int) -> None:
        """With its executors, as a machine that is gone."""
        worker = self.workers.pop(number)
        for process in [*_children(worker.pid), psutil.Process(worker.pid)]:
            process.kill()
        worker.wait()

    def stop(self) -> None:
        for number in list(self.workers):
            self.kill_worker(number)
        if self.master is not None:
            self.master.kill()
            self.master.wait()


@contextmanager
def started(home: Path) -> Iterator[Cluster]:
    home.mkdir()
    cluster = Cluster(home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except psutil.Error:
        return False
