"""From a record's bytes to columns: JSON, Avro, or as they are; with or without a schema's id before them. What cannot be decoded is marked in `_corrupt_record`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.source import Source
from slackwater.core.words import plural
from slackwater.errors import StartError
from slackwater.sources import connect, json_schema, registry
from slackwater.sources.base import CORRUPT, reason
from slackwater.sources.times import UTC, TextTimes
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# columns beside those of the payload
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
_MARK = "_slackwater_decoded"


@dataclass(frozen=True)
class Payload:
    """How values become columns. `schema`: these columns, without `_corrupt_record`; `zone`: of times in JSON that have none."""

    schema: StructType
    kind: str
    body: str = "value"  # the column of the bytes
    avro: Mapping[int | None, str] = field(
        default_factory=dict
    )  # writer's schema (JSON) by registry id; None: the only one
    reader: str = ""  # Avro: the schema that rows are brought to, with the mark
    zone: str = UTC
    framed: bool = False  # JSON: a registry's frame stands before it

    def decode(self, records: DataFrame, meta: Sequence[str]) -> DataFrame:
        """Records with the payload's columns, those of `meta` (SQL), and `_corrupt_record`: NULL where all went well."""
        if self.kind == "raw":
            return records.selectExpr(self.body, *meta)
        parsed = records.withColumn("_p", self._json(records) if self.kind == "json" else self._avro(records))
        failed = "_p IS NULL OR " + (f"_p.{CORRUPT} IS NOT NULL" if self.kind == "json" else f"_p.{_MARK} IS NULL")
        text = f"coalesce(try_validate_utf8(CAST({self.body} AS STRING)), hex({self.body}))"
        found = parsed.selectExpr(
            *(f"_p.{quote(f.name)}" for f in self.schema.fields),
            *meta,
            f"CASE WHEN {self.body} IS NULL THEN 'no value' WHEN {failed} THEN {text} END AS {CORRUPT}",
        )
        return self._times.convert(found) if self.kind == "json" else found

    @property
    def _known(self) -> str:
        """The id of the writer's schema, as text; NULL where none stands before the record."""
        return f"CASE WHEN hex(substring({self.body}, 1, 1)) = '00' THEN conv(hex(substring({self.body}, 2, 4)), 16, 10) END"

    @property
    def _rest(self) -> str:
        return f"substring({self.body}, {registry.FRAME + 1})"

    @property
    def _times(self) -> TextTimes:
        return TextTimes(self.schema, "json", self.zone, {})

    def _json(self, of: DataFrame) -> Any:
        from pyspark.sql.types import StringType, StructField, StructType

        wanted = StructType([*self._times.as_read.fields, StructField(CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        F = connect.functions(of)  # noqa: N806
        text = F.expr(f"{self._known} IS NOT NULL")
        rest = F.when(text, F.expr(self._rest)) if self.framed else F.col(self.body)
        return F.from_json(rest.cast("string"), wanted, options)

    def _avro(self, of: DataFrame) -> Any:
        F, from_avro = connect.functions(of), connect.from_avro(of)  # noqa: N806
        options = {"mode": "PERMISSIVE", "avroSchema": self.reader}
        if None in self.avro:
            return from_avro(F.col(self.body), self.avro[None], options)
        known, rest = F.expr(self._known), F.expr(self._rest)
        found: Any = None
        for number, schema in self.avro.items():
            one = from_avro(rest, schema, options)
            found = F.when(known == str(number), one) if found is None else found.when(known == str(number), one)
        return found


def schema_from_ddl(session: SparkSession, spec: Source) -> StructType:
    try:
        return connect.schema_of_ddl(session, spec.schema_ or "")
    except Exception as error:
        raise StartError(
            f'source "{spec.name}": schema is not valid DDL ({reason(error)}); expected "name TYPE, name TYPE, …"'
        ) from None


def json_payload(session: SparkSession, spec: Source, known: str | None, sample: Any) -> Payload:
    """The declared schema, the one stored with the state (Spark's JSON), or one inferred from `sample()`: texts."""
    from pyspark.sql.types import StructType

    if spec.schema_ is not None:
        return Payload(schema_from_ddl(session, spec), "json")
    if known is not None:
        fields = [f for f in StructType.fromJson(json.loads(known)).fields if f.name not in _INJECTED]
        return Payload(StructType(fields), "json")
    texts = sample()
    if not texts:
        raise StartError(
            f'source "{spec.name}": no schema is declared and "{spec.query}" has no records to infer one from; declare it'
        )
    schema = connect.schema_of_json(session, texts)
    fields = [f for f in schema.fields if f.name != CORRUPT]
    if not fields:
        raise StartError(
            f'source "{spec.name}": no schema is declared and the first {plural(len(texts), "record is no JSON object", "records are no JSON objects")}; declare it, '
            'or set payload_format = "raw"'
        )
    return Payload(StructType(fields), "json")


def json_schema_payload(session: SparkSession, spec: Source, address: str | None, topics: Sequence[str]) -> Payload:
    """JSON with the columns of the newest version of the subject `<topic>-value` in a registry."""
    if address is None or not topics:
        raise StartError(
            f'source "{spec.name}": payload_format = "json_schema" needs schema_registry in the connection and topics by name'
        )
    *_, latest = registry.versions(spec, address, topics)
    try:
        ddl = json_schema.columns(latest.text, latest.references)
    except ValueError as error:
        raise StartError(
            f'source "{spec.name}": schema {latest.id} of the registry cannot be used as a JSON Schema ({error})'
        ) from None
    return Payload(connect.schema_of_ddl(session, ddl), "json", framed=True)


def avro_payload(session: SparkSession, spec: Source, address: str | None, topics: Sequence[str]) -> Payload:
    """Avro with a schema file, or with every version of the subject `<topic>-value` in a registry."""
    if spec.avro_schema_file is not None:
        try:
            text = Path(spec.avro_schema_file).read_text()
            json.loads(text)
        except (OSError, ValueError) as error:
            raise StartError(
                f'source "{spec.name}": avro_schema_file "{spec.avro_schema_file}" cannot be read ({error}); expected a schema in JSON'
            ) from None
        return Payload(_spark_schema(session, spec, text), "avro", avro={None: text}, reader=_marked(text))
    if address is None or not topics:
        raise StartError(
            f'source "{spec.name}": payload_format = "avro" needs avro_schema_file, or schema_registry in the connection '
            "and topics by name"
        )
    found: dict[int | None, str] = {v.id: v.text for v in registry.versions(spec, address, topics)}
    latest = list(found.values())[-1]
    return Payload(_spark_schema(session, spec, latest), "avro", avro=found, reader=_marked(latest))


def _marked(text: str) -> str:
    """A reader's schema with one more field: its default tells a record that was decoded from the NULLs of one that was not."""
    schema = json.loads(text)
    return json.dumps({**schema, "fields": [*schema["fields"], {"name": _MARK, "type": "boolean", "default": True}]})


def _spark_schema(session: SparkSession, spec: Source, text: str) -> StructType:
    """The columns that Avro's schema becomes in Spark."""
    from pyspark.sql.types import StructType

    from_avro = connect.from_avro(session)

    try:
        frame = session.createDataFrame([], "value BINARY")
        kind: Any = frame.select(from_avro("value", text).alias("p")).schema.fields[0].dataType
    except Exception as error:
        raise StartError(f'source "{spec.name}": the Avro schema cannot be used ({reason(error)})') from None
    if not isinstance(kind, StructType):
        raise StartError(f'source "{spec.name}": the Avro schema is no record; expected fields that become columns')
    return kind


def raw_payload(body: str = "value") -> Payload:
    """The bytes as one BINARY column."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    return Payload(StructType([StructField(body, BinaryType())]), "raw", body)
