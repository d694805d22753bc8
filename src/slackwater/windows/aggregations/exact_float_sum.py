"""Exact sums of floating-point numbers: how totals are stored and merged, and how Spark SQL computes them.

A total consists of three columns:

    sum      the total, rounded to a double
    rest     the exact total minus `sum`
    limbs    the exact total if two doubles cannot hold it, else NULL (see `core.exact_sum_loops`)

The three values depend only on the summands, not on their order or grouping. The compiled loops are imported on first
use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa

from slackwater.core.column_names import quote_identifier
from slackwater.core.sorted_arrays import Int64s

TYPES: Mapping[str, pl.DataType] = {"sum": pl.Float64(), "rest": pl.Float64(), "limbs": pl.List(pl.Int64())}

# Spark adds values as integers: multiples of 2^-79 below 2^47, in four parts of 32 bits each
_BOUND, _HIGH, _LOW = float(1 << 47), float(1 << 16), float(1 << 79)
EXPONENTS = (16, -16, -47, -79)
_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class ExactFloatSum:
    """The column names of one exact total, and operations on these columns."""

    sum: str
    rest: str
    limbs: str

    def empty(self, height: int) -> pl.Series:
        """Return a column of `height` NULL limbs, for totals that fit into two doubles."""
        return pl.Series(self.limbs, [None], dtype=TYPES["limbs"]).new_from_index(0, height)

    def from_values(self, values: pl.Series) -> list[pl.Series]:
        """Convert each value to a total. NULL becomes zero."""
        sums = values.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # converts -0.0 to 0.0
        return [pl.Series(self.sum, sums), pl.Series(self.rest, np.zeros(len(sums))), self.empty(len(sums))]

    def from_squares(self, values: pl.Series) -> list[pl.Series]:
        """Convert the square of each value to a total. NULL becomes zero."""
        from slackwater.core import exact_sum_loops

        plain = np.array(values.cast(pl.Float64).fill_null(0.0))
        sums, rests = np.empty(len(plain)), np.empty(len(plain))
        extreme, limbs, ends = exact_sum_loops.add_squares(plain, sums, rests)
        return [pl.Series(self.sum, sums), pl.Series(self.rest, rests), self._limbs(len(plain), extreme, limbs, ends)]

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> list[pl.Series]:
        """Add the totals of each group of adjacent rows. `heads`: the position of the first row of each group."""
        from slackwater.core import exact_sum_loops

        sums, rests = (np.array(frame[c].fill_null(0.0)) for c in (self.sum, self.rest))
        limb_lists, wide = frame[self.limbs], np.zeros(0, dtype=np.bool_)
        offsets = values = np.zeros(0, dtype=np.int64)
        if limb_lists.null_count() < len(limb_lists):
            wide = np.array(limb_lists.is_not_null())
            values, offsets = self.read_limbs(frame)
        totals, rest_of, inexact = exact_sum_loops.sum_pairs(sums, rests, wide, heads)
        limbs, ends = self.empty(len(heads)), np.zeros(0, dtype=np.int64)
        if len(inexact):
            new_limbs, ends = exact_sum_loops.sum_limbs(inexact, sums, rests, offsets, values, heads, totals, rest_of)
            limbs = self._limbs(len(heads), inexact, new_limbs, ends)
        return [pl.Series(self.sum, totals), pl.Series(self.rest, rest_of), limbs]

    def read_limbs(self, frame: pl.DataFrame) -> tuple[Int64s, Int64s]:
        """Return the concatenated limbs of all totals, and the offsets that separate the limbs of different totals."""
        limb_lists = frame[self.limbs]
        offsets = np.concatenate([[0], np.cumsum(limb_lists.list.len().fill_null(0).to_numpy(), dtype=np.int64)])
        return np.array(limb_lists.drop_nulls().explode(), dtype=np.int64), offsets

    def from_grid_sums(self, counts: pl.Series, outside: pl.Series, parts: Sequence[pl.Series]) -> list[pl.Series]:
        """Return the totals of groups that Spark pre-aggregated with `GridSumSql`.

        Args:
            counts: The number of rows of each group.
            outside: The value of all rows of a group, if it is not on the grid; NULL if the values are on the grid.
            parts: The sums of the values on the grid, in the order of `EXPONENTS`.
        """
        from slackwater.core import exact_sum_loops

        value = np.array(outside.fill_null(0.0), dtype=np.float64)
        matrix = np.zeros((len(value), len(parts)), dtype=np.int64)
        on_grid = np.array(outside.is_null())
        for number, part in enumerate(parts):
            matrix[on_grid, number] = part.fill_null(0).to_numpy()[on_grid]
        finite = np.isfinite(value)
        sums, rests = np.empty(len(value)), np.empty(len(value))
        exponents = np.array(EXPONENTS[: len(parts)], dtype=np.int64)
        plain = np.where(finite, value, 0.0)
        limbs, ends = exact_sum_loops.compute_grid_sums(np.array(counts), plain, matrix, exponents, sums, rests)
        sums[~finite] = value[~finite]
        limb_lists = self._limbs(len(value), np.arange(len(value)), limbs, ends)
        return [pl.Series(self.sum, sums), pl.Series(self.rest, rests), limb_lists]

    def times(self, counts: pl.Series, values: pl.Series) -> list[pl.Series]:
        """Return each value multiplied by its count, as a total."""
        return self.from_grid_sums(counts, values, [])

    def add(self, totals: Sequence[Sequence[pl.Series]]) -> list[pl.Series]:
        """Add totals row by row. `totals`: the three columns of each summand."""
        frame = pl.concat([pl.DataFrame(list(columns)) for columns in totals])
        height = frame.height // len(totals)
        if not height:
            return list(totals[0])
        by_row = frame[np.arange(frame.height).reshape(len(totals), height).T.ravel()]
        return self.merge_adjacent(by_row, np.arange(0, frame.height, len(totals)))

    def _limbs(self, height: int, groups: Int64s, limbs: Int64s, ends: Int64s) -> pl.Series:
        """Return a column of `height` rows with `limbs`, split at `ends`, in the rows `groups`. Others are NULL."""
        if not len(limbs):
            return self.empty(height)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        arrow = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(limbs))
        lists = pl.Series(self.limbs, arrow, dtype=TYPES["limbs"])
        list_index = np.full(height, len(ends))
        some = np.flatnonzero(np.diff(offsets))
        list_index[groups[some]] = some
        return pl.concat([lists, self.empty(1)], rechunk=True)[list_index]

    def fractions(self, frame: pl.DataFrame) -> list[Fraction]:
        """Return the totals as fractions. This is slow, and only for results that cannot be computed from doubles."""
        from slackwater.core.exact_sum_loops import LOWEST

        unit = Fraction(1, 1 << -LOWEST)
        totals = []
        for total, rest, limbs in frame.select(self.sum, self.rest, self.limbs).iter_rows():
            if limbs is None:
                totals.append(Fraction(total) + Fraction(rest))
            else:
                totals.append(unit * sum(limb << (32 * (limbs[0] + i)) for i, limb in enumerate(limbs[1:])))
        return totals


def round_to_double(value: Fraction) -> float:
    """Return the nearest double, or infinity if the value exceeds the largest double."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@dataclass(frozen=True)
