"""Aggregations: lifting rows into accumulators, merging accumulators, and finishing them into results.

    rows ── lift ──▶ accumulators ── merge ──▶ accumulators ── finish ──▶ one output column
            in Spark SQL per pane, or in Polars per row

The accumulators of an aggregation are one or more columns named `<as>.<part>`. Every merge is associative and
commutative. Therefore, no result depends on the order of arrival or on how rows are batched. Every aggregation except
`count(*)` skips NULLs. Values are ordered as in Spark: NaN is the largest value.

| aggregation                 | accumulators                                               | module             |
|-----------------------------|------------------------------------------------------------|--------------------|
| count, count(col)           | `n`                                                        | `totals`           |
| sum, avg of integers        | `n`, `hi`, `lo`: the sum in 96 bits, `hi * 2^32 + lo`      | `totals`           |
| sum, avg of floats          | `n`, `sum`, `rest`, `limbs`: the sum without loss          | `floats`           |
| sum, avg of decimals        | `n`, `sum` (ten more digits, as in Spark; NULL: overflow)  | `totals`           |
| var, stddev                 | those of a float sum, and `square_sum`, … for the squares  | `floats`           |
| min, max                    | `v`                                                        | `extremes`         |
| first, last                 | `ts`, `v`: the smallest (largest) pair of time and value   | `extremes`         |
| min_by, max_by              | `by`, `v`: the smallest (largest) pair of `by` and value   | `extremes`         |
| count_distinct, exact       | `set`: the values                                          | `collected_values` |
| count_distinct, approximate | `set`: HLL coupons                                         | `sketches`         |
| collect_set                 | `set`: the values                                          | `collected_values` |
| collect_list                | `ts`, `values`: parallel lists                             | `collected_values` |
| top_k                       | `values`, `counts`: parallel lists                         | `collected_values` |
| approx_quantile             | `nans`, `values`, `sketch`: a buffer and a KLL sketch      | `sketches`         |
| a class derived from `Aggregator` | the ones that the class declares                     | `custom`           |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import AggregatorError
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
from slackwater.windows.aggregations.collected_values import CollectList, CollectSet, ExactDistinct, TopK
from slackwater.windows.aggregations.custom import custom_kind
from slackwater.windows.aggregations.extremes import Extreme, FirstLast, ValueBy
from slackwater.windows.aggregations.floats import Moments, total_kind
from slackwater.windows.aggregations.kind import AggregationInput, AggregationKind, normalization_sql, normalize_columns
from slackwater.windows.aggregations.sketches import ApproximateDistinct, Quantile
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


def bind_aggregation(
    spec: Aggregation, column: Field | None, more: Sequence[Field] = (), keys: Sequence[str] = ()
) -> AggregationKind:
    """Bind an aggregation of a window to its columns.

    Args:
        spec: The aggregation as configured.
        column: The input column; None for `count(*)`.
        more: Additional input columns.
        keys: The names of the window's key columns.

    Raises StartError if the columns do not fit the aggregation.
    """
    columns = (column, *more) if column is not None else tuple(more)
    make = KINDS[spec.agg] if spec.builtin else custom_kind
    try:
        kind = make(spec, columns, tuple(keys))
    except AggregatorError as unfit:
        raise StartError(f'aggregation "{spec.as_}": {unfit}', Topic.SQL) from None
    problem = kind.problem()
    if problem is not None:
        raise StartError(f'aggregation "{spec.as_}": {problem}', Topic.SQL)
    return kind


__all__ = [
    "KINDS",
    "AggregationInput",
    "AggregationKind",
    "bind_aggregation",
    "normalization_sql",
    "normalize_columns",
]
