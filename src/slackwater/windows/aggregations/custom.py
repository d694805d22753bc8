"""User-defined aggregations. The expressions of an `Aggregator` are bound to columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import (
    Aggregator,
    AggregatorError,
    build_accumulator_expressions,
    check_aggregator,
)
from slackwater.core import schema
from slackwater.core.schema import Field
from slackwater.errors import EpochError
from slackwater.windows.aggregations.aggregate_function import AggregateFunction


@dataclass(frozen=True)
class CustomAggregation(AggregateFunction):
    """An aggregation that runs a user's `Aggregator`. `columns` has one column per input, in order."""

    aggregator: Aggregator = field(default_factory=Aggregator, compare=False)

    def problem(self) -> str | None:
        for (name, expected), column in zip(self.aggregator.inputs.items(), self.columns, strict=True):
            if not accepts_column(expected, column):
                return (
                    f'{self._class}.{name} takes {expected}, but column "{column.name}" is {column.type}; '
                    "cast it in the SQL"
                )
        return None

    @property
    def module(self) -> str:
        return type(self.aggregator).__module__

    @property
    def _class(self) -> str:
        return type(self.aggregator).__name__

    @property
    def output(self) -> Field:
        return Field(self.name, self.aggregator.output)

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {name: Field(name, kind).polars for name, kind in self.aggregator.accumulators.items()}

    def _accumulator_columns(self) -> dict[str, pl.Expr]:
        return {name: pl.col(self.part(name)) for name in self.aggregator.accumulators}

    def _with_part_names(self, exprs: Sequence[pl.Expr]) -> list[pl.Expr]:
        return [e.alias(self.part(name)) for e, name in zip(exprs, self.aggregator.accumulators, strict=True)]

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        inputs = {
            name: pl.col(column.name).cast(Field(name, kind).polars)
            for (name, kind), column in zip(self.aggregator.inputs.items(), self.columns, strict=True)
        }
        with self._wrap_errors("lift"):
            lifting = build_accumulator_expressions(self.aggregator, "lift", inputs)
            # selecting `event_us` makes Polars broadcast a constant to one value per row
            lifted = rows.select(event_us, *self._with_part_names(lifting))
            return lifted.drop(event_us).cast(self.accumulators).get_columns()  # type: ignore[arg-type]

    def merge(self) -> Sequence[pl.Expr]:
        return self._merge_expressions({k: pl.col(k).first() for k in self.keys})

    def _merge_expressions(self, keys: Mapping[str, pl.Expr]) -> list[pl.Expr]:
        arguments = (keys,) if self.aggregator.wants_keys else ()
        columns = self._accumulator_columns()
        return self._with_part_names(build_accumulator_expressions(self.aggregator, "merge", columns, *arguments))

    def neutral(self) -> pl.DataFrame:
        """Return the accumulators for zero rows.

        Raises AggregatorError if merging them changes the accumulators of some sample values.
        """
        rows = pl.DataFrame({"__ts": [0, 1, 2], **{c.name: _some(c) for c in self.columns}})
        lifted = pl.DataFrame(self.lift(rows, "__ts"))
        with self._wrap_errors("merge"):
            nothing = self._merged(lifted.clear())
            groups = [(some, self._merged(some)) for some in (lifted, lifted[:1], lifted[1:2])]
            both = [(pl.concat(pair), w) for some, w in groups for pair in ([nothing, some], [some, nothing])]
            neutral = all(self._merged(pair).equals(whole) for pair, whole in both)
        if not neutral:
            raise AggregatorError(
                "agg", f"{self._class}.merge changes accumulators when it merges them with the result for no rows"
            )
        return nothing

    def _merged(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Merge all rows as one group whose keys are NULL."""
        exprs = self._merge_expressions({k: pl.lit(None) for k in self.keys})
        return frame.select(exprs).cast(self.accumulators)  # type: ignore[arg-type]

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        with self._wrap_errors("merge"):
            return frame.cast(self.accumulators)  # type: ignore[arg-type]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        with self._wrap_errors("finish"):
            expr = self.aggregator.finish(**self._accumulator_columns()).alias(self.name)
            first = next(iter(self.accumulators))
            return frame.select(pl.col(first).alias(""), expr)[self.name].cast(self.output.polars)

    @contextmanager
    def _wrap_errors(self, step: str) -> Iterator[None]:
        """Convert errors of the user's code to an EpochError that names the aggregation and the failing `step`."""
        try:
            yield
        except (pl.exceptions.PolarsError, AggregatorError) as error:
            text = " ".join(str(error).split())[:200]
            raise EpochError(
                f'aggregation "{self.name}": {self._class}.{step} failed: {text}; correct this method'
            ) from None

    def fingerprint(self) -> str:
        """Return the class name, inputs, accumulators and arguments, but not the module, which may change."""
        named = [f"{n}={c.name} {c.type}" for n, c in zip(self.aggregator.inputs, self.columns, strict=True)]
        accumulators = [f"{n} {t}" for n, t in self.aggregator.accumulators.items()]
        arguments = [f"{n}={v}" for n, v in sorted(vars(self.aggregator).items()) if _plain(v)]
        return f"{self._class}({', '.join(named)}; {', '.join(accumulators)})" + "".join(f" {a}" for a in arguments)


def custom_kind(spec: Aggregation, columns: tuple[Field, ...] = (), keys: tuple[str, ...] = ()) -> AggregateFunction:
    """Bind the user-defined aggregator of a spec to its columns."""
    aggregator = spec.aggregator()
    check_aggregator(aggregator)
    return CustomAggregation(spec, columns, keys, aggregator)


def accepts_column(input_type: str, column: Field) -> bool:
    """Return whether a column's type equals an input type, or is a numeric type that fits into the input type."""
    if column.type == input_type:
        return True
    if input_type in schema.FLOATS:
        return column.base in schema.NUMBERS
    order = schema.INTEGERS
    return input_type in order and column.type in order and order.index(column.type) < order.index(input_type)


def _some(column: Field) -> pl.Series:
    """Return three sample values of the column's type, one of which is NULL."""
    values = [None, "3", "5"] if column.base in ("string", "binary") else [None, 3, 5]
    return pl.Series(values).cast(column.polars, strict=False)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | None)
