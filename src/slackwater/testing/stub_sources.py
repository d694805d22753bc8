"""Decode the rows of a test as the real sources would, but without an external system.

{"user_id": "u1", "ts": "2024-03-01T09:00:00Z"}  ─▶ a record (bytes, metadata)  ─▶ the columns of the source
"not json"                                       ─▶ a record, unchanged         ─▶ _corrupt_record
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater.config.connection import Connection, KafkaConnection
from slackwater.config.connector_description import CONNECTORS, metadata_columns
from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import FRAMED, Source
from slackwater.config.sql import schema_ddl
from slackwater.connectors.files import source as files_source
from slackwater.connectors.kafka.broker import KafkaBroker
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import Payload, RawPayload, RawRecords
from slackwater.connectors.pipeline_sources import DataFrameSource
from slackwater.connectors.timestamp_parsing import UTC
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.humanize import mismatch
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
from slackwater.spark.tuning.source_statistics import FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBER = "__number"  # hidden column: the index of a row among the rows of the test
Row = Mapping[str, Any] | str
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EVENT_TIME = "_event_ts"


Offsets = dict[tuple[str, int], int]  # the next offset, by topic and partition


@dataclass(frozen=True)
class StubSource:
    """A source whose rows come from a test.

    Args:
        spec: The source in the config.
        kind: The kind of the connection; "dataframe" for a DataFrame.
        schema: The Spark schema of the rows.
        real: The real source, which decodes dead letters.
        payload: The decoder of the records; None for files and DataFrames.
    """

    spec: Source
    kind: str
    schema: Any
    real: KafkaSource | files_source.FilesSource | DataFrameSource
    payload: Payload | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def read_files(self, session: SparkSession, paths: Sequence[Path]) -> DataFrame:
        """Read files with the reader of the real source. The column `__file` has the URI of the file."""
        assert isinstance(self.real, files_source.FilesSource)
        frame = self.real.read(session, [files_source.FileEntry(path.resolve().as_uri(), 0) for path in paths])
        return frame.selectExpr("*", f"_metadata.file_path AS {FILE}")

    def decode(
        self, session: SparkSession, rows: Sequence[Row], clocks_us: Sequence[int], offsets: Offsets
    ) -> DataFrame:
        """Decode rows into the columns of the source, and add `__number`.

        Args:
            session: The Spark session.
            rows: The rows.
            clocks_us: The arrival time of each row (µs), which becomes the timestamp of its record.
            offsets: The next offset of each partition, which this method advances.
        """
        if self.kind in ("files", "dataframe"):
            return self._decode_lines(session, [self._to_line(row, self._column_names) for row in rows])
        return self._decode_records(session, rows, clocks_us, offsets)

    # -- files, DataFrames ---------------------------------------------------------------------------------------

    @property
    def _column_names(self) -> list[str]:
        return [f.name for f in self.schema.fields]

    def _to_line(self, row: Row, columns: Sequence[str]) -> str:
        """Format a row as a line of a file. A string is returned unchanged.

        Raises StartError if the row has a column that is not in `columns`.
        """
        if isinstance(row, str):
            return row
        if unknown := [c for c in row if c not in columns]:
            raise StartError(
                f'source "{self.name}": a row of the test has an unknown column "{unknown[0]}"; declare it in the '
                f"schema, or correct the row{suggest_or_list_words(unknown[0], columns)}",
                Topic.TEST_UNUSABLE,
            )
        if self.spec.format == "text":
            return str(row.get("value", ""))
        if self.spec.format != "csv":
            return _json_text(row)
        cells = [row.get(c) for c in self._column_names]
        out = io.StringIO()
        plain = ["" if c is None else c if isinstance(c, str) else _json_cell(c) for c in cells]
        csv.writer(out, delimiter=self.spec.options.get("sep", ","), lineterminator="").writerow(plain)
        return out.getvalue()

    def _decode_lines(self, session: SparkSession, texts: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StringType, StructField, StructType

        table = pa.table({NUMBER: pa.array(range(len(texts)), pa.int64()), "value": pa.array(texts, pa.string())})
        records, form, text = session.createDataFrame(table), self.spec.format, F.col("value")
        metadata = [f"CAST(NULL AS STRING) AS {FILE}"] if self.kind == "files" else []
        metadata += [NUMBER]
        if form == "text":
            return records.selectExpr("value", *metadata)
        columns = [f"_p.{quote_identifier(f.name)}" for f in self.schema.fields]
        if form not in ("json", "csv"):
            strict = F.from_json(text, self.schema, {"mode": "FAILFAST"})
            return records.withColumn("_p", strict).selectExpr(*columns, *metadata)
        assert isinstance(self.real, files_source.FilesSource)
        times, options = self.real.text_schema, dict(self.spec.options)
        full_schema = StructType([*times.reader_schema.fields, StructField(CORRUPT, StringType())])
        reading: dict[str, Any] = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        if form == "json":
            parsed = F.from_json(text, full_schema, reading)
        else:
            fields = ", ".join(f"{quote_identifier(f.name)} {f.dataType.simpleString()}" for f in full_schema.fields)
            parsed = F.from_csv(text, fields, reading)
        return times.convert(records.withColumn("_p", parsed).selectExpr(*columns, f"_p.{CORRUPT}", *metadata))

    # -- records of a stream -------------------------------------------------------------------------------------

    def _decode_records(
        self, session: SparkSession, rows: Sequence[Row], clocks_us: Sequence[int], counts: Offsets
    ) -> DataFrame:
        assert self.payload is not None
        payload_columns = [f.name for f in self.payload.schema.fields]
        meta = (*metadata_columns(self.kind), _EVENT_TIME)
        values, places = list[bytes | None](), list[dict[str, Any]]()
        for row in rows:
            place: dict[str, Any] = {} if isinstance(row, str) else {c: row[c] for c in meta if c in row}
            rest: Row = row if isinstance(row, str) else {c: v for c, v in row.items() if c not in place}
            places.append(place)
            if not isinstance(rest, str) and isinstance(self.payload, RawPayload):
                rest = str(rest.get(self.payload.body, ""))
            values.append(
                _bytes(place["_value"]) if "_value" in place else self._to_line(rest, payload_columns).encode()
            )
        topic = (self.spec.query or self.name).partition(",")[0].strip()
        offsets = []
        for place in places:
            partition_key = str(place.get("_topic", topic)), int(place.get("_partition", 0))
            offsets.append(int(place.get("_offset", counts.get(partition_key, 0))))
            counts[partition_key] = offsets[-1] + 1
        moments = [to_micros_utc(p.get(_EVENT_TIME, clock)) for p, clock in zip(places, clocks_us, strict=True)]
        table = pa.table(
            {
                NUMBER: pa.array(range(len(rows)), pa.int64()),
                self.payload.body: pa.array(values, pa.binary()),
                "__key": pa.array([None if p.get("_key") is None else _bytes(p["_key"]) for p in places], pa.binary()),
                "__headers": pa.array([_headers(p.get("_headers")) for p in places], _HEADERS),
                "__topic": pa.array([str(p.get("_topic", topic)) for p in places], pa.string()),
                "__partition": pa.array([int(p.get("_partition", 0)) for p in places], pa.int32()),
                "__offset": pa.array(offsets, pa.int64()),
                "__time": pa.array(moments, pa.timestamp("us", tz="UTC")),
                **{f"_{c}": pa.array([_json_value(p.get(c)) for p in places], pa.string()) for c in _RABBIT_COLUMNS},
            }
        )
        body = quote_identifier(self.payload.body)
        if self.kind == "kafka":
            metadata = [f"__{c} AS _{c}" for c in ("key", "headers", "topic", "partition", "offset")]
            metadata += [f"{body} AS _value", f"__time AS {_EVENT_TIME}"]
        elif self.kind == "rabbitmq":
            metadata = [f"_{c} AS {c}" for c in _RABBIT_COLUMNS]
            metadata += ["to_json(__headers) AS _headers", "__time AS _received", f"{body} AS _value"]
        else:
            metadata = [f"__time AS {_EVENT_TIME}", f"{body} AS _value"]
        return self.payload.decode(session.createDataFrame(table), [*metadata, NUMBER])


_RABBIT_COLUMNS = ("_routing_key", "_exchange", "_message_id")


def create_stub_source(
    session: SparkSession, pipeline: Pipeline, index: int, columns: Sequence[Field] | None
) -> StubSource:
    """Create a stub for the source at `index` in the config. Raises StartError if tests cannot write its rows.

    `columns`: the columns of a DataFrame source; None to use the columns of its DataFrame.
    """
    spec = pipeline.sources[index]
    connection = resolve_connection(spec.connection, pipeline.connections) if spec.connection is not None else None
    zone = pipeline.transform.step.event_time_zone or UTC
    if connection is None:
        frame = spec.dataframe
        if columns is not None:
            frame = session.createDataFrame([], ", ".join(f"{quote_identifier(f.name)} {f.type}" for f in columns))
        real = DataFrameSource(spec.name, session.createDataFrame([], frame.schema))
        return StubSource(spec, "dataframe", real.schema, real)
    if connection.kind == "files":
        files = files_source.FilesSource(spec, files_source.resolve_schema(session, spec, None), zone)
        return StubSource(spec, "files", files.schema, files)
    if CONNECTORS[connection.kind].is_table:
        raise StartError(
            f'source "{spec.name}" reads a table, whose columns are not declared in a config; expected a source with '
            "a schema; test the SQL with a files source that declares the columns, or in Python with a DataFrame",
            Topic.TEST_UNUSABLE,
        )
    payload = _payload(session, spec, connection, zone)
    if isinstance(connection, KafkaConnection):
        kafka = KafkaSource(spec, KafkaBroker(connection), payload, "")
        return StubSource(spec, "kafka", kafka.schema, kafka, payload)
    source = StubSource(
        spec, connection.kind, None, DataFrameSource(spec.name, session.createDataFrame([], payload.schema)), payload
    )
    schema = source.decode(session, [], [], {}).drop(NUMBER, CORRUPT).schema
    return replace(source, schema=schema)


def _payload(session: SparkSession, spec: Source, connection: Connection, zone: str) -> Payload:
    body = "body" if connection.kind == "rabbitmq" else "value"
    if spec.payload_format in FRAMED:
        raise StartError(
            f'source "{spec.name}": tests cannot encode rows with payload_format = "{spec.payload_format}" yet; test '
            'the pipeline with payload_format = "json" and the same schema',
            Topic.TEST_UNUSABLE,
        )
    return create_payload(RawRecords(session, spec, body, zone=zone))


def read_declared_columns(pipeline: Pipeline, index: int) -> Mapping[str, Field] | None:
    """Return the columns that the source at `index` declares, without Spark; None if it does not declare a schema."""
    declared = pipeline.sources[index].schema_
    return None if declared is None else {n: Field(n, t) for n, t in schema_ddl.parse_ddl_columns(declared).items()}


# -- values ------------------------------------------------------------------------------------------------------------


def _json_text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=_json_value, ensure_ascii=False)


def _json_cell(value: Any) -> str:
    return str(_json_value(value)) if not isinstance(value, bool) else str(value).lower()


def _json_value(value: Any) -> Any:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _headers(value: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
    return None if value is None else [{"key": k, "value": _bytes(v)} for k, v in value.items()]


def to_micros_utc(value: Any) -> int:
    """Convert a time to microseconds since 1970.

    An integer is returned unchanged. A datetime or ISO 8601 string without a time zone is in UTC.
    Raises StartError for other types.
    """
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise StartError(
            mismatch(repr(value), "a time: a datetime, an ISO 8601 string, or microseconds since 1970"), Topic.VALUE
        )
    return value


__all__ = ["NUMBER", "StubSource", "create_stub_source", "read_declared_columns", "to_micros_utc"]
