"""Decoders that convert the bytes of a record to columns. Each format has its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.connectors.payloads.base import Payload, RawRecords


def create_payload(records: RawRecords) -> Payload:
    """Return the decoder for a source's payload format. Raises StartError if a schema or a package is missing or wrong.

    The format modules are imported in this function, so that Spark's workers import only the format that they decode.
    """
    from slackwater.connectors.payloads.avro import AvroPayload
    from slackwater.connectors.payloads.base import RawPayload
    from slackwater.connectors.payloads.json_payload import JsonPayload
    from slackwater.connectors.payloads.protobuf import ProtobufPayload

    formats: Mapping[str, Callable[[RawRecords], Payload]] = {
        "json": JsonPayload.from_records,
        "json_schema": JsonPayload.from_registry,
        "avro": AvroPayload.from_records,
        "protobuf": ProtobufPayload.from_records,
        "raw": RawPayload.from_records,
    }
    return formats[records.spec.payload_format or "json"](records)
