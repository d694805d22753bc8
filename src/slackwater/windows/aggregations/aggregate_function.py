"""The interface of an aggregation: inputs, accumulators, and the three steps from rows to a result.

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
from slackwater.errors import LimitExceededError

_NAN = float("nan")


@dataclass(frozen=True)
class AggregationInput:
    """A column that rows carry to the shards for an aggregation."""

    field: Field
    source: Field  # the column of the stage's rows from which `sql` computes this one
    hashed: bool  # whether the column has 64-bit hashes instead of the values

    @property
    def sql(self) -> str:
        """Return Spark SQL that computes the column from `source`."""
        value = normalization_sql(self.source)
        if not self.hashed:
            return value
        column = quote_identifier(self.source.name)
        return f"CASE WHEN {column} IS NOT NULL THEN xxhash64('{self.source.type}', {value}) END"


def normalization_sql(field: Field) -> str:
    """Return Spark SQL that maps -0.0 to 0.0 and every NaN to the same NaN, so that equal values have equal bytes."""
    column = quote_identifier(field.name)
    if field.base not in schema.FLOATS:
        return column
    return f"CASE WHEN isnan({column}) THEN CAST('NaN' AS {field.type}) ELSE CAST({column} + 0 AS {field.type}) END"


def normalize_columns(frame: pl.DataFrame, fields: list[Field]) -> pl.DataFrame:
    """Map -0.0 to 0.0 and every NaN to the same NaN in these columns of a frame, as `normalization_sql` does in SQL."""
    floats = [f.name for f in fields if f.base in schema.FLOATS]
    return frame.with_columns(
        pl.when(pl.col(name).is_nan())
        .then(_NAN)
        .when(pl.col(name) == 0)  # Polars would simplify `x + 0.0` to `x`
        .then(0.0)
        .otherwise(pl.col(name))
        .cast(frame.schema[name])
        .alias(name)
        for name in floats
    )


@dataclass(frozen=True)
class AggregateFunction(ABC):
    """An aggregation of a window, bound to its input columns. `keys`: the names of the window's key columns."""

    spec: Aggregation
    columns: tuple[Field, ...] = ()
    keys: tuple[str, ...] = ()

    NUMERIC: ClassVar[bool] = False  # whether the input column must be numeric
    OUTPUT: ClassVar[str] = ""  # type of the output column, unless it depends on the spec or the columns

    @property
    def column(self) -> Field:
        return self.columns[0]

    @property
    def module(self) -> str | None:
        """Return the name of the user's module that defines the aggregation; None for a built-in aggregation."""
        return None

    @property
    def name(self) -> str:
        return self.spec.as_

    def part(self, part: str) -> str:
        """Return the name of the accumulator column with this suffix."""
        return f"{self.name}.{part}"

    def problem(self) -> str | None:
        """Return why the aggregation does not accept its columns, as the end of a message; None if it does."""
        for column in self.columns:
            if not column.is_scalar:
                return f'column "{column.name}" has type {column.type}, which has no order'
        if self.NUMERIC and self.column.base not in schema.NUMBERS:
            return (
                f'{self.spec.agg} needs a number, but column "{self.column.name}" is {self.column.type}; '
                "cast it in the SQL"
            )
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
        """Return the SQL aggregates of `lift_sql` by suffix; None if there is no SQL form."""
        return None

    def lift_sql(self, event_us: str) -> dict[str, str] | None:
        """Return the Spark SQL aggregate of each accumulator by its column name; None if there is no SQL form.

        The aggregates may use the inputs, `sql_columns`, and `event_us`, the SQL of the event time (µs).
        """
        sql_by_part = self.parts_sql(event_us)
        return None if sql_by_part is None else {self.part(part): sql for part, sql in sql_by_part.items()}

    @property
    def sql_columns(self) -> Sequence[str]:
        """Return the Spark SQL of additional columns for `lift_sql`. Each may use the inputs and earlier columns."""
        return []

    @property
    def sql_groups(self) -> Sequence[str]:
        """Return the names of the `sql_columns` by which Spark groups rows in addition to key and pane."""
        return []

    @property
    def sql_sums(self) -> Mapping[str, str]:
        """Return additional Spark SQL aggregates by column name. All aggregations of an input column share them."""
        return {}

    def from_sql(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Build accumulators from the columns that Spark computed for `lift_sql` and `sql_sums`."""
        return [rows[self.part(part)] for part in self.parts]

    @abstractmethod
    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        """Return the accumulators of individual rows, as series or as expressions over `rows`.

        `rows` has the inputs, and the event time (µs) in the column `event_us`.
        """

    def merge(self) -> Sequence[pl.Expr]:
        """Return expressions that merge the accumulators of a group, for `group_by(…).agg(…)`.

        The result must be passed to `to_stored_form`. Not implemented if `merge_adjacent` handles every frame.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def array_operations(self) -> Mapping[str, np.ufunc]:
        """Return, by suffix, the NumPy operation that merges an accumulator without NULLs.

        Empty if one operation per accumulator is not enough.
        """
        return {}

    def merge_adjacent(self, frame: pl.DataFrame, heads: Int64s) -> Sequence[pl.Series]:
        """Merge the accumulators of each group of adjacent rows. `heads`: the position of the first row of each group.

        Returns an empty sequence if this frame needs `merge` instead.
        """
        parts = {self.part(part): operation for part, operation in self.array_operations.items()}
        if any(frame[part].null_count() for part in parts):
            return []
        with np.errstate(all="ignore"):  # infinity minus infinity is NaN
            return [pl.Series(p, by.reduceat(frame[p].to_numpy(), heads)) for p, by in parts.items()]

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Convert the result of `merge` to the form in which accumulators are stored."""
        return frame

    @abstractmethod
    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Compute the output column from accumulators. Raises ValueRangeError if a value does not fit its type."""

    def neutral(self) -> pl.DataFrame:
        """Return the accumulators for zero rows, as a frame with one row.

        They are the initial value of an aggregation that is added to an existing state. Raises AggregatorError if
        merging them would change other accumulators.
        """
        row = {i.field.name: pl.Series([None], dtype=i.field.polars) for i in self.inputs}
        frame = pl.DataFrame({"__ts": [0], **row})
        lifted = frame.select("__ts", *self.lift(frame, "__ts")).select(list(self.accumulators))
        return lifted.cast(self.accumulators)  # type: ignore[arg-type]

    def check_limit(self, frame: pl.DataFrame, pipeline: str) -> None:
        """Raise LimitExceededError if a group exceeds a limit, or ValueRangeError if its result does not fit its type."""
        return

    def overflowed(self, frame: pl.DataFrame) -> pl.Series | None:
        """Return a mask of the groups whose result overflows its type; None if no result overflows."""
        return None

    def legacy_form(self) -> AggregateFunction | None:
        """Return this aggregation with the accumulators of earlier versions; None if they have not changed since."""
        return None

    def from_legacy(self, rows: pl.DataFrame) -> Sequence[pl.Series]:
        """Convert accumulators stored in the `legacy_form`."""
        raise NotImplementedError(type(self).__name__)

    def to_matching_stored_form(self, fingerprint: object) -> AggregateFunction:
        """Return this aggregation with current or legacy accumulators, depending on the `fingerprint` of a state."""
        former = self.legacy_form()
        return self if former is None or former.fingerprint() != fingerprint else former

    def fingerprint(self) -> str:
        """Return a readable string of everything that the accumulators depend on.

        Accumulators with different fingerprints are incompatible.
        """
        named = [f"{c.name} {c.type}" for c in self.columns] or ["*"]
        return " ".join([self.spec.agg, *named, *self.details()])

    def details(self) -> list[str]:
        """Return the settings that the accumulators depend on, for the fingerprint."""
        return []


def check_group_size(
    kind: AggregateFunction, pipeline: str, sizes: pl.Series, key: str, noun: str, advice: str
) -> None:
    """Raise LimitExceededError if a group of an aggregation is larger than its limit.

    Args:
        kind: The aggregation.
        pipeline: The pipeline's name, for the message.
        sizes: The size of each group.
        key: The config key of the limit.
        noun: What the sizes count, in the plural.
        advice: The end of the message.
    """
    bound, largest = getattr(kind.spec, key), sizes.max()
    if isinstance(largest, int) and bound is not None and largest > bound:
        raise LimitExceededError(
            f'{pipeline}: aggregation "{kind.name}" has {largest} {noun} of "{kind.spec.column}" in one group, '
            f"but {key} is {bound}; {advice}"
        )


def find_extreme_value(value: pl.Expr, which: str, field: Field) -> pl.Expr:
    """Return the minimum or maximum in Spark's order, in which NaN is the largest value. `which`: "min" or "max"."""
    if which == "min":
        return value.min()
    return value.nan_max() if field.base in schema.FLOATS else value.max()


def concatenate_lists(part: str) -> pl.Expr:
    """Return an expression that concatenates a group's lists in the column `part`."""
    return pl.col(part).explode().drop_nulls()


def wrap_values_in_lists(values: pl.Series) -> pl.Series:
    """Return one list per value: `[v]`, or `[]` for NULL."""
    lists = values.to_frame().select(pl.concat_list(values.name)).to_series()
    return lists.list.drop_nulls()
