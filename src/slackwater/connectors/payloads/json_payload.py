"""Decode JSON records. The columns are declared, inferred from records, or defined by a JSON Schema in a registry.

A JSON Schema is converted to the columns that it describes:

    {"properties": {"user": {"type": "string"}, "at": {"type": "string", "format": "date-time"}}}
        ─▶ user STRING, at TIMESTAMP

A property without a matching column type becomes a STRING that contains the JSON of its value. Examples are values of
several types, arrays or objects without a schema, and recursive types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads import arrow_json_decoder
from slackwater.connectors.payloads.arrow_json_decoder import DECODED, JsonDecoder
from slackwater.connectors.payloads.base import Payload, RawRecords, WorkerDecoder
from slackwater.connectors.source import declared_schema
from slackwater.connectors.timestamp_parsing import UTC, TextTimestampSchema
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.humanize import plural
from slackwater.errors import StartError, Topic
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


MANY_RECORDS = 100_000  # a batch with this many records is worth the round trip to the workers
# columns that sources add to the columns of the payload
_INJECTED = frozenset(
    [
        "_key",
        "_value",
        "_headers",
        "_topic",
        "_partition",
        "_offset",
        "_event_ts",
        "_routing_key",
        "_exchange",
        "_message_id",
        "_received",
    ]
)


@dataclass(frozen=True)
class JsonPayload(Payload):
    """Decoder for JSON records.

    Args:
        zone: The time zone of timestamps that do not contain one.
        in_frame: Whether a registry frame (a zero byte and the schema id) precedes the JSON.
    """

    zone: str = UTC
    in_frame: bool = False
    FAILED: ClassVar[str] = f"_p IS NULL OR _p.{CORRUPT} IS NOT NULL"

    @classmethod
    def from_records(cls, records: RawRecords) -> JsonPayload:
        """Return a decoder for the first available schema: the declared or stored one, or one inferred from a sample.

        Raises StartError if the schema is not valid or cannot be inferred.
        """
        return cls(_schema(records), records.body, records.zone)

    @classmethod
    def from_registry(cls, records: RawRecords) -> JsonPayload:
        """Return a decoder for the newest version of the subject `<topic>-value` in a registry.

        Raises StartError if that version cannot be read or used.
        """
        *_, latest = records.versions(file=None)
        try:
            ddl = schema_columns(latest.text, latest.references)
        except ValueError as error:
            raise StartError(
                f'source "{records.spec.name}": schema {latest.id} of the registry cannot be used as a JSON Schema '
                f"({error}); correct it",
                Topic.SOURCE_SCHEMA,
            ) from None
        return cls(
            spark_connect_support.parse_ddl_schema(records.session, ddl), records.body, records.zone, in_frame=True
        )

    def decode(self, records: DataFrame, meta: Sequence[str], count: int | None = None) -> DataFrame:
        return self._times.convert(super().decode(records, meta, count))

    def runs_in_workers(self, count: int | None) -> bool:
        many = count is not None and count >= MANY_RECORDS
        return (
            many
            and not self.in_frame
            and is_enabled("json_workers")
            and arrow_json_decoder.is_supported(self._spark_schema)
        )

    def with_payload(self, records: DataFrame, count: int | None) -> DataFrame:
        F = spark_connect_support.sql_functions(records)  # noqa: N806
        if not self.runs_in_workers(count):
            frame = f"CASE WHEN {self.writer_id} IS NOT NULL THEN {self.body_after_frame} END"
            return records.withColumn("_p", self._from_json(F, frame if self.in_frame else self.body))
        undecoded = f"CASE WHEN {DECODED} IS NULL THEN {self.body} END"
        decoded = records if DECODED in records.columns else self._decode_in_workers(records)
        return decoded.withColumn("_p", F.coalesce(DECODED, self._from_json(F, undecoded)))

    def worker_decoder(self, count: int | None) -> WorkerDecoder | None:
        return self._worker_decoder if self.runs_in_workers(count) else None

    @property
    def _worker_decoder(self) -> WorkerDecoder:
        decoded = arrow_json_decoder.nullable(self._spark_schema)
        return WorkerDecoder(JsonDecoder(arrow_json_decoder.arrow_type(decoded), self.body), decoded)

    def _from_json(self, F: Any, body: str) -> Any:  # noqa: N803
        """Return the column expression with which Spark decodes the payload. `body`: SQL for the bytes."""
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        return F.from_json(F.expr(f"CAST({body} AS STRING)"), self._spark_schema, options)

    def _decode_in_workers(self, records: DataFrame) -> DataFrame:
        """Return the records with the column `_decoded`. It is NULL for each record that Spark must decode."""
        from pyspark.sql.types import StructField, StructType

        decoder = self._worker_decoder
        schema = StructType([*records.schema.fields, StructField(DECODED, decoder.spark_type)])
        return records.mapInArrow(partial(arrow_json_decoder.decode_batches, decoder.decoder), schema)

    @property
    def _spark_schema(self) -> StructType:
        """The schema to pass to Spark's `from_json`."""
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([*self._times.reader_schema.fields, StructField(CORRUPT, StringType())])

    @property
    def _times(self) -> TextTimestampSchema:
        return TextTimestampSchema(self.schema, "json", self.zone, {})


