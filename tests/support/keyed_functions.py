"""Keyed functions as users write them: reminders for idle keys, whose timers set timers, and invalid functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import polars as pl

import slackwater as sw


class Reminders(sw.KeyedFunction):
    """Emit a reminder `every` milliseconds after the last row of a key, at most `most` times.

    every 10, most 2    0         10        20        30        40
    rows of a key       ●                        ●
    reminders                     1         2              1         2
    """

    state: ClassVar[Mapping[str, str]] = {"rows": "bigint", "reminders": "int"}
    output: ClassVar[Mapping[str, str]] = {"user": "string", "rows": "bigint", "number": "int"}

    def __init__(self, every: int = 10, most: int = 2) -> None:
        self.every_us, self.most = 1000 * every, most

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        """Emit the reminders that are due before the next row of a key. Its state has not reached their timers yet."""
        last = state.select(
            self.KEY,
            (pl.col(self.TIMER) - (pl.col("reminders") + 1) * self.every_us).alias(self.TIME),
            "user",
            "rows",
            "reminders",
        )
        new = rows.select(
            self.KEY, self.TIME, "user", pl.lit(1, pl.Int64).alias("rows"), pl.lit(0, pl.Int32).alias("reminders")
        )
        every = pl.concat([last.cast(new.schema), new]).with_columns(  # type: ignore[arg-type]
            pl.col("rows").cum_sum().over(self.KEY), pl.col(self.TIME).shift(-1).over(self.KEY).alias("next")
        )
        every = every.sort(self.KEY, maintain_order=True)
        return sw.KeyedResult(
            self._reminders_before_next_row(every.drop_nulls("next")),
            self._set_next_timer(every.filter(pl.col("next").is_null())),
        )

    def _reminders_before_next_row(self, rows: pl.DataFrame) -> pl.DataFrame:
        numbered = rows.with_columns(pl.lit(list(range(1, self.most + 1)), pl.List(pl.Int32)).alias("number"))
        time = pl.col(self.TIME) + pl.col("number") * self.every_us
        due = numbered.explode("number").filter((pl.col("number") > pl.col("reminders")) & (time <= pl.col("next")))
        return due.with_columns(time.alias(self.TIME))

    def _set_next_timer(self, rows: pl.DataFrame) -> pl.DataFrame:
        timer = pl.col(self.TIME) + (pl.col("reminders") + 1) * self.every_us
        return rows.with_columns(pl.when(pl.col("reminders") < self.most).then(timer).alias(self.TIMER))

    def expire(self, due: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        sent = due.with_columns(pl.col("reminders") + 1, pl.col(self.TIMER).alias(self.TIME))
        again = pl.when(pl.col("reminders") < self.most).then(pl.col(self.TIMER) + self.every_us)
        return sw.KeyedResult(sent.with_columns(number="reminders"), sent.with_columns(again.alias(self.TIMER)))


class FunctionWithoutAdvance(sw.KeyedFunction):
    """Does not define `advance`."""


class WrongColumnsFunction(sw.KeyedFunction):
    """Returns rows without the declared column."""

    output: ClassVar[Mapping[str, str]] = {"user": "string", "total": "bigint"}

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        return sw.KeyedResult(rows)


class FailingFunction(sw.KeyedFunction):
    """Reads a column that does not exist."""

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        return sw.KeyedResult(rows.filter(pl.col("missing") > 0))


class StuckTimerFunction(sw.KeyedFunction):
    """Sets the same timer again when it is due."""

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        return sw.KeyedResult(state=rows.select(self.KEY, pl.col(self.TIME).alias(self.TIMER)))

    def expire(self, due: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        return sw.KeyedResult(state=due)


class StateColumnNamedLikeKeyFunction(sw.KeyedFunction):
    """Declares a state column with the name of a key column."""

    state: ClassVar[Mapping[str, str]] = {"user": "string"}

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> sw.KeyedResult:
        return sw.KeyedResult()


NOT_A_CLASS = 7
