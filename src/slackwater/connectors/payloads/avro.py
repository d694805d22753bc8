"""Decode Avro records with a schema file, or with every version of a subject in a registry.

Records are converted to the newest version of the schema.

A record of ten bytes can declare a string of 2 GB or an array of two billion items. Avro's decoder allocates that much
memory before it reads the content, which kills Spark's process. A single record would then stop the pipeline on every
start. With `LIMITS`, such a record becomes a bad row. Avro reads the limits from Java system properties when its
decoder is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slackwater.config.source import Source
from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads.base import Payload, RawRecords
from slackwater.connectors.source import spark_error_reason
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MARK = "_slackwater_decoded"


@dataclass(frozen=True)
class AvroPayload(Payload):
    """Decoder for Avro records.

    Args:
        writers: The schemas with which records were written, as JSON, by registry id. The key None stands for the
            schema file.
        reader: The schema of the rows, as JSON, with the additional field `_MARK`.
    """

    writers: Mapping[int | None, str] = field(default_factory=dict)
    reader: str = ""
    FAILED: ClassVar[str] = f"_p IS NULL OR _p.{_MARK} IS NULL"

    @classmethod
    def from_records(cls, records: RawRecords) -> AvroPayload:
        spec = records.spec
        writers: dict[int | None, str] = {}
        if spec.avro_schema_file is not None:
            writers[None] = _text(spec)
        else:
            writers |= {v.id: v.text for v in records.versions("avro_schema_file")}
        latest = list(writers.values())[-1]
        set_memory_limits(records.session)
        return cls(_spark_schema(records.session, spec, latest), records.body, writers, _marked(latest))

    def with_payload(self, records: DataFrame, count: int | None) -> DataFrame:
        F, from_avro = spark_connect_support.sql_functions(records), spark_connect_support.from_avro(records)  # noqa: N806
        options = {"mode": "PERMISSIVE", "avroSchema": self.reader}
        if None in self.writers:
            return records.withColumn("_p", from_avro(F.col(self.body), self.writers[None], options))
        writer, rest = F.expr(self.writer_id), F.expr(self.body_after_frame)
        payload: Any = None
        for number, schema in self.writers.items():
            decoded = from_avro(rest, schema, options)
            payload = (
                F.when(writer == str(number), decoded)
                if payload is None
                else payload.when(writer == str(number), decoded)
            )
        return records.withColumn("_p", payload)


def _text(spec: Source) -> str:
    try:
        text = Path(str(spec.avro_schema_file)).read_text()
        json.loads(text)
    except (OSError, ValueError) as error:
        raise StartError(
            f'source "{spec.name}": avro_schema_file "{spec.avro_schema_file}" cannot be read ({error}); '
            "expected a schema in JSON",
            Topic.SOURCE_SCHEMA,
        ) from None
    return text


def _marked(text: str) -> str:
    """Add the field `_MARK` to a reader's schema. It is NULL only in the rows of records that could not be decoded."""
    schema = json.loads(text)
    return json.dumps({**schema, "fields": [*schema["fields"], {"name": _MARK, "type": "boolean", "default": True}]})


def _spark_schema(session: SparkSession, spec: Source, text: str) -> StructType:
    """Return the columns that Spark derives from an Avro schema. Raises StartError if the schema is not usable."""
    from pyspark.sql.types import StructType

    from_avro = spark_connect_support.from_avro(session)

    try:
        frame = session.createDataFrame([], "value BINARY")
        kind: Any = frame.select(from_avro("value", text).alias("p")).schema.fields[0].dataType
    except Exception as error:
        raise StartError(
            f'source "{spec.name}": the Avro schema cannot be used ({spark_error_reason(error)}); correct it',
            Topic.SOURCE_SCHEMA,
        ) from None
    if not isinstance(kind, StructType):
        raise StartError(
            f'source "{spec.name}": the Avro schema is not a record; expected a record, whose fields become the columns',
            Topic.SOURCE_SCHEMA,
        )
    return kind


_PREFIX = "org.apache.avro.limits"
MAX_BYTES = 256 * 1024 * 1024
MAX_ITEMS = 10_000_000
LIMITS: Mapping[str, int] = {
    f"{_PREFIX}.string.maxLength": MAX_BYTES,
    f"{_PREFIX}.bytes.maxLength": MAX_BYTES,
    f"{_PREFIX}.collectionItems.maxLength": MAX_ITEMS,
}
JAVA_OPTIONS = " ".join(f"-D{name}={limit}" for name, limit in LIMITS.items())


def set_memory_limits(session: SparkSession) -> None:
    """Set `LIMITS` in the JVM of the Spark driver, unless they are set already.

    This has no effect if the JVM has already decoded Avro. A Spark Connect server keeps its own limits.
    """
    if spark_connect_support.is_connect(session):
        return
    system = session.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    for name, limit in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(limit))
