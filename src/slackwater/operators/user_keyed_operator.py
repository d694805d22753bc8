"""The operator of a keyed stage, which runs a class from a user's package."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import polars as pl

from slackwater.config.custom_aggregator import describe_error
from slackwater.config.keyed_step import (
    KEY,
    TIME,
    TIMER,
    Keyed,
    KeyedFunction,
    KeyedFunctionError,
    KeyedResult,
    load_keyed_function,
)
from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.errors import EpochError, StartError
from slackwater.operators.keyed_operator_base import KeyedOperator, bind_keyed_step


@dataclass(frozen=True)
class UserKeyedOperator(KeyedOperator):
    """Calls a `KeyedFunction`. Each worker process loads the class itself."""

    path: str = ""  # import path of the class
    options: str = "{}"  # arguments of its constructor, as JSON
    declared_state: tuple[Field, ...] = ()
    declared_output: tuple[Field, ...] | None = None
    declared_lag_us: int = 0

    KIND: ClassVar[str] = "keyed"

    @property
    def state_fields(self) -> Sequence[Field]:
        return self.declared_state

    @property
    def output_fields(self) -> Sequence[Field]:
        return self.fields if self.declared_output is None else self.declared_output

    @property
    def lag_us(self) -> int:
        return self.declared_lag_us

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        return self._call("advance", rows, state, watermark)

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        return self._call("expire", due, watermark)

    def _call(self, step: str, *arguments: Any) -> KeyedResult:
        """Call a method of the class, `advance` or `expire`, and check the columns of the result.

        Raises EpochError if the class cannot be loaded, the call fails, or the columns are wrong.
        """
        try:
            function = load_keyed_function(self.path, self.options)
        except KeyedFunctionError as error:
            raise EpochError(
                f"{self.pipeline}: a worker cannot load {self.path}: {error}; install the package that contains it on "
                "all workers"
            ) from None
        call: Callable[..., Any] = getattr(function, step)
        try:
            result = call(*arguments)
        except Exception as error:
            raise EpochError(
                f"{self.pipeline}: {step} of {self.path} failed in {_find_line(function, error)} "
                f"({describe_error(error)}); correct the class, and start again"
            ) from error
        return self._checked(step, result)

    def _checked(self, step: str, result: Any) -> KeyedResult:
        """Reduce a result to the declared columns. Raises EpochError if a column is missing or has the wrong type."""
        if not isinstance(result, KeyedResult):
            raise self._mismatch(step, f"a {type(result).__name__}", "a slackwater.KeyedResult")
        output = {f.name: f.polars for f in self.output_fields} | {TIME: pl.Int64()}
        state = {KEY: pl.Int64(), TIMER: pl.Int64()} | {f.name: f.polars for f in self.state_fields}
        rows = None if result.rows is None else self._typed(step, "rows", result.rows, output)
        stored = None if result.state is None else self._typed(step, "state", result.state, state)
        return result._replace(rows=rows, state=stored)

    def _typed(self, step: str, part: str, frame: pl.DataFrame, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        if not isinstance(frame, pl.DataFrame):
            raise self._mismatch(step, f"{part} as a {type(frame).__name__}", "a Polars frame")
        if missing := [name for name in types if name not in frame.columns]:
            raise self._mismatch(step, f"{part} without the column {missing[0]}", f"the columns {', '.join(types)}")
        try:
            return frame.select(list(types)).cast(types)  # type: ignore[arg-type]
        except pl.exceptions.PolarsError as error:
            raise self._mismatch(
                step, f"{part} of other types ({describe_error(error)})", "the declared types"
            ) from None

    def _mismatch(self, step: str, actual: str, expected: str) -> EpochError:
        return EpochError(
            f"{self.pipeline}: {step} of {self.path} returned {actual}, expected {expected}; correct the class"
        )

    # -- from a config ---------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, pipeline: Pipeline, columns: Mapping[str, Mapping[str, Field]]) -> Self:
        """Bind the class to the output columns of the SQL, and try it on empty frames. Raises StartError on failure."""
        step: Any = pipeline.transform.step
        assert isinstance(step, Keyed)
        keys, fields = bind_keyed_step(pipeline, columns)
        try:
            function = step.load_function()
        except KeyedFunctionError as error:
            raise StartError(f"{pipeline.name}: {step.CONFIG_PATH}.{error.key}: {error}") from None
        state = tuple(Field(name, str(type_)) for name, type_ in function.state.items())
        declared = step.output_columns
        output = None if declared is None else tuple(Field(name, type_) for name, type_ in declared.items())
        operator = cls(pipeline.name, keys, fields, step.class_, step.options_json, state, output, 1000 * step.lag_ms)
        operator.check_with_empty_frames()
        return operator

    def check_with_empty_frames(self) -> None:
        """Call `advance` and `expire` with empty frames. Raises StartError if a call fails or returns wrong columns."""
        numbered = {KEY: pl.UInt32(), TIME: pl.Int64()}
        rows = pl.DataFrame(schema={**numbered, **{f.name: f.polars for f in self.fields}})
        keys = {k.name: k.polars for k in self.keys}
        state = pl.DataFrame(schema={KEY: pl.UInt32(), TIMER: pl.Int64(), **keys, **self.accumulators})
        try:
            self.advance(rows, state, 0)
            self.expire(state, 0)
        except EpochError as error:
            raise StartError(f"{error} (called without rows)") from None


def _find_line(function: KeyedFunction, error: Exception) -> str:
    """Return the location of an error: the last line of its traceback that is in the user's module."""
    file = inspect.getsourcefile(type(function))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]} of {file}" if lines else str(file)
