"""The nine built-in aggregations: how each becomes accumulators (lift), how those combine (merge) and what comes out.

    rows ── lift ──▶ accumulators ── merge ──▶ accumulators ── finish ──▶ one output column
            in Spark SQL per pane, or in Polars per row

An accumulator is one column named `<as>.<part>`. Every merge is associative and commutative, so no answer depends on
the order of arrival or on how rows are batched. All but `count(*)` skip NULLs; order is Spark's (NaN above all).

| aggregation            | accumulators                                                        |
|------------------------|---------------------------------------------------------------------|
| count, count(col)      | `n`                                                                 |
| sum, avg of integers   | `n`, `hi`, `lo`: the sum in 96 bits, `hi * 2^32 + lo`               |
| sum, avg of floats     | `n`, `sum`                                                          |
| sum, avg of decimals   | `n`, `sum` (ten more digits, as in Spark)                           |
| min, max               | `v`                                                                 |
| first, last            | `ts`, `v`: the smallest (largest) pair of event time and value      |
| count_distinct         | `set`: HLL coupons (approximate) or the values themselves (exact)   |
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass

import polars as pl

from slackwater.config.window import Aggregation
from slackwater.core import schema
from slackwater.core.schema import Field
from slackwater.errors import CapExceededError, StartError, ValueRangeError
from slackwater.windows import hll

_LOW = (1 << 32) - 1
_NAN = float("nan")


@dataclass(frozen=True)
class Input:
    """A column that the rows must carry for an aggregation: its SQL over the output of the pre-stage, and its type.

    `hashed` inputs carry the 64-bit hash of the value instead of the value.
    """

    field: Field
    source: Field
    hashed: bool

    @property
    def sql(self) -> str:
        column = normalised_sql(self.source)
        if not self.hashed:
            return column
        return f"CASE WHEN {quote(self.source.name)} IS NOT NULL THEN xxhash64('{self.source.type}', {column}) END"


@dataclass(frozen=True)
class Agg:
    """One aggregation of a compiled window: its spec, and the type of its column (None for `count(*)`)."""

    spec: Aggregation
    column: Field | None

    def __post_init__(self) -> None:
        kind, column = self.spec.agg, self.column
        if column is None:
            return
        if not column.supported:
            raise StartError(
                f'aggregation "{self.name}": column "{column.name}" has type {column.type}, which has no order'
            )
        if kind in ("sum", "avg") and column.base not in schema.NUMBERS:
            raise StartError(
                f'aggregation "{self.name}": {kind} needs a number, column "{column.name}" is {column.type}; cast it in the SQL'
            )

    @property
    def name(self) -> str:
        return self.spec.as_

    @property
    def input(self) -> Input | None:
        if self.column is None:
            return None
        hashed = self.is_set and self.approximate
        field = Field(f"{self.column.name}#hash", "bigint") if hashed else self.column
        return Input(field, self.column, hashed)

    @property
    def is_set(self) -> bool:
        return self.spec.agg == "count_distinct"

    @property
    def approximate(self) -> bool:
        return self.spec.mode != "exact"

    @property
    def output(self) -> Field:
        """The output column, with the types of section 8 of the semantics."""
        kind, column = self.spec.agg, self.column
        if kind in ("count", "count_distinct") or column is None:
            return Field(self.name, "bigint")
        if kind in ("sum", "avg"):
            if column.base == "decimal":
                precision, scale = column.decimal
                extra = (10, 0) if kind == "sum" else (4, 4)
                return Field(self.name, schema.decimal(precision + extra[0], scale + extra[1]))
            return Field(self.name, "bigint" if kind == "sum" and column.base in schema.INTEGERS else "double")
        return Field(self.name, column.type)

    def _part(self, part: str) -> str:
        return f"{self.name}.{part}"

    @property
    def accumulators(self) -> dict[str, pl.DataType]:
        """Name and type of each accumulator column."""
        kind, column = self.spec.agg, self.column
        part = self._part
        if kind == "count" or column is None:
            return {part("n"): pl.Int64()}
        if kind in ("sum", "avg"):
            if column.base in schema.INTEGERS:
                return {part("n"): pl.Int64(), part("hi"): pl.Int64(), part("lo"): pl.Int64()}
            total = pl.Float64() if column.base in schema.FLOATS else _sum_field(column).polars
            return {part("n"): pl.Int64(), part("sum"): total}
        if kind in ("min", "max"):
            return {part("v"): column.polars}
        if kind in ("first", "last"):
            return {part("ts"): pl.Int64(), part("v"): column.polars}
        return {part("set"): pl.List(pl.Int32() if self.approximate else column.polars)}

    def lift_sql(self, event_us: str) -> dict[str, str]:
        """The accumulators as Spark SQL aggregate expressions over the input columns, for a GROUP BY."""
        kind, part = self.spec.agg, self._part
        given = self.input
        if given is None:
            return {part("n"): "count(1)"}
        assert self.column is not None
        column, v = self.column, quote(given.field.name)
        if kind == "count":
            return {part("n"): f"count({v})"}
        if kind in ("sum", "avg"):
            if column.base in schema.INTEGERS:
                wide = f"CAST({v} AS BIGINT)"
                hi = f"coalesce(sum(shiftright({wide}, 32)), 0L)"
                return {
                    part("n"): f"count({v})",
                    part("hi"): hi,
                    part("lo"): f"coalesce(sum({wide} & {_LOW}L), 0L)",
                }
            if column.base in schema.FLOATS:
                return {part("n"): f"count({v})", part("sum"): f"coalesce(sum(CAST({v} AS DOUBLE)), 0D)"}
            total = f"CAST(coalesce(sum({v}), 0) AS {_sum_field(column).type})"
            return {part("n"): f"count({v})", part("sum"): total}
        if kind in ("min", "max"):
            return {part("v"): f"{kind}({v})"}
        if kind in ("first", "last"):
            best = "min" if kind == "first" else "max"
            pair = f"{best}(CASE WHEN {v} IS NOT NULL THEN named_struct('ts', {event_us}, 'v', {v}) END)"
            return {part("ts"): f"{pair}.ts", part("v"): f"{pair}.v"}
        member = hll.coupon_sql(v, self.spec.hll_precision) if self.approximate else v
        return {part("set"): f"collect_set({member})"}

    def lift(self, rows: pl.DataFrame, event_us: str) -> list[pl.Expr | pl.Series]:
        """The accumulators of single rows: expressions over a frame that holds the input columns."""
        kind, part = self.spec.agg, self._part
        given = self.input
        if given is None:
            return [pl.lit(1, pl.Int64).alias(part("n"))]
        assert self.column is not None
        column, v = self.column, pl.col(given.field.name)
        counted = v.is_not_null().cast(pl.Int64).alias(part("n"))
        if kind == "count":
            return [counted]
        if kind in ("sum", "avg"):
            if column.base in schema.INTEGERS:
                wide = v.cast(pl.Int64).fill_null(0)
                return [counted, (wide // (1 << 32)).alias(part("hi")), (wide & _LOW).alias(part("lo"))]
            total = pl.Float64() if column.base in schema.FLOATS else _sum_field(column).polars
            return [counted, v.cast(total).fill_null(0).alias(part("sum"))]
        if kind in ("min", "max"):
            return [v.alias(part("v"))]
        if kind in ("first", "last"):
            return [pl.when(v.is_not_null()).then(pl.col(event_us)).alias(part("ts")), v.alias(part("v"))]
        if self.approximate:
            members = hll.coupons(rows[given.field.name], self.spec.hll_precision)
        else:
            members = rows[given.field.name]
        return [_as_lists(members.alias(part("set")))]

    def merge(self) -> list[pl.Expr]:
        """The accumulators of a group, for `group_by(…).agg(…)` over frames of accumulators."""
        kind, part = self.spec.agg, self._part
        out: list[pl.Expr] = []
        if kind in ("count", "sum", "avg"):
            out = [pl.col(name).sum() for name in self.accumulators]
        elif kind in ("min", "max"):
            out = [self._best(pl.col(part("v")), kind)]
        elif kind in ("first", "last"):
            ts, v = pl.col(part("ts")), pl.col(part("v"))
            best = ts.min() if kind == "first" else ts.max()
            out = [
                best,
                self._best(v.filter(ts == best), "min" if kind == "first" else "max").alias(part("v")),
            ]
        elif self.approximate:
            out = [hll.union(pl.col(part("set")))]
        else:
            out = [pl.col(part("set")).explode().drop_nulls().unique().sort()]
        return out

    def _best(self, value: pl.Expr, which: str) -> pl.Expr:
        """min or max in Spark's order; Polars passes over NaN, which only the largest value must not."""
        if which == "min":
            return value.min()
        if self.column is not None and self.column.base in schema.FLOATS:
            return value.nan_max()
        return value.max()

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """The output column of a frame of accumulators. Raises ValueRangeError where a value does not fit its type."""
        kind, part = self.spec.agg, self._part
        if kind == "count":
            return frame[part("n")].alias(self.name)
        if kind in ("sum", "avg"):
            return self._finish_total(frame).alias(self.name)
        if kind in ("min", "max", "first", "last"):
            return frame[part("v")].alias(self.name)
        sets = frame[part("set")]
        if self.approximate:
            return hll.estimate(sets, self.spec.hll_precision).alias(self.name)
        return sets.list.len().fill_null(0).cast(pl.Int64).alias(self.name)

    def _finish_total(self, frame: pl.DataFrame) -> pl.Series:
        kind, part, column = self.spec.agg, self._part, self.column
        assert column is not None
        n = frame[part("n")]
        if column.base in schema.INTEGERS:
            hi = frame[part("hi")] + frame[part("lo")] // (1 << 32)
            lo = frame[part("lo")] & _LOW
            if kind == "avg":
                total = hi.cast(pl.Float64) * float(1 << 32) + lo.cast(pl.Float64)
                return total.set(n == 0, None) / n
            if not hi.is_between(-(1 << 31), (1 << 31) - 1).all():
                raise ValueRangeError(
                    f'"{self.name}": a sum of {column.name} does not fit BIGINT; cast the column to DECIMAL or DOUBLE in the SQL'
                )
            return (hi * (1 << 32) + lo).set(n == 0, None)
        total = frame[part("sum")]
        if kind == "sum":
            return total.set(n == 0, None)
        if column.base in schema.FLOATS:
            return total.set(n == 0, None) / n
        return self._decimal_average(total, n)

    def _decimal_average(self, totals: pl.Series, counts: pl.Series) -> pl.Series:
        """DECIMAL(p+4, s+4), rounded half up as Spark does; exact integers, so by group and not vectorised."""
        _, scale = self.output.decimal
        context = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
        unit = decimal.Decimal(1).scaleb(-scale)
        values = [
            None if n == 0 else context.quantize(context.divide(total, decimal.Decimal(n)), unit)
            for total, n in zip(totals.to_list(), counts.to_list(), strict=True)
        ]
        return pl.Series(self.name, values, dtype=self.output.polars)

    def check_bound(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if an exact distinct set outgrew `max_distinct_values_per_group`."""
        bound = self.spec.max_distinct_values_per_group
        if not self.is_set or self.approximate or bound is None or frame.is_empty():
            return
        largest = frame[self._part("set")].list.len().max()
        if isinstance(largest, int) and largest > bound:
            raise CapExceededError(
                f'{pipeline}: "{self.name}" holds {largest} distinct values of "{self.spec.column}" in one group, '
                f'max_distinct_values_per_group is {bound}; raise it or use mode = "approximate"'
            )


def quote(name: str) -> str:
    """A column name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def normalised_sql(field: Field) -> str:
    """A column with one zero and one NaN, so that equal values are equal bytes."""
    column = quote(field.name)
    if field.base not in schema.FLOATS:
        return column
    return f"CASE WHEN isnan({column}) THEN CAST('NaN' AS {field.type}) ELSE CAST({column} + 0 AS {field.type}) END"


def normalised(frame: pl.DataFrame, fields: list[Field]) -> pl.DataFrame:
    """The same as `normalised_sql`, on a frame."""
    floats = [f.name for f in fields if f.base in schema.FLOATS]
    return frame.with_columns(
        pl.when(pl.col(name).is_nan()).then(_NAN).otherwise(pl.col(name) + 0.0).cast(frame.schema[name]).alias(name)
        for name in floats
    )


def _sum_field(column: Field) -> Field:
    precision, scale = column.decimal
    return Field(column.name, schema.decimal(precision + 10, scale))


def _as_lists(values: pl.Series) -> pl.Series:
    """One list per value: `[v]`, or `[]` for NULL."""
    lists = values.to_frame().select(pl.concat_list(values.name)).to_series()
    return lists.list.drop_nulls()
