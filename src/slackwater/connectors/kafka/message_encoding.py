"""Convert rows to Kafka messages: a JSON key, a JSON or Avro value, and headers.

Dead letters keep the original bytes.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import polars as pl

from slackwater.connectors.target import TargetTable
from slackwater.core.row_format import apply_to_scalars, row_to_json
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic

_ROWS_AT_ONCE = 20_000  # converting all rows of an epoch at once would need hundreds of bytes per row
_AVRO_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_AVRO: dict[str, Any] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}

# the name of the header for each column of a dead letter, in header order
LETTER_HEADERS = {
    name: f"slackwater-{name.replace('_', '-')}"
    for name in (
        *("reason", "source", "topic", "partition", "offset", "file", "event_time"),
        *("cause", "watermark", "watermark_source", "late_us", "windows_missed", "windows", "group_key"),
    )
}

Headers = list[tuple[str, str | bytes | None]]
Messages = Iterator[tuple[bytes | None, bytes | None, Headers]]  # key, value, and headers of one row


class KafkaMessageEncoder:
    """Converter from rows to messages with a JSON key, a JSON or Avro value, and headers for writer and epoch."""

    def __init__(
        self,
        table: TargetTable,
        value_format: str = "json",
        key_columns: list[str] | None = None,
        schema_id: int | None = None,
    ) -> None:
        """Prepare the conversion.

        Args:
            table: The columns and the writer.
            value_format: "json" or "avro".
            key_columns: The columns of the key. By default, they are the identity columns. If empty, messages have no
                key.
            schema_id: The schema id in the Confluent frame that precedes each Avro value. If None, values have no
                frame.
        """
        self._table, self._schema_id = table, schema_id
        self._key_columns = list(table.identity or ()) if key_columns is None else key_columns
        self._values = self._avro_values() if value_format == "avro" else json_objects

    def headers(self, epoch: int) -> Headers:
        return [("slackwater-pipeline", self._table.writer.encode()), ("slackwater-epoch", str(epoch).encode())]

    def messages(self, rows: pl.DataFrame) -> Messages:
        """Yield the key, the value and the additional headers of every row, in order."""
        for part in rows.iter_slices(_ROWS_AT_ONCE):
            values = self._values(part)
            keys: Iterable[bytes | None] = repeat(None, part.height)
            if self._key_columns:
                keys = json_objects(part.select(self._key_columns))
            yield from ((key, value, []) for key, value in zip(keys, values, strict=True))

    def tombstones(self, superseded: pl.DataFrame) -> Messages:
        """Yield each superseded row's key, paired with a NULL value, so that a compacted topic deletes the row."""
        return ((key, None, []) for key in json_objects(superseded.select(self._key_columns)))

    def _avro_values(self) -> Callable[[pl.DataFrame], list[bytes]]:
        try:
            import fastavro
        except ImportError as error:
            raise StartError(
                'value_format = "avro" needs the fastavro package, which is not installed; run: pip install fastavro',
                Topic.NOT_INSTALLED,
            ) from error
        unfit = [f.name for f in self._table.fields if not _AVRO_NAME.fullmatch(f.name)]
        if unfit:
            raise StartError(
                f'Avro does not allow the column name "{unfit[0]}"; expected letters, digits and _ only; rename the '
                'column, or use value_format = "json"',
                Topic.TARGET_UNSUITABLE,
            )
        schema = fastavro.parse_schema(avro_schema(self._table))
        frame = b"" if self._schema_id is None else b"\0" + self._schema_id.to_bytes(4, "big")
        conversions = [
            apply_to_scalars(pl.col(f.name), f.polars, _to_physical).alias(f.name)
            for f in self._table.fields
            if not _needs_no_conversion(f)
        ]

        mapped = {f.name: convert for f in self._table.fields if (convert := _map_converter(f)) is not None}

        def values(rows: pl.DataFrame) -> list[bytes]:
            written = []
            for row in rows.with_columns(conversions).iter_rows(named=True):
                row.update({name: convert(row[name]) for name, convert in mapped.items()})
                out = io.BytesIO(frame)
                out.seek(len(frame))
                fastavro.schemaless_writer(out, schema, row)
                written.append(out.getvalue())
            return written

        return values


