"""Which format a source's payloads have, told apart here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slackwater.sources.payloads.avro import AvroPayload
from slackwater.sources.payloads.base import Payload, RawPayload, RawRecords
from slackwater.sources.payloads.protobuf import ProtobufPayload
from slackwater.sources.payloads.text import JsonPayload

_FORMATS: Mapping[str, Callable[[RawRecords], Payload]] = {
    "json": JsonPayload.from_records,
    "json_schema": JsonPayload.from_registry,
    "avro": AvroPayload.from_records,
    "protobuf": ProtobufPayload.from_records,
    "raw": RawPayload.from_records,
}


def payload_of(records: RawRecords) -> Payload:
    """How these records become columns. Raises StartError where what it takes is not there or does not fit."""
    return _FORMATS[records.spec.payload_format or "json"](records)
