"""Hostile Avro and Protobuf records: each is a row or a bad row, and none of them stops the pipeline.

Records are written by fastavro and by Google's library. The test then damages them: flipped bits, cut tails, added
tails, and lengths that announce up to 2^63 bytes or items. Valid records lie between damaged ones and must be decoded.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from tests.support.avro_records import encode_avro_record
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import Make, minute_window
from tests.support.protobuf_records import compile_proto, encode_message
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw

pytestmark = pytest.mark.spark

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["BUY", "LOOK"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "sent", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "inner", "type": {"type": "record", "name": "inner", "fields": [{"name": "d", "type": "double"}]}},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Event {
  string user = 1; int64 amount = 2; repeated string tags = 3; map<string, int64> counts = 4; bytes raw = 5; Kind kind = 6;
  google.protobuf.Timestamp sent = 7; Inner inner = 8; repeated int64 numbers = 9;
}
message Inner { double d = 1; repeated string names = 2; }
enum Kind { BUY = 0; LOOK = 1; }
"""
LENGTHS = [2**n + d for n in (28, 30, 31, 32, 40, 62, 63) for d in (-9, -1, 0)] + [-1, -(2**31), -(2**63), 10_000_001]


def encode_varint(number: int) -> bytes:
    """Return an unsigned number of up to 64 bits as both formats write it."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode_zigzag(number: int) -> bytes:
    """Return a signed number as Avro writes it."""
    return encode_varint(number << 1 ^ number >> 63)


def random_avro_record(draw: random.Random, user: str) -> bytes:
    row = {
        "user": user,
        "amount": 1,
        "tags": ["x"] * draw.randrange(3),
        "nothing": [None] * draw.randrange(3),
        "counts": {"a": 1} if draw.random() < 0.5 else {},
        "raw": b"xy" if draw.random() < 0.5 else None,
        "kind": draw.choice(["BUY", "LOOK"]),
        "price": Decimal(draw.randrange(10_000)) / 100,
        "sent": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "day": dt.date(2024, 1, 1),
        "inner": {"d": 1.5},
    }
    return encode_avro_record(AVRO, row)


def random_protobuf_record(draw: random.Random, user: str) -> bytes:
    inner = {"d": 1.5, "names": ["x"] * draw.randrange(3)}
    row = {
        "user": user, "amount": 1, "tags": ["x"] * draw.randrange(3), "counts": {"a": 1}, "raw": "eHk=", "inner": inner,
        "kind": draw.choice(["BUY", "LOOK"]), "sent": "2024-01-01T00:00:00Z", "numbers": [1] * draw.randrange(3),
    }  # fmt: skip
    return encode_message(compile_proto(PROTO), "shop.Event", row)


def damage_record(draw: random.Random, sound: bytes, length: Callable[[int], bytes]) -> bytes:
    """Return the record with one kind of damage."""
    record = bytearray(sound)
    kind = draw.randrange(5)
    if kind == 0:
        for _ in range(draw.randint(1, 4)):
            record[draw.randrange(len(record))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del record[draw.randrange(len(record)) :]
    elif kind == 2:
        at_byte = draw.randrange(len(record) + 1)
        record[at_byte : at_byte + draw.randrange(2)] = length(draw.choice(LENGTHS))
    elif kind == 3:
        record = bytearray(draw.randbytes(draw.randrange(40)))
    else:
        record += draw.randbytes(draw.randint(1, 9))
    return bytes(record)


def encode_nested_groups(levels: int) -> bytes:
    """Return a message with nested groups of an unknown field, which would exhaust the stack of a recursive decoder."""
    return b"\x0a\x01h" + b"\xa3\x01" * levels + b"\xa4\x01" * levels


FORMATS: dict[str, tuple[Callable[[random.Random, str], bytes], Callable[[int], bytes], list[bytes]]] = {
    "avro": (random_avro_record, encode_zigzag, [encode_zigzag(n) for n in LENGTHS]),
    "protobuf": (
        random_protobuf_record,
        encode_varint,
        [
            encode_nested_groups(50),
            encode_nested_groups(1_000),
            encode_nested_groups(100_000),
            *(b"\x0a" + encode_varint(n) for n in LENGTHS),
        ],
    ),
}


@pytest.mark.parametrize("payload_format", FORMATS)
@pytest.mark.parametrize("seed", select_cases(range(4)))
def test_damaged_record_is_decoded_or_counted_as_a_bad_row(
    runner: SparkPipelineRunner, topic_factory: Make, payload_format: str, seed: int
) -> None:
    write, length, extremes = FORMATS[payload_format]
    draw, events = random.Random(seed), topic_factory()
    sound = [write(draw, f"sound{n % 5}") for n in range(100)]
    damaged = [*extremes, *(damage_record(draw, write(draw, "damaged"), length) for _ in range(400))]
    records = [*sound, *damaged]
    draw.shuffle(records)
    events.send_rows(*records, second=1)
    schema_file = runner.home / f"event.{'avsc' if payload_format == 'avro' else 'proto'}"
    schema_file.write_text(json.dumps(AVRO) if payload_format == "avro" else PROTO)
    source = events.source(
        schema=None,
        payload_format=payload_format,
        **{f"{payload_format}_schema_file": str(schema_file)},
        protobuf_message="shop.Event" if payload_format == "protobuf" else None,
    )
    sql = "SELECT CASE WHEN user RLIKE '^sound[0-4]$' THEN user ELSE 'other' END AS user, CAST(1 AS BIGINT) AS amount, _event_ts FROM source"
    rows = runner.run_pipeline(
        source=source,
        transform_sql=sql,
        window=minute_window(),
        on_error="dlq",
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    )
    counters = runner.statuses[-1].counters
    letters = pl.read_parquet(runner.home / "letters" / "*.parquet")
    assert counters.rows_in == len(records)
    assert counters.rows_used + counters.rows_bad == len(records)
    assert len(letters) == counters.rows_bad
    assert set(letters["value"]) <= set(damaged)
    by_user = dict(rows.select("user", "n").rows())
    assert sum(by_user.values()) == counters.rows_used
    for n in range(5):
        assert by_user[f"sound{n}"] == 20
