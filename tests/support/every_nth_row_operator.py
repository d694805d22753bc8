"""A custom operator that emits every n-th row of each key, with the minimal code that an operator needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import polars as pl

from slackwater.config.config_key import declare_attribute, declare_key
from slackwater.config.keyed_step import KEY, TIMER, KeyedResult
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import table_parser
from slackwater.config.stage import Transform
from slackwater.config.step_base import KeyedStep, StepBase, StepSummary
from slackwater.config.value_parsers import integer_parser, parse_text
from slackwater.core.schema import Field
from slackwater.operators.keyed_operator_base import KeyedOperator, StoredKeyedOperator, bind_keyed_step
from slackwater.operators.registry import OPERATOR_TYPES, Columns, OperatorType


class EveryNthRowStep(KeyedStep):
    """Every n-th row of each key: `Nth(every=3, keys=["user"])`."""

    kind: str = declare_attribute(default="nth")
    every: int = declare_key(
        integer_parser(1), "Which rows of a key come out: 3 lets the third, the sixth, … through.", required="give it"
    )
    number_column: str | None = declare_key(
        parse_text, "A column more: the how manieth of its key a row is.", default=None
    )

    CONFIG_PATH: ClassVar[str] = "transform.nth"

    @property
    def added_columns(self) -> Mapping[str, str]:
        return {} if self.number_column is None else {self.number_column: "bigint"}

    def summary(self) -> StepSummary:
        rows = f"each {self.every:,}th row of a key"
        return StepSummary(rows, f"{rows}, in the epoch that reads it", "one number per key, for ever")


class EveryNthRowTransform(Transform):
    """A transform with the additional table `nth`."""

    nth: EveryNthRowStep | None = declare_key(
        table_parser(EveryNthRowStep), "Every n-th row of each key.", default=None
    )

    STEPS: ClassVar[Mapping[str, type[StepBase]]] = {**Transform.STEPS, "nth": EveryNthRowStep}


@dataclass(frozen=True)
class EveryNthRowOperator(KeyedOperator):
    """The compiled step. `every`: the interval of the emitted rows of a key."""

    every: int
    number: tuple[Field, ...] = ()

    KIND: ClassVar[str] = "nth"
    TAKES_LATE_ROWS: ClassVar[bool] = True

    @property
    def added(self) -> Sequence[Field]:
        return self.number

    @property
    def state_fields(self) -> Sequence[Field]:
        return (Field("__seen", "bigint"),)

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        before = rows.join(state.select(KEY, "__seen"), on=KEY, how="left", maintain_order="left")
        seen = before.with_columns(pl.col("__seen").fill_null(0) + pl.int_range(1, pl.len() + 1).over(KEY))
        chosen = seen.filter(pl.col("__seen") % self.every == 0)
        numbers = (pl.col("__seen").alias(f.name) for f in self.number)
        counts = seen.group_by(KEY).agg(pl.col("__seen").max(), pl.lit(None, pl.Int64).alias(TIMER))
        return KeyedResult(chosen.with_columns(*numbers), counts)

    @classmethod
    def compiled(cls, pipeline: Pipeline, columns: Columns) -> Self:
        step: Any = pipeline.transform.step
        return cls(
            pipeline.name,
            *bind_keyed_step(pipeline, columns),
            step.every,
            tuple(Field(*a) for a in step.added_columns.items()),
        )


@contextmanager
def register_operator() -> Iterator[None]:
    """Register the operator for the duration of the context."""
    OPERATOR_TYPES.append(
        OperatorType(
            "nth",
            ("nth",),
            EveryNthRowStep,
            (EveryNthRowOperator,),
            EveryNthRowOperator.compiled,
            StoredKeyedOperator.from_state,
        )
    )
    try:
        yield
    finally:
        OPERATOR_TYPES.pop()
