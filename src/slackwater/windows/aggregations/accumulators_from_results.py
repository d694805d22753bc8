"""Restore accumulators from a target's finished values, to correct windows that have left the state.

An aggregation can be restored only if the target's rows contain enough values. A stored sum of floating-point numbers
was rounded once, and a correction continues with the rounded sum.

stored   n = 3, total = 12, mean = 4.0, first = 'a'
n ─▶ `n`     total ─▶ `n`, `hi`, `lo`     mean: from total and a count of its column     first: its time is not stored
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
    """Return the aggregations whose accumulators cannot be restored from a target row, formatted like `"mean" (avg)`."""
    return [f'"{a.name}" ({a.spec.agg})' for a in aggs if not _is_restorable(a, aggs)]


def restore_accumulators(aggs: Sequence[AggregationKind], rows: pl.DataFrame) -> pl.DataFrame:
    """Restore accumulators from target rows (the output columns); those of `find_unrestorable_aggregations` are NULL."""
    types: dict[str, pl.DataType] = {name: dtype for a in aggs for name, dtype in a.accumulators.items()}
    exprs = {e.meta.output_name(): e for a in aggs if _is_restorable(a, aggs) for e in _parts(a, aggs)}
    return rows.select(exprs.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in types.items())


def _is_restorable(agg: AggregationKind, aggs: Sequence[AggregationKind]) -> bool:
    """Return whether the accumulators of this aggregation can be restored from a target row."""
    if isinstance(agg, _TOTALS) and any(a.spec.on_overflow == "null" for a in aggs if a.columns[:1] == agg.columns[:1]):
        return isinstance(agg, FloatTotal) and agg.spec.agg == "sum"  # NULL may mean that the sum overflowed
    if isinstance(agg, _TOTALS) and agg.spec.agg == "avg":
        return _find_output(aggs, agg, "sum") is not None and _find_output(aggs, agg, "count") is not None
    return isinstance(agg, Count | Extreme | CollectSet | IntegerTotal | FloatTotal | DecimalTotal)


def _find_output(aggs: Sequence[AggregationKind], agg: AggregationKind, which: str) -> str | None:
    """Return the output column of an aggregation of kind `which` over the same column as `agg`.

    Return None if the window has no such aggregation.
    """
    return next((a.name for a in aggs if a.spec.agg == which and a.columns[:1] == agg.columns[:1]), None)


def _parts(agg: AggregationKind, aggs: Sequence[AggregationKind]) -> Iterator[pl.Expr]:
    if isinstance(agg, Count | Extreme | CollectSet):
        (name,) = agg.accumulators
        yield pl.col(agg.name).alias(name)
        return
    total, count = pl.col(_find_output(aggs, agg, "sum") or agg.name), _find_output(aggs, agg, "count")
    # a sum needs to know only whether there was any value
    n = total.is_not_null().cast(pl.Int64) if count is None else pl.col(count)
    yield n.alias(agg.part("n"))
    if isinstance(agg, IntegerTotal):
        yield (total.fill_null(0) // (1 << 32)).alias(agg.part("hi"))
        yield (total.fill_null(0) & _LOW).alias(agg.part("lo"))
    else:
        yield total.fill_null(0).alias(agg.part("sum"))
    if isinstance(agg, FloatTotal):
        yield pl.lit(0.0).alias(agg.part("rest"))
