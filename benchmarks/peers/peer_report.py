"""Format the figures of the peers as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import flink, kafka_streams, slackwater_peer
from slackwater.testing.services import KAFKA_VERSION

_MIB = 1024**2


def format_peer_settings(heap: str) -> Iterator[str]:
    """Yield the configuration of each peer."""
    yield f"All: results to a topic of twelve partitions, exactly once; heap {heap}; parallelism 2"
    yield (
        f"Slackwater: state in files, {slackwater_peer.SHARDS} shards, {slackwater_peer.PER_EPOCH:,} records per epoch; "
        + _join_settings(slackwater_peer.SPARK)
    )
    yield f"Flink {flink.VERSION}, {':'.join(flink.CONNECTOR[1:])}, SQL: " + _join_settings(flink.SETTINGS)
    yield f"Kafka Streams {KAFKA_VERSION}, RocksDB: " + _join_settings(kafka_streams.SETTINGS)


def _join_settings(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def results_equal_batch(measurement: dict[str, Any], work: str, peer: str) -> bool:
    """Return whether the results of a peer equal those of a batch over all records."""
    figures, batch = measurement["works"][work].get(peer, {}), measurement["works"][work]["batch"]
    return all(figures.get(name) == value for name, value in batch.items())


def format_peer_report(measurement: dict[str, Any]) -> Iterator[str]:
    """Yield a table, one work after the other. Mark the rows of peers that are faster than Slackwater."""
    about = measurement["machine"]
    yield (
        f"\n{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, load {about['load_before']:.1f} before and "
        f"{about['load_after']:.1f} after; from the start of each process to its end, the broker's work not counted"
    )
    head = ("seconds", "rows/s", "CPU s", "peak MiB", "times ours", "results", "same")
    yield f"{'work':<12}{'peer':<16}" + "".join(f"{name:>12}" for name in head)
    for work, figures_by_peer in measurement["works"].items():
        slackwater_s = figures_by_peer.get("slackwater", {}).get("seconds")
        for peer, figures in figures_by_peer.items():
            if peer != "batch":
                yield _format_row(measurement, work, peer, figures, slackwater_s)


def _format_row(
    measurement: dict[str, Any], work: str, peer: str, figures: dict[str, Any], slackwater_s: float | None
) -> str:
    name = f"{work:<12}{peer:<16}"
    if "failed" in figures:
        output = figures["failed"].strip().splitlines()
        return name + "FAILED: " + [*output, *(line for line in output if "ERROR" in line or "Exception" in line)][-1]
    seconds = figures["seconds"]
    cells = [
        f"{seconds:.1f}",
        f"{measurement['rows'][work] / seconds:,.0f}",
        f"{figures['cpu_s']:.1f}",
        f"{figures['memory'] / _MIB:,.0f}",
        "" if slackwater_s is None else f"{seconds / slackwater_s:.2f}",
        f"{figures['rows']:,}",
        "yes" if results_equal_batch(measurement, work, peer) else "DIFFERS",
    ]
    lost = "  faster than Slackwater" if slackwater_s is not None and seconds < slackwater_s else ""
    return name + "".join(f"{cell:>12}" for cell in cells) + lost
