"""Kafka Streams: a small Java program that is compiled here. It runs until its group has committed every record."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.workloads import Workload
from slackwater.spark.sessions import spark_jars
from slackwater.testing.services import KAFKA_VERSION

SOURCE = Path(__file__).with_name("KafkaStreamsPeer.java")
_TEN_YEARS_MS = 10 * 365 * 86_400_000
SETTINGS = {
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "2",
    "commit.interval.ms": "2000",
    "replication.factor": "1",
    "topology.optimization": "all",
    "producer.compression.type": "lz4",
    "consumer.auto.offset.reset": "earliest",
    "default.deserialization.exception.handler": "org.apache.kafka.streams.errors.LogAndFailExceptionHandler",
    # the records are from 2024, and the broker would drop records that are older than a window at once
    "windowstore.changelog.additional.retention.ms": str(_TEN_YEARS_MS),
}


class MissingCompilerError(Exception):
    """Error: this machine has no `javac`."""


def format_application_id(work: Workload) -> str:
    return f"peer-{work.name}"


def peer_command(work: Workload, address: str, home: Path, heap: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs Kafka Streams until it is stopped. Raise MissingCompilerError if `javac` is missing."""
    if shutil.which("javac") is None:
        raise MissingCompilerError(
            "Kafka Streams needs javac, which was not found; install a JDK, or leave out Kafka Streams"
        )
    jars = spark_jars.fetch_jars("org.apache.kafka", "kafka-streams", KAFKA_VERSION, transitive=True)
    classpath = ":".join(map(str, jars))
    home.mkdir(parents=True)
    subprocess.run(["javac", "-d", home / "classes", "-cp", classpath, SOURCE], check=True)
    settings = SETTINGS | {
        "application.id": format_application_id(work),
        "bootstrap.servers": address,
        "state.dir": str(home / "state"),
    }
    (home / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", f"-Xmx{heap}", "-cp", f"{home / 'classes'}:{classpath}", "KafkaStreamsPeer"]
    return [*command, work.name, str(home / "settings")], {}
