"""Convert dead letters back to rows of their sources, so that an epoch can read them again.

letter of a topic's record   contains the bytes of the record, which the source decodes as usual
letter of a file's row       contains the row as JSON, or the original text if the row could not be decoded

Dead letters have the columns of `core.dead_letter_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.pipeline_sources import AnySource
from slackwater.connectors.source import SeekableSource
from slackwater.connectors.timestamp_parsing import TextTimestampSchema
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILE, LETTER = "__file", "__letter"  # hidden columns: the file of a row, and the number of its dead letter
_COLUMNS = ["source", "reason", "key", "value", "topic", "partition", "offset", "headers", "file", "event_time", LETTER]
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def restore_source_frames(
    session: SparkSession, sources: Sequence[AnySource], letters: pl.DataFrame
) -> Mapping[str, DataFrame]:
    """Convert dead letters to rows, by source. The column `__letter` contains the number of each row's dead letter.

    Rows of file sources also have the column `__file`.

    Args:
        session: The Spark session.
        sources: The sources of the pipeline.
        letters: The dead letters, with the column `__letter`.

    Raises:
        StartError: A source is not in the config, or cannot convert dead letters back to rows.
    """
    import polars as pl

    frames: dict[str, DataFrame] = {}
    by_name = {s.name: s for s in sources}
    for name, source_letters in letters.group_by("source", maintain_order=True):
        source = by_name.get(str(name[0]))
        if source is None:
            raise StartError(
                f'dead letters of source "{name[0]}" cannot be replayed: the config has no such source, only '
                f"{', '.join(by_name)}; restore the source, or select others with --reason and --epoch",
                Topic.DEAD_LETTERS,
            )
        if not isinstance(source, SeekableSource):
            raise StartError(
                f'dead letters of source "{source.name}" cannot be replayed yet: only those of files, tables and '
                "Kafka can be turned back into rows; select others with --reason and --epoch",
                Topic.DEAD_LETTERS,
            )
        records = session.createDataFrame(
            source_letters.select(_COLUMNS).to_arrow(compat_level=pl.CompatLevel.oldest())
        )
        frames[source.name] = source.decode_dead_letter_rows(records, LETTER, FILE)
    return frames


def restore_records(letters: DataFrame, letter_column: str) -> DataFrame:
    """Convert dead letters to records with the columns that Spark returns when it reads a topic.

    The timestamp of each record is the event time of its dead letter. `letter_column`: a column of `letters` to keep.
    """
    return letters.selectExpr(
        "key",
        "value",
        "topic",
        "CAST(partition AS INT) AS partition",
        "offset",
        "event_time AS timestamp",
        f"from_json(headers, '{_HEADERS}') AS headers",
        letter_column,
    )


def restore_decoded_rows(letters: DataFrame, schema: StructType, extra_columns: Sequence[str]) -> DataFrame:
    """Convert the dead letters of decoded rows back to rows. Dead letters of undecodable rows are omitted.

    Args:
        letters: The dead letters.
        schema: The columns of the rows.
        extra_columns: SQL for additional columns.
    """
    F = spark_connect_support.sql_functions(letters)  # noqa: N806
    decoded = letters.where("reason <> 'undecodable'")
    return decoded.withColumn("_p", F.from_json(_text(letters), schema)).selectExpr(*_columns(schema), *extra_columns)


def restore_text_rows(letters: DataFrame, times: TextTimestampSchema, extra_columns: Sequence[str]) -> DataFrame:
    """Convert dead letters back to rows. The text of an undecodable row is parsed again, as a line of JSON or CSV.

    Args:
        letters: The dead letters.
        times: The schema of the rows.
        extra_columns: SQL for additional columns.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    F = spark_connect_support.sql_functions(letters)  # noqa: N806
    with_corrupt = StructType([*times.reader_schema.fields, StructField(CORRUPT, StringType())])
    reading: dict[str, Any] = {**times.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = _text(letters)
    parse = (
        F.from_json(text, with_corrupt, reading)
        if times.form == "json"
        else F.from_csv(text, _ddl(with_corrupt), reading)
    )
    raw = letters.where("reason = 'undecodable'").withColumn("_p", parse)
    undecodable = times.convert(raw.selectExpr(*_columns(times.schema), f"_p.{CORRUPT}", *extra_columns))
    return undecodable.unionByName(
        restore_decoded_rows(letters, times.schema, [f"CAST(NULL AS STRING) AS {CORRUPT}", *extra_columns])
    )


def _text(letters: DataFrame) -> Any:
    return spark_connect_support.sql_functions(letters).col("value").cast("string")


def _columns(schema: StructType) -> list[str]:
    return [f"_p.{quote_identifier(f.name)}" for f in schema.fields]


def _ddl(schema: Any) -> str:
    return ", ".join(f"{quote_identifier(f.name)} {f.dataType.simpleString()}" for f in schema.fields)
