"""The aggregations count, and sum and avg of integers and decimals.

Integer sums are exact in 96 bits (`hi * 2^32 + lo`). Decimal sums have ten additional digits.

If a result overflows its type, the epoch fails with an error that names the key, or the result is NULL (`on_overflow`).
Once a decimal sum has had more than 38 digits, its accumulator stays NULL.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.errors import ValueRangeError
from slackwater.windows.aggregations.aggregate_function import AggregateFunction

_LOW = (1 << 32) - 1
_DIGITS = 38  # precision of the widest decimal type


class Count(AggregateFunction):
    """The `count` aggregation. Its accumulator `n` is the number of rows, or of values that are not NULL."""

    OUTPUT = "bigint"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64()}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        return {"n": f"count({quote_identifier(self.column.name)})" if self.columns else "count(1)"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        counted = count_flag(self.column.name) if self.columns else pl.lit(1, pl.Int64)
        return [counted.alias(self.part("n"))]

    def neutral(self) -> pl.DataFrame:
        return pl.DataFrame({self.part("n"): [0]})

    def merge(self) -> Sequence[pl.Expr]:
        return [pl.col(self.part("n")).sum()]

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        return {"n": np.add}

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("n")]


class SumKind(AggregateFunction):
    """Base class of sum and avg. The accumulators are `n` and a total. Without values, the total is 0."""

    NUMERIC = True

    def merge(self) -> Sequence[pl.Expr]:
        return [pl.col(self.part(p)).sum() for p in self.parts]

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        return dict.fromkeys(self.parts, np.add)

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise ValueRangeError if the sum of a group overflows and `on_overflow` is not "null"."""
        if self.spec.on_overflow == "fail" and (beyond := self.overflowed(frame)) is not None:
            raise self._misfit(frame, beyond, f"{pipeline}: " if pipeline else "")

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        self.check_limit(frame, "")
        n = frame[self.part("n")]
        beyond = self.overflowed(frame)
        if beyond is not None:
            frame, n = frame.filter(~beyond), n.filter(~beyond)
        results = self._sum(frame, n) if self.spec.agg == "sum" else self._average(frame, n)
        if beyond is None:
            return results
        whole = pl.Series(self.name, [None], dtype=results.dtype).new_from_index(0, len(beyond))
        return whole.scatter((~beyond).arg_true(), results)

    def _misfit(self, frame: pl.DataFrame, beyond: pl.Series, prefix: str = "") -> ValueRangeError:
        first = frame.filter(beyond).head(1)
        keys = ", ".join(f"{k}={first[k][0]!r}" for k in self.keys if k in first.columns)
        noun = {"sum": "sum"}.get(self.spec.agg, "average")
        wide = "DOUBLE" if self.column.base == "decimal" else "DECIMAL(20,0)"
        return ValueRangeError(
            f'{prefix}aggregation "{self.name}": the {noun} of "{self.column.name}" does not fit '
            + self.output.type.upper()
            + (f" for {keys}" if keys else "")
            + (f" and {beyond.sum() - 1:,} more" if beyond.sum() > 1 else "")
            + f'; set on_overflow = "null" in the aggregation to emit NULL instead, or cast the column to {wide} in '
            "the SQL and rebuild the state"
        )

    def _sum(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        return frame[self.part("sum")].set(n == 0, None)

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        return self._sum(frame, n) / n


class IntegerTotal(SumKind):
    """The aggregation sum or avg of integers. Its accumulators are `n`, `hi` and `lo`."""

    @property
    def output(self) -> Field:
        return Field(self.name, "bigint" if self.spec.agg == "sum" else "double")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "hi": pl.Int64(), "lo": pl.Int64()}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote_identifier(self.column.name)
        wide = f"CAST({v} AS BIGINT)"
        return {
            "n": f"count({v})",
            "hi": f"coalesce(sum(shiftright({wide}, 32)), 0L)",
            "lo": f"coalesce(sum({wide} & {_LOW}L), 0L)",
        }

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        wide = pl.col(self.column.name).cast(pl.Int64).fill_null(0)
        return [
            count_flag(self.column.name).alias(self.part("n")),
            (wide // (1 << 32)).alias(self.part("hi")),
            (wide & _LOW).alias(self.part("lo")),
        ]

    def _halves(self, frame: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        low = frame[self.part("lo")]
        return frame[self.part("hi")] + low // (1 << 32), low & _LOW

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Reduce `lo` to 32 bits. Otherwise, it would overflow 64 bits after 2^31 rows."""
        hi, lo = self._halves(frame)
        return frame.with_columns(hi.alias(self.part("hi")), lo.alias(self.part("lo")))

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        if self.spec.agg != "sum":
            return None
        beyond = ~self._halves(frame)[0].is_between(-(1 << 31), (1 << 31) - 1)
        return beyond if beyond.any() else None

    def _sum(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        hi, lo = self._halves(frame)
        return (hi * (1 << 32) + lo).set(n == 0, None)

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        hi, lo = self._halves(frame)
        total = hi.cast(pl.Float64) * float(1 << 32) + lo.cast(pl.Float64)
        return total.set(n == 0, None) / n


class DecimalTotal(SumKind):
    """The aggregation sum or avg of decimals. Its accumulators are `n` and `sum`.

    As in Spark, `sum` has ten more digits than the input column.
    """

    @property
    def output(self) -> Field:
        precision, scale = self.column.decimal
        more, places = (10, 0) if self.spec.agg == "sum" else (4, 4)
        return Field(self.name, schema.decimal_type(precision + more, scale + places))

    @property
    def _wide(self) -> Field:
        precision, scale = self.column.decimal
        return Field(self.column.name, schema.decimal_type(precision + 10, scale))

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "sum": self._wide.polars}

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        return {}

    def parts_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote_identifier(self.column.name)
        # `sum` fails if 38 digits are not enough; `try_sum` returns NULL instead, but also without values
        total = f"CASE WHEN count({v}) = 0 THEN 0 ELSE try_sum({v}) END"
        return {"n": f"count({v})", "sum": f"CAST({total} AS {self._wide.type})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        total = pl.col(self.column.name).cast(self._wide.polars).fill_null(0)
        return [count_flag(self.column.name).alias(self.part("n")), total.alias(self.part("sum"))]

    def merge(self) -> Sequence[pl.Expr]:
        """Return expressions that add counts and sums. A sum with too many digits becomes NULL, and stays NULL."""
        digits, scale = self._wide.decimal
        total = pl.col(self.part("sum"))
        whole = total.sum()
        beyond = total.is_null().any() | (whole.to_physical().abs() >= pl.lit(10**digits, pl.Int128))
        if digits == _DIGITS:  # Polars computes with 128 bits, which overflow silently at 1.7 * 10^38
            beyond |= total.cast(pl.Float64).sum().abs() >= 1.5 * 10.0 ** (digits - scale)
        return [pl.col(self.part("n")).sum(), pl.when(~beyond).then(whole)]

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        lost = frame[self.part("sum")].is_null()  # `finish` checks whether an average fits
        if self.spec.on_overflow == "fail" and lost.any():
            raise self._misfit(frame, lost, f"{pipeline}: " if pipeline else "")

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        if self.spec.agg == "sum":
            beyond = frame[self.part("sum")].is_null()
        else:
            n = frame[self.part("n")]
            beyond = self._average(frame, n).is_null() & (n > 0)
        return beyond if beyond.any() else None

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        n = frame[self.part("n")]
        results = self._sum(frame, n) if self.spec.agg == "sum" else self._average(frame, n)
        beyond = results.is_null() & (n > 0)
        if self.spec.on_overflow == "fail" and beyond.any():
            raise self._misfit(frame, beyond)
        return results

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        """Return the averages as DECIMAL(p+4, s+4), rounded half up as in Spark.

        The computation is exact, but not vectorized. An average is NULL if its sum is NULL, or if the type has too few
        digits.
        """
        precision, scale = self.output.decimal
        context = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
        unit, end = decimal.Decimal(1).scaleb(-scale), decimal.Decimal(10) ** (precision - scale)

        def average(total: decimal.Decimal | None, n: int) -> decimal.Decimal | None:
            if n == 0 or total is None:
                return None
            quotient = context.quantize(context.divide(total, decimal.Decimal(n)), unit)
            return quotient if abs(quotient) < end else None

        values = [average(*group) for group in zip(frame[self.part("sum")].to_list(), n.to_list(), strict=True)]
        return pl.Series(self.name, values, dtype=self.output.polars)


def count_flag(column: str) -> pl.Expr:
    """Return an expression that is 1 for a value and 0 for NULL."""
    return pl.col(column).is_not_null().cast(pl.Int64)
