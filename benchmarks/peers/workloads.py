"""Workloads of the peers: records in topics of twelve partitions, and the expected results, computed by a batch.

Times are whole milliseconds and values are whole numbers, so that the results of all peers can be equal to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from confluent_kafka import Producer

from benchmarks.benchmark_cases import MANY, EventStream, OrderStream
from benchmarks.event_files import LATENESS_S, SIDES, generate_epoch_frames, generate_order_and_payment_frames
from slackwater.testing.services import Kafka

PARTITIONS = 12
GAP_S, LENGTH_S, WITHIN_S = 30, 60, 300
LAST = "last"  # key of the rows that close all windows
_LAST_S = 3600
_DISORDER_MS = 2000


@dataclass(frozen=True)
class Workload:
    """One workload. `columns` are those of a result row, in order, and `times` are the columns that contain times."""

    name: str
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    times: tuple[str, ...]

    @property
    def output_topic(self) -> str:
        return f"{self.name}-out"


_WINDOW = ("k", "window_start", "window_end", "n")
SESSIONS = Workload("sessions", ("events",), (*_WINDOW, "total", "most"), _WINDOW[1:3])
TUMBLING = Workload("tumbling", ("events",), _WINDOW, _WINDOW[1:3])
JOIN = Workload("join", SIDES, ("order_id", "amount", "ts", "paid_amount", "paid_ts"), ("ts", "paid_ts"))
WORKS = (SESSIONS, TUMBLING, JOIN)


def build_event_and_order_streams(rows: int) -> tuple[EventStream, OrderStream]:
    """Return the streams of the cases sessions-1m and join-2m, with `rows` rows over all sources each."""
    epochs = max(rows // 1_000_000, 1)
    return (
        EventStream(min(MANY, rows // 5), rows // epochs, step_s=50, epochs=epochs),
        OrderStream(rows // 10 // epochs, step_s=30, within_s=WITHIN_S, epochs=5 * epochs),
    )


def generate_topic_records(rows: int) -> dict[str, pl.DataFrame]:
    """Return the records of each topic, in order of arrival."""
    events, both = build_event_and_order_streams(rows)
    sides = list(zip(*generate_order_and_payment_frames(both, seed=7), strict=True))
    frames_by_topic = {
        "events": pl.concat(
            _sort_by_arrival(frame, number) for number, frame in enumerate(generate_epoch_frames(events))
        )
    }
    frames_by_topic = {
        "events": frames_by_topic["events"].select("k", ts=_event_time_ms(), v=pl.col("v").cast(pl.Int64))
    }
    for side, parts in zip(SIDES, sides, strict=True):
        amount = (pl.col("amount") * 100).round().cast(pl.Int64)
        frames_by_topic[side] = pl.concat(parts).select("order_id", ts=_event_time_ms(), amount=amount)
    return frames_by_topic


def _sort_by_arrival(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Order rows by arrival: at most two seconds out of order, because some peers process row by row."""
    delay = np.random.default_rng(seed).integers(_DISORDER_MS, size=frame.height)
    return frame.sort(pl.col("ts").dt.epoch("ms") + pl.Series(delay))


def _event_time_ms() -> pl.Expr:
    return pl.col("ts").dt.epoch("ms")


def compute_expected_results(work: Workload, records: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the expected results of every peer, computed by a batch over all records."""
    if work is JOIN:
        paid = records["payments"].rename({"amount": "paid_amount", "ts": "paid_ts"})
        after = pl.col("paid_ts") - pl.col("ts")
        expected_rows = records["orders"].join(paid, on="order_id").filter(after.is_between(0, 1000 * WITHIN_S))
    elif work is TUMBLING:
        length = 1000 * LENGTH_S
        start = pl.col("ts") // length * length
        expected_rows = records["events"].group_by("k", window_start=start).agg(n=pl.len().cast(pl.Int64))
        expected_rows = expected_rows.with_columns(window_end=pl.col("window_start") + length)
    else:
        rows = records["events"].sort("k", "ts")
        begins = (pl.col("ts").diff() > 1000 * GAP_S) | (pl.col("k") != pl.col("k").shift(1))
        rows = rows.with_columns(number=begins.fill_null(True).cum_sum())
        expected_rows = rows.group_by("k", "number").agg(
            window_start=pl.col("ts").min(),
            window_end=pl.col("ts").max() + 1000 * GAP_S,
            n=pl.len().cast(pl.Int64),
            total=pl.col("v").sum(),
            most=pl.col("v").max(),
        )
    return expected_rows.select(work.columns)


def compute_closing_time_ms(records: Mapping[str, pl.DataFrame]) -> int:
    """Return a time after all windows of all records."""
    return max(int(frame["ts"].max()) for frame in records.values()) + 1000 * (_LAST_S + LATENESS_S)  # type: ignore[arg-type]


def fill_topics(kafka: Kafka, records: Mapping[str, pl.DataFrame]) -> None:
    """Fill a topic per frame, keyed and partitioned by its first column, and close its windows with `send_closing_records`."""
    for topic, frame in records.items():
        kafka.create(topic, PARTITIONS)
        key = frame.columns[0]
        values = frame.select(
            key=key,
            partition=pl.col(key).hash(seed=1) % PARTITIONS,
            at="ts",
            value=pl.struct(frame.columns).struct.json_encode(),
        )
        send_records(kafka, topic, values.iter_rows())
        send_closing_records(kafka, topic, frame, compute_closing_time_ms(records))


def send_closing_records(kafka: Kafka, topic: str, like: pl.DataFrame, at_ms: int) -> None:
    """Send one more record per partition, whose time is after the end of all windows."""
    other = {"v": 0} if "v" in like.columns else {"amount": 0}
    rows = [{like.columns[0]: LAST, "ts": at_ms, **other}] * PARTITIONS
    values = pl.DataFrame(rows).select(pl.struct(pl.all()).struct.json_encode())
    send_records(kafka, topic, ((LAST, p, at_ms, value) for p, value in enumerate(values.to_series())))


def send_records(kafka: Kafka, topic: str, rows: Iterable[tuple[str, int, int, str]]) -> None:
    """Send records, given as key, partition, time in milliseconds and value."""
    settings = {"bootstrap.servers": kafka.address, "linger.ms": 50, "compression.type": "lz4", "log_level": 0}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    for number, (key, partition, time_ms, value) in enumerate(rows):
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if unsent := producer.flush(60):
        raise TimeoutError(f"Kafka did not accept {unsent} records within a minute")


def parse_results(values: Iterator[bytes], work: Workload) -> pl.DataFrame:
    """Return the result rows in the messages of an output topic, with the columns of `compute_expected_results`."""
    output_rows = pl.read_ndjson(b"\n".join(values), infer_schema_length=1000)
    if output_rows.is_empty():
        return output_rows
    time_columns = (
        pl.col(c).str.strip_chars_end("Z").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ms") for c in work.times
    )
    output_rows = output_rows.with_columns(*(expression.dt.epoch("ms") for expression in time_columns)).select(
        work.columns
    )
    return output_rows.filter(pl.col(work.columns[0]) != LAST)


def summarize_results(output_rows: pl.DataFrame, work: Workload) -> dict[str, int]:
    """Return the number of rows, and a sum of the hashes of all columns that does not depend on their order."""
    if output_rows.is_empty():
        return {"rows": 0, "checksum": 0}
    whole = output_rows.select(pl.col(c).cast(pl.Int64) if c not in ("k", "order_id") else c for c in work.columns)
    return {"rows": whole.height, "checksum": int(whole.hash_rows(seed=1).to_numpy().sum()) % 2**64}
