"""Avro records for tests, written by fastavro."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any


def encode_avro_record(schema: Mapping[str, Any], row: Mapping[str, Any], schema_id: int | None = None) -> bytes:
    """Return a record in Avro's binary encoding. `schema_id`: the id in Confluent's frame, or None for no frame."""
    import fastavro

    out = io.BytesIO()
    if schema_id is not None:
        out.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), dict(row))
    return out.getvalue()
