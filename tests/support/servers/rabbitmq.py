"""RabbitMQ broker for tests, from the Debian package. The broker listens on free ports of the loopback interface.

    with RabbitMQ.started() as rabbit:
        rabbit.url                                       # amqp://guest:guest@127.0.0.1:…/%2F

A separate port mapper (epmd) and separate files avoid conflicts with other brokers. The broker runs as any user,
including root, and is stopped by process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from slackwater.errors import StartError
from slackwater.testing.services import SECONDS, Process, free_port

_INSTALLED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH only runs as certain users


@dataclass
class RabbitMQ:
    """A broker. Durable queues and persistent messages survive `stop_broker` and `start`."""

    directory: Path
    port: int
    mapper: Process
    process: Process

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[RabbitMQ]:
        """Yield a running broker and stop it afterwards. Raise StartError if it is missing or does not respond."""
        if not _INSTALLED.exists():
            raise StartError(f"{_INSTALLED} does not exist; install a RabbitMQ broker: apt-get install rabbitmq-server")
        directory = Path(tempfile.mkdtemp(prefix="slackwater-rabbitmq-"))
        rabbit = cls._create(directory)
        try:
            rabbit.start()
            yield rabbit
        finally:
            rabbit.stop()
            shutil.rmtree(directory, ignore_errors=True)

    @classmethod
    def _create(cls, directory: Path) -> RabbitMQ:
        port, distribution, mapper = free_port(), free_port(), free_port()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))} | {
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_NODENAME": f"slackwater-{uuid.uuid4().hex[:12]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then execs the broker, so that both have the same process id
        }
        (directory / "plugins").write_text("[].\n")
        (directory / "rabbitmq.conf").write_text(
            "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 10MB\n"
        )
        options = {"env": env, "cwd": directory}
        return cls(
            directory,
            port,
            Process([shutil.which("epmd") or "epmd"], directory / "epmd.log", options),
            Process([str(_INSTALLED)], directory / "log", options),
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> None:
        """Start the broker and wait until it responds."""
        if self.mapper.child is None:
            self.mapper.start()
        self.process.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.process.check_running("RabbitMQ")
            if self._is_responding():
                return
            time.sleep(0.2)
        raise StartError(f"RabbitMQ did not answer within {SECONDS} s: {self.process.tail()}")

    def _is_responding(self) -> bool:
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=2)) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"  # the first frame of its greeting
        except OSError:
            return False

    def stop(self) -> None:
        self.stop_broker()
        self.mapper.stop(signal.SIGKILL)

    def stop_broker(self) -> None:
        """Stop the broker cleanly. A broker that is killed soon after the first start loses durable queues."""
        self.process.stop(signal.SIGTERM)
