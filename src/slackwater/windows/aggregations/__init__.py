"""Aggregations: lifting rows into accumulators, merging accumulators, and finishing them into results.

    rows ── lift ──▶ accumulators ── merge ──▶ accumulators ── finish ──▶ one output column
            in Spark SQL per pane, or in Polars per row

An accumulator is one column named `<as>.<part>`. Every merge is associative and commutative, so no result depends on
the order of arrival or on how rows are batched. Every aggregation except `count(*)` skips NULLs. Values are ordered as
in Spark (NaN above all others).

| aggregation                 | accumulators                                               | module      |
|-----------------------------|------------------------------------------------------------|-------------|
| count, count(col)           | `n`                                                        | `totals`    |
| sum, avg of integers        | `n`, `hi`, `lo`: the sum in 96 bits, `hi * 2^32 + lo`      | `totals`    |
| sum, avg of floats          | `n`, `sum`, `rest`, `limbs`: the sum without loss          | `floats`    |
| sum, avg of decimals        | `n`, `sum` (ten more digits, as in Spark; NULL: overflow)  | `totals`    |
| var, stddev                 | as for floats, and for their squares: `square_sum`, …      | `floats`    |
| min, max                    | `v`                                                        | `extremes`  |
| first, last                 | `ts`, `v`: the smallest (largest) pair of time and value   | `extremes`  |
| min_by, max_by              | `by`, `v`: the smallest (largest) pair of `by` and value   | `extremes`  |
| count_distinct              | `set`: HLL coupons (approximate), or the values (exact)    | `sets`      |
| collect_set                 | `set`: the values                                          | `sets`      |
| collect_list                | `ts`, `values`: parallel lists                             | `lists`     |
| top_k                       | `values`, `counts`: parallel lists                         | `lists`     |
| approx_quantile             | `nans`, `values`, `sketch`: a buffer and a KLL sketch      | `quantiles` |
| a class derived from `Aggregator` | as it declares                                       | `custom`    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import AggregatorError
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s
from slackwater.errors import StartError, Topic
from slackwater.windows.aggregations.custom import custom_kind
from slackwater.windows.aggregations.extremes import Extreme, FirstLast, ValueBy
from slackwater.windows.aggregations.floats import Moments, total_kind
from slackwater.windows.aggregations.kind import AggregationInput, AggregationKind, normalization_sql, normalize_columns
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
    """One aggregation of a compiled window.

    Args:
        spec: The aggregation as configured.
        column: Its input column with its type; None for `count(*)`.
        more: Additional input columns.
        keys: The names of the window's key columns.
        is_former: Whether to use the accumulators that earlier versions stored.

    Raises StartError if the columns do not fit the aggregation.
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
        except AggregatorError as unfit:
            raise StartError(f'aggregation "{self.name}": {unfit}', Topic.SQL) from None
        problem = kind.problem()
        if problem is not None:
            raise StartError(f'aggregation "{self.name}": {problem}', Topic.SQL)
        if self.is_former and (previous := kind.legacy_form()) is not None:
            kind = previous
        object.__setattr__(self, "kind", kind)

    @property
    def name(self) -> str:
        return self.spec.as_

    @property
    def inputs(self) -> tuple[AggregationInput, ...]:
        """Return the columns that rows must carry for this aggregation."""
        return self.kind.inputs

    @property
    def output(self) -> Field:
        """Return the output column with its type."""
        return self.kind.output

    @property
    def accumulators(self) -> dict[str, pl.DataType]:
        """Return the name and type of each accumulator column."""
        return {self.kind.part(part): dtype for part, dtype in self.kind.parts.items()}

    def lift_sql(self, event_us: str) -> dict[str, str] | None:
        """Return Spark SQL aggregates over the inputs and `sql_columns`, by name; None if there is no SQL form.

        `event_us`: the SQL of the event time (µs).
        """
        sql_by_part = self.kind.lift_sql(event_us)
        return None if sql_by_part is None else {self.kind.part(part): sql for part, sql in sql_by_part.items()}

    @property
    def sql_columns(self) -> Sequence[str]:
        """Return the Spark SQL of the columns that `lift_sql` reads; each may refer to inputs and earlier columns."""
        return self.kind.sql_columns

    @property
    def sql_groups(self) -> Sequence[str]:
        """Return the `sql_columns` by which Spark groups in addition to key and pane."""
        return self.kind.sql_groups

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Return the Spark SQL aggregates, by name, that all aggregations of one column share."""
        return self.kind.sql_sums

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Build the accumulators of groups from the values that Spark computed for `lift_sql`."""
        return self.kind.from_sql(rows)

    def as_stored(self, fingerprint: object) -> Agg:
        """Return this aggregation with the accumulators, current or former, of a state with this fingerprint."""
        former = replace(self, is_former=True)
        return former if former.fingerprint() == fingerprint else self

    def from_legacy(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Convert accumulators stored by earlier versions."""
        return self.kind.from_legacy(rows)

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """Return the accumulators of individual rows: expressions over a frame with the input columns, or series."""
        return self.kind.lift(rows, event_us)

    def merge(self) -> Sequence[pl.Expr]:
        """Return expressions that merge the accumulators of a group, for `group_by(…).agg(…)`.

        Call `to_stored_form` on the result.
        """
        return self.kind.merge()

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """Merge the adjacent rows of each group, using plain arrays. Groups begin at `heads`.

        Returns an empty sequence if this aggregation needs `merge` instead.
        """
        return self.kind.merge_adjacent(frame, heads)

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Convert merged accumulators to the form in which they are stored."""
        return self.kind.to_stored_form(frame)

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Compute the output column from a frame of accumulators.

        Raises ValueRangeError if a value does not fit its type.
        """
        return self.kind.finish(frame).alias(self.name)

    def neutral(self) -> pl.DataFrame:
        """Return one row with the accumulators of zero rows.

        It is the initial value when an aggregation is added to an existing state.
        """
        return self.kind.neutral()

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if a group exceeds a limit, or ValueRangeError if its result does not fit its type."""
        self.kind.check_limit(frame, pipeline)

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """Return a mask of the groups whose result overflows its type and becomes NULL (`on_overflow`).

        None if no result overflows.
        """
        return self.kind.overflowed(frame)

    def fingerprint(self) -> str:
        """Return a readable string that covers everything the accumulators depend on."""
        return self.kind.fingerprint()


__all__ = [
    "KINDS",
    "Agg",
    "AggregationInput",
    "AggregationKind",
    "normalization_sql",
    "normalize_columns",
]
