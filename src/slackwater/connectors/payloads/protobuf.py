"""Decode Protobuf records in Python workers, with a schema file or with every version of a subject in a registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.config.source import Source
from slackwater.connectors import spark_connect
from slackwater.connectors.payloads import protobuf_schema
from slackwater.connectors.payloads.base import Payload, RawRecords
from slackwater.connectors.payloads.protobuf_rows import ProtobufDecoder, decode_batches
from slackwater.connectors.payloads.protobuf_schema import ProtoFiles
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProtobufPayload(Payload):
    decoder: ProtobufDecoder = field(kw_only=True)

    @classmethod
    def from_records(cls, records: RawRecords) -> ProtobufPayload:
        path = records.spec.protobuf_schema_file
        decoder, ddl = _decoder_from_registry(records) if path is None else _decoder_from_file(records, Path(path))
        return cls(spark_connect.schema_of_ddl(records.session, ddl), records.body, decoder=decoder)

    def with_payload(self, records: DataFrame) -> DataFrame:
        from pyspark.sql.types import StructField, StructType

        schema = StructType([*records.schema.fields, StructField("_p", self.schema)])
        return records.mapInArrow(partial(decode_batches, self.decoder), schema)


def _decoder_from_file(records: RawRecords, path: Path) -> tuple[ProtobufDecoder, str]:
    """Return the decoder for records without a frame, and their columns as DDL."""
    spec = records.spec
    with _as_start_error(spec, f'protobuf_schema_file "{path}"'):
        files = protobuf_schema.from_file(path)
        decoder = files.decoder(files.full_name(spec.protobuf_message), None, records.body)
        return decoder, protobuf_schema.message_columns(decoder)


def _decoder_from_registry(records: RawRecords) -> tuple[ProtobufDecoder, str]:
    """Return the decoder for records of all compatible versions, and their columns as DDL.

    The newest version decodes all of them, because Protobuf identifies fields by number.
    """
    spec, versions = records.spec, dict[int, ProtoFiles]()
    for version in records.versions("protobuf_schema_file"):
        with _as_start_error(spec, f"schema {version.id} of the registry"):
            versions[version.id] = protobuf_schema.from_texts(version.text, version.references)
    latest, newest = list(versions.items())[-1]
    with _as_start_error(spec, f"schema {latest} of the registry"):
        name = newest.own_message_name(spec.protobuf_message)
        prefixes = [
            prefix
            for number, files in versions.items()
            if files.is_readable_by(newest, name)
            for prefix in protobuf_schema.record_prefixes(number, files.message_indexes[name])
        ]
        decoder = newest.decoder(name, prefixes, records.body)
        return decoder, protobuf_schema.message_columns(decoder)


@contextmanager
def _as_start_error(spec: Source, schema_name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise StartError(
            f'source "{spec.name}": {schema_name} cannot be used as Protobuf ({error})', Topic.SOURCE_SCHEMA
        ) from None
