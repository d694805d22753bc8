"""`python -m benchmarks.payload_decoding`: decode the same rows from JSON, Avro and Protobuf on one core.

The figures are records per second of wall-clock time, and per CPU second of all processes. Workers decode Protobuf and large batches
of JSON records. Spark itself decodes Avro and small batches of JSON records ("json, few").
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROWS, TURNS = 1_000_000, 3
DDL = "user STRING, amount BIGINT, price DOUBLE, at BIGINT, tags ARRAY<STRING>, place STRUCT<city: STRING, zip: INT>"
PROTO = """
syntax = "proto3";
message Event { string user = 1; int64 amount = 2; double price = 3; int64 at = 4; repeated string tags = 5; Place place = 6; }
message Place { string city = 1; int32 zip = 2; }
"""
AVRO = {
    "type": "record", "name": "Event",
    "fields": [
        {"name": "user", "type": "string"}, {"name": "amount", "type": "long"}, {"name": "price", "type": "double"},
        {"name": "at", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [
            {"name": "city", "type": "string"}, {"name": "zip", "type": "int"}]}},
    ],
}  # fmt: skip


def build_sample_rows() -> list[dict[str, Any]]:
    """Return a thousand rows, which all records repeat."""
    return [
        {"user": f"user-{n}", "amount": n * 7, "price": n / 8, "at": 1_700_000_000_000 + n, "tags": ["new", f"t{n % 9}"],
         "place": {"city": f"city {n % 50}", "zip": 10_000 + n}}
        for n in range(1000)
    ]  # fmt: skip


def encode_avro(records: list[dict[str, Any]]) -> list[bytes]:
    schema, encoded = fastavro.parse_schema(AVRO), []
    for row in records:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        encoded.append(out.getvalue())
    return encoded


def encode_protobuf(records: list[dict[str, Any]]) -> list[bytes]:
    from slackwater.connectors.payloads.protobuf import from_texts

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(from_texts(PROTO, {}).data).file:
        pool.Add(file)
    event: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    return [event(**row).SerializeToString() for row in records]


def read_process_tree_cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants."""
    root = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (root, *root.children(recursive=True)))


def main() -> None:
    import pyspark

    from slackwater.config.source import Source
    from slackwater.connectors.payloads import create_payload
    from slackwater.connectors.payloads.base import RawRecords
    from slackwater.spark.sessions import spark_jars, spark_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = ",".join(map(str, spark_jars.avro_connector(pyspark.__version__)))
    spark = spark_session.start_session({"spark.master": "local[1]", "spark.jars": jars})
    records = build_sample_rows()
    bodies = {
        "json": [json.dumps(r).encode() for r in records],
        "avro": encode_avro(records),
        "protobuf": encode_protobuf(records),
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "event.avsc").write_text(json.dumps(AVRO))
        (home / "event.proto").write_text(PROTO)
        keys: dict[str, dict[str, Any]] = {
            "json": {"schema": DDL},
            "avro": {"avro_schema_file": str(home / "event.avsc")},
            "protobuf": {"protobuf_schema_file": str(home / "event.proto")},
        }
        for kind, some in bodies.items():
            pq.write_table(
                pa.table({"value": pa.array(some * (ROWS // len(some)), pa.binary())}), home / f"{kind}.parquet"
            )
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("json", "json, few", "avro", "protobuf")}
        for _ in range(TURNS + 1):
            for name, seconds in taken.items():
                kind, _, few = name.partition(", ")
                spec = Source(name="s", connection="c", query="t", payload_format=kind, **keys[kind])
                payload = create_payload(RawRecords(spark, spec))
                began, before = time.perf_counter(), read_process_tree_cpu_seconds()
                records = spark.read.parquet(str(home / f"{kind}.parquet"))
                decoded = payload.decode(records, [], None if few else ROWS)
                decoded.write.format("noop").mode("overwrite").save()
                seconds.append((time.perf_counter() - began, read_process_tree_cpu_seconds() - before))
        for name, seconds in taken.items():
            body = bodies[name.partition(", ")[0]]
            size = sum(map(len, body)) / len(body)
            clock, processor = (ROWS / median(one) for one in zip(*seconds[1:], strict=True))
            print(
                f"{name:9} {clock:>10,.0f} records/s, {processor:>10,.0f} per CPU second; {size:.0f} bytes per record"
            )
    spark.stop()


if __name__ == "__main__":
    main()
