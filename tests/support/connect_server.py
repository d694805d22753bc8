"""A Spark Connect server on loopback: a separate process with two cores, on a free port, stopped by its id."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tests.support import spark_jvm

from slackwater.spark.sessions import spark_jars
from slackwater.testing.services import SECONDS, Process, free_port

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass
class ConnectServer:
    """The server. `address` is a value for SPARK_REMOTE. The log is in `home`. A restart reuses the port."""

    home: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None

    @property
    def address(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self.home / "server.log"
        jars = spark_jars.kafka_connector(pyspark.__version__)[0]
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.jars": ",".join(map(str, jars)),
            "spark.sql.warehouse.dir": self.home / "warehouse",
            "spark.local.dir": self.home,
        }
        # `_OPEN` does not contain all options that Java 25 needs, so this is the Java on the path.
        command = ["java", "-cp", f"{spark_jvm.SPARK}/jars/*", "-Xmx1g", *spark_jvm.QUICK.split()]
        command += ["-XX:+IgnoreUnrecognizedVMOptions", *_OPEN.split()]
        command += ["org.apache.spark.deploy.SparkSubmit", "--class", _SERVER, "--master", "local[2]"]
        command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        environment = {
            "SPARK_HOME": str(spark_jvm.SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        environment |= {"SPARK_CONNECT_MODE": "0", "POLARS_MAX_THREADS": "1"}
        self.process = Process(
            [*command, "spark-internal"], log, {"env": {**os.environ, **environment}, "cwd": self.home}
        )
        self.process.start()
        until = time.monotonic() + SECONDS
        while "Spark Connect server started" not in log.read_text(errors="replace"):
            self.process.check_running("the Connect server")
            assert time.monotonic() < until, f"the Connect server does not start: {self.process.tail()}"
            time.sleep(0.1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop(signal.SIGKILL)


# options that Spark's own launcher passes to Java
_OPEN = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
        "sun.security.action", "sun.util.calendar",
    )
) + " -Djdk.reflect.useDirectMethodHandle=false -Dio.netty.tryReflectionSetAccessible=true"  # fmt: skip


@contextmanager
def run_connect_server(home: Path) -> Iterator[ConnectServer]:
    home.mkdir(exist_ok=True)
    server = ConnectServer(home)
    try:
        server.start()
        yield server
    finally:
        server.stop()
