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
| min, max                    | `v`                                                        | `values`           |
| first, last                 | `ts`, `v`: the smallest (largest) pair of time and value   | `values`           |
| min_by, max_by              | `by`, `v`: the smallest (largest) pair of `by` and value   | `values`           |
| count_distinct, exact       | `set`: the values                                          | `values`           |
| count_distinct, approximate | `set`: HLL coupons                                         | `sketches`         |
| collect_set                 | `set`: the values                                          | `values`           |
| collect_list                | `ts`, `values`: parallel lists                             | `values`           |
| top_k                       | `values`, `counts`: parallel lists                         | `values`           |
| approx_quantile             | `nans`, `values`, `sketch`: a buffer and a KLL sketch      | `sketches`         |
| a class derived from `Aggregator` | the ones that the class declares                     | `custom`           |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import AggregatorError
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
from slackwater.windows.aggregations.aggregate_function import (
    AggregateFunction,
    AggregationInput,
    normalization_sql,
    normalize_columns,
)
from slackwater.windows.aggregations.custom import custom_kind
from slackwater.windows.aggregations.floats import FloatTotal, Moments, total_kind
from slackwater.windows.aggregations.sketches import ApproximateDistinct, Quantile
from slackwater.windows.aggregations.totals import Count, DecimalTotal, IntegerTotal
from slackwater.windows.aggregations.value_aggregations import (
    CollectList,
    CollectSet,
    ExactCountDistinct,
    FirstLast,
    MinByMaxBy,
    MinMax,
    TopK,
)

_LOW = (1 << 32) - 1
_TOTALS = (IntegerTotal, FloatTotal, DecimalTotal)
Make = Callable[[Aggregation, tuple[Field, ...], tuple[str, ...]], AggregateFunction]


def _distinct(spec: Aggregation, columns: tuple[Field, ...], keys: tuple[str, ...]) -> AggregateFunction:
    return (ExactCountDistinct if spec.mode == "exact" else ApproximateDistinct)(spec, columns, keys)


KINDS: Mapping[str, Make] = {
    "count": Count,
    "sum": total_kind,
    "avg": total_kind,
    "var": Moments,
    "stddev": Moments,
    "min": MinMax,
    "max": MinMax,
    "first": FirstLast,
    "last": FirstLast,
    "min_by": MinByMaxBy,
    "max_by": MinByMaxBy,
    "count_distinct": _distinct,
    "collect_set": CollectSet,
    "collect_list": CollectList,
    "top_k": TopK,
    "approx_quantile": Quantile,
}


def bind_aggregation(
    spec: Aggregation, column: Field | None, more: Sequence[Field] = (), keys: Sequence[str] = ()
) -> AggregateFunction:
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


# -- restoring accumulators from results -------------------------------------------------------------------------------


def find_unrestorable_aggregations(aggs: Sequence[AggregateFunction]) -> list[str]:
    """Return the aggregations whose accumulators cannot be restored from results, formatted like `"mean" (avg)`."""
    return [f'"{a.name}" ({a.spec.agg})' for a in aggs if not _is_restorable(a, aggs)]


def restore_accumulators(aggs: Sequence[AggregateFunction], rows: pl.DataFrame) -> pl.DataFrame:
    """Restore accumulators from results (`rows`, with the output columns), to correct windows that have left the state.

    Accumulators that cannot be restored are NULL. A stored sum of floating-point numbers was rounded once. A correction
    continues with the rounded sum.

    stored   n = 3, total = 12, mean = 4.0, first = 'a'
    n ─▶ `n`    total ─▶ `n`, `hi`, `lo`    mean: needs a sum and a count of its column    first: its time is not stored
    """
    types: dict[str, pl.DataType] = {name: dtype for a in aggs for name, dtype in a.accumulators.items()}
    exprs = {e.meta.output_name(): e for a in aggs if _is_restorable(a, aggs) for e in _restored_parts(a, aggs)}
    return rows.select(exprs.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in types.items())


def _is_restorable(agg: AggregateFunction, aggs: Sequence[AggregateFunction]) -> bool:
    """Return whether the accumulators of an aggregation can be restored from results with the columns of all `aggs`."""
    if isinstance(agg, _TOTALS) and any(a.spec.on_overflow == "null" for a in aggs if a.columns[:1] == agg.columns[:1]):
        return isinstance(agg, FloatTotal) and agg.spec.agg == "sum"  # NULL may mean that the sum overflowed
    if isinstance(agg, _TOTALS) and agg.spec.agg == "avg":
        return _find_output(aggs, agg, "sum") is not None and _find_output(aggs, agg, "count") is not None
    return isinstance(agg, Count | MinMax | CollectSet | IntegerTotal | FloatTotal | DecimalTotal)


def _find_output(aggs: Sequence[AggregateFunction], agg: AggregateFunction, which: str) -> str | None:
    """Return the output column of the aggregation `which` ("sum" or "count") over the same column as `agg`, or None."""
    return next((a.name for a in aggs if a.spec.agg == which and a.columns[:1] == agg.columns[:1]), None)


def _restored_parts(agg: AggregateFunction, aggs: Sequence[AggregateFunction]) -> Iterator[pl.Expr]:
    if isinstance(agg, Count | MinMax | CollectSet):
        (name,) = agg.accumulators
        yield pl.col(agg.name).alias(name)
        return
    total, count = pl.col(_find_output(aggs, agg, "sum") or agg.name), _find_output(aggs, agg, "count")
    # without a count, 1 stands for any number of values
    n = total.is_not_null().cast(pl.Int64) if count is None else pl.col(count)
    yield n.alias(agg.part("n"))
    if isinstance(agg, IntegerTotal):
        yield (total.fill_null(0) // (1 << 32)).alias(agg.part("hi"))
        yield (total.fill_null(0) & _LOW).alias(agg.part("lo"))
    else:
        yield total.fill_null(0).alias(agg.part("sum"))
    if isinstance(agg, FloatTotal):
        yield pl.lit(0.0).alias(agg.part("rest"))


__all__ = [
    "KINDS",
    "AggregateFunction",
    "AggregationInput",
    "bind_aggregation",
    "find_unrestorable_aggregations",
    "normalization_sql",
    "normalize_columns",
    "restore_accumulators",
]
