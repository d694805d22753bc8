"""Test Protobuf on Spark: columns of every type, schema versions in a registry, a schema file, and broken records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive
from tests.support.fake_schema_registry import build_subject_response, serve_registry_responses
from tests.support.kafka_topics import Make, Topic, minute_window, to_count_rows
from tests.support.protobuf_records import (
    FIRST,
    NOTE,
    SECOND,
    build_record_header,
    compile_proto,
    encode_message,
    encode_with_first_schema,
    encode_with_second_schema,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.config.source import Source
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.runner.replay_runner import replay_dead_letters

pytestmark = pytest.mark.spark

TYPES = """
syntax = "proto3";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Types {
  int32 i = 1; sint64 l = 2; uint32 ui = 3; fixed64 ul = 4; float f = 5; double d = 6; bool b = 7; string s = 8; bytes raw = 9;
  Color color = 10; google.protobuf.Timestamp at = 11; google.protobuf.Duration took = 12; google.protobuf.StringValue wrapped = 13;
  Inner inner = 14; repeated Inner inners = 15; map<string, Inner> by_name = 16; optional int32 maybe = 17; string value = 18;
  Empty nothing = 19;
  message Inner { uint64 u = 1; repeated string names = 2; }
  message Empty {}
  enum Color { RED = 0; BLUE = 1; }
}
"""


@pytest.mark.matrix
def test_protobuf_values_of_every_type_are_decoded_to_spark_columns(runner: SparkPipelineRunner) -> None:
    path, most = runner.home / "types.proto", 2**64 - 1
    path.write_text(TYPES)
    spec = Source(name="s", connection="c", query="t", payload_format="protobuf", protobuf_schema_file=str(path))
    payload = create_payload(RawRecords(runner.spark, spec))
    message = {
        "i": -1, "l": -(2**63), "ui": 2**32 - 1, "ul": most, "f": 1.5, "d": 2.5, "b": True, "s": "ä", "raw": "AP8=", "color": "BLUE",
        "at": "2024-02-03T04:05:06.123456789Z", "took": "1.5s", "wrapped": "w", "inner": {"u": most, "names": ["x", "y"]},
        "inners": [{"u": 1}], "byName": {"k": {"u": 2}}, "maybe": 0, "value": "v", "nothing": {},
    }  # fmt: skip
    bodies = [encode_message(compile_proto(TYPES), "Types", message), b"", b"\xff\xff", None]
    records = runner.spark.createDataFrame([(n, body) for n, body in enumerate(bodies)], "n INT, value BINARY")
    decoded = payload.decode(records, ["n"])
    assert [f.name for f in decoded.schema.fields] == [*(f.name for f in payload.schema.fields), "n", "_corrupt_record"]
    full, empty, *broken = decoded.orderBy("n").collect()
    inner = (Decimal(most), ["x", "y"])
    event_time = dt.datetime(2024, 2, 3, 4, 5, 6, 123456)
    assert [tuple(v) if isinstance(v, tuple) else v for v in full] == [
        -1, -(2**63), 2**32 - 1, Decimal(most), 1.5, 2.5, True, "ä", bytearray(b"\0\xff"), "BLUE", event_time, dt.timedelta(seconds=1.5), "w",
        inner, [(Decimal(1), [])], {"k": (Decimal(2), [])}, 0, "v", 0, None,
    ]  # fmt: skip
    assert list(empty) == [
        0, 0, 0, Decimal(0), 0.0, 0.0, False, "", bytearray(), "RED", None, None, None, None, [], {}, None, "", 1, None,
    ]  # fmt: skip
    assert [list(row) for row in broken] == [[None] * 18 + [2, "FFFF"], [None] * 18 + [3, "no value"]]


@pytest.mark.matrix
def test_protobuf_records_are_decoded_with_a_schema_file(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    events = topic_factory()
    events.send_rows(
        encode_with_first_schema({"user": "a", "amount": 1}),
        encode_with_first_schema({"user": "a", "amount": 2}),
        second=1,
        key="k",
        headers=[("h", b"x")],
    )
    events.send_rows(b"\xff\xff\xff", None, second=2)
    path = runner.home / "event.proto"
    path.write_text(FIRST)
    source = events.source(schema=None, payload_format="protobuf", protobuf_schema_file=str(path))
    sql = "SELECT concat(user, _headers[0].key, CAST(_key AS STRING)) AS user, amount, _event_ts FROM source"
    frame = runner.run_pipeline(source=source, transform_sql=sql, window=minute_window(), on_error="drop")
    assert to_count_rows(frame) == [("ahk", 2, 3)]
    assert runner.statuses[-1].counters.rows_bad == 2


class RegisteredSchemas:
    """Versions of a subject with the schema IDs 7 and 9. Schema 9 refers to another subject. `add_version` registers more."""

    def __init__(self) -> None:
        refers = {"name": "shop/note.proto", "subject": "note", "version": 1}
        self.versions: list[dict[str, Any]] = [
            {"id": 7, "schema": FIRST},
            {"id": 9, "schema": SECOND, "references": [refers]},
        ]

    def registry_entries(self, path: str) -> Any:
        return build_subject_response(
            path, [{"id": 5, "schema": NOTE}] if path.startswith("/subjects/note/") else self.versions
        )

    def add_version(self, number: int) -> None:
        self.versions.append({**self.versions[-1], "id": number})


@pytest.fixture
def registered_schemas() -> RegisteredSchemas:
    return RegisteredSchemas()


@pytest.fixture
def registry_address(registered_schemas: RegisteredSchemas) -> Iterator[str]:
    with serve_registry_responses(registered_schemas.registry_entries) as address:
        yield address


def session_pipeline_settings(runner: SparkPipelineRunner, events: Topic, address: str) -> dict[str, Any]:
    connection = sw.KafkaConnection(bootstrap_servers=events.broker.address, schema_registry=address)
    return {
        "source": events.source(schema=None, payload_format="protobuf", connection=connection),
        "transform_sql": "SELECT concat(user, coalesce(note.text, ''), kind) AS user, amount, _event_ts FROM source",
        "window": minute_window(
            kind="session", duration_ms=None, max_groups_per_window=None, gap_ms="10s", max_session_duration_ms="10m",
            lateness_ms="1h", late_data="dlq",
        ),
        "on_error": "dlq",
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }  # fmt: skip


def send_records(events: Topic, one: int, two: int, later: int) -> list[bytes | None]:
    """Send records of two schema versions and bad records. The schema of the last bad record is registered later."""
    row = {"user": "a", "amount": 1}
    events.send_rows(
        encode_with_first_schema(row, one),
        encode_with_second_schema({**row, "note": {"text": "x"}, "kind": "LOOK"}, two),
        second=1,
    )
    events.send_rows(
        encode_with_first_schema({**row, "amount": 2}, one),
        encode_with_first_schema({**row, "amount": 4}, one),
        second=5,
    )
    other = build_record_header(two, (1,)) + encode_message(compile_proto(SECOND), "shop.Other", row)
    bad = [
        encode_with_first_schema(row, two)[:-1],
        None,
        b"",
        encode_with_first_schema(row),
        other,
        b"\0\xff",
        encode_with_first_schema({**row, "amount": 8}, later),
    ]
    events.send_rows(*bad, second=6, key="k", headers=[("h", b"\1")])
    return bad


def test_two_schema_versions_are_decoded_and_broken_records_become_dead_letters(
    runner: SparkPipelineRunner, topic_factory: Make, registry_address: str, registered_schemas: RegisteredSchemas
) -> None:
    events = topic_factory()
    bad = send_records(events, 7, 9, 11)
    settings = session_pipeline_settings(runner, events, registry_address)
    runner.run_pipeline(**settings, flush=False)
    letters = pl.read_parquet(runner.home / "letters" / "*.parquet").sort("offset")
    assert letters["value"].to_list() == bad
    assert set(letters["reason"]) == {"undecodable"}
    assert set(letters["key"]) == {b"k"}
    assert runner.statuses[-1].counters.rows_bad == len(bad)
    registered_schemas.add_version(11)
    outcome = replay_dead_letters(
        sw.pipeline(
            name="test", **settings, target=sw.FilesConnection(), target_path=str(runner.home / "out"),
            state_store=sw.StateStore(kind="files", path=str(runner.home / "state")),
        ),
        lambda letters: letters,
        spark=runner.spark,
    )  # fmt: skip
    assert (outcome.applied, outcome.remaining) == (1, {"bad again: undecodable": len(bad) - 1})
    assert to_count_rows(runner.run_pipeline(**settings)) == [("aBUY", 4, 15), ("axLOOK", 1, 1)]


@exhaustive(beside="test_protobuf.py::test_two_schema_versions_are_decoded_and_broken_records_become_dead_letters")
def test_two_schema_versions_are_decoded_with_a_real_registry(
    runner: SparkPipelineRunner, topic_factory: Make, schema_registry: Any
) -> None:
    events = topic_factory()
    schema_registry.register_schema(f"{events.name}-note", NOTE, "PROTOBUF")
    subject, other = f"{events.name}-value", {"name": "shop/note.proto", "subject": f"{events.name}-note", "version": 1}
    one = schema_registry.register_schema(subject, FIRST, "PROTOBUF")
    two = schema_registry.register_schema(subject, SECOND, "PROTOBUF", [other])
    bad = send_records(events, one, two, 10**6)
    frame = runner.run_pipeline(**session_pipeline_settings(runner, events, schema_registry.url))
    assert to_count_rows(frame) == [("aBUY", 3, 7), ("axLOOK", 1, 1)]
    letters = pl.read_parquet(runner.home / "letters" / "*.parquet").sort("offset")
    assert letters["value"].to_list() == bad


def test_invalid_protobuf_schema_is_reported_with_a_one_line_error(
    runner: SparkPipelineRunner, topic_factory: Make, registry_address: str, registered_schemas: RegisteredSchemas
) -> None:
    events = topic_factory()
    settings = session_pipeline_settings(runner, events, registry_address)
    wrong = [
        ('syntax = "proto3"; message T { T t = 1; }', r'message "T" contains itself \(T > T\)'),
        ('syntax = "proto3"; message T { Foo a = 1; }', r'1:32: "Foo" is not defined'),
    ]
    for number, (text, said) in enumerate(wrong, 20):
        registered_schemas.versions[1:] = [{"id": number, "schema": text}]
        with pytest.raises(
            sw.SlackwaterError,
            match=rf'^source "events": schema {number} of the registry cannot be used as a Protobuf schema \({said}',
        ) as e:
            runner.run_pipeline(**settings)
        assert "\n" not in str(e.value)
    gone = events.source(schema=None, payload_format="protobuf", protobuf_schema_file=str(runner.home / "gone.proto"))
    with pytest.raises(
        sw.SlackwaterError,
        match=r'^source "events": protobuf_schema_file ".*" cannot be used as a Protobuf schema \(.*No such file',
    ):
        runner.run_pipeline(**{**settings, "source": gone})
