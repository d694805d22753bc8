"""Select the decoder for a source's payload format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slackwater.connectors.payloads.avro import AvroPayload
from slackwater.connectors.payloads.base import Payload, RawPayload, RawRecords
from slackwater.connectors.payloads.json_payload import JsonPayload
from slackwater.connectors.payloads.protobuf import ProtobufPayload

_FORMATS: Mapping[str, Callable[[RawRecords], Payload]] = {
    "json": JsonPayload.from_records,
    "json_schema": JsonPayload.from_registry,
    "avro": AvroPayload.from_records,
    "protobuf": ProtobufPayload.from_records,
    "raw": RawPayload.from_records,
}


def create_payload(records: RawRecords) -> Payload:
    """Return the payload decoder for these records. Raises StartError if a schema or package is missing or wrong."""
    return _FORMATS[records.spec.payload_format or "json"](records)
