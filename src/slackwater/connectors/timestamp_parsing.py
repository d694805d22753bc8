"""Parse timestamps and dates in strings, with the same rule for string columns, JSON and CSV.

A string is a timestamp or date if it begins with a four-digit year, a month and a day, and Spark can cast it. A string
without a time zone is in the source's time zone. Spark's own cast accepts more strings: "10:15" as today at 10:15, and
"2024" as January 1st. Therefore, readers return times as strings, and the rule is then applied as Spark SQL.

    schema     at TIMESTAMP          read as     at STRING ──▶ rule ──▶ at TIMESTAMP
               p STRUCT<day: DATE>               p STRUCT<day: STRING>   other strings ──▶ _corrupt_record
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.core.column_names import CORRUPT, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

UTC = "UTC"
# reader options with a pattern, which replaces the rule for the type
_PATTERN = {"timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat", "date": "dateFormat"}
_ZONED = "substring(trim({0}), 11) RLIKE '[0-9. ] *[A-Za-z+-]'"  # a zone after the date and the digits of the time
_SECONDS_FROM = 9  # a JSON number with this many digits in a TIMESTAMP column is epoch seconds, unlike 2024 or 20240301


def has_date_sql(text: str) -> str:
    """Return SQL that tests whether a string accepted by Spark's casts begins with a four-digit year, month and day.

    These casts also accept a year alone, a year and a month, and times without a date. Such strings are short, or
    have a colon in place of the first dash. `text`: SQL for the string.
    """
    return f"length(trim({text})) >= 8 AND substring(trim({text}), 5, 1) = '-'"


def timestamp_sql(text: str, zone: str = UTC) -> str:
    """Return SQL that converts a string to a TIMESTAMP, or to NULL if the string is not a timestamp."""
    read = f"try_cast({text} AS TIMESTAMP)"
    if zone != UTC:
        read = f"CASE WHEN {_ZONED.format(text)} THEN {read} ELSE {local_time_sql(read, zone)} END"
    return f"CASE WHEN {has_date_sql(text)} THEN {read} END"


def local_time_sql(clock: str, zone: str) -> str:
    """Return SQL that corrects a TIMESTAMP that was parsed as UTC although it is a local time in `zone`."""
    return clock if zone == UTC else f"to_utc_timestamp({clock}, '{zone}')"


def date_sql(text: str) -> str:
    return f"CASE WHEN {has_date_sql(text)} THEN try_cast({text} AS DATE) END"


def _ntz_sql(text: str) -> str:
    return f"CASE WHEN {has_date_sql(text)} AND NOT {_ZONED.format(text)} THEN try_cast({text} AS TIMESTAMP_NTZ) END"


def _json_timestamp(text: str, zone: str) -> str:
    number = f"CASE WHEN length({text}) >= {_SECONDS_FROM} THEN try_cast({text} AS BIGINT) END"
    seconds = f"timestamp_micros(try_multiply({number}, 1000000L))"
    return f"coalesce({timestamp_sql(text, zone)}, {seconds})"


@dataclass(frozen=True)
class TextTimestampSchema:
    """Schema for a reader that returns times as strings, and the conversion of these strings.

    Args:
        schema: The schema of the result.
        form: The format of the data: "json" or "csv".
        zone: The time zone of timestamps that do not contain one.
        options: The options of the reader.
    """

    schema: StructType
    form: str
    zone: str
    options: Mapping[str, str]

    @property
    def reader_schema(self) -> StructType:
        """The schema to pass to the reader, in which times are strings."""
        return self._as_text(self.schema)

    def convert(self, rows: DataFrame) -> DataFrame:
        """Convert the time strings in the reader's rows to timestamps and dates. Other columns are unchanged.

        If a string is not a time, its row becomes a corrupt record. In rows without a column `_corrupt_record`, which
        belong to lookups, the string becomes NULL instead.
        """
        text_columns = {f.name: f.dataType for f in self.schema.fields if self._has_text(f.dataType)}
        if not text_columns:
            return rows
        invalid = " OR ".join(self._invalid_sql(quote_identifier(name), kind) for name, kind in text_columns.items())
        columns = ", ".join(quote_identifier(f.name) for f in self.schema.fields)
        sep = next((v for k, v in self.options.items() if k.lower() in ("sep", "delimiter")), None)
        with_sep = f", map('sep', '{_escaped(sep)}')" if sep is not None and self.form == "csv" else ""
        written = f"to_{self.form}(struct({columns}){with_sep})"
        exprs = {
            name: f"{self._value_sql(quote_identifier(name), kind)} AS {quote_identifier(name)}"
            for name, kind in text_columns.items()
        }
        exprs[CORRUPT] = (
            f"CASE WHEN {CORRUPT} IS NOT NULL THEN {CORRUPT} WHEN {invalid} THEN {written} END AS {CORRUPT}"
        )
        return rows.selectExpr(*(exprs.get(c, quote_identifier(c)) for c in rows.columns))

    # -- conversions that recurse into nested types ----------------------------------------------------------------

    def _is_text(self, kind: DataType) -> bool:
        pattern = _PATTERN.get(kind.simpleString())
        return pattern is not None and pattern.lower() not in map(str.lower, self.options)

    def _has_text(self, kind: DataType) -> bool:
        return self._as_text(kind) != kind

    def _as_text(self, kind: Any) -> Any:
        from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

        if isinstance(kind, StructType):
            return StructType(
                [StructField(f.name, self._as_text(f.dataType), f.nullable, f.metadata) for f in kind.fields]
            )
        if isinstance(kind, ArrayType):
            return ArrayType(self._as_text(kind.elementType), kind.containsNull)
        if isinstance(kind, MapType):
            return MapType(kind.keyType, self._as_text(kind.valueType), kind.valueContainsNull)
        return StringType() if self._is_text(kind) else kind

    def _value_sql(self, text: str, kind: Any) -> str:
        from pyspark.sql.types import ArrayType, MapType, StructType

        if not self._has_text(kind):
            return text
        if isinstance(kind, StructType):
            fields = (
                f"'{_escaped(f.name)}', {self._value_sql(f'{text}.{quote_identifier(f.name)}', f.dataType)}"
                for f in kind.fields
            )
            return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(fields)}) END"
        item = f"x{text.count('->')}_"
        if isinstance(kind, ArrayType):
            return f"transform({text}, {item} -> {self._value_sql(item, kind.elementType)})"
        if isinstance(kind, MapType):
            return f"transform_values({text}, (k{item}, {item}) -> {self._value_sql(item, kind.valueType)})"
        name = kind.simpleString()
        if name == "date":
            return date_sql(text)
        if name == "timestamp_ntz":
            return _ntz_sql(text)
        return _json_timestamp(text, self.zone) if self.form == "json" else timestamp_sql(text, self.zone)

    def _invalid_sql(self, text: str, kind: Any) -> str:
        """Return SQL that is true if a value contains a string that is not a time. `text`: SQL for the value."""
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(kind, StructType):
            fields = [
                (f"{text}.{quote_identifier(f.name)}", f.dataType) for f in kind.fields if self._has_text(f.dataType)
            ]
            return f"({' OR '.join(self._invalid_sql(name, inner) for name, inner in fields)})"
        item = "x_"
        if isinstance(kind, ArrayType):
            return f"coalesce(exists({text}, {item} -> {self._invalid_sql(item, kind.elementType)}), false)"
        if isinstance(kind, MapType):
            return f"coalesce(exists(map_values({text}), {item} -> {self._invalid_sql(item, kind.valueType)}), false)"
        return f"({text} IS NOT NULL AND ({self._value_sql(text, kind)}) IS NULL)"


def find_time_zone(options: Mapping[str, str], zone: str | None) -> str:
    """Return the time zone for times in strings: the reader option `timeZone`, else `zone`, else UTC."""
    reader_zone = next((v for k, v in options.items() if k.lower() == "timezone"), None)
    return reader_zone or zone or UTC


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
