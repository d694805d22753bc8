"""The interface of an aggregation kind: inputs, accumulators, and the three steps between rows and result.

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

    number: ClassVar[bool] = False  # True if the column must be a number

    @property
    def column(self) -> Field:
        return self.columns[0]

    @property
    def module(self) -> str | None:
        """Return the module of the user's code that the aggregation runs; None for a built-in one."""
        return None

    @property
    def name(self) -> str:
        return self.spec.as_

    def part(self, part: str) -> str:
        """Return the name of the column that holds an accumulator."""
        return f"{self.name}.{part}"

    def problem(self) -> str | None:
        """Return what does not fit about the columns and what to do about it; None if they fit."""
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
        """Return the output column."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, pl.DataType]:
        """Return part and type of each accumulator."""

    def lift_sql(self, event_us: str) -> Mapping[str, str] | None:
        """Return Spark SQL aggregates over the inputs and `sql_columns`, for a GROUP BY; None if rows are lifted one by
        one.
        """
        return None

    @property
    def sql_columns(self) -> Sequence[str]:
        """Return the columns in Spark SQL that `lift_sql` reads; each may refer to the inputs and to earlier ones."""
        return []

    @property
    def sql_groups(self) -> Sequence[str]:
        """Return those of `sql_columns` by which Spark groups in addition to key and pane."""
        return []

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Return further Spark SQL aggregates by their full names; aggregations of one column share them."""
        return {}

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Return the accumulators of groups from the result of `lift_sql` and `sql_sums` in Spark."""
        return [rows[self.part(part)] for part in self.parts]

    @abstractmethod
    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """Return the accumulators of single rows by their column names, over a frame with the inputs."""

    def merge(self) -> Sequence[pl.Expr]:
        """Return the merged accumulators of a group, for `group_by(…).agg(…)` over frames of accumulators.

        Kinds whose `merge_adjacent` handles every frame do not implement it.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        """Return part and operation if `merge` is one operation for each part (without NULLs); else nothing."""
        return {}

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """Merge adjacent rows of groups that begin at `heads` with the operations of `array_operations`; return nothing if `merge` is
        needed.
        """
        parts = {self.part(part): operation for part, operation in self.array_operations.items()}
        if any(frame[part].null_count() for part in parts):
            return []
        with np.errstate(all="ignore"):  # infinity minus infinity is NaN
            return [pl.Series(p, by.reduceat(frame[p].to_numpy(), heads)) for p, by in parts.items()]

    def settle(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Bring merged accumulators into the form in which they are stored, if `merge` alone does not."""
        return frame

    @abstractmethod
    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Return the output column of a frame of accumulators.

        Raises ValueRangeError if a value does not fit its type.
        """

    def neutral(self) -> pl.DataFrame:
        """Return one row with the accumulators of no rows; merging it changes nothing.

        Raises UnfitError if they do not exist.
        """
        row = {i.field.name: pl.Series([None], dtype=i.field.polars) for i in self.inputs}
        frame = pl.DataFrame({"__ts": [0], **row})
        types = {self.part(part): dtype for part, dtype in self.parts.items()}
        return frame.select("__ts", *self.lift(frame, "__ts")).select(list(types)).cast(types)  # type: ignore[arg-type]

    def check_bound(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if a group exceeds a limit, or ValueRangeError if its result does not fit its type."""
        return

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """Return which groups have a result that does not fit its type; None if there are none."""
        return None

    def previous_form(self) -> AggregationKind | None:
        """Return the aggregation with the accumulators that earlier versions stored; None if they are the same."""
        return None

    def from_former(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Convert the accumulators of `former`."""
        raise NotImplementedError(type(self).__name__)

    def fingerprint(self) -> str:
        """Return a readable text of what the accumulators depend on; state with another fingerprint cannot be used."""
        named = [f"{c.name} {c.type}" for c in self.columns] or ["*"]
        return " ".join([self.spec.agg, *named, *self.details()])

    def details(self) -> list[str]:
        """Return the settings that the accumulators depend on."""
        return []


def check_group_size(kind: AggregationKind, pipeline: str, sizes: pl.Series, key: str, noun: str, advice: str) -> None:
    """Raise CapExceededError if the largest of `sizes` exceeds the limit that the config sets as `key`."""
    bound, largest = getattr(kind.spec, key), sizes.max()
    if isinstance(largest, int) and bound is not None and largest > bound:
        raise CapExceededError(
            f'{pipeline}: "{kind.name}" holds {largest} {noun} of "{kind.spec.column}" in one group, {key} is {bound}; {advice}'
        )


def extreme_value(value: pl.Expr, which: str, field: Field) -> pl.Expr:
    """Return the minimum or maximum in Spark's order. Polars ignores NaN, which is the largest value in Spark."""
    if which == "min":
        return value.min()
    return value.nan_max() if field.base in schema.FLOATS else value.max()


def concatenate_lists(part: str) -> pl.Expr:
    """Return the elements of all lists of a group as one list."""
    return pl.col(part).explode().drop_nulls()


def as_lists(values: pl.Series) -> pl.Series:
    """Return one list per value: `[v]`, or `[]` for NULL."""
    lists = values.to_frame().select(pl.concat_list(values.name)).to_series()
    return lists.list.drop_nulls()
