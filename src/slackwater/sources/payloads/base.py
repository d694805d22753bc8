"""What every format of payloads has in common. What cannot be decoded is marked in `_corrupt_record`.

records ──▶ beside their columns `_p`: the payload as a struct ──▶ its fields, columns of the record, `_corrupt_record`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from slackwater.config.source import Source
from slackwater.errors import StartError
from slackwater.sources import registry
from slackwater.sources.base import CORRUPT
from slackwater.sources.timestamp_parsing import UTC
from slackwater.windows.aggregations import quote_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RawRecords:
    """What is known of a source's records before any is read.

    `body`: the column of their bytes; `address`: of a registry; `known`: the schema of their first start, in the JSON
    of Spark; `sample` gives some as text; `zone`: of times in text that have none.
    """

    session: SparkSession
    spec: Source
    body: str = "value"
    address: str | None = None
    topics: Sequence[str] = ()  # those that are named
    stored_schema: str | None = None
    sample: Callable[[], Sequence[str]] = list
    zone: str = UTC

    def versions(self, file: str | None) -> Sequence[registry.SchemaVersion]:
        """Every version of the topics' schemas in a registry. `file`: the key that would name a schema instead."""
        if self.address is None or not self.topics:
            instead = f"{file}, or " if file else ""
            raise StartError(
                f'source "{self.spec.name}": payload_format = "{self.spec.payload_format}" needs {instead}'
                "schema_registry in the connection and topics by name"
            )
        return list(registry.schema_versions(self.spec, self.address, self.topics))


@dataclass(frozen=True)
class Payload(ABC):
    """How values become columns. `schema`: these, without `_corrupt_record`; `body`: the column of the bytes."""

    schema: StructType
    body: str = "value"
    FAILED: ClassVar[str] = "_p IS NULL"  # whether a record was not decoded, in SQL

    def decode(self, records: DataFrame, meta: Sequence[str]) -> DataFrame:
        """The payload's columns, those of `meta` (SQL), and `_corrupt_record`: NULL where all went well."""
        text = f"coalesce(try_validate_utf8(CAST({self.body} AS STRING)), hex({self.body}))"
        return self.with_payload(records).selectExpr(
            *(f"_p.{quote_column(f.name)}" for f in self.schema.fields),
            *meta,
            f"CASE WHEN {self.body} IS NULL THEN 'no value' WHEN {self.FAILED} THEN {text} END AS {CORRUPT}",
        )

    @abstractmethod
    def with_payload(self, records: DataFrame) -> DataFrame:
        """The records, and the payload as the struct `_p`."""

    @property
    def writer_id(self) -> str:
        """SQL for the id of the writer's schema, as text; NULL where no frame of a registry stands before it."""
        number = f"conv(hex(substring({self.body}, 2, 4)), 16, 10)"
        return f"CASE WHEN hex(substring({self.body}, 1, 1)) = '00' THEN {number} END"

    @property
    def body_after_frame(self) -> str:
        """SQL for what stands behind the frame."""
        return f"substring({self.body}, {registry.FRAME + 1})"


@dataclass(frozen=True)
class RawPayload(Payload):
    """The bytes as they are, one BINARY column."""

    @classmethod
    def from_records(cls, records: RawRecords) -> RawPayload:
        from pyspark.sql.types import BinaryType, StructField, StructType

        return cls(StructType([StructField(records.body, BinaryType())]), records.body)

    def decode(self, records: DataFrame, meta: Sequence[str]) -> DataFrame:
        return records.selectExpr(self.body, *meta)

    def with_payload(self, records: DataFrame) -> DataFrame:
        return records.selectExpr("*", f"struct({self.body}) AS _p")
