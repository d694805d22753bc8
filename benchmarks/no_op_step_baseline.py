"""The floor: epochs with a step that does nothing. No engine that aggregates in Python on Spark can be faster.

two files ─▶ hash, time, keys, inputs ─▶ (panes of many rows: aggregates) ─▶ shuffle by key ─▶ Arrow to Python ─▶ counted

It is a loop over the files of a stream, epoch by epoch, without a streaming query, state or output.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the name PySpark's own documentation uses

from benchmarks.benchmark_cases import Join, Window
from benchmarks.event_files import FILES_PER_EPOCH, ORDERS_SCHEMA, SCHEMA, SIDES
from benchmarks.kafka_topics import EventTopic
from benchmarks.window_queries import decode_kafka_records
from slackwater.spark.tuning.shuffle_tuning import MANY_ROWS_PER_PANE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Reading = Callable[[], DataFrame]

PARTITIONS = 2
_AS_FOR_WORKERS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.sql.ansi.enabled": "true",
}


def run_no_op_step_epochs(spark: SparkSession, query: Window | Join, data: Path | EventTopic) -> dict[str, Any]:
    """Return the epochs in the format of `worker`, and the counted rows. Raise AssertionError if a row is missing."""
    floor_session = spark.newSession()
    for key, value in _AS_FOR_WORKERS.items():
        floor_session.conf.set(key, value)
    batches: list[dict[str, Any]] = []
    came = counted = 0
    pre_aggregates = (
        isinstance(query, Window) and query.kind != "session"
    )  # later epochs only if panes have many rows, as in Slackwater
    for rows, sources in _epoch_readers(floor_session, query, data):
        began, clock = time.time(), time.perf_counter()
        counts = [row.asDict() for row in _collect_row_counts(query, [source() for source in sources], pre_aggregates)]
        batches.append({"rows": rows, "began": began, "seconds": time.perf_counter() - clock, "durations": {}})
        assert sum(f["rows"] for f in counts) == rows, f"{counts} of {rows} rows"
        pre_aggregates = pre_aggregates and rows >= MANY_ROWS_PER_PANE * sum(f["came"] for f in counts)
        came, counted = came + sum(f["came"] for f in counts), counted + rows
    return {"batches": batches, "output": {"rows": came, "counted": counted}}


def _epoch_readers(
    spark: SparkSession, query: Window | Join, data: Path | EventTopic
) -> Iterator[tuple[int, list[Reading]]]:
    """Yield, for each epoch, its number of rows and the functions that read its sources."""
    if isinstance(data, EventTopic):
        for epoch in range(data.epochs):
            yield data.rows, [partial(_read_topic_epoch, spark, data, epoch)]
        return
    schema = SCHEMA if isinstance(query, Window) else ORDERS_SCHEMA
    for files in iterate_epoch_files(data if isinstance(query, Window) else [data / side for side in SIDES]):
        rows = sum(pq.read_metadata(path).num_rows for paths in files for path in paths)
        yield rows, [partial(_read_files, spark, schema, paths) for paths in files]


def iterate_epoch_files(directories: Path | list[Path]) -> Iterator[list[list[Path]]]:
    """Yield the files of each epoch, per source."""
    sources = directories if isinstance(directories, list) else [directories]
    listed = [sorted(directory.glob("*.parquet")) for directory in sources]
    for first in range(0, len(listed[0]), FILES_PER_EPOCH):
        yield [paths[first : first + FILES_PER_EPOCH] for paths in listed]


def _collect_row_counts(query: Window | Join, sources: list[DataFrame], pre_aggregates: bool) -> list[Any]:
    if isinstance(query, Window):
        rows = sources[0].selectExpr("xxhash64(k) AS kh", "unix_micros(ts) AS us", "k", "v")
        handed = _pre_aggregate(query, rows) if pre_aggregates else rows
    else:
        handed = reduce(
            lambda first_frame, second_frame: first_frame.unionByName(second_frame),
            (
                source.selectExpr(
                    "xxhash64(order_id) AS kh", "unix_micros(ts) AS us", f"{which}Y AS side", "order_id", "amount"
                )
                for which, source in enumerate(sources)
            ),
        )
    return handed.repartition(PARTITIONS, "kh").mapInArrow(_count_batch_rows, "came BIGINT, rows BIGINT").collect()


def _read_files(spark: SparkSession, schema: str, paths: list[Path]) -> DataFrame:
    return spark.read.schema(schema).parquet(*map(str, paths))


def _read_topic_epoch(spark: SparkSession, topic: EventTopic, epoch: int) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", topic.address).option("subscribe", topic.name)
    for option, number in (("startingOffsets", epoch), ("endingOffsets", epoch + 1)):
        reader = reader.option(option, json.dumps(topic.epoch_offsets(number)))
    return decode_kafka_records(reader.load())


def _pre_aggregate(window: Window, rows: DataFrame) -> DataFrame:
    """Return partial aggregates per key and pane, as in Slackwater's SQL."""
    pane = 1_000_000 * (window.hop or window.length)
    accumulators = [
        "count(1) AS n",
        "min(us) AS first",
        "count(v) AS total_n",
        "coalesce(sum(v), 0D) AS total",
        "max(v) AS most",
    ]
    panes = rows.selectExpr("kh", f"us - pmod(us, {pane}L) AS start", "k", "us", "v")
    return panes.groupBy("kh", "start", "k").agg(*(F.expr(sql) for sql in accumulators))


def _count_batch_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the received rows, and the input rows that they aggregate."""
    import pyarrow as pa
    import pyarrow.compute as pc

    came = rows = 0
    for batch in batches:
        came += batch.num_rows
        folded = "n" in batch.schema.names
        rows += pc.sum(batch["n"]).as_py() or 0 if folded else batch.num_rows
    yield pa.RecordBatch.from_pydict({"came": [came], "rows": [rows]})
