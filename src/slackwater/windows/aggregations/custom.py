"""User-defined aggregations: an `Aggregator` whose expressions are bound to columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.aggregation import Aggregation
from slackwater.config.aggregator import Aggregator, UnfitError, check_aggregator, expressions
from slackwater.core import schema
from slackwater.core.schema import Field
from slackwater.errors import EpochError
from slackwater.windows.aggregations.kind import AggregationKind


@dataclass(frozen=True)
class CustomAggregation(AggregationKind):
    """`columns` are in the order of the aggregator's inputs."""

    made: Aggregator = field(default_factory=Aggregator)

    def problem(self) -> str | None:
        for (name, wanted), column in zip(self.made.inputs.items(), self.columns, strict=True):
            if not accepts_column(wanted, column):
                return (
                    f'{self._class}.{name} takes {wanted}, column "{column.name}" is {column.type}; cast it in the SQL'
                )
        return None

    @property
    def module(self) -> str:
        return type(self.made).__module__

    @property
    def _class(self) -> str:
        return type(self.made).__name__

    @property
    def output(self) -> Field:
        return Field(self.name, self.made.output)

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {name: Field(name, kind).polars for name, kind in self.made.accumulators.items()}

    def _accumulators(self) -> dict[str, pl.Expr]:
        return {name: pl.col(self.part(name)) for name in self.made.accumulators}

    def _named(self, found: Sequence[pl.Expr]) -> list[pl.Expr]:
        return [e.alias(self.part(name)) for e, name in zip(found, self.made.accumulators, strict=True)]

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Series]:
        given = {
            name: pl.col(column.name).cast(Field(name, kind).polars)
            for (name, kind), column in zip(self.made.inputs.items(), self.columns, strict=True)
        }
        with self._told("lift"):
            # with a column of the frame, so that a constant becomes one value per row
            lifted = rows.select(event_us, *self._named(expressions(self.made, "lift", given)))
            return lifted.drop(event_us).cast(self._typed).get_columns()  # type: ignore[arg-type]

    @property
    def _typed(self) -> dict[str, pl.DataType]:
        return {self.part(name): kind for name, kind in self.parts.items()}

    def merge(self) -> Sequence[pl.Expr]:
        keys = ({k: pl.col(k).first() for k in self.keys},) if self.made.wants_keys else ()
        return self._named(expressions(self.made, "merge", self._accumulators(), *keys))

    def neutral(self) -> pl.DataFrame:
        """What `merge` makes of no rows at all, if it is neutral: tried with the accumulators of some values."""
        rows = pl.DataFrame({"__ts": [0, 1, 2], **{c.name: _some(c) for c in self.columns}})
        lifted = pl.DataFrame(self.lift(rows, "__ts"))
        with self._told("merge"):
            nothing = self._merged(lifted.clear())
            groups = [(some, self._merged(some)) for some in (lifted, lifted[:1], lifted[1:2])]
            both = [(pl.concat(pair), w) for some, w in groups for pair in ([nothing, some], [some, nothing])]
            neutral = all(self._merged(pair).equals(whole) for pair, whole in both)
        if not neutral:
            raise UnfitError("agg", f"what {self._class}.merge makes of no rows is not neutral in a merge")
        return nothing

    def _merged(self, frame: pl.DataFrame) -> pl.DataFrame:
        """All rows as one group; keys are NULL."""
        keys = ({k: pl.lit(None) for k in self.keys},) if self.made.wants_keys else ()
        exprs = self._named(expressions(self.made, "merge", self._accumulators(), *keys))
        return frame.select(exprs).cast(self._typed)  # type: ignore[arg-type]

    def settle(self, frame: pl.DataFrame) -> pl.DataFrame:
        with self._told("merge"):
            return frame.cast(self._typed)  # type: ignore[arg-type]

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        with self._told("finish"):
            found = self.made.finish(**self._accumulators()).alias(self.name)
            first = next(iter(self._typed))
            return frame.select(pl.col(first).alias(""), found)[self.name].cast(self.output.polars)

    @contextmanager
    def _told(self, step: str) -> Iterator[None]:
        try:
            yield
        except (pl.exceptions.PolarsError, UnfitError) as error:
            text = " ".join(str(error).split())[:200]
            raise EpochError(f'aggregation "{self.name}": {self._class}.{step} failed: {text}; mend it') from None

    def fingerprint(self) -> str:
        """The class by its name, since its module may move; what it reads and keeps, and its arguments."""
        named = [f"{n}={c.name} {c.type}" for n, c in zip(self.made.inputs, self.columns, strict=True)]
        kept = [f"{n} {t}" for n, t in self.made.accumulators.items()]
        arguments = [f"{n}={v}" for n, v in sorted(vars(self.made).items()) if _plain(v)]
        return f"{self._class}({', '.join(named)}; {', '.join(kept)})" + "".join(f" {a}" for a in arguments)


def custom_kind(spec: Aggregation, columns: tuple[Field, ...] = (), keys: tuple[str, ...] = ()) -> AggregationKind:
    """The aggregator that a spec names."""
    made = spec.aggregator()
    check_aggregator(made)
    return CustomAggregation(spec, columns, keys, made)


def accepts_column(wanted: str, column: Field) -> bool:
    """Whether a column can be an input of a type: the same, or a number that fits it."""
    if column.type == wanted:
        return True
    if wanted in schema.FLOATS:
        return column.base in schema.NUMBERS
    order = schema.INTEGERS
    return wanted in order and column.type in order and order.index(column.type) < order.index(wanted)


def _some(column: Field) -> pl.Series:
    """NULL and two values of a column's type."""
    values = [None, "3", "5"] if column.base in ("string", "binary") else [None, 3, 5]
    return pl.Series(values).cast(column.polars, strict=False)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | None)
