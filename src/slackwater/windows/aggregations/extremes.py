"""Aggregations that select one value: min, max, first and last (by event time), min_by and max_by (by a column).

In a tie, the smallest or largest value wins. Therefore, no result depends on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.windows.aggregations.kind import AggregationKind, extreme_value


class _OneValue(AggregationKind):
    """Base class of aggregations that select one value, which is the accumulator `v`."""

    @property
    def output(self) -> Field:
        return Field(self.name, self.column.type)

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("v")]


class Extreme(_OneValue):
    """The aggregation min or max."""

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"v": self.column.polars}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"v": f"{self.spec.agg}({quote_identifier(self.column.name)})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        return [pl.col(self.column.name).alias(self.part("v"))]

    def merge(self) -> Sequence[pl.Expr]:
        return [extreme_value(pl.col(self.part("v")), self.spec.agg, self.column)]

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        """Return NumPy's `fmin` or `maximum`.

        NaN is the largest value. Therefore, max is NaN if any value is NaN, and min is NaN only if all values are NaN.
        """
        if self.column.base not in schema.INTEGERS and self.column.base not in schema.FLOATS:
            return {}
        return {"v": np.fmin if self.spec.agg == "min" else np.maximum}


class FirstLast(_OneValue):
    """The aggregation first or last. Its accumulators `ts` and `v` are the smallest or largest (event time, value)."""

    @property
    def _which(self) -> str:
        return "min" if self.spec.agg == "first" else "max"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"ts": pl.Int64(), "v": self.column.polars}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote_identifier(self.column.name)
        pair = f"{self._which}(CASE WHEN {v} IS NOT NULL THEN named_struct('ts', {event_us}, 'v', {v}) END)"
        return {"ts": f"{pair}.ts", "v": f"{pair}.v"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        v = pl.col(self.column.name)
        return [pl.when(v.is_not_null()).then(pl.col(event_us)).alias(self.part("ts")), v.alias(self.part("v"))]

    def merge(self) -> Sequence[pl.Expr]:
        ts, v = pl.col(self.part("ts")), pl.col(self.part("v"))
        extreme_ts = ts.min() if self._which == "min" else ts.max()
        return [extreme_ts, extreme_value(v.filter(ts == extreme_ts), self._which, self.column).alias(self.part("v"))]


class ValueBy(_OneValue):
    """The aggregation min_by or max_by. Its accumulators `by` and `v` are the smallest or largest (`by`, value).

    As in Spark, rows whose `by` is NULL are skipped. A value may be NULL, which is smaller than all other values.
    """

    @property
    def _which(self) -> str:
        return self.spec.agg.removesuffix("_by")

    @property
    def _by(self) -> Field:
        return self.columns[1]

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"by": self._by.polars, "v": self.column.polars}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        v, by = quote_identifier(self.column.name), quote_identifier(self._by.name)
        pair = f"{self._which}(CASE WHEN {by} IS NOT NULL THEN named_struct('by', {by}, 'v', {v}) END)"
        return {"by": f"{pair}.by", "v": f"{pair}.v"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        v, by = pl.col(self.column.name), pl.col(self._by.name)
        return [by.alias(self.part("by")), pl.when(by.is_not_null()).then(v).alias(self.part("v"))]

    def merge(self) -> Sequence[pl.Expr]:
        by, v = pl.col(self.part("by")), pl.col(self.part("v"))
        extreme_by = extreme_value(by, self._which, self._by)
        tied = v.filter(by == extreme_by)
        value = extreme_value(tied, self._which, self.column)
        if self._which == "min":
            value = pl.when(tied.null_count() == 0).then(value)
        return [extreme_by, value.alias(self.part("v"))]
