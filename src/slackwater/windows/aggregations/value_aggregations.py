"""Aggregations whose results are input values.

One value is selected by min, max, first and last (by event time), min_by and max_by (by another column). In a tie, the
smallest or largest value wins. Therefore, no result depends on the order of arrival.

Several values are stored, up to a limit, by collect_set, collect_list, top_k, and count_distinct if it is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.windows.aggregations.aggregate_function import (
    AggregateFunction,
    check_group_size,
    concatenate_lists,
    find_extreme_value,
    wrap_values_in_lists,
)


class _OneValue(AggregateFunction):
    """Base class of aggregations that select one value, which is the accumulator `v`."""

    @property
    def output(self) -> Field:
        return Field(self.name, self.column.type)

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("v")]


class MinMax(_OneValue):
    """The aggregation min or max."""

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"v": self.column.polars}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"v": f"{self.spec.agg}({quote_identifier(self.column.name)})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        return [pl.col(self.column.name).alias(self.part("v"))]

    def merge(self) -> Sequence[pl.Expr]:
        return [find_extreme_value(pl.col(self.part("v")), self.spec.agg, self.column)]

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        """Return NumPy's `fmin` or `maximum`.

        NaN is the largest value. Therefore, max is NaN if any value is NaN, and min is NaN only if all values are NaN.
        """
        if self.column.base not in schema.INTEGERS and self.column.base not in schema.FLOATS:
            return {}
        return {"v": np.fmin if self.spec.agg == "min" else np.maximum}


class FirstLast(_OneValue):
    """The aggregation `first` or `last`. Its accumulators `ts` and `v` are the smallest or largest (time, value)."""

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
        return [
            extreme_ts,
            find_extreme_value(v.filter(ts == extreme_ts), self._which, self.column).alias(self.part("v")),
        ]


class MinByMaxBy(_OneValue):
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
        extreme_by = find_extreme_value(by, self._which, self._by)
        tied = v.filter(by == extreme_by)
        value = find_extreme_value(tied, self._which, self.column)
        if self._which == "min":
            value = pl.when(tied.null_count() == 0).then(value)
        return [extreme_by, value.alias(self.part("v"))]


class _Values(AggregateFunction):
    """Base class of aggregations that store the distinct values, in the accumulator `set`."""

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"set": pl.List(self.column.polars)}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"set": f"collect_set({quote_identifier(self.column.name)})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        return [wrap_values_in_lists(rows[self.column.name].alias(self.part("set")))]

    def merge(self) -> Sequence[pl.Expr]:
        return [concatenate_lists(self.part("set")).unique().sort()]


class ExactCountDistinct(_Values):
    """The aggregation count_distinct with mode = "exact"."""

    OUTPUT = "bigint"

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("set")].list.len().fill_null(0).cast(pl.Int64)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes, advice = frame[self.part("set")].list.len(), 'raise it or use mode = "approximate"'
        check_group_size(self, pipeline, sizes, "max_distinct_values_per_group", "distinct values", advice)

    def details(self) -> list[str]:
        return ["exact"]


class CollectSet(_Values):
    """The aggregation collect_set. It returns the distinct values in ascending order, or an empty array."""

    @property
    def output(self) -> Field:
        return Field(self.name, f"array<{self.column.type}>")

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("set")].list.sort()  # Spark returns unsorted sets

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes, advice = frame[self.part("set")].list.len(), "raise it, or use count_distinct"
        check_group_size(self, pipeline, sizes, "max_values_per_group", "distinct values", advice)


class CollectList(AggregateFunction):
    """The aggregation collect_list. Its accumulators `ts` and `values` are parallel lists in any order.

    The result is sorted by (event time, value).
    """

    @property
    def output(self) -> Field:
        return Field(self.name, f"array<{self.column.type}>")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"ts": pl.List(pl.Int64()), "values": pl.List(self.column.polars)}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        values = rows[self.column.name]
        times = rows[event_us].set(values.is_null(), None)
        return [
            wrap_values_in_lists(times.alias(self.part("ts"))),
            wrap_values_in_lists(values.alias(self.part("values"))),
        ]

    def merge(self) -> Sequence[pl.Expr]:
        return [concatenate_lists(self.part("ts")), concatenate_lists(self.part("values"))]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        ts, values = self.part("ts"), self.part("values")
        long = explode_lists(frame, ts, values).sort("__row", ts, values)
        return collect_lists(frame.height, long.group_by("__row", maintain_order=True).agg(values), values)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes = frame[self.part("values")].list.len()
        check_group_size(self, pipeline, sizes, "max_values_per_group", "values", "raise it, or use collect_set")


class TopK(AggregateFunction):
    """The aggregation top_k. Its accumulators are parallel lists: the distinct `values` and their `counts`."""

    @property
    def output(self) -> Field:
        return Field(self.name, f"array<struct<value:{self.column.type},count:bigint>>")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"values": pl.List(self.column.polars), "counts": pl.List(pl.Int64())}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        values = rows[self.column.name]
        once = pl.repeat(1, rows.height, dtype=pl.Int64, eager=True).set(values.is_null(), None)
        return [
            wrap_values_in_lists(values.alias(self.part("values"))),
            wrap_values_in_lists(once.alias(self.part("counts"))),
        ]

    def merge(self) -> Sequence[pl.Expr]:
        return [concatenate_lists(self.part("values")), concatenate_lists(self.part("counts"))]

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Merge equal values and add their counts."""
        values, counts = self.part("values"), self.part("counts")
        sizes = frame[values].list.len()
        if not isinstance(most := sizes.max(), int) or most < 2:
            return frame
        long = (
            explode_lists(frame, values, counts)
            .group_by("__row", values)
            .agg(pl.col(counts).sum())
            .sort("__row", values)
        )
        lists = long.group_by("__row", maintain_order=True).agg(values, counts)
        return frame.with_columns(collect_lists(frame.height, lists, part) for part in (values, counts))

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Return the k most frequent values of each group. Values of equal frequency are in ascending order."""
        values, counts = self.part("values"), self.part("counts")
        long = explode_lists(frame, values, counts).sort("__row", counts, values, descending=[False, True, False])
        pair = pl.struct(pl.col(values).alias("value"), pl.col(counts).alias("count")).head(self.spec.k or 1)
        return collect_lists(frame.height, long.group_by("__row", maintain_order=True).agg(pair.alias(values)), values)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes = frame[self.part("values")].list.len()
        check_group_size(self, pipeline, sizes, "max_distinct_values_per_group", "distinct values", "raise it")


def explode_lists(frame: pl.DataFrame, *lists: str) -> pl.DataFrame:
    """Explode parallel lists into one row per element. `__row` is the position of the original row."""
    return frame.select(*lists).with_row_index("__row").explode(*lists).drop_nulls()


def collect_lists(height: int, lists: pl.DataFrame, name: str) -> pl.Series:
    """Return the lists in the column `name` for rows 0 to `height` - 1, by `__row`. Missing rows have empty lists."""
    rows = pl.DataFrame({"__row": pl.arange(height, dtype=pl.UInt32, eager=True)})
    return rows.join(lists.select("__row", name), on="__row", how="left", maintain_order="left")[name].fill_null([])
