"""The columns that aggregations read: their names in SQL, a normal form for equal values, and hashes."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from slackwater.core import schema
from slackwater.core.schema import Field
from slackwater.core.spark_sql import quote_identifier

_NAN = float("nan")


@dataclass(frozen=True)
class AggregationInput:
    """A column that rows must carry for an aggregation: its SQL over the output of the stage's SQL, and its type.

    `hashed` inputs carry a 64-bit hash instead of the value itself.
    """

    field: Field
    source: Field
    hashed: bool

    @property
    def sql(self) -> str:
        column = normalization_sql(self.source)
        if not self.hashed:
            return column
        return f"CASE WHEN {quote_identifier(self.source.name)} IS NOT NULL THEN xxhash64('{self.source.type}', {column}) END"


def normalization_sql(field: Field) -> str:
    """Return Spark SQL that maps -0.0 to 0.0 and every NaN to one NaN, so that equal values have equal bytes."""
    column = quote_identifier(field.name)
    if field.base not in schema.FLOATS:
        return column
    return f"CASE WHEN isnan({column}) THEN CAST('NaN' AS {field.type}) ELSE CAST({column} + 0 AS {field.type}) END"


def normalize_columns(frame: pl.DataFrame, fields: list[Field]) -> pl.DataFrame:
    """Normalize zeros and NaNs in these columns of a frame, as `normalization_sql` does in SQL.

    Polars simplifies `x + 0.0` to x, so zeros are replaced explicitly.
    """
    floats = [f.name for f in fields if f.base in schema.FLOATS]
    return frame.with_columns(
        pl.when(pl.col(name).is_nan())
        .then(_NAN)
        .when(pl.col(name) == 0)
        .then(0.0)
        .otherwise(pl.col(name))
        .cast(frame.schema[name])
        .alias(name)
        for name in floats
    )
