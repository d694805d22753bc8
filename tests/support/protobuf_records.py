"""Protobuf records for tests, encoded by the library of Google."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from slackwater.connectors.payloads.protobuf import ProtoFiles, from_texts, record_prefixes

FIRST = """
syntax = "proto3";
package shop;
message Event { string user = 1; int64 amount = 2; }
"""
SECOND = """
syntax = "proto3";
package shop;
import "shop/note.proto";
message Event { string user = 1; int64 amount = 2; optional Note note = 3; Kind kind = 4; }
enum Kind { BUY = 0; LOOK = 1; }
message Other { string user = 1; int64 amount = 2; }
"""
NOTE = 'syntax = "proto3"; package shop; message Note { string text = 1; }'
NOTES = {"shop/note.proto": NOTE}


def encode_message(files: ProtoFiles, name: str, row: dict[str, Any]) -> bytes:
    """Encode a message from fields in the JSON mapping of Protobuf."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files.data).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    return json_format.ParseDict(row, message).SerializeToString()  # type: ignore[no-any-return]


@cache
def compile_proto(text: str) -> ProtoFiles:
    return from_texts(text, NOTES)


def encode_with_first_schema(row: dict[str, Any], number: int | None = None) -> bytes:
    return build_record_header(number) + encode_message(compile_proto(FIRST), "shop.Event", row)


def encode_with_second_schema(row: dict[str, Any], number: int | None = None) -> bytes:
    return build_record_header(number) + encode_message(compile_proto(SECOND), "shop.Event", row)


def build_record_header(number: int | None, place: Sequence[int] = (0,)) -> bytes:
    return b"" if number is None else record_prefixes(number, place)[0]
