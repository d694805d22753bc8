"""The interface of an aggregation: its inputs, its accumulators, and the three steps from rows to a result.

rows ── lift ──▶ accumulators ── merge, to_stored_form ──▶ accumulators ── finish ──▶ one output column
        in Spark SQL per pane, or in Polars per row
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s
from slackwater.errors import CapExceededError

_NAN = float("nan")


@dataclass(frozen=True)
class AggregationInput:
    """A column that rows must carry for an aggregation: its type, and the SQL that computes it from the stage's rows.

    `hashed` inputs carry a 64-bit hash instead of the value itself.
    """

    field: Field
    source: Field
    hashed: bool

    @property
    def sql(self) -> str:
        column = normalization_sql(self.source)
        if not self.hashed:
            return column
        return f"CASE WHEN {quote_identifier(self.source.name)} IS NOT NULL THEN xxhash64('{self.source.type}', {column}) END"


def normalization_sql(field: Field) -> str:
    """Return Spark SQL that maps -0.0 to 0.0 and every NaN to one NaN, so that equal values have equal bytes."""
    column = quote_identifier(field.name)
    if field.base not in schema.FLOATS:
        return column
    return f"CASE WHEN isnan({column}) THEN CAST('NaN' AS {field.type}) ELSE CAST({column} + 0 AS {field.type}) END"


def normalize_columns(frame: pl.DataFrame, fields: list[Field]) -> pl.DataFrame:
    """Normalize zeros and NaNs in these columns of a frame, as `normalization_sql` does in SQL.

    Polars simplifies `x + 0.0` to x, so zeros are replaced explicitly.
    """
    floats = [f.name for f in fields if f.base in schema.FLOATS]
    return frame.with_columns(
        pl.when(pl.col(name).is_nan())
        .then(_NAN)
        .when(pl.col(name) == 0)
        .then(0.0)
        .otherwise(pl.col(name))
        .cast(frame.schema[name])
        .alias(name)
        for name in floats
    )


@dataclass(frozen=True)
class AggregationKind(ABC):
    """One kind of aggregation, bound to its spec, its input columns and the names of the window's key columns."""

    spec: Aggregation
    columns: tuple[Field, ...] = ()
    keys: tuple[str, ...] = ()

    NUMERIC: ClassVar[bool] = False  # True if the column must be numeric
    OUTPUT: ClassVar[str] = ""  # type of the output column, if it does not depend on the spec and the columns

    @property
    def column(self) -> Field:
        return self.columns[0]

    @property
    def module(self) -> str | None:
        """Return the name of the user's module that the aggregation runs; None for a built-in aggregation."""
        return None

    @property
    def name(self) -> str:
        return self.spec.as_

    def part(self, part: str) -> str:
        """Return the name of the accumulator column with this suffix."""
        return f"{self.name}.{part}"

    def problem(self) -> str | None:
        """Describe what is wrong with the columns and how to fix it; None if they are suitable."""
        for column in self.columns:
            if not column.is_scalar:
                return f'column "{column.name}" has type {column.type}, which has no order'
        if self.NUMERIC and self.column.base not in schema.NUMBERS:
            return f'{self.spec.agg} needs a number, but column "{self.column.name}" is {self.column.type}; cast it in the SQL'
        return None

    @property
    def inputs(self) -> tuple[AggregationInput, ...]:
        """Return the columns that rows must carry for this aggregation."""
        return tuple(AggregationInput(c, c, hashed=False) for c in self.columns)

    @property
    def output(self) -> Field:
        """Return the output column with its type."""
        return Field(self.name, self.OUTPUT)

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, pl.DataType]:
        """Return the suffix and type of each accumulator column."""

    @cached_property
    def accumulators(self) -> dict[str, pl.DataType]:
        """Return the name and type of each accumulator column."""
        return {self.part(part): dtype for part, dtype in self.parts.items()}

    def parts_sql(self, event_us: str) -> Mapping[str, str] | None:
        """Return the SQL of `lift_sql` by suffix; None if rows must be lifted one by one."""
        return None

    def lift_sql(self, event_us: str) -> dict[str, str] | None:
        """Return Spark SQL aggregates over the inputs and `sql_columns`, by name; None if there is no SQL form.

        `event_us`: the SQL of the event time (µs).
        """
        sql_by_part = self.parts_sql(event_us)
        return None if sql_by_part is None else {self.part(part): sql for part, sql in sql_by_part.items()}

    @property
    def sql_columns(self) -> Sequence[str]:
        """Return the Spark SQL of the columns that `lift_sql` reads; each may refer to inputs and earlier columns."""
        return []

    @property
    def sql_groups(self) -> Sequence[str]:
        """Return the `sql_columns` by which Spark groups in addition to key and pane."""
        return []

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Return additional Spark SQL aggregates by their full names; aggregations of the same column share them."""
        return {}

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Build the accumulators of groups from the values that Spark computed for `lift_sql` and `sql_sums`."""
        return [rows[self.part(part)] for part in self.parts]

    @abstractmethod
    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """Return the accumulators of individual rows: expressions over a frame with the inputs, or series."""

    def merge(self) -> Sequence[pl.Expr]:
        """Return expressions that merge the accumulators of a group, for `group_by(…).agg(…)`.

        Call `to_stored_form` on the result. Kinds whose `merge_adjacent` handles every frame do not implement this method.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        """Return the NumPy operation that merges each accumulator, by suffix.

        Empty if `merge` needs more than one operation per accumulator (apart from handling NULL).
        """
        return {}

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """Merge the adjacent rows of each group with `array_operations`. Groups begin at `heads`.

        Returns an empty sequence if this aggregation needs `merge` instead.
        """
        parts = {self.part(part): operation for part, operation in self.array_operations.items()}
        if any(frame[part].null_count() for part in parts):
            return []
        with np.errstate(all="ignore"):  # infinity minus infinity is NaN
            return [pl.Series(p, by.reduceat(frame[p].to_numpy(), heads)) for p, by in parts.items()]

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Convert merged accumulators to the form in which they are stored, if `merge` does not return that form."""
        return frame

    @abstractmethod
    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Compute the output column from a frame of accumulators.

        Raises ValueRangeError if a value does not fit its type.
        """

    def neutral(self) -> pl.DataFrame:
        """Return one row with the accumulators of zero rows; merging it changes nothing.

        It is the initial value when an aggregation is added to an existing state. Raises AggregatorError if there are no such accumulators.
        """
        row = {i.field.name: pl.Series([None], dtype=i.field.polars) for i in self.inputs}
        frame = pl.DataFrame({"__ts": [0], **row})
        lifted = frame.select("__ts", *self.lift(frame, "__ts")).select(list(self.accumulators))
        return lifted.cast(self.accumulators)  # type: ignore[arg-type]

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise CapExceededError if a group exceeds a limit, or ValueRangeError if its result does not fit its type."""
        return

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """Return a mask of the groups whose result overflows its type and becomes NULL; None if no result overflows."""
        return None

    def legacy_form(self) -> AggregationKind | None:
        """Return this aggregation with the accumulators of earlier versions; None if they have not changed."""
        return None

    def from_legacy(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Convert accumulators stored in the `legacy_form`."""
        raise NotImplementedError(type(self).__name__)

    def as_stored(self, fingerprint: object) -> AggregationKind:
        """Return this aggregation with the accumulators, current or legacy, of a state with this fingerprint."""
        former = self.legacy_form()
        return self if former is None or former.fingerprint() != fingerprint else former

    def fingerprint(self) -> str:
        """Return a readable string that covers what the accumulators depend on.

        Accumulators with different fingerprints are incompatible.
        """
        named = [f"{c.name} {c.type}" for c in self.columns] or ["*"]
        return " ".join([self.spec.agg, *named, *self.details()])

    def details(self) -> list[str]:
        """Return the settings that the accumulators depend on."""
        return []


def check_group_size(kind: AggregationKind, pipeline: str, sizes: pl.Series, key: str, noun: str, advice: str) -> None:
    """Raise CapExceededError if the largest of `sizes` exceeds the limit set by the config key `key`.

    `noun`: what the sizes count, in the plural. `advice`: what to do, as the end of the message.
    """
    bound, largest = getattr(kind.spec, key), sizes.max()
    if isinstance(largest, int) and bound is not None and largest > bound:
        raise CapExceededError(
            f'{pipeline}: "{kind.name}" holds {largest} {noun} of "{kind.spec.column}" in one group, but {key} is {bound}; {advice}'
        )


def extreme_value(value: pl.Expr, which: str, field: Field) -> pl.Expr:
    """Return the "min" or "max" (`which`) in Spark's order, where NaN is the largest value. Polars ignores NaN."""
    if which == "min":
        return value.min()
    return value.nan_max() if field.base in schema.FLOATS else value.max()


def concatenate_lists(part: str) -> pl.Expr:
    """Return an expression that concatenates a group's lists in the column `part`."""
    return pl.col(part).explode().drop_nulls()


def as_lists(values: pl.Series) -> pl.Series:
    """Return one list per value: `[v]`, or `[]` for NULL."""
    lists = values.to_frame().select(pl.concat_list(values.name)).to_series()
    return lists.list.drop_nulls()