class GridSumSql:
    """Spark SQL for an exact sum of one column, shared by all aggregations of the column.

    The grid is the set of multiples of 2^-79 below 2^47. A value on the grid is split into integers, whose sum does not
    depend on their order. Every other value forms a separate group. `prefix`: the prefix of the SQL column names.
    """

    column: str
    prefix: str

    def _name(self, part: str) -> str:
        return quote_identifier(f"{self.prefix}.{part}")

    @property
    def outside(self) -> str:
        """Return the column to group by, which is NULL for a value on the grid, and the value itself otherwise."""
        return f"{self.prefix}.outside"

    @property
    def columns(self) -> Sequence[str]:
        """Return the Spark SQL of the columns to add to each row. Each may refer to earlier columns."""
        value, near, high, low = f"CAST({self.column} AS DOUBLE)", *(self._name(p) for p in ("near", "high", "low"))
        below = f"({near} - CAST({high} AS DOUBLE) / {_HIGH!r}D) * {_LOW!r}D"
        on_grid = f"({self.column} IS NULL OR (abs({value}) < {_BOUND!r}D AND {below} = CAST({low} AS DOUBLE)))"
        return [
            f"CASE WHEN abs({value}) < {_BOUND!r}D THEN {value} ELSE 0D END AS {near}",
            f"CAST({near} * {_HIGH!r}D AS BIGINT) AS {high}",
            f"CAST({below} AS BIGINT) AS {low}",
            f"CASE WHEN NOT {on_grid} THEN {value} END AS {self._name('outside')}",
        ]

    @property
    def sums(self) -> Mapping[str, str]:
        """Return the Spark SQL of a group's sums, by column name and in the order of `EXPONENTS`."""
        high, low = self._name("high"), self._name("low")
        sql_by_name = {}
        for number, part in enumerate((high, low)):
            sql_by_name[f"{self.prefix}.{2 * number}"] = f"coalesce(sum(shiftright({part}, 32)), 0L)"
            sql_by_name[f"{self.prefix}.{2 * number + 1}"] = f"coalesce(sum({part} & {_MASK}L), 0L)"
        return sql_by_name
