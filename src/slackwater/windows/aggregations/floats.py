"""sum, avg, var and stddev of floating-point numbers, from exact totals: bit-identical for any order and batching.

    sum       the exact total, rounded once                avg        the sum divided by n
    var       (n Σx² - (Σx)²) / (n (n - 1)), exact difference, rounded once (sample variance, like Spark's `variance`)
    stddev    the square root of var

NaN, or infinities of both signs, make the result NaN. An infinite value makes the sum infinite and the variance NaN, as
in Spark. A result of zero is 0.0, never -0.0. An intermediate total may exceed the largest double. If the final total
exceeds it, the sum is infinite, but the average is finite.

The `Legacy…` kinds read states of earlier versions, which the next start converts. These states contain sums added by
Spark, and moments by the formula of Chan, Golub and LeVeque (1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s
from slackwater.windows.aggregations.aggregate_function import AggregateFunction
from slackwater.windows.aggregations.exact_float_sum import TYPES, ExactFloatSum, GridSumSql, round_to_double
from slackwater.windows.aggregations.totals import DecimalTotal, IntegerTotal, SumKind, count_flag


class FloatTotal(SumKind):
    """The aggregation sum or avg. Its accumulators are `n` and an exact total."""

    OUTPUT = "double"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), **TYPES}

    @property
    def total(self) -> ExactFloatSum:
        return ExactFloatSum(*map(self.part, TYPES))

    @property
    def _grid(self) -> GridSumSql:
        return GridSumSql(quote_identifier(self.column.name), f"__{self.column.name}")

    @property
    def sql_columns(self) -> Sequence[str]:
        return self._grid.columns

    @property
    def sql_groups(self) -> Sequence[str]:
        return [self._grid.outside]

    @property
    def sql_sums(self) -> Mapping[str, str]:
        return self._grid.sums

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"n": f"count({quote_identifier(self.column.name)})"}

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        n, parts = rows[self.part("n")], [rows[name] for name in self._grid.sums]
        return [n, *self.total.from_grid_sums(n, rows[self._grid.outside], parts)]

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        return [count_flag(self.column.name).alias(self.part("n")), *self.total.from_values(rows[self.column.name])]

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        return [sum_counts(frame, self.part("n"), heads), *self.total.merge_adjacent(frame, heads)]

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        averages = super()._average(frame, n)
        beyond = (averages.is_infinite() & frame[self.total.limbs].is_not_null()).fill_null(False)
        if not beyond.any():
            return averages
        some = frame.filter(beyond)
        values = [round_to_double(t / k) for t, k in zip(self.total.fractions(some), some[self.part("n")], strict=True)]
        return averages.scatter(beyond.arg_true(), values)

    def legacy_form(self) -> AggregateFunction:
        return LegacyFloatTotal(self.spec, self.columns, self.keys)

    def from_legacy(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        return [rows[self.part("n")], *self.total.from_values(rows[self.part("sum")])]

    def details(self) -> list[str]:
        return ["lossless"]


class LegacyFloatTotal(SumKind):
    """The aggregation sum or avg in states of earlier versions: `n`, and a sum that was rounded at every addition."""

    OUTPUT = "double"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "sum": pl.Float64()}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        total = pl.col(self.column.name).cast(pl.Float64).fill_null(0)
        return [count_flag(self.column.name).alias(self.part("n")), total.alias(self.part("sum"))]


class _Moments(AggregateFunction):
    """Base class of var and stddev."""

    NUMERIC = True
    OUTPUT = "double"

    def _from_variance(self, variance: pl.Series) -> pl.Series:
        return variance.sqrt() if self.spec.agg == "stddev" else variance


class Moments(_Moments):
    """The aggregation var or stddev. Its accumulators are `n`, a total of the values, and a total of their squares."""

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), **TYPES, **{f"square_{part}": dtype for part, dtype in TYPES.items()}}

    @property
    def total(self) -> ExactFloatSum:
        return ExactFloatSum(*map(self.part, TYPES))

    @property
    def squares(self) -> ExactFloatSum:
        return ExactFloatSum(*(self.part(f"square_{part}") for part in TYPES))

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        n, values = count_flag(self.column.name).alias(self.part("n")), rows[self.column.name]
        return [n, *self.total.from_values(values), *self.squares.from_squares(values)]

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        return [
            sum_counts(frame, self.part("n"), heads),
            *self.total.merge_adjacent(frame, heads),
            *self.squares.merge_adjacent(frame, heads),
        ]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        from slackwater.core import exact_sum_loops

        total, squares = self.total, self.squares
        n = np.array(frame[self.part("n")])
        sums, rests = np.array(frame[total.sum]), np.array(frame[total.rest])
        square_sums, square_rests = np.array(frame[squares.sum]), np.array(frame[squares.rest])
        variances = np.empty(len(n))
        inexact = exact_sum_loops.write_variances(n, sums, rests, square_sums, square_rests, variances)
        if frame[squares.limbs].null_count() < len(n):
            some = frame[squares.limbs].is_not_null() & frame[total.limbs].is_null() & pl.Series(n > 1)
            wide = np.array(some.arg_true(), dtype=np.int64)
            limbs, offsets = squares.read_limbs(frame[wide])
            rest = exact_sum_loops.compute_wide_variances(wide, n, sums, rests, offsets, limbs, variances)
            inexact = np.union1d(np.setdiff1d(inexact, wide), rest)
        if frame[total.limbs].null_count() < len(n):
            wide = np.array(frame[total.limbs].is_not_null().arg_true(), dtype=np.int64)
            inexact = np.union1d(inexact, wide[n[wide] > 1])
        result = self._from_variance(pl.Series(self.name, variances))
        if len(inexact):
            result = result.scatter(inexact, [self._extreme(*group) for group in self._exact(frame[inexact])])
        return result.set(pl.Series(n < 2), None)

    def _exact(self, frame: pl.DataFrame) -> list[tuple[int, Fraction | None, Fraction | None]]:
        """Return `n` and both totals of each group. A total is None if not all values are finite."""

        def totals(total: ExactFloatSum) -> list[Fraction | None]:
            sound = (frame[total.sum].is_finite() | frame[total.limbs].is_not_null()).to_list()
            exact = iter(total.fractions(frame.filter(pl.Series(sound, dtype=pl.Boolean))))
            return [next(exact) if is_sound else None for is_sound in sound]

        return list(zip(frame[self.part("n")].to_list(), totals(self.total), totals(self.squares), strict=True))

    def _extreme(self, n: int, total: Fraction | None, squares: Fraction | None) -> float:
        if total is None:
            return float("nan")
        if squares is None:  # only states of earlier versions contain infinite squares
            return float("inf")
        variance = (n * squares - total * total) / (n * (n - 1))
        if self.spec.agg == "var":
            return round_to_double(variance)
        half = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
        # the variance itself may exceed the largest double
        scaled = math.sqrt(round_to_double(variance / Fraction(4) ** half))
        return round_to_double(Fraction(scaled) * Fraction(2) ** half)

    def legacy_form(self) -> AggregateFunction:
        return LegacyMoments(self.spec, self.columns, self.keys)

    def from_legacy(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Convert `mean` and `m2` to totals with the same variance: a sum n * mean, and squares m2 + n * mean²."""
        n, mean, m2 = (rows[self.part(part)] for part in ("n", "mean", "m2"))
        square, total = pl.DataFrame(self.squares.from_squares(mean)), self.squares
        parts = [total.times(n, square[total.sum]), total.times(n, square[total.rest]), total.from_values(m2)]
        return [n, *self.total.times(n, mean), *total.add(parts)]

    def details(self) -> list[str]:
        return ["lossless"]