class DeadLetterMessageEncoder(KafkaMessageEncoder):
    """Converter from dead letters to messages with the original key, value and headers, plus headers for the letter."""

    def messages(self, rows: pl.DataFrame) -> Messages:
        for row in rows.iter_rows(named=True):
            headers: Headers = [
                (h.get("key", ""), None if h.get("value") is None else base64.b64decode(h["value"]))
                for h in json.loads(row["headers"] or "[]")
            ]
            letter_headers = {header: row[name] for name, header in LETTER_HEADERS.items() if row[name] is not None}
            headers += [(name, _header(value)) for name, value in letter_headers.items()]
            yield row["key"], row["value"], headers


def _header(value: Any) -> bytes:
    text = f"{value:%Y-%m-%dT%H:%M:%S.%f}Z" if isinstance(value, dt.datetime) else str(value)
    return text.encode()


def avro_schema(table: TargetTable) -> dict[str, Any]:
    """Return the Avro schema of a row: a record in which every column is nullable."""
    return {
        "type": "record",
        "name": "row",
        "fields": [{"name": f.name, "type": ["null", _avro_type(f)], "default": None} for f in table.fields],
    }


def _needs_no_conversion(field: Field) -> bool:
    """Return whether Avro accepts the values of a column without conversion."""
    return field.is_scalar and field.base not in ("date", "timestamp", "timestamp_ntz")


def _to_physical(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Convert dates and times to the numbers that Avro uses."""
    return value.to_physical() if kind.is_temporal() else value


def _avro_type(field: Field, path: str = "") -> Any:
    """Return the Avro type of a field. `path`: the names of the enclosing fields, which make record names unique."""
    path = f"{path}_{field.name}"
    if field.element is not None:
        return {"type": "array", "items": ["null", _avro_type(field.element, path)]}
    if field.entry is not None:
        key, value = field.entry
        if key.type == "string":
            return {"type": "map", "values": ["null", _avro_type(value, path)]}
        entries = Field("entry", f"struct<key:{key.type},value:{value.type}>")
        return {"type": "array", "items": _avro_type(entries, path)}
    if field.members is not None:
        members = [{"name": m.name, "type": ["null", _avro_type(m, path)], "default": None} for m in field.members]
        return {"type": "record", "name": f"row{path}", "fields": members}
    if field.base != "decimal":
        return _AVRO[field.type]
    precision, scale = field.decimal
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _map_converter(field: Field) -> Callable[[Any], Any] | None:
    """Return a function that converts the maps in a value from Polars' form, a list of entries, to Avro's form.

    None if the type of the field contains no map.
    """
    if field.entry is not None:
        key, value = field.entry
        inner = _map_converter(value) or (lambda v: v)
        if key.type == "string":
            return lambda v: None if v is None else {e["key"]: inner(e["value"]) for e in v}
        return lambda v: None if v is None else [{"key": e["key"], "value": inner(e["value"])} for e in v]
    if field.element is not None:
        of_element = _map_converter(field.element)
        return of_element and (lambda v: None if v is None else [of_element(e) for e in v])
    converters = {m.name: convert for m in field.members or () if (convert := _map_converter(m)) is not None}
    return (
        (lambda v: None if v is None else {**v, **{n: c(v[n]) for n, c in converters.items()}}) if converters else None
    )


def json_objects(rows: pl.DataFrame) -> list[bytes]:
    """Convert every row to a JSON object.

    Times are in ISO 8601, and bytes in base64. Decimals and non-finite floats are strings.
    """
    json_text = row_to_json(rows.schema, "base64").cast(pl.Binary)
    objects: list[bytes] = rows.select(json_text.alias("json")).to_series().to_list()
    return objects
