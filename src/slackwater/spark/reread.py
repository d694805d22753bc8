"""Dead letters as the rows of their sources, in the form in which a source gives them: what an epoch reads once more.

a record of a topic   its bytes, decoded as ever
a row of a file       the row as JSON; one that could not be decoded: the text as it was
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.errors import StartError
from slackwater.sources import connect
from slackwater.sources.base import CORRUPT
from slackwater.sources.files import FilesSource
from slackwater.sources.kafka import KafkaSource
from slackwater.sources.streams import AnySource
from slackwater.sources.tables import TableSource
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE, LETTER = "__file", "__letter"  # hidden columns: the file that a row is from, the letter's number
_TAKEN = ["source", "reason", "key", "value", "topic", "partition", "offset", "headers", "file", "event_time", LETTER]
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def frames(session: SparkSession, sources: Sequence[AnySource], letters: pl.DataFrame) -> Mapping[str, DataFrame]:
    """The rows of letters per source, with `__letter`, and `__file` of files. Raises StartError for letters of a source that cannot take them."""
    found: dict[str, DataFrame] = {}
    known = {s.name: s for s in sources}
    for name, some in letters.group_by("source", maintain_order=True):
        source = known.get(str(name[0]))
        if source is None:
            raise StartError(
                f'letters of source "{name[0]}" cannot be replayed: the config has no such source, it has {", ".join(known)}; '
                "restore it, or choose others by --reason and --epoch"
            )
        if not isinstance(source, KafkaSource | FilesSource | TableSource):
            raise StartError(
                f'letters of source "{source.name}" cannot be replayed yet: it reads a connector or a DataFrame, which takes no '
                "rows back; expected files, tables or Kafka, or choose others by --reason and --epoch"
            )
        records = session.createDataFrame(some.select(_TAKEN).to_arrow(compat_level=pl.CompatLevel.oldest()))
        if isinstance(source, KafkaSource):
            found[source.name] = source.decode(_as_records(records), [LETTER])
        else:
            found[source.name] = _of_files(source, records)
    return found


def _as_records(records: DataFrame) -> DataFrame:
    """As Spark reads a topic. The record's time is that of the letter."""
    headers = f"from_json(headers, '{_HEADERS}') AS headers"
    return records.selectExpr(
        "key",
        "value",
        "topic",
        "CAST(partition AS INT) AS partition",
        "offset",
        "event_time AS timestamp",
        headers,
        LETTER,
    )


def _of_files(source: FilesSource | TableSource, records: DataFrame) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    F = connect.functions(records)  # noqa: N806
    form, options = source.spec.format, dict(source.spec.options)
    columns = [f"_p.{quote(f.name)}" for f in source.schema.fields]
    kept = [f"file AS {FILE}", LETTER]
    text = F.col("value").cast("string")
    decoded = records.where("reason <> 'undecodable'").withColumn("_p", F.from_json(text, source.schema))
    if isinstance(source, TableSource) or form not in ("json", "csv"):
        return decoded.selectExpr(*columns, *kept)
    whole = StructType([*source.times.as_read.fields, StructField(CORRUPT, StringType())])
    reading: dict[str, Any] = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parse = F.from_json(text, whole, reading) if form == "json" else F.from_csv(text, _ddl(whole), reading)
    raw = records.where("reason = 'undecodable'").withColumn("_p", parse)
    return source.times.convert(raw.selectExpr(*columns, f"_p.{CORRUPT}", *kept)).unionByName(
        decoded.selectExpr(*columns, f"CAST(NULL AS STRING) AS {CORRUPT}", *kept)
    )


def _ddl(schema: Any) -> str:
    return ", ".join(f"{quote(f.name)} {f.dataType.simpleString()}" for f in schema.fields)