class LegacyMoments(_Moments):
    """The aggregation var or stddev in states of earlier versions.

    Its accumulators are `n`, `mean` (NULL without values), and `m2`, the sum of squared deviations.
    """

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "mean": pl.Float64(), "m2": pl.Float64()}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        value = pl.col(self.column.name)
        return [
            count_flag(self.column.name).alias(self.part("n")),
            value.cast(pl.Float64).alias(self.part("mean")),
            pl.lit(0.0).alias(self.part("m2")),
        ]

    def merge(self) -> Sequence[pl.Expr]:
        n, mean, m2 = (pl.col(self.part(p)) for p in ("n", "mean", "m2"))
        near = mean.drop_nulls().first()  # adding small deviations from one of the means keeps precision
        whole = near + (n * (mean - near)).sum() / n.sum()
        return [n.sum(), whole.alias(self.part("mean")), m2.sum() + (n * (mean - whole) ** 2).sum()]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        n, m2 = frame[self.part("n")], frame[self.part("m2")]
        return self._from_variance(m2.set(n < 2, None) / (n - 1))


def sum_counts(frame: pl.DataFrame, column: str, heads: Int64s) -> pl.Series:
    """Sum a column of counts for each group of adjacent rows. `heads`: the position of the first row of each group."""
    return pl.Series(column, np.add.reduceat(frame[column].fill_null(0).to_numpy(), heads))


def total_kind(spec: Aggregation, columns: tuple[Field, ...] = (), keys: tuple[str, ...] = ()) -> AggregateFunction:
    """Return the kind that computes sum or avg for the type of its column."""
    kinds: dict[str, type[AggregateFunction]] = {
        **dict.fromkeys(schema.INTEGERS, IntegerTotal),
        "decimal": DecimalTotal,
    }
    return kinds.get(columns[0].base, FloatTotal)(spec, columns, keys)
