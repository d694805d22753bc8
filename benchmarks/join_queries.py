"""The join of orders and payments, run by Spark's stream-stream join and by Slackwater."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name PySpark's own documentation uses

import slackwater as sw
from benchmarks.benchmark_cases import Join
from benchmarks.event_files import FILES_PER_EPOCH, ORDERS_SCHEMA, SIDES
from slackwater.engine.observer import Status

_OUTPUT = ("order_id", "amount", "ts", "paid_amount", "paid_ts", "_event_ts")


def summarize_joined_rows(out: Path) -> dict[str, int]:
    """Return the number of result rows, and the sum of the hashes of all their columns."""
    rows, checksum = 0, 0
    for path in sorted(out.glob("*.parquet")):
        table = pq.read_table(path, columns=list(_OUTPUT), partitioning=None)
        joined_rows = pl.from_arrow(table).with_columns(
            pl.col("ts", "paid_ts", "_event_ts").cast(pl.Datetime("us", "UTC"))
        )
        rows += joined_rows.height
        checksum += int(joined_rows.hash_rows(seed=1).to_numpy().sum())  # wraps around
    return {"rows": rows, "checksum": checksum % 2**64}


def run_native_join(spark: SparkSession, join: Join, data: Path, work: Path) -> None:
    """Run all epochs with Spark's own join of two streams. Write results as Parquet to `work/out`."""
    orders, payments = (_read_source_stream(spark, join, data / side) for side in SIDES)
    paid = payments.select(
        F.col("order_id").alias("paid_order_id"), F.col("amount").alias("paid_amount"), F.col("ts").alias("paid_ts")
    )
    within = F.expr(f"order_id = paid_order_id AND paid_ts >= ts AND paid_ts <= ts + INTERVAL {join.within_s} SECONDS")
    results = orders.join(paid, within, join.kind).withColumn("_event_ts", F.greatest("ts", "paid_ts")).select(*_OUTPUT)
    query = (
        results.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _read_source_stream(spark: SparkSession, join: Join, files: Path) -> DataFrame:
    rows = spark.readStream.schema(ORDERS_SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).parquet(str(files))
    return rows.withWatermark("ts", f"{join.lateness_s} seconds")


def run_slackwater_join(
    spark: SparkSession, join: Join, data: Path, work: Path, on_status: Callable[[Status], None]
) -> None:
    """Run the join on Slackwater, with durable state in `work/state`."""
    lake = sw.FilesConnection()
    sw.run_streaming_pipeline(
        name="bench",
        sources=[
            sw.Source(
                name=side,
                connection=lake,
                query=f"{data / side}/*.parquet",
                format="parquet",
                schema=ORDERS_SCHEMA,
                max_files_per_trigger=FILES_PER_EPOCH,
            )
            for side in SIDES
        ],
        join=sw.Join(
            kind=join.kind,
            left_source="orders",
            right_source="payments",
            left_keys=["order_id"],
            right_keys=["order_id"],
            lower_ms=0,
            upper_ms=f"{join.within_s}s",
            event_time_column="ts",
            lateness_ms=f"{join.lateness_s}s",
            output_left_columns=["order_id", "amount", "ts"],
            output_right_columns=["amount", "ts"],
            left_prefix="",
            right_prefix="paid_",
        ),
        target=lake,
        target_path=str(work / "out"),
        target_format="parquet",
        state_store=sw.StateStore(kind="files", path=str(work / "state")),
        available_now=True,
        spark=spark,
        on_status=on_status,
    )
