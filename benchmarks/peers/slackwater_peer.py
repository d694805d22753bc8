"""Slackwater as a peer: `python -m benchmarks.peers.slackwater_peer WORK BROKER HOME HEAP`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import slackwater as sw
from benchmarks.event_files import LATENESS_S, SIDES
from benchmarks.peers.workloads import GAP_S, JOIN, LENGTH_S, SESSIONS, WITHIN_S, WORKS, Workload

SHARDS = 2
PER_EPOCH = 1_200_000
SPARK = {"spark.master": f"local[{SHARDS}]"}


def peer_command(work: Workload, address: str, home: Path, heap: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs Slackwater to the end of the input."""
    home.mkdir(parents=True)
    return [sys.executable, "-m", "benchmarks.peers.slackwater_peer", work.name, address, str(home), heap], {}


def build_step_arguments(work: Workload) -> dict[str, Any]:
    if work is JOIN:
        join = sw.Join(
            kind="inner",
            left_source="orders",
            right_source="payments",
            left_keys=["order_id"],
            right_keys=["order_id"],
            lower_ms=0,
            upper_ms=f"{WITHIN_S}s",
            event_time_column="ts",
            event_time_unit="ms",
            lateness_ms=f"{LATENESS_S}s",
            left_sql="SELECT order_id, amount, _event_ts AS ts, _event_ts FROM source",
            right_sql="SELECT order_id, amount, _event_ts AS ts, _event_ts FROM source",
            output_left_columns=["order_id", "amount", "ts"],
            output_right_columns=["amount", "ts"],
            left_prefix="",
            right_prefix="paid_",
        )
        return {"join": join}
    shape = (
        {"gap_ms": f"{GAP_S}s", "max_session_duration_ms": "2h"}
        if work is SESSIONS
        else {"duration_ms": f"{LENGTH_S}s"}
    )
    figures = [
        sw.Aggregation(agg="count", as_="n"),
        sw.Aggregation(agg="sum", column="v", as_="total"),
        sw.Aggregation(agg="max", column="v", as_="most"),
    ]
    window = sw.Window(
        kind="session" if work is SESSIONS else "tumbling",
        **shape,
        event_time_column="ts",
        event_time_unit="ms",
        lateness_ms=f"{LATENESS_S}s",
        group_by=["k"],
        max_groups_per_window=50_000_000,
        aggregations=figures if work is SESSIONS else figures[:1],
    )
    return {"window": window}


def main() -> None:
    name, address, home, heap = sys.argv[1:]
    work = next(w for w in WORKS if w.name == name)
    broker = sw.KafkaConnection(bootstrap_servers=address)
    sources = [
        sw.Source(
            name=topic,
            connection=broker,
            query=topic,
            schema="order_id STRING, ts BIGINT, amount BIGINT" if topic in SIDES else "k STRING, ts BIGINT, v BIGINT",
            starting_offsets="earliest",
            max_offsets_per_trigger=PER_EPOCH // len(work.topics),
        )
        for topic in work.topics
    ]
    sw.run_streaming_pipeline(
        name=f"peer-{name}",
        sources=sources,
        **build_step_arguments(work),
        target=sw.Target(connection=broker, topic=work.output_topic, delivery="exactly_once"),
        state_store=sw.StateStore(kind="files", path=f"{home}/state", shards=SHARDS),
        spark_settings=SPARK | {"spark.driver.memory": heap},
        available_now=True,
    )


if __name__ == "__main__":
    main()
