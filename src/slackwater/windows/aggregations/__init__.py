"""Aggregations: how each becomes accumulators (lift), how those combine (merge) and what comes out (finish).

    rows ── lift ──▶ accumulators ── merge ──▶ accumulators ── finish ──▶ one output column
            in Spark SQL per pane, or in Polars per row

An accumulator is one column named `<as>.<part>`. Every merge is associative and commutative, so no answer depends on
the order of arrival or on how rows are batched. All but `count(*)` skip NULLs; order is Spark's (NaN above all).

| aggregation                 | accumulators                                               | module      |
|-----------------------------|------------------------------------------------------------|-------------|
| count, count(col)           | `n`                                                        | `totals`    |
| sum, avg of integers        | `n`, `hi`, `lo`: the sum in 96 bits, `hi * 2^32 + lo`      | `totals`    |
| sum, avg of floats          | `n`, `sum`, `rest`, `limbs`: the sum without loss          | `floats`    |
| sum, avg of decimals        | `n`, `sum` (ten more digits, as in Spark; NULL: too many)  | `totals`    |
| var, stddev                 | the same, and of the squares: `square_sum` and so on       | `floats`    |
| min, max                    | `v`                                                        | `extremes`  |
| first, last                 | `ts`, `v`: the smallest (largest) pair of time and value   | `extremes`  |
| min_by, max_by              | `by`, `v`: the smallest (largest) pair of both             | `extremes`  |
| count_distinct              | `set`: HLL coupons (approximate), or the values (exact)    | `sets`      |
| collect_set                 | `set`: the values                                          | `sets`      |
| collect_list                | `ts`, `values`: side by side                               | `lists`     |
| top_k                       | `values`, `counts`: side by side                           | `lists`     |
| approx_quantile             | `nans`, `values`, `sketch`: a buffer and a KLL sketch      | `quantiles` |
| a class derived from `Aggregator` | as it declares                                       | `custom`    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.config.aggregator import UnfitError
from slackwater.core.arrays import Int64s
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.windows.aggregations.columns import AggregationInput, normalised_sql, normalize_columns, quote_column
from slackwater.windows.aggregations.custom import custom_kind
from slackwater.windows.aggregations.extremes import Extreme, FirstLast, ValueBy
from slackwater.windows.aggregations.floats import Moments, total_kind
from slackwater.windows.aggregations.kind import AggregationKind
from slackwater.windows.aggregations.lists import CollectList, TopK
from slackwater.windows.aggregations.quantiles import Quantile
from slackwater.windows.aggregations.sets import ApproximateDistinct, CollectSet, ExactDistinct
from slackwater.windows.aggregations.totals import Count

Make = Callable[[Aggregation, tuple[Field, ...], tuple[str, ...]], AggregationKind]


def _distinct(spec: Aggregation, columns: tuple[Field, ...], keys: tuple[str, ...]) -> AggregationKind:
    return (ExactDistinct if spec.mode == "exact" else ApproximateDistinct)(spec, columns, keys)


KINDS: Mapping[str, Make] = {
    "count": Count,
    "sum": total_kind,
    "avg": total_kind,
    "var": Moments,
    "stddev": Moments,
    "min": Extreme,
    "max": Extreme,
    "first": FirstLast,
    "last": FirstLast,
    "min_by": ValueBy,
    "max_by": ValueBy,
    "count_distinct": _distinct,
    "collect_set": CollectSet,
    "collect_list": CollectList,
    "top_k": TopK,
    "approx_quantile": Quantile,
}


@dataclass(frozen=True)
class Agg:
    """One aggregation of a compiled window: its spec, the type of its column (None for `count(*)`), and of further columns.

    `keys` are the names of the window's keys. `is_former`: with the accumulators that earlier versions kept. Raises StartError for columns that do not fit.
    """

    spec: Aggregation
    column: Field | None
    more: tuple[Field, ...] = ()
    keys: tuple[str, ...] = ()
    is_former: bool = False
    kind: AggregationKind = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        columns = (self.column, *self.more) if self.column is not None else self.more
        make = KINDS[self.spec.agg] if self.spec.builtin else custom_kind
        try:
            kind = make(self.spec, columns, self.keys)
        except UnfitError as unfit:
            raise StartError(f'aggregation "{self.name}": {unfit}') from None
        problem = kind.problem()
        if problem is not None:
            raise StartError(f'aggregation "{self.name}": {problem}')
        if self.is_former and (former := kind.former()) is not None:
            kind = former
        object.__setattr__(self, "kind", kind)

    @property
    def name(self) -> str:
        return self.spec.as_

    @property
    def inputs(self) -> tuple[AggregationInput, ...]:
        """The columns that rows must carry for it."""
        return self.kind.inputs

    @property
    def output(self) -> Field:
        """The output column, with the types of section 8 of the semantics."""
        return self.kind.output

    @property
    def accumulators(self) -> dict[str, pl.DataType]:
        """Name and type of each accumulator column."""
        return {self.kind.part(part): dtype for part, dtype in self.kind.parts.items()}

    def lift_sql(self, event_us: str) -> dict[str, str] | None:
        """Spark SQL aggregates over the input columns and `sql_columns`, by name; None if there is no such form."""
        sql_by_part = self.kind.lift_sql(event_us)
        return None if sql_by_part is None else {self.kind.part(part): sql for part, sql in sql_by_part.items()}

    @property
    def sql_columns(self) -> Sequence[str]:
        """Columns in Spark SQL that `lift_sql` reads, over the inputs; each may read those before it."""
        return self.kind.sql_columns

    @property
    def sql_groups(self) -> Sequence[str]:
        """Those of `sql_columns` by which Spark groups, besides key and pane."""
        return self.kind.sql_groups

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Spark SQL aggregates that aggregations of one column share, by name."""
        return self.kind.sql_sums

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """The accumulators of groups, from what Spark made of `lift_sql`."""
        return self.kind.from_sql(rows)

    def as_written(self, fingerprint: object) -> Agg:
        """The aggregation as a state holds it that has this fingerprint of it: as today, or as earlier versions kept it."""
        former = replace(self, is_former=True)
        return former if former.fingerprint() == fingerprint else self

    def from_former(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """The accumulators, from those that earlier versions kept."""
        return self.kind.from_former(rows)

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """The accumulators of single rows: expressions over a frame that holds the input columns."""
        return self.kind.lift(rows, event_us)

    def merge(self) -> Sequence[pl.Expr]:
        """The accumulators of a group, for `group_by(…).agg(…)` over frames of accumulators; `settle` comes after."""
        return self.kind.merge()

    def fold(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """What `merge` gives for groups that stand together and begin at `heads`, by plain arrays; none where they do not do."""
        return self.kind.fold(frame, heads)

    def settle(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Merged accumulators in their lasting form."""
        return self.kind.settle(frame)

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """The output column of a frame of accumulators. Raises ValueRangeError where a value does not fit its type."""
        return self.kind.finish(frame).alias(self.name)

    def neutral(self) -> pl.DataFrame:
        """One row: the accumulators of no rows, with which an aggregation begins that is added to a state."""
        return self.kind.neutral()

    def check_bound(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if a group outgrew the bound of its values, ValueRangeError if its result cannot be told."""
        self.kind.check_bound(frame, pipeline)

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """The groups whose result does not fit its type, and is NULL (`on_overflow`); None for none of them."""
        return self.kind.overflowed(frame)

    def fingerprint(self) -> str:
        """What its accumulators depend on, readable."""
        return self.kind.fingerprint()


__all__ = ["KINDS", "Agg", "AggregationInput", "AggregationKind", "normalised_sql", "normalize_columns", "quote_column"]
