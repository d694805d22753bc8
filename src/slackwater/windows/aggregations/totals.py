"""count, sum and avg. Sums of integers are exact in 96 bits (`hi * 2^32 + lo`), those of decimals have ten more digits."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.core import schema
from slackwater.core.schema import Field
from slackwater.errors import ValueRangeError
from slackwater.windows.aggregations.columns import quote
from slackwater.windows.aggregations.kind import Kind

_LOW = (1 << 32) - 1


class Count(Kind):
    """`n`: rows, or values that are not NULL."""

    @property
    def output(self) -> Field:
        return Field(self.name, "bigint")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64()}

    def lift_sql(self, event_us: str) -> Mapping[str, str]:
        return {"n": f"count({quote(self.column.name)})" if self.columns else "count(1)"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        counted = counted_by(self.column.name) if self.columns else pl.lit(1, pl.Int64)
        return [counted.alias(self.part("n"))]

    def neutral(self) -> pl.DataFrame:
        return pl.DataFrame({self.part("n"): [0]})

    def merge(self) -> Sequence[pl.Expr]:
        return [pl.col(self.part("n")).sum()]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self.part("n")]


class _Total(Kind):
    """sum and avg: `n` and a total, which is 0 where there are no values."""

    number = True

    def merge(self) -> Sequence[pl.Expr]:
        return [pl.col(self.part(p)).sum() for p in self.parts]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        n = frame[self.part("n")]
        return self._sum(frame, n) if self.spec.agg == "sum" else self._average(frame, n)

    def _sum(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        return frame[self.part("sum")].set(n == 0, None)

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        return self._sum(frame, n) / n


class IntegerTotal(_Total):
    """`n`, `hi`, `lo`."""

    @property
    def output(self) -> Field:
        return Field(self.name, "bigint" if self.spec.agg == "sum" else "double")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "hi": pl.Int64(), "lo": pl.Int64()}

    def lift_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote(self.column.name)
        wide = f"CAST({v} AS BIGINT)"
        return {
            "n": f"count({v})",
            "hi": f"coalesce(sum(shiftright({wide}, 32)), 0L)",
            "lo": f"coalesce(sum({wide} & {_LOW}L), 0L)",
        }

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        wide = pl.col(self.column.name).cast(pl.Int64).fill_null(0)
        return [
            counted_by(self.column.name).alias(self.part("n")),
            (wide // (1 << 32)).alias(self.part("hi")),
            (wide & _LOW).alias(self.part("lo")),
        ]

    def _halves(self, frame: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        low = frame[self.part("lo")]
        return frame[self.part("hi")] + low // (1 << 32), low & _LOW

    def _sum(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        hi, lo = self._halves(frame)
        if not hi.is_between(-(1 << 31), (1 << 31) - 1).all():
            raise ValueRangeError(
                f'"{self.name}": a sum of {self.column.name} does not fit BIGINT; cast the column to DECIMAL or DOUBLE in the SQL'
            )
        return (hi * (1 << 32) + lo).set(n == 0, None)

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        hi, lo = self._halves(frame)
        total = hi.cast(pl.Float64) * float(1 << 32) + lo.cast(pl.Float64)
        return total.set(n == 0, None) / n


class FloatTotal(_Total):
    """`n`, `sum`."""

    @property
    def output(self) -> Field:
        return Field(self.name, "double")

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "sum": pl.Float64()}

    def lift_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote(self.column.name)
        return {"n": f"count({v})", "sum": f"coalesce(sum(CAST({v} AS DOUBLE)), 0D)"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        total = pl.col(self.column.name).cast(pl.Float64).fill_null(0)
        return [counted_by(self.column.name).alias(self.part("n")), total.alias(self.part("sum"))]


class DecimalTotal(_Total):
    """`n`, `sum` with ten more digits, as in Spark."""

    @property
    def output(self) -> Field:
        precision, scale = self.column.decimal
        more, places = (10, 0) if self.spec.agg == "sum" else (4, 4)
        return Field(self.name, schema.decimal(precision + more, scale + places))

    @property
    def _wide(self) -> Field:
        precision, scale = self.column.decimal
        return Field(self.column.name, schema.decimal(precision + 10, scale))

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"n": pl.Int64(), "sum": self._wide.polars}

    def lift_sql(self, event_us: str) -> Mapping[str, str]:
        v = quote(self.column.name)
        return {"n": f"count({v})", "sum": f"CAST(coalesce(sum({v}), 0) AS {self._wide.type})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr]:
        total = pl.col(self.column.name).cast(self._wide.polars).fill_null(0)
        return [counted_by(self.column.name).alias(self.part("n")), total.alias(self.part("sum"))]

    def _average(self, frame: pl.DataFrame, n: pl.Series) -> pl.Series:
        """DECIMAL(p+4, s+4), rounded half up as Spark does; exact integers, so by group and not vectorised."""
        _, scale = self.output.decimal
        context = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
        unit = decimal.Decimal(1).scaleb(-scale)
        values = [
            None if n == 0 else context.quantize(context.divide(total, decimal.Decimal(n)), unit)
            for total, n in zip(frame[self.part("sum")].to_list(), n.to_list(), strict=True)
        ]
        return pl.Series(self.name, values, dtype=self.output.polars)


def total(spec: Aggregation, columns: tuple[Field, ...] = (), keys: tuple[str, ...] = ()) -> Kind:
    """sum or avg of a column, by its type."""
    kinds: dict[str, type[Kind]] = {**dict.fromkeys(schema.INTEGERS, IntegerTotal), "decimal": DecimalTotal}
    return kinds.get(columns[0].base, FloatTotal)(spec, columns, keys)


def counted_by(column: str) -> pl.Expr:
    """1 for a value, 0 for NULL."""
    return pl.col(column).is_not_null().cast(pl.Int64)
