"""The two systems that run the same query: Spark's stateful operators, and Slackwater."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name PySpark's own documentation uses

import slackwater as sw
from benchmarks.benchmark_cases import HDFS, ROCKSDB, Window
from benchmarks.event_files import FILES_PER_EPOCH, LATENESS_S, SCHEMA
from benchmarks.kafka_topics import EventTopic
from slackwater.connectors.files.output_directory import open_directory
from slackwater.engine.observer import Status

STATE = "SLACKWATER_BENCH_STATE"  # environment variable: the path or URL of the state
RESULTS = "SLACKWATER_BENCH_RESULTS"  # environment variable: the path or URL of the results
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = {
    HDFS: f"{_PROVIDERS}HDFSBackedStateStoreProvider",
    ROCKSDB: f"{_PROVIDERS}RocksDBStateStoreProvider",
}


def run_native_window(spark: SparkSession, window: Window, data: Path | EventTopic, work: Path) -> None:
    """Run all epochs with `withWatermark` and `groupBy`. Write results as Parquet to `work/out`."""
    rows = _read_event_stream(spark, data).withWatermark("ts", f"{LATENESS_S} seconds")
    grouped = rows.groupBy(_window_column(window).alias("w"), "k")
    aggregated = grouped.agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("v").alias("most"))
    results = aggregated.select(
        F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), "k", "n", "total", "most"
    )
    query = (
        results.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _read_event_stream(spark: SparkSession, data: Path | EventTopic) -> DataFrame:
    if isinstance(data, Path):
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).parquet(str(data))
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", data.address)
    reader = reader.option("subscribe", data.name).option("startingOffsets", "earliest")
    return decode_kafka_records(reader.option("maxOffsetsPerTrigger", data.rows).load())


def decode_kafka_records(records: DataFrame) -> DataFrame:
    """Decode the records that Spark's Kafka connector reads."""
    return records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def _window_column(window: Window) -> Column:
    length = f"{window.length} seconds"
    if window.kind == "session":
        return F.session_window("ts", length)
    return F.window("ts", length, f"{window.hop} seconds" if window.hop else None)


def run_slackwater_window(
    spark: SparkSession,
    window: Window,
    data: Path | EventTopic,
    work: Path,
    on_status: Callable[[Status], None],
    postgres: str | None = None,
) -> None:
    """Run the window on Slackwater, with durable state in `work/state`, at the path in STATE, or in the database `postgres`.

    Results go to `work/out`. If RESULTS names a path, they go there and are copied to `work/out` at the end.
    """
    store = (
        sw.StateStore(kind="postgres", url=postgres)
        if postgres
        else sw.StateStore(kind="files", path=os.environ.get(STATE) or str(work / "state"))
    )
    lake, out = sw.FilesConnection(), os.environ.get(RESULTS)
    sw.run_streaming_pipeline(
        name="bench",
        source=build_event_source(data),
        window=build_slackwater_window(window),
        target=lake,
        target_path=out or str(work / "out"),
        target_format="parquet",
        state_store=store,
        available_now=True,
        spark=spark,
        on_status=on_status,
    )
    if out:
        shutil.copytree(open_directory(out).local_copy(), work / "out")


def build_event_source(data: Path | EventTopic) -> sw.Source:
    """Return the source of the files in a directory, or of a topic."""
    if isinstance(data, Path):
        return sw.Source(
            name="events",
            connection=sw.FilesConnection(),
            query=f"{data}/*.parquet",
            format="parquet",
            schema=SCHEMA,
            max_files_per_trigger=FILES_PER_EPOCH,
        )
    return sw.Source(
        name="events",
        connection=sw.KafkaConnection(bootstrap_servers=data.address),
        query=data.name,
        schema=SCHEMA,
        starting_offsets="earliest",
        max_offsets_per_trigger=data.rows,
    )


def build_slackwater_window(window: Window) -> sw.Window:
    if window.kind == "session":
        shape = {"gap_ms": f"{window.length}s", "max_session_duration_ms": "2h"}
    else:
        shape = {"duration_ms": f"{window.length}s"} | ({"hop_ms": f"{window.hop}s"} if window.hop else {})
    if window.reopen is not None:
        shape |= {"late_data": "reopen", "allowed_lateness_ms": f"{window.reopen}s", "emit_metadata": True}
    return sw.Window(
        kind=window.kind,
        **shape,
        event_time_column="ts",
        lateness_ms=LATENESS_S * 1000,
        group_by=["k"],
        max_groups_per_window=50_000_000,
        aggregations=[
            sw.Aggregation(agg="count", as_="n"),
            sw.Aggregation(agg="sum", column="v", as_="total"),
            sw.Aggregation(agg="max", column="v", as_="most"),
        ],
    )
