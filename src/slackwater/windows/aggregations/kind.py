"""What every kind of aggregation says about itself: inputs, accumulators, and the three steps between rows and result.

rows ── lift ──▶ accumulators ── merge, settle ──▶ accumulators ── finish ──▶ one output column
        in Spark SQL per pane, or in Polars per row
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.core import schema
from slackwater.core.arrays import Int64s
from slackwater.core.schema import Field
from slackwater.errors import CapExceededError
from slackwater.windows.aggregations.columns import AggregationInput


@dataclass(frozen=True)
class AggregationKind(ABC):
    """One kind of aggregation, bound to its spec, its input columns and the names of the window's keys."""

    spec: Aggregation
    columns: tuple[Field, ...] = ()
    keys: tuple[str, ...] = ()

    number: ClassVar[bool] = False  # whether the column must be a number

    @property
    def column(self) -> Field:
        return self.columns[0]

    @property
    def module(self) -> str | None:
        """The module of a user's code that it runs; None for our own."""
        return None

    @property
    def name(self) -> str:
        return self.spec.as_

    def part(self, part: str) -> str:
        """The column that holds an accumulator."""
        return f"{self.name}.{part}"

    def problem(self) -> str | None:
        """What about the columns does not fit, and what to do; None if they do."""
        for column in self.columns:
            if not column.is_scalar:
                return f'column "{column.name}" has type {column.type}, which has no order'
        if self.number and self.column.base not in schema.NUMBERS:
            return (
                f'{self.spec.agg} needs a number, column "{self.column.name}" is {self.column.type}; cast it in the SQL'
            )
        return None

    @property
    def inputs(self) -> tuple[AggregationInput, ...]:
        return tuple(AggregationInput(c, c, hashed=False) for c in self.columns)

    @property
    @abstractmethod
    def output(self) -> Field:
        """The output column."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, pl.DataType]:
        """Part and type of each accumulator."""

    def lift_sql(self, event_us: str) -> Mapping[str, str] | None:
        """Spark SQL aggregates over the inputs and `sql_columns`, for a GROUP BY; None where rows are lifted one by one."""
        return None

    @property
    def sql_columns(self) -> Sequence[str]:
        """Columns in Spark SQL that `lift_sql` reads, over the inputs; each may read those before it."""
        return []

    @property
    def sql_groups(self) -> Sequence[str]:
        """Those of `sql_columns` by which Spark groups, besides key and pane."""
        return []

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Spark SQL aggregates next to those of `lift_sql`, by their whole names: aggregations of one column share them."""
        return {}

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """The accumulators of groups, from what Spark made of `lift_sql` and `sql_sums`."""
        return [rows[self.part(part)] for part in self.parts]

    @abstractmethod
    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """The accumulators of single rows, by their column names, over a frame that holds the inputs."""

    def merge(self) -> Sequence[pl.Expr]:
        """The accumulators of a group, for `group_by(…).agg(…)` over frames of accumulators; of kinds without a `fold` of all frames."""
        raise NotImplementedError(type(self).__name__)

    @property
    def folds(self) -> Mapping[str, np.ufunc]:
        """Part and operation, where `merge` is one operation for each part of which no value is NULL; none otherwise."""
        return {}

    def fold(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """What `merge` gives for groups that stand together and begin at `heads`, by these; none where it takes `merge`."""
        parts = {self.part(part): operation for part, operation in self.folds.items()}
        if any(frame[part].null_count() for part in parts):
            return []
        with np.errstate(all="ignore"):  # infinity less infinity is NaN
            return [pl.Series(p, by.reduceat(frame[p].to_numpy(), heads)) for p, by in parts.items()]

    def settle(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Merged accumulators in their lasting form, where `merge` alone does not give it."""
        return frame

    @abstractmethod
    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """The output column of a frame of accumulators. Raises ValueRangeError where a value does not fit its type."""

    def neutral(self) -> pl.DataFrame:
        """One row: the accumulators of no rows; merged with others they change nothing. Raises UnfitError if there are none."""
        row = {i.field.name: pl.Series([None], dtype=i.field.polars) for i in self.inputs}
        frame = pl.DataFrame({"__ts": [0], **row})
        types = {self.part(part): dtype for part, dtype in self.parts.items()}
        return frame.select("__ts", *self.lift(frame, "__ts")).select(list(types)).cast(types)  # type: ignore[arg-type]

    def check_bound(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if a group of accumulators outgrew its bound, ValueRangeError if it can have no result."""
        return

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """Which groups of accumulators have a result that does not fit its type; None for none of them."""
        return None

    def former(self) -> AggregationKind | None:
        """The same aggregation with the accumulators that earlier versions kept; None where they are the same."""
        return None

    def from_former(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """The accumulators, from those of `former`."""
        raise NotImplementedError(type(self).__name__)

    def fingerprint(self) -> str:
        """What the accumulators depend on, readable: state written under another one cannot be used."""
        named = [f"{c.name} {c.type}" for c in self.columns] or ["*"]
        return " ".join([self.spec.agg, *named, *self.details()])

    def details(self) -> list[str]:
        """The settings that the accumulators depend on."""
        return []


def check_group_size(kind: AggregationKind, pipeline: str, sizes: pl.Series, key: str, noun: str, advice: str) -> None:
    """Raise CapExceededError if the largest of `sizes` is beyond the bound that the config gives as `key`."""
    bound, largest = getattr(kind.spec, key), sizes.max()
    if isinstance(largest, int) and bound is not None and largest > bound:
        raise CapExceededError(
            f'{pipeline}: "{kind.name}" holds {largest} {noun} of "{kind.spec.column}" in one group, {key} is {bound}; {advice}'
        )


def extreme_value(value: pl.Expr, which: str, field: Field) -> pl.Expr:
    """min or max in Spark's order; Polars passes over NaN, which only the largest value must not."""
    if which == "min":
        return value.min()
    return value.nan_max() if field.base in schema.FLOATS else value.max()


def concatenate_lists(part: str) -> pl.Expr:
    """In a group: the elements of all its lists, as one list."""
    return pl.col(part).explode().drop_nulls()


def as_lists(values: pl.Series) -> pl.Series:
    """One list per value: `[v]`, or `[]` for NULL."""
    lists = values.to_frame().select(pl.concat_list(values.name)).to_series()
    return lists.list.drop_nulls()
