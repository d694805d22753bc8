"""Aggregations that store values, up to a limit: exact count_distinct, collect_set, collect_list and top_k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.windows.aggregations.kind import AggregationKind, as_lists, check_group_size, concatenate_lists


class _Values(AggregationKind):
    """Base class of aggregations that store distinct values. The accumulator has one part, `set`."""

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"set": pl.List(self.column.polars)}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"set": f"collect_set({quote_identifier(self.column.name)})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        return [as_lists(rows[self.column.name].alias(self.part("set")))]

    def merge(self) -> Sequence[pl.Expr]:
        return [concatenate_lists(self.part("set")).unique().sort()]


class ExactDistinct(_Values):
    """count_distinct with mode = "exact"."""

    OUTPUT = "bigint"

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("set")].list.len().fill_null(0).cast(pl.Int64)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        check_group_size(
            self,
            pipeline,
            frame[self.part("set")].list.len(),
            "max_distinct_values_per_group",
            "distinct values",
            'raise it or use mode = "approximate"',
        )

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
        sizes = frame[self.part("set")].list.len()
        check_group_size(
            self, pipeline, sizes, "max_values_per_group", "distinct values", "raise it, or use count_distinct"
        )


class CollectList(AggregationKind):
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
        return [as_lists(times.alias(self.part("ts"))), as_lists(values.alias(self.part("values")))]

    def merge(self) -> Sequence[pl.Expr]:
        return [concatenate_lists(self.part("ts")), concatenate_lists(self.part("values"))]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        ts, values = self.part("ts"), self.part("values")
        long = explode_lists(frame, ts, values).sort("__row", ts, values)
        return gather_lists(frame.height, long.group_by("__row", maintain_order=True).agg(values), values)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes = frame[self.part("values")].list.len()
        check_group_size(self, pipeline, sizes, "max_values_per_group", "values", "raise it, or use collect_set")


class TopK(AggregationKind):
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
        return [as_lists(values.alias(self.part("values"))), as_lists(once.alias(self.part("counts")))]

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
        return frame.with_columns(gather_lists(frame.height, lists, part) for part in (values, counts))

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Return the k most frequent values of each group. Values of equal frequency are in ascending order."""
        values, counts = self.part("values"), self.part("counts")
        long = explode_lists(frame, values, counts).sort("__row", counts, values, descending=[False, True, False])
        pair = pl.struct(pl.col(values).alias("value"), pl.col(counts).alias("count")).head(self.spec.k or 1)
        return gather_lists(frame.height, long.group_by("__row", maintain_order=True).agg(pair.alias(values)), values)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes = frame[self.part("values")].list.len()
        check_group_size(self, pipeline, sizes, "max_distinct_values_per_group", "distinct values", "raise it")


def explode_lists(frame: pl.DataFrame, *lists: str) -> pl.DataFrame:
    """Explode parallel lists to one row per element. `__row` is the position of the original row."""
    return frame.select(*lists).with_row_index("__row").explode(*lists).drop_nulls()


def gather_lists(height: int, lists: pl.DataFrame, name: str) -> pl.Series:
    """Return the lists in the column `name` for rows 0 to `height` - 1, by `__row`. Missing rows have empty lists."""
    rows = pl.DataFrame({"__row": pl.arange(height, dtype=pl.UInt32, eager=True)})
    return rows.join(lists.select("__row", name), on="__row", how="left", maintain_order="left")[name].fill_null([])
