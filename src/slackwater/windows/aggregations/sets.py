"""Aggregations of distinct values: their count (exact, or estimated by HLL), and the values themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.windows import hyperloglog
from slackwater.windows.aggregations.kind import (
    AggregationInput,
    AggregationKind,
    as_lists,
    check_group_size,
    concatenate_lists,
)


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
    """The aggregation collect_set: the distinct values in ascending order; an empty array if there are none."""

    @property
    def output(self) -> Field:
        return Field(self.name, f"array<{self.column.type}>")

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("set")].list.sort()  # Spark's own sets are unsorted

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        sizes = frame[self.part("set")].list.len()
        check_group_size(
            self, pipeline, sizes, "max_values_per_group", "distinct values", "raise it, or use count_distinct"
        )


class ApproximateDistinct(AggregationKind):
    """count_distinct with mode = "approximate"; the accumulator `set` holds HLL coupons."""

    @property
    def inputs(self) -> tuple[AggregationInput, ...]:
        return (AggregationInput(Field(f"{self.column.name}#hash", "bigint"), self.column, hashed=True),)

    OUTPUT = "bigint"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"set": pl.List(pl.Int32())}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {
            "set": f"collect_set({hyperloglog.coupon_sql(quote_identifier(self.inputs[0].field.name), self.spec.hll_precision)})"
        }

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        coupons = hyperloglog.hash_coupons(rows[self.inputs[0].field.name], self.spec.hll_precision)
        return [as_lists(coupons.alias(self.part("set")))]

    def merge(self) -> Sequence[pl.Expr]:
        return [hyperloglog.merge_sketches(pl.col(self.part("set")))]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return hyperloglog.estimate_distinct(frame[self.part("set")], self.spec.hll_precision)

    def details(self) -> list[str]:
        return [self.spec.mode or "approximate", str(self.spec.hll_precision)]
