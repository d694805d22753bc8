"""var and stddev of a sample, as Spark's `variance` and `stddev`: one value has none.

Accumulators are `n`, `mean` and `m2`, the sum of squared distances from the mean. Parts are merged by the formula of Chan,
Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances", 1979), for any number of
parts at once:

    n = Σ nᵢ     mean = Σ nᵢ meanᵢ / n     m2 = Σ m2ᵢ + Σ nᵢ (meanᵢ - mean)²

so that squares of large values are never subtracted from each other. However rows are batched, the variance agrees within
a relative n·2⁻⁵²·√(1 + mean²/var).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from slackwater.core.schema import Field
from slackwater.windows.aggregations.columns import quote
from slackwater.windows.aggregations.kind import Kind
from slackwater.windows.aggregations.totals import counted_by


class Moments(Kind):
    """`n`, `mean` (NULL without values), `m2`."""

    number = True

    @property
    def output(self) -> Field:
        return Field(self.name, "double")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "mean": pl.Float64(), "m2": pl.Float64()}

    def lift_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote(self.column.name)
        wide = f"CAST({v} AS DOUBLE)"
        return {"n": f"count({v})", "mean": f"avg({wide})", "m2": f"coalesce(var_pop({wide}) * count({v}), 0D)"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        value = pl.col(self.column.name)
        return [
            counted_by(self.column.name).alias(self.part("n")),
            value.cast(pl.Float64).alias(self.part("mean")),
            pl.lit(0.0).alias(self.part("m2")),
        ]

    def merge(self) -> Sequence[pl.Expr]:
        n, mean, m2 = (pl.col(self.part(p)) for p in ("n", "mean", "m2"))
        near = mean.drop_nulls().first()  # means are added as distances from one of them: they are small
        whole = near + (n * (mean - near)).sum() / n.sum()
        return [n.sum(), whole.alias(self.part("mean")), m2.sum() + (n * (mean - whole) ** 2).sum()]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        n, m2 = frame[self.part("n")], frame[self.part("m2")]
        variance = m2.set(n < 2, None) / (n - 1)
        return variance.sqrt() if self.spec.agg == "stddev" else variance
