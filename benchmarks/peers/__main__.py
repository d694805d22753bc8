"""`python -m benchmarks.peers`: run Slackwater, Flink and Kafka Streams over the same topics, one after the other."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.peers import flink, kafka_streams, peer_report, slackwater_peer
from benchmarks.peers.workloads import (
    PARTITIONS,
    WORKS,
    Workload,
    compute_closing_time_ms,
    compute_expected_results,
    fill_topics,
    generate_topic_records,
    parse_results,
    send_closing_records,
    summarize_results,
)
from benchmarks.run_statistics import describe_machine, drop_single_runs
from benchmarks.worker_process import ProcessTreeUsage, exit_on_sigterm, kill_process_tree
from slackwater.testing.services import Kafka

PEERS = {"slackwater": slackwater_peer, "flink": flink, "kafka-streams": kafka_streams}
_SAMPLE_S, _AGAIN_S, _TAIL = 0.25, 1.5, 3000
_LONGEST_S = 3600


def run_peer(
    peer: str, work: Workload, kafka: Kafka, records: Mapping[str, pl.DataFrame], root: Path, heap: str
) -> dict[str, Any]:
    """Run a peer. Return the seconds from start to end, CPU seconds and peak memory of its processes, and its results."""
    kafka.create(work.output_topic, PARTITIONS)
    command, more = PEERS[peer].peer_command(work, kafka.address, root / f"{work.name}-{peer}", heap)
    usage, log = ProcessTreeUsage(), root / f"{work.name}-{peer}.log"
    done = CommitCheck(kafka, work, records) if peer == "kafka-streams" else None
    began = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **more}) as process,
    ):
        process_tree = psutil.Process(process.pid)
        try:
            while process.poll() is None:
                usage.take_sample(process_tree)
                if done is not None and done():
                    break
                if time.monotonic() - began > _LONGEST_S:
                    raise TimeoutError(f"{peer}: {work.name} did not end within {_LONGEST_S} s")
                time.sleep(_SAMPLE_S)
            took = time.monotonic() - began
        finally:
            kill_process_tree(process_tree)
    log_text = log.read_text(errors="replace")
    failed = process.returncode != 0 or "[ERROR]" in log_text  # Flink's client may exit with 0 after an error
    if failed if done is None else not done.all:
        return {"failed": log_text[-_TAIL:]}
    summed = summarize_results(parse_results(read_committed_messages(kafka, work.output_topic), work), work)
    spent = usage.spent[-1][1]
    return {"seconds": took, "cpu_s": spent, "memory": usage.peak["total"], **summed}


class CommitCheck:
    """Checks that Kafka Streams has committed every record and closed every window.

    Kafka Streams emits at most once per second, when a record arrives. Therefore the closing records are sent again
    until the second commit.
    """

    def __init__(self, kafka: Kafka, work: Workload, records: Mapping[str, pl.DataFrame]) -> None:
        self._kafka, self._work, self._records = kafka, work, records
        self._admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
        self._looked, self._closed, self.all = time.monotonic(), 0, False

    def __call__(self) -> bool:
        if time.monotonic() - self._looked < _AGAIN_S:
            return False
        self._looked = time.monotonic()
        if not self._has_committed_all():
            return False
        if self._closed:
            self.all = True
            return True
        self._closed += 1
        for topic in self._work.topics:
            send_closing_records(
                self._kafka, topic, self._records[topic], compute_closing_time_ms(self._records) + 1000 * self._closed
            )
        return False

    def _has_committed_all(self) -> bool:
        end_offsets = {
            (p.topic, p.partition): p.offset
            for topic in self._work.topics
            for p in read_partition_end_offsets(self._kafka, topic)
        }
        group = kafka_streams.format_application_id(self._work)
        futures = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            committed = {(p.topic, p.partition): p.offset for p in futures[group].result().topic_partitions}
        except KafkaException:  # the group does not exist yet
            return False
        return all(committed.get(place, -1) >= end for place, end in end_offsets.items())


def _read_committed_consumer(kafka: Kafka) -> Consumer:
    """Return a consumer that reads only committed records."""
    settings = {"bootstrap.servers": kafka.address, "group.id": "peers", "isolation.level": "read_committed"}
    return Consumer(settings | {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0})


def read_partition_end_offsets(kafka: Kafka, topic: str) -> list[TopicPartition]:
    """Return the end offsets of the partitions of a topic."""
    reader = _read_committed_consumer(kafka)
    try:
        places = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        return [TopicPartition(topic, p.partition, reader.get_watermark_offsets(p, 30)[1]) for p in places]
    finally:
        reader.close()


def read_committed_messages(kafka: Kafka, topic: str) -> Iterator[bytes]:
    """Yield the values that were committed to a topic."""
    reader, remaining = (
        _read_committed_consumer(kafka),
        {p.partition: p.offset for p in read_partition_end_offsets(kafka, topic) if p.offset > 0},
    )
    reader.assign([TopicPartition(topic, p, 0) for p in remaining])
    try:
        while remaining:
            for message in reader.consume(10_000, 1.0):
                if message.error() is None and message.value() is not None:
                    yield message.value()
            # transaction markers follow the last record; the consumer skips them
            positions = {p.partition: p.offset for p in reader.position([TopicPartition(topic, p) for p in remaining])}
            remaining = {p: end for p, end in remaining.items() if positions[p] < end}
    finally:
        reader.close()


def main() -> int:
    """Return 0 if the results of all peers equal a batch, and 1 if a peer failed or differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of all sources of a work (4,000,000)")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, for a smoke test; the figures mean nothing")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        help=f"of {', '.join((*PEERS, *(w.name for w in WORKS)))}",
    )
    parser.add_argument("--heap", default="4g", help="heap of each JVM (4g)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures to this file")
    options = parser.parse_args()
    exit_on_sigterm()
    rows = 100_000 if options.quick else options.rows
    peers = [p for p in PEERS if p in options.only] or list(PEERS)
    works = [w for w in WORKS if w.name in options.only] or list(WORKS)
    records = generate_topic_records(rows)
    measurement: dict[str, Any] = {
        "machine": describe_machine(),
        "rows": {},
        "works": {},
        "options": {"quick": options.quick, "heap": options.heap},
    }
    print("\n".join(peer_report.format_peer_settings(options.heap)))
    with tempfile.TemporaryDirectory(prefix="slackwater-peers-") as root:
        for work in works:
            expected_rows = compute_expected_results(work, records)
            measurement["rows"][work.name] = sum(records[topic].height for topic in work.topics)
            measurement["works"][work.name] = {"batch": summarize_results(expected_rows, work)}
            for peer in peers:
                with Kafka.started() as kafka:  # a separate broker, without data of other peers
                    fill_topics(kafka, {topic: records[topic] for topic in work.topics})
                    print(f"{work.name}: {peer} …", file=sys.stderr, end=" ", flush=True)
                    try:
                        figures = run_peer(peer, work, kafka, records, Path(root), options.heap)
                    except kafka_streams.MissingCompilerError as error:
                        figures = {"failed": str(error)}
                    print(figures.get("failed") or f"{figures['seconds']:.0f} s", file=sys.stderr, flush=True)
                    measurement["works"][work.name][peer] = figures
    measurement["machine"]["load_after"] = os.getloadavg()[0]
    print("\n".join(peer_report.format_peer_report(measurement)))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(drop_single_runs(measurement), indent=1) + "\n")
    return int(
        not all(
            peer_report.results_equal_batch(measurement, work, peer) for work in measurement["works"] for peer in peers
        )
    )


if __name__ == "__main__":
    sys.exit(main())
