"""Base classes for all payload formats, detection of field names, and a client for schema registries with Confluent's API.

records ──▶ records with the payload as a struct, `_p` ──▶ fields of `_p`, columns of the record, `_corrupt_record`

The column `_corrupt_record` contains the text of a record that could not be decoded. It is NULL for all other records.
"""

from __future__ import annotations

import json
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from slackwater.config.source import Source
from slackwater.connectors.source import spark_error_reason
from slackwater.connectors.timestamp_parsing import UTC
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# the size in bytes of the registry frame before a payload: a zero byte and a schema id of 4 bytes
FRAME = 5


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a subject in a schema registry.

    Args:
        id: The id of the schema in the registry.
        text: The schema.
        references: The text of each referenced schema, by the name under which this schema refers to it.
    """

    id: int
    text: str
    references: Mapping[str, str]


def read_schema_versions(spec: Source, registry: str, topics: Sequence[str]) -> Iterator[SchemaVersion]:
    """Yield every version of each subject `<topic>-value`, oldest first.

    Args:
        spec: The source, for messages.
        registry: The address of the schema registry.
        topics: The names of the topics.

    Raises:
        StartError: The registry does not respond or lacks a subject.
    """
    for topic in topics:
        subject = f"{topic}-value"
        for number in _get(spec, registry, f"/subjects/{quote(subject, safe='')}/versions"):
            yield _version(spec, registry, subject, number)


def _version(spec: Source, registry: str, subject: str, number: int) -> SchemaVersion:
    entry = _get(spec, registry, f"/subjects/{quote(subject, safe='')}/versions/{number}")
    references: dict[str, str] = {}
    for other in entry.get("references") or ():
        version = _version(spec, registry, other["subject"], other["version"])
        references |= {**version.references, other["name"]: version.text}
    return SchemaVersion(int(entry["id"]), entry["schema"], references)


def _get(spec: Source, registry: str, path: str) -> Any:
    url = registry.rstrip("/") + path
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # the URL is the user's own
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise StartError(
            f'source "{spec.name}": the schema registry did not return {path} ({spark_error_reason(error)}); '
            "check schema_registry",
            Topic.SERVICE_UNREACHABLE,
        ) from None


@dataclass(frozen=True)
class RawRecords:
    """A description of a source's records, from which its decoder is created before the first epoch.

    Args:
        session: The Spark session.
        spec: The source.
        body: The column with the bytes of a record.
        address: The address of the schema registry. None if none is configured.
        topics: The topics that the query lists by name.
        stored_schema: The schema in the state, in Spark's JSON format. None on the first start.
        sample: A function that returns some records as strings, to infer a schema from them.
        zone: The time zone of timestamps that do not contain one.
    """

    session: SparkSession
    spec: Source
    body: str = "value"
    address: str | None = None
    topics: Sequence[str] = ()
    stored_schema: str | None = None
    sample: Callable[[], Sequence[str]] = list
    zone: str = UTC

    def versions(self, file: str | None) -> Sequence[SchemaVersion]:
        """Return every version of the topics' schemas in the registry. Raises StartError if no registry is configured.

        `file`: the config key for a schema file, which the error message suggests as an alternative. None if the format
        has no such key.
        """
        if self.address is None or not self.topics:
            instead = f"set {file}, or " if file else ""
            raise StartError(
                f'source "{self.spec.name}": payload_format = "{self.spec.payload_format}" needs a schema; {instead}'
                "set schema_registry in the connection and list the topics by name in the source",
                Topic.SOURCE_SCHEMA,
            )
        return list(read_schema_versions(self.spec, self.address, self.topics))


@dataclass(frozen=True)
class WorkerDecoder:
    """A decoder for Python workers.

    Args:
        decoder: Its method `decode` takes an Arrow array of payloads. The result is NULL where Spark must decode.
        spark_type: The type of the result.
    """

    decoder: Any
    spark_type: StructType


@dataclass(frozen=True)
class Payload(ABC):
    """Decoder that converts the bytes of records to columns.

    Args:
        schema: The columns, without `_corrupt_record`.
        body: The column with the bytes.
    """

    schema: StructType
    body: str = "value"
    FAILED: ClassVar[str] = "_p IS NULL"  # SQL that is true if a record could not be decoded

    def decode(self, records: DataFrame, meta: Sequence[str], count: int | None = None) -> DataFrame:
        """Decode records. The result has the payload's columns, the columns of `meta`, and `_corrupt_record`.

        Args:
            records: The records.
            meta: SQL expressions for additional columns, based on the columns of the records.
            count: The number of records, if known.
        """
        text = f"coalesce(try_validate_utf8(CAST({self.body} AS STRING)), hex({self.body}))"
        return self.with_payload(records, count).selectExpr(
            *(f"_p.{quote_identifier(f.name)}" for f in self.schema.fields),
            *meta,
            f"CASE WHEN {self.body} IS NULL THEN 'no value' WHEN {self.FAILED} THEN {text} END AS {CORRUPT}",
        )

    def runs_in_workers(self, count: int | None) -> bool:
        """Return whether Python workers decode a batch of `count` records. `count` is None if the number is unknown."""
        return False

    def worker_decoder(self, count: int | None) -> WorkerDecoder | None:
        """Return the decoder for workers that read `count` records themselves; None if Spark must read the records."""
        return None

    @abstractmethod
    def with_payload(self, records: DataFrame, count: int | None) -> DataFrame:
        """Return the records with the payload as the struct `_p`.

        Args:
            records: The records. They have the column `_decoded` if workers have already decoded them.
            count: The number of records, if known.
        """

    @property
    def writer_id(self) -> str:
        """SQL for the id of the writer's schema, as text. NULL if the record does not begin with a registry frame."""
        number = f"conv(hex(substring({self.body}, 2, 4)), 16, 10)"
        return f"CASE WHEN hex(substring({self.body}, 1, 1)) = '00' THEN {number} END"

    @property
    def body_after_frame(self) -> str:
        """SQL for the bytes after the registry frame."""
        return f"substring({self.body}, {FRAME + 1})"


