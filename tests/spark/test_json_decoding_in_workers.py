"""JSON that workers decode: every record, even a hostile one, gives the result of Spark's `from_json`.

records ──▶ JsonPayload, by Spark alone ──────────────▶ rows ─┐
    ╰─────▶ JsonPayload, by Arrow, and Spark for the rest ────┴─▶ equal, and Arrow decoded the plain records
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from tests.support.case_selection import select_cases

from slackwater.config.connection import KafkaConnection
from slackwater.config.source import Source
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.payloads import arrow_json_decoder, json_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.payloads.json_payload import JsonPayload

RECORDS = 20_000 if os.environ.get("SLACKWATER_TEST_ALL") else 4_000
SCHEMAS = {
    "flat": "k STRING, n BIGINT, i INT, d DOUBLE, b BOOLEAN",
    "nested": "k STRING, l ARRAY<BIGINT>, o STRUCT<x: INT, y: ARRAY<STRUCT<z: STRING>>>, d DOUBLE",
    "times": "k STRING, at TIMESTAMP, day DATE, n BIGINT NOT NULL",
}
SCALARS = [
    *("1", "-1", "0", "-0", "12", "9223372036854775807", "9223372036854775808", "2147483648", "1e3", "1.0", "1.5", "-2.25e-7"),
    *("1e400", "5e-324", "1e-400", "0.1", "123456789012345678901234567890", "01", "+1", ".5", "1.", "0x10", "1_000", "NaN"),
    *("-NaN", "Infinity", "-Infinity", "Inf", "INF", "true", "false", "True", "null", "nul", "undefined", "[]", "{}", "[1]"),
    *("[1,null,2]", "[[1]]", '{"x":1}', '{"x":null,"y":[{"z":"q"},null,{}]}', '{"x":"1"}', '{"y":[{"z":1}]}', '{"x":1,"x":2}'),
    *('""', '"a"', '"1"', '"ü"', '"\\u00fc"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\uDC00"', '"a\\nb"', '"a\nb"', '"\t"'),
    *('"\\x"', '"\\/"', "'single'", '"NaN"', '"Info: NaN"', '"2024-03-01T00:00:00Z"', '"2024-03-01"', '"10:15"', "20240301"),
    *("1709251200", '"{"', '"}"', '"a}', "[" * 1100 + "]" * 1100, "9" * 1200, "0." + "1" * 1100, '"' + "x" * 20_000 + '"'),
]  # fmt: skip
KEYS = ["k", "n", "i", "d", "b", "l", "o", "at", "day", "K", "other", "", "_corrupt_record", "ü"]
WHOLE = [
    *("", " ", "{}", "{", "}", "[]", "null", "1", '"text"', "[{}]", '{"k":"a"}{"k":"b"}', '{"k":"a"} {"k":"b"}', '{"k":"a"},'),
    *('{"k":"a"}\n{"k":"b"}', '{"k":\n"a"}', ' {"k":"a"}', '{"k":"a"} ', '{"k":"a",}', '{"k" "a"}', '{"k":"a"', '"k":"a"}'),
    *('{"o":{"x":1}', ',"k":"b"}', '{k:"a"}', "{'k':'a'}", '{"k":"a"/* c */}', '\ufeff{"k":"a"}', '{"\\u006b":"a"}', '{"k":"a"}}'),
]  # fmt: skip


def random_record(rng: random.Random) -> bytes | None:
    """Return a record that is plain in most cases, and otherwise hostile in one or several ways."""
    if rng.random() < 0.03:
        return rng.choice([None, b"\xff\xfe", b'{"k":"\xff"}', b'{"other":"\xed\xa0\x80"}', b'{"\xff":1}'])
    if rng.random() < 0.05:
        return rng.choice(WHOLE).encode()
    if rng.random() < 0.6:
        plain = {"k": f"u{rng.randrange(99)}", "n": rng.randrange(10**12), "d": rng.random(), "b": True, "l": [1, 2]}
        plain |= {"o": {"x": 3, "y": [{"z": "q"}]}, "at": "2024-03-01T10:00:00Z", "day": "2024-03-01"}
        return json.dumps(dict(rng.sample(list(plain.items()), rng.randint(0, len(plain))))).encode()
    space = rng.choice(["", "", " ", "\t", "\n", "\r\n"])
    members = [f'"{rng.choice(KEYS)}"{space}:{space}{rng.choice(SCALARS)}' for _ in range(rng.randint(0, 4))]
    text = f"{{{space}{f',{space}'.join(members)}}}"
    if rng.random() < 0.1:
        position = rng.randrange(len(text) + 1)
        text = text[:position] + rng.choice(["", "\\", '"', "{", "}", ",", "\n"]) + text[position + 1 :]
    return text.encode("utf-8", "surrogatepass")


def decode_records(spark: Any, ddl: str, records: list[bytes | None], count: int | None) -> list[Any]:
    """Return the decoded records in order, as text: NaN equals NaN, and -0.0 differs from 0.0."""
    spec = Source(name="s", connection="c", query="t", schema=ddl)
    payload = JsonPayload.from_records(RawRecords(spark, spec))
    table = pa.table({"number": pa.array(range(len(records))), "value": pa.array(records, pa.binary())})
    rows = payload.decode(spark.createDataFrame(table), ["number"], count).orderBy("number").collect()
    return [repr(row) for row in rows]


@pytest.mark.parametrize("size", select_cases([3, 1, 10_000]))
@pytest.mark.parametrize("name", SCHEMAS)
def test_workers_decode_every_record_like_spark(spark: Any, name: str, size: int) -> None:
    """Arrow reads every record in batches of one. Longer batches add records that follow a failed record."""
    rng = random.Random(f"{name} {size}")
    count = RECORDS if size > 100 else RECORDS // 5  # many small batches take long
    records = [random_record(rng) for _ in range(count)] + [rng.choice(WHOLE).encode() for _ in range(count // 4)]
    rng.shuffle(records)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(size))
    try:
        together = decode_records(spark, SCHEMAS[name], records, json_payload.MANY_RECORDS)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    alone = decode_records(spark, SCHEMAS[name], records, None)
    differing = [(records[i], a, b) for i, (a, b) in enumerate(zip(alone, together, strict=True)) if a != b]
    assert not differing, differing[:3]


@pytest.mark.parametrize("name", SCHEMAS)
def test_arrow_decodes_more_than_half_of_the_random_records(spark: Any, name: str) -> None:
    """Ensure that the comparison with Spark does not compare Spark with itself."""
    payload = JsonPayload.from_records(
        RawRecords(spark, Source(name="s", connection="c", query="t", schema=SCHEMAS[name]))
    )
    decoder = arrow_json_decoder.JsonDecoder(
        arrow_json_decoder.arrow_type(arrow_json_decoder.nullable(payload._spark_schema)), "value"
    )
    rng = random.Random(name)
    batches = [pa.array([random_record(rng)], pa.binary()) for _ in range(500)]
    assert sum(decoder.decode(batch).null_count for batch in batches) < 250


def test_arrow_decodes_plain_records_next_to_bad_ones() -> None:
    plain, bad = b'{"k":"a","n":1}', b'{"k":"a","n":"one"}'
    kind = pa.struct([("k", pa.string()), ("n", pa.int64())])
    decoder = arrow_json_decoder.JsonDecoder(kind, "value")
    records = pa.array([plain, bad, plain, None, b'{"k":\n"a"}', plain, b"no json", bad, plain], pa.binary())
    result = decoder.decode(records)
    assert result.type == kind
    assert [value is not None for value in result.to_pylist()] == [r == plain for r in records.to_pylist()]
    many_bad = pa.array([plain] * 50 + [bad] * (arrow_json_decoder._MOST_FAILURES + 1) + [plain] * 50, pa.binary())
    assert decoder.decode(many_bad).null_count == arrow_json_decoder._MOST_FAILURES + 1 + 50, "Spark decodes the rest"


@pytest.mark.parametrize("ddl", ["k STRING, f FLOAT", "k STRING, m MAP<STRING, INT>", "k DECIMAL(10, 2)", "k BINARY"])
def test_floats_maps_decimals_and_binaries_are_decoded_by_spark(spark: Any, ddl: str) -> None:
    payload = JsonPayload.from_records(RawRecords(spark, Source(name="s", connection="c", query="t", schema=ddl)))
    assert not payload.runs_in_workers(10**9)


def test_small_and_unknown_record_counts_are_decoded_by_spark(spark: Any) -> None:
    payload = JsonPayload.from_records(
        RawRecords(spark, Source(name="s", connection="c", query="t", schema="k STRING"))
    )
    many = json_payload.MANY_RECORDS
    assert [payload.runs_in_workers(count) for count in (None, 0, many - 1, many)] == [False, False, False, True]


def test_workers_preserve_headers_keys_and_values_of_records(spark: Any) -> None:
    spec = Source(name="s", connection="c", query="t", schema="k STRING")
    payload = JsonPayload.from_records(RawRecords(spark, spec))
    source = KafkaSource(spec, KafkaBroker(KafkaConnection(bootstrap_servers="127.0.0.1:1")), payload, "g")
    header = (
        "array(named_struct('key', 'h', 'value', X'00FF'), named_struct('key', 'h', 'value', CAST(NULL AS BINARY)))"
    )
    rows = f"VALUES (0L, X'6B', {header}), (1L, NULL, array()), (2L, X'00', NULL) AS t(offset, key, headers)"
    no_headers = "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    records = spark.sql(
        f'SELECT key, CAST(\'{{"k":"a"}}\' AS BINARY) AS value, IF(size(headers) = 0, {no_headers}, headers) AS headers, '
        f"'t' AS topic, 0 AS partition, offset, TIMESTAMP'2024-03-01 00:00:00' AS timestamp FROM {rows.replace('array()', no_headers)}"
    )
    alone, together = (source.decode(records, count=count) for count in (None, json_payload.MANY_RECORDS))
    plans = [frame._jdf.queryExecution().analyzed().toString() for frame in (alone, together)]
    assert ["to_json(" in plan for plan in plans] == [False, True], "Spark sends no nested column to the workers"
    assert together.schema["_headers"].dataType == alone.schema["_headers"].dataType
    assert together.orderBy("_offset").collect() == alone.orderBy("_offset").collect()