def _schema(records: RawRecords) -> StructType:
    from pyspark.sql.types import StructType

    session, spec = records.session, records.spec
    if spec.schema_ is not None:
        return declared_schema(session, spec.name, spec.schema_)
    if records.stored_schema is not None:
        stored = StructType.fromJson(json.loads(records.stored_schema))
        return StructType([f for f in stored.fields if f.name not in _INJECTED])
    texts = records.sample()
    if not texts:
        raise StartError(
            f'source "{spec.name}": no schema is declared and "{spec.query}" has no records to infer one from; '
            "declare one",
            Topic.SOURCE_SCHEMA,
        )
    fields = [f for f in spark_connect_support.infer_json_schema(session, texts).fields if f.name != CORRUPT]
    if not fields:
        raise StartError(
            f'source "{spec.name}": no schema is declared and none can be inferred, because the first '
            f"{plural(len(texts), 'record contains', 'records contain')} no JSON object; declare a schema, or set "
            'payload_format = "raw"',
            Topic.SOURCE_SCHEMA,
        )
    return StructType(fields)


# -- JSON Schema ---------------------------------------------------------------------------------------------------------


TEXT = "STRING"
_PLAIN = {"string": TEXT, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}


def schema_columns(text: str, others: Mapping[str, str]) -> str:
    """Return the columns that a JSON Schema describes, as DDL. Raises ValueError if it does not describe any.

    `others`: the referenced schemas, by the names used in `$ref`.
    """
    documents = {"": json.loads(text), **{name: json.loads(t) for name, t in others.items()}}
    columns = _Document(documents, "").properties(documents[""])
    if not columns:
        raise ValueError("it does not describe an object with properties, which become columns")
    return ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns.items())


@dataclass(frozen=True)
class _Document:
    """One of several schemas that refer to each other.

    Args:
        documents: All schemas as parsed JSON, by name. The main schema has the name "".
        name: The name of this schema.
        followed: The references that were followed to reach this schema. A repeated reference means recursion.
    """

    documents: Mapping[str, Any]
    name: str
    followed: frozenset[tuple[str, str]] = field(default=frozenset())

    def properties(self, schema: Any) -> dict[str, str]:
        """Return the column type of each property of an object schema."""
        document, schema = self._resolve_ref(schema)
        if not isinstance(schema, Mapping):
            return {}
        columns = {name: document.type_of(subschema) for name, subschema in (schema.get("properties") or {}).items()}
        for subschema in schema.get("allOf") or ():
            columns |= document.properties(subschema)
        return columns

    def type_of(self, schema: Any) -> str:
        """Return the column type for a schema."""
        document, schema = self._resolve_ref(schema)
        if not isinstance(schema, Mapping):
            return TEXT
        if (choices := schema.get("oneOf") or schema.get("anyOf")) is not None:
            non_null = [choice for choice in choices if choice != {"type": "null"}]
            return document.type_of(non_null[0]) if len(non_null) == 1 else TEXT
        kinds = schema.get("type")
        kinds = [k for k in ([kinds] if isinstance(kinds, str) else kinds or ()) if k != "null"]
        if len(kinds) > 1:
            return TEXT
        if kinds == ["array"]:
            items = schema.get("items")
            return f"ARRAY<{document.type_of(items)}>" if isinstance(items, Mapping) else TEXT
        if kinds == ["object"] or (not kinds and ("properties" in schema or "allOf" in schema)):
            if members := document.properties(schema):
                return (
                    "STRUCT<" + ", ".join(f"{quote_identifier(name)}: {kind}" for name, kind in members.items()) + ">"
                )
            values = schema.get("additionalProperties")
            return f"MAP<STRING, {document.type_of(values)}>" if isinstance(values, Mapping) and values else TEXT
        if kinds == ["string"]:
            return (
                "BINARY" if schema.get("contentEncoding") == "base64" else _FORMATS.get(schema.get("format", ""), TEXT)
            )
        return _PLAIN[kinds[0]] if kinds and kinds[0] in _PLAIN else TEXT

    def _resolve_ref(self, schema: Any) -> tuple[_Document, Any]:
        """Follow the `$ref` of a schema, if it has one. Return the document of the target, and the target.

        The target is None if the reference is recursive. Raises ValueError if the target does not exist.
        """
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return self, schema
        name, _, path = schema["$ref"].partition("#")
        place = (name or self.name, path)
        if place in self.followed:
            return self, None
        target = self.documents.get(place[0])
        for part in path.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        if target is None:
            raise ValueError(f"{json.dumps(schema['$ref'])} is not defined in it or in its references")
        return _Document(self.documents, place[0], self.followed | {place})._resolve_ref(target)