@dataclass(frozen=True)
class RawPayload(Payload):
    """Decoder that returns the bytes of a record unchanged, as one BINARY column."""

    @classmethod
    def from_records(cls, records: RawRecords) -> RawPayload:
        from pyspark.sql.types import BinaryType, StructField, StructType

        return cls(StructType([StructField(records.body, BinaryType())]), records.body)

    def decode(self, records: DataFrame, meta: Sequence[str], count: int | None = None) -> DataFrame:
        return records.selectExpr(self.body, *meta)

    def with_payload(self, records: DataFrame, count: int | None) -> DataFrame:
        return records.selectExpr("*", f"struct({self.body}) AS _p")


# -- field names ---------------------------------------------------------------------------------------------------------


_ROWS = 1000
_NAMES = 1000


def detect_field_names(
    session: SparkSession, frame: DataFrame, form: str | None, options: Mapping[str, str]
) -> list[str]:
    """Return the keys of JSON objects, the names in a CSV header, or the columns of Parquet files.

    Args:
        session: The Spark session.
        frame: A batch of the source. It has the column `_value` if its rows come from records.
        form: The format of the files, if the rows come from files.
        options: The options of the reader.

    Returns:
        The names. Empty if the data does not contain field names.
    """
    if "_value" in frame.columns:
        return _keys(frame.limit(_ROWS).selectExpr("CAST(_value AS STRING) AS value"))
    files = frame.inputFiles()[:1]
    lower = {k.lower(): v.lower() for k, v in options.items()}
    if not files or form == "text" or (form == "csv" and lower.get("header") != "true"):
        return []
    if form == "json" and lower.get("multiline") != "true":
        return _keys(session.read.text(files).limit(_ROWS))
    return session.read.format(form or "").options(**options).load(files).columns


def _keys(texts: DataFrame) -> list[str]:
    keys = texts.selectExpr("explode(json_object_keys(value)) AS name").distinct().limit(_NAMES)
    return [row["name"] for row in keys.collect()]
