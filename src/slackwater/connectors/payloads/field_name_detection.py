"""Detect the field names in a source's data from the first rows of a batch, independently of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
