"""Restoring accumulators from results in a target, to correct windows that have left the state.

The accumulators of an aggregation can be restored only if the results contain enough values. A stored sum of
floating-point numbers was rounded once. A correction continues with the rounded sum.

stored   n = 3, total = 12, mean = 4.0, first = 'a'
n ─▶ `n`     total ─▶ `n`, `hi`, `lo`     mean: needs a sum and a count of its column     first: its time is not stored
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from slackwater.windows.aggregations.collected_values import CollectSet
from slackwater.windows.aggregations.extremes import Extreme
from slackwater.windows.aggregations.floats import FloatTotal
from slackwater.windows.aggregations.kind import AggregationKind
from slackwater.windows.aggregations.totals import Count, DecimalTotal, IntegerTotal

_LOW = (1 << 32) - 1
_TOTALS = (IntegerTotal, FloatTotal, DecimalTotal)


def find_unrestorable_aggregations(aggs: Sequence[AggregationKind]) -> list[str]:
    """Return the aggregations whose accumulators cannot be restored from results, formatted like `"mean" (avg)`."""
    return [f'"{a.name}" ({a.spec.agg})' for a in aggs if not _is_restorable(a, aggs)]


def restore_accumulators(aggs: Sequence[AggregationKind], rows: pl.DataFrame) -> pl.DataFrame:
    """Restore accumulators from results (`rows`, with the output columns); NULL if they cannot be restored."""
    types: dict[str, pl.DataType] = {name: dtype for a in aggs for name, dtype in a.accumulators.items()}
    exprs = {e.meta.output_name(): e for a in aggs if _is_restorable(a, aggs) for e in _parts(a, aggs)}
    return rows.select(exprs.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in types.items())


def _is_restorable(agg: AggregationKind, aggs: Sequence[AggregationKind]) -> bool:
    """Return whether the accumulators of an aggregation can be restored from results with the columns of all `aggs`."""
    if isinstance(agg, _TOTALS) and any(a.spec.on_overflow == "null" for a in aggs if a.columns[:1] == agg.columns[:1]):
        return isinstance(agg, FloatTotal) and agg.spec.agg == "sum"  # NULL may mean that the sum overflowed
    if isinstance(agg, _TOTALS) and agg.spec.agg == "avg":
        return _find_output(aggs, agg, "sum") is not None and _find_output(aggs, agg, "count") is not None
    return isinstance(agg, Count | Extreme | CollectSet | IntegerTotal | FloatTotal | DecimalTotal)


def _find_output(aggs: Sequence[AggregationKind], agg: AggregationKind, which: str) -> str | None:
    """Return the output column of the aggregation `which` ("sum" or "count") over the same column as `agg`, or None."""
    return next((a.name for a in aggs if a.spec.agg == which and a.columns[:1] == agg.columns[:1]), None)


def _parts(agg: AggregationKind, aggs: Sequence[AggregationKind]) -> Iterator[pl.Expr]:
    if isinstance(agg, Count | Extreme | CollectSet):
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
