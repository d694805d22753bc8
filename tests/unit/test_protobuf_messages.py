"""Protobuf without Spark: columns of messages, frames of records, and undecodable records."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from tests.support.protobuf_records import (
    FIRST,
    NOTES,
    SECOND,
    build_record_header,
    encode_message,
    encode_with_first_schema,
    encode_with_second_schema,
)

from slackwater.connectors.payloads import protobuf
from slackwater.connectors.payloads.protobuf import ProtoFiles, from_file, from_texts, message_columns
from slackwater.connectors.payloads.protobuf_decoder import ProtobufDecoder, decode_batches

TYPES = """
syntax = "proto3";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message Types {
  int32 i = 1; sint64 l = 2; uint32 ui = 3; uint64 ul = 4; fixed64 fl = 5; float f = 6; double d = 7; bool b = 8; string s = 9;
  bytes raw = 10; Color color = 11; google.protobuf.Timestamp at = 12; google.protobuf.Duration took = 13;
  google.protobuf.UInt64Value wrapped = 14; Inner inner = 15; repeated Inner inners = 16; map<string, uint64> counts = 17;
  optional int32 maybe = 18; oneof one { string left = 19; int32 right = 20; } google.type.Date day = 21;
  google.type.TimeOfDay clock = 22; Empty nothing = 23; repeated Color colors = 24;
  message Inner { uint32 u = 1; Empty nothing = 2; }
  message Empty {}
  enum Color { RED = 0; BLUE = 1; }
}
"""
NONE = {
    "at": None,
    "took": None,
    "wrapped": None,
    "inner": None,
    "maybe": None,
    "left": None,
    "right": None,
    "day": None,
    "clock": None,
}


def decoder(files: ProtoFiles, name: str | None = None, heads: list[bytes] | None = None) -> ProtobufDecoder:
    return files.decoder(files.full_name(name), heads, "value")


def decode_rows(message_decoder: ProtobufDecoder, *bodies: bytes | None) -> list[Any]:
    decoded: list[Any] = message_decoder.decode(pa.array(bodies, pa.binary())).to_pylist()
    return decoded


def test_every_type_becomes_a_column() -> None:
    assert message_columns(decoder(from_texts(TYPES, {}))) == (
        "`i` INT, `l` BIGINT, `ui` BIGINT, `ul` DECIMAL(20, 0), `fl` DECIMAL(20, 0), `f` FLOAT, `d` DOUBLE, `b` BOOLEAN, `s` STRING, "
        "`raw` BINARY, `color` STRING, `at` TIMESTAMP, `took` INTERVAL DAY TO SECOND, `wrapped` DECIMAL(20, 0), "
        "`inner` STRUCT<`u`: BIGINT>, `inners` ARRAY<STRUCT<`u`: BIGINT>>, `counts` MAP<STRING, DECIMAL(20, 0)>, `maybe` INT, "
        "`left` STRING, `right` INT, `day` DATE, `clock` STRING, `colors` ARRAY<STRING>"
    )


def test_values_of_every_type_are_decoded() -> None:
    files, most = from_texts(TYPES, {}), 2**64 - 1
    values = {
        "i": -1, "l": -(2**63), "ui": 2**32 - 1, "ul": most, "fl": most, "f": 1.5, "d": 2.5, "b": True, "s": "ä", "raw": "AP8=",
        "color": "BLUE", "at": "2024-02-03T04:05:06.123456789Z", "took": "1.5s", "wrapped": most, "inner": {"u": 7}, "inners": [{}],
        "counts": {"k": most}, "maybe": 0, "right": 0, "day": {"year": 2024, "month": 2, "day": 29}, "clock": {"hours": 5},
        "nothing": {}, "colors": ["BLUE", "RED"],
    }  # fmt: skip
    full, empty = decode_rows(decoder(files), encode_message(files, "Types", values), b"")
    assert full == {
        "i": -1, "l": -(2**63), "ui": 2**32 - 1, "ul": Decimal(most), "fl": Decimal(most), "f": 1.5, "d": 2.5, "b": True, "s": "ä",
        "raw": b"\0\xff", "color": "BLUE", "at": dt.datetime(2024, 2, 3, 4, 5, 6, 123456, dt.UTC), "took": dt.timedelta(seconds=1.5),
        "wrapped": Decimal(most), "inner": {"u": 7}, "inners": [{"u": 0}], "counts": [("k", Decimal(most))], "maybe": 0, "left": None,
        "right": 0, "day": dt.date(2024, 2, 29), "clock": "05:00:00.000000", "colors": ["BLUE", "RED"],
    }  # fmt: skip
    zero = {
        "i": 0,
        "l": 0,
        "ui": 0,
        "ul": Decimal(0),
        "fl": Decimal(0),
        "f": 0.0,
        "d": 0.0,
        "b": False,
        "s": "",
        "raw": b"",
    }
    assert empty == {**zero, "color": "RED", **NONE, "inners": [], "counts": [], "colors": []}, (
        "defaults, but where it can be absent"
    )


def test_unknown_enum_number_is_decoded_as_text() -> None:
    (row,) = decode_rows(decoder(from_texts(SECOND, NOTES)), b"\x20\x09")
    assert row["kind"] == "9"


def test_confluent_record_header_selects_the_message_and_schema_version() -> None:
    framed_decoder = decoder(
        from_texts(SECOND, NOTES),
        heads=[*protobuf.record_prefixes(7, (0,)), *protobuf.record_prefixes(300, (0,))],
    )
    row, more = {"user": "a", "amount": 1}, {"user": "b", "amount": 2, "note": {"text": "x"}, "kind": "LOOK"}
    long = b"\0\0\0\1\x2c\2\0" + encode_with_second_schema(more)  # the first message, with an explicit message index
    decoded = decode_rows(framed_decoder, encode_with_first_schema(row, 7), encode_with_second_schema(more, 300), long)
    old = {**row, "note": None, "kind": "BUY"}
    assert decoded == [old, more, more]
    other = encode_message(from_texts(SECOND, NOTES), "shop.Other", row)
    bad = [
        encode_with_first_schema(row),
        encode_with_first_schema(row, 8),
        build_record_header(7, (1,)) + other,
        b"\0\0\0\0\7",
        b"",
        None,
        b"\1\0\0\0\7\0",
        encode_with_first_schema(row, 7)[:-1] + b"\xff",
    ]
    assert decode_rows(framed_decoder, *bad) == [None] * len(bad)
    assert decode_rows(framed_decoder, build_record_header(7)) == [
        {"user": "", "amount": 0, "note": None, "kind": "BUY"}
    ], "an empty message is one"


def test_message_indexes_match_those_of_producers() -> None:
    """Descriptors represent a map as a message, but producers do not count maps."""
    files = from_texts(
        'syntax = "proto3"; message A { map<string, int32> m = 1; message B { message C { int32 x = 1; } } } message D {}',
        {},
    )
    places = {name: place for name, place in files.message_indexes.items() if -1 not in place}
    assert places == {"A": (0,), "A.B": (0, 0), "A.B.C": (0, 0, 0), "D": (1,)}
    assert protobuf.record_prefixes(1, (0,)) == [b"\0\0\0\0\1\0", b"\0\0\0\0\1\2\0"]
    assert protobuf.record_prefixes(1, (1, 64)) == [b"\0\0\0\0\1\4\2\x80\1"]


@pytest.mark.parametrize("broken", [[0], [9_999], [0, 1, 5_000, 9_999], list(range(0, 10_000, 7)), list(range(10_000))])
def test_broken_records_do_not_affect_other_records_of_the_batch(broken: list[int]) -> None:
    bodies = [encode_with_first_schema({"user": "u", "amount": 5})] * 10_000
    for n in broken:
        bodies[n] = (b"\xff\xff\xff", b"\x0a\x05a", b"\x0a\x01\xff")[
            n % 3
        ]  # an invalid number, a truncated field, invalid UTF-8
    decoded = decoder(from_texts(FIRST, {})).decode(pa.array(bodies, pa.binary()))
    assert decoded.is_null().to_pylist() == [n in set(broken) for n in range(10_000)]
    assert all(row == {"user": "u", "amount": 5} for row in decoded.drop_null().to_pylist())


def test_decoder_panic_does_not_lose_other_records_of_the_batch() -> None:
    """A Rust panic is not a subclass of Exception."""
    files = from_texts(
        'syntax = "proto3"; message M { repeated fixed32 n = 1; map<string, M2> m = 2; } message M2 { int32 x = 1; }',
        {},
    )
    good = encode_message(files, "M", {"n": [1], "m": {"k": {"x": 1}}})
    for cut in range(1, len(good)):
        for byte in (0x00, 0x01, 0x7F, 0xFF):
            bad = good[:cut] + bytes([byte]) + good[cut:]
            assert decode_rows(decoder(files), good, bad, good)[::2] == [{"n": [1], "m": [("k", {"x": 1})]}] * 2


def test_decoded_batches_retain_their_other_columns() -> None:
    body = pa.array([encode_with_first_schema({"user": "a", "amount": 1}), None, b"\xff"], pa.large_binary())
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1, 2, 3]), "value": body})
    (decoded,) = decode_batches(decoder(from_texts(FIRST, {})), iter([batch]))
    assert decoded.to_pydict() == {
        "n": [1, 2, 3],
        "value": body.to_pylist(),
        "_p": [{"user": "a", "amount": 1}, None, None],
    }
    (none,) = decode_batches(decoder(from_texts(FIRST, {})), iter([batch.slice(0, 0)]))
    assert none.schema == decoded.schema


OLD = 'syntax = "proto3"; message M { %s }'


@pytest.mark.parametrize(
    ("before", "after", "reads"),
    [
        ("int32 a = 1;", "int64 a = 1;", True),
        ("string a = 1;", "bytes b = 1;", True),
        ("int32 a = 1;", "repeated int32 a = 1;", True),
        ("int32 a = 1; string gone = 2;", "int32 a = 1; string new = 3;", True),
        ("M m = 1; int32 x = 2;", "M m = 1; int64 x = 2;", True),
        ("int64 a = 1;", "int32 a = 1;", False),
        ("int32 a = 1;", "sint32 a = 1;", False),
        ("repeated string a = 1;", "string a = 1;", False),
        ("N n = 1; message N { int32 x = 1; }", "N n = 1; message N { string x = 1; }", False),
    ],
)
def test_compatible_schema_versions_are_read_by_the_newest(before: str, after: str, reads: bool) -> None:
    assert from_texts(OLD % before, {}).is_readable_by(from_texts(OLD % after, {}), "M") == reads


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ('syntax = "proto3"; message T { repeated T of = 1; }', None, r'^message "T" contains itself \(T > T\); no column'),
        ('syntax = "proto3"; message T { U u = 1; } message U { map<string, T> t = 1; }', None, r"contains itself \(T > U > U.TEntry > T\)"),
        ('syntax = "proto3"; message T {}', None, r'^message "T" has no fields, which become columns'),
        ('syntax = "proto3"; message T { int32 a = 1; int32 A = 2; }', None, r'^message "T" has fields "a" and "A", which Spark treats as the same name' ),
        ('syntax = "proto3"; enum E { A = 0; }', None, "^it contains no message"),
        ('syntax = "proto3"; message Event { int32 a = 1; }', "Evnt", '^there is no message "Evnt" in it; did you mean "Event"'),
        ('edition = "2023"; message T { int32 a = 1; }', None, 'in an edition of Protobuf; expected syntax "proto2" or "proto3"'),
        ('syntax = "proto3"; message T { Foo a = 1; }', None, '^1:32: "Foo" is not defined'),
        ('syntax = "proto3"; import "gone.proto"; message T { int32 a = 1; }', None, "^gone.proto: File not found"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_become_columns_is_refused(text: str, name: str | None, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        message_columns(decoder(from_texts(text, {}), name))


def test_an_absent_field_of_proto2_is_null() -> None:
    text = 'syntax = "proto2"; message M { required string a = 1; optional int32 b = 2 [default = 7]; repeated int32 c = 3; }'
    (row,) = decode_rows(decoder(from_texts(text, {})), b"")
    assert row == {"a": None, "b": None, "c": []}


def test_imported_message_is_refused_as_the_record_message() -> None:
    files = from_texts(SECOND, NOTES)
    assert (files.own_message_name(None), files.own_message_name("shop.Other")) == ("shop.Event", "shop.Other")
    with pytest.raises(
        ValueError,
        match=r'^message "shop.Note" is defined in an imported file, but records can only contain messages that the file '
        "itself defines",
    ):
        files.own_message_name("shop.Note")


def test_imports_built_into_the_confluent_registry_are_resolved() -> None:
    text = """
        syntax = "proto3";
        import "confluent/meta.proto";
        import "confluent/type/decimal.proto";
        message M { string user = 1 [(confluent.field_meta) = { tags: "PII" rules: [{ name: "n" }] }]; confluent.type.Decimal price = 2; }
    """
    files = from_texts(text, {})
    assert (
        message_columns(decoder(files))
        == "`user` STRING, `price` STRUCT<`value`: BINARY, `precision`: BIGINT, `scale`: INT>"
    )
    assert decode_rows(decoder(files), encode_message(files, "M", {"user": "a"})) == [{"user": "a", "price": None}]


def test_reference_outside_the_folder_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^it refers to "\.\./x.proto", but no file has this name'):
        from_texts(FIRST, {"../x.proto": FIRST})


def test_proto_files_and_descriptor_sets_are_read(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "note.proto").write_text(NOTES["shop/note.proto"])
    path = tmp_path / "event.proto"
    path.write_text(SECOND)
    files = from_file(path)
    assert (
        message_columns(decoder(files))
        == "`user` STRING, `amount` BIGINT, `note` STRUCT<`text`: STRING>, `kind` STRING"
    )
    assert message_columns(decoder(files, "shop.Note")) == "`text` STRING"
    compiled = tmp_path / "event.binpb"
    compiled.write_bytes(files.data)
    assert from_file(compiled) == files
    alone = descriptor_pb2.FileDescriptorSet.FromString(files.data)
    del alone.file[0]
    compiled.write_bytes(alone.SerializeToString())
    for content in (alone.SerializeToString(), b"no descriptor"):
        compiled.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected a \.proto file, or what protoc --include_imports"):
            from_file(compiled)
