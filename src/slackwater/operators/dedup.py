"""Deduplication, which emits one of several rows of a key that are close together in event time.

keep = "first"      ●────── within ──────┤          ●──…           a row is a duplicate if a result of its key is less
                    result   ○   ○                  result         than `within` away

keep = "last"       ○ ── within ──┤                                a row is a duplicate if another row of its key
                          ○ ── within ──┤                          follows in less than `within`
                                  ● ── within ──┤
                                  result        emitted here       one run: each row is less than `within` after another

Event time alone decides which rows are duplicates. The watermark decides which rows are late, and when a row of state
expires. A row of state expires as soon as every row that it could affect has been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.config.dedup import Dedup
from slackwater.config.keyed_step import KEY, TIME, TIMER, KeyedResult
from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s, find_run_starts
from slackwater.operators.keyed_operator_base import KeyedOperator, bind_keyed_step

_EMITTED, _FIRST, _LAST = "__emitted_at", "__first_at", "__last_at"  # columns of state; users cannot use these names
_END = "__end"  # hidden column: the end of the range in which a row has duplicates
_TIME_TYPE = pl.Datetime("us", "UTC")


@dataclass(frozen=True)
class DedupOperator(KeyedOperator):
    """Emits the first or the last of the rows of a key that are less than `within_us` apart."""

    keep: str = "first"
    within_us: int = 0

    KIND: ClassVar[str] = "dedup"
    EXPIRES_ROWS_ALONE: ClassVar[bool] = True

    @property
    def state_fields(self) -> Sequence[Field]:
        """Return the state columns: the time of a result (keep = "first"), or the times and the last row of a run."""
        if self.keep == "first":
            return (Field(_EMITTED, "timestamp"),)
        return (Field(_FIRST, "timestamp"), Field(_LAST, "timestamp"), *self._row_fields)

    @property
    def _row_fields(self) -> list[Field]:
        """Return the columns of an input row that are not keys."""
        key_names = {k.name for k in self.keys}
        return [f for f in self.fields if f.name not in key_names]

    @property
    def lag_us(self) -> int:
        return self.within_us if self.keep == "last" else 0

    @property
    def reach_us(self) -> int:
        return self.within_us

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        return (self._emit_first if self.keep == "first" else self._extend_runs)(rows, state)

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        """Emit the last row of each run that has ended. With keep = "first", emit nothing."""
        if self.keep == "first":
            return KeyedResult()
        return KeyedResult(due.with_columns(pl.col(_LAST).dt.timestamp("us").alias(TIME)))

    # -- keep = "first" --------------------------------------------------------------------------------------------

    def _emit_first(self, rows: pl.DataFrame, state: pl.DataFrame) -> KeyedResult:
        """Emit rows that are at least `within` away from every result of their key."""
        unseen = rows.filter(~self._is_near_result(rows, state))
        chosen = unseen.filter(pl.Series(_chain(unseen[KEY].to_numpy(), unseen[TIME].to_numpy(), self.within_us)))
        results = chosen.select(
            KEY, (pl.col(TIME) + self.within_us).alias(TIMER), pl.col(TIME).cast(_TIME_TYPE).alias(_EMITTED)
        )
        changed = chosen[KEY].unique()
        earlier = state.filter(pl.col(KEY).is_in(changed.implode())).select(results.columns)
        return KeyedResult(chosen, pl.concat([earlier, results]), changed, rows.height - chosen.height)

    def _is_near_result(self, rows: pl.DataFrame, state: pl.DataFrame) -> pl.Series:
        """Return a mask of the rows that are less than `within` away from a stored result of their key.

        For rows after a result, `within` has the value that it had when the result was emitted.
        """
        if state.is_empty():
            return pl.Series([False]).new_from_index(0, rows.height)
        emitted = pl.col(_EMITTED).dt.timestamp("us")
        results = state.select(KEY, emitted.alias(TIME), pl.col(TIMER).alias(_END), emitted.alias(_EMITTED), __row=None)
        both = pl.concat([results, rows.select(KEY, TIME, __row=pl.int_range(pl.len()))], how="diagonal_relaxed")
        near = (
            both.sort(KEY, TIME, "__row", nulls_last=False)  # at equal times, a result comes before a row
            .select(
                "__row",
                (pl.col(TIME) < pl.col(_END).cum_max().forward_fill().over(KEY)).fill_null(False).alias("after"),
                (pl.col(_EMITTED).backward_fill().over(KEY) < pl.col(TIME) + self.within_us)
                .fill_null(False)
                .alias("before"),
            )
            .drop_nulls("__row")
            .sort("__row")
        )
        return near["after"] | near["before"]

    # -- keep = "last" ---------------------------------------------------------------------------------------------

    def _extend_runs(self, rows: pl.DataFrame, state: pl.DataFrame) -> KeyedResult:
        """Combine stored runs and new rows into new runs. All rows of a run except the last one are duplicates."""
        times = (pl.col(c).dt.timestamp("us").alias(c) for c in (_FIRST, _LAST))
        values = [f.name for f in self._row_fields]
        stored = state.select(KEY, *times, pl.col(TIMER).alias(_END), *values)
        new = rows.select(
            KEY,
            pl.col(TIME).alias(_FIRST),
            pl.col(TIME).alias(_LAST),
            (pl.col(TIME) + self.within_us).alias(_END),
            *values,
        )
        pieces = pl.concat([stored.cast(new.schema), new]).sort(KEY, _FIRST, maintain_order=True)
        begins = (pl.col(_FIRST) >= pl.col(_END).cum_max().shift(1).over(KEY)).fill_null(True)
        order = ["__run", _LAST, *(f.name for f in self._row_fields if f.is_scalar)]
        runs = (
            pieces.with_columns(begins.cum_sum().alias("__run"))
            .sort(order, nulls_last=False, maintain_order=True)
            .group_by("__run", maintain_order=True)
            .agg(
                pl.col(KEY).first(),
                pl.col(_END).max().alias(TIMER),
                pl.col(_FIRST).min(),
                pl.col(_LAST, *values).last(),
            )
            .with_columns(pl.col(_FIRST, _LAST).cast(_TIME_TYPE))
        )
        return KeyedResult(state=runs.drop("__run"), duplicates=pieces.height - runs.height)

    # -- from a config ---------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, pipeline: Pipeline, columns: Mapping[str, Mapping[str, Field]]) -> Self:
        """Bind a dedup step to the output columns of the SQL. Raises StartError, with one line per problem."""
        step: Any = pipeline.transform.step
        assert isinstance(step, Dedup)
        keys, fields = bind_keyed_step(pipeline, columns)
        return cls(pipeline.name, keys, fields, step.keep, 1000 * step.within_ms)


def _chain(key: Int64s, time: Int64s, within: int) -> NDArray[np.bool_]:
    """Return a mask of the results: the first row of each key, the first row at least `within` later, and so on.

    The rows must be sorted by key and time. Each row points to the row that would be the next result after it.
    Following 1, 2, 4, … pointers at once finds all results in a number of steps that is logarithmic in the longest
    chain.

        time     0   3   10   12   21        within 10
        next     └────────▶└────────▶        results: 0, 10, 21
    """
    reached = np.zeros(len(key), dtype=bool)
    reached[find_run_starts(key)] = True
    jump = np.append(_next_results(key, time, within), len(key))
    while len(targets := jump[np.flatnonzero(reached)]):
        targets = targets[targets < len(key)]
        if reached[targets].all():
            break
        reached[targets] = True
        jump = jump[jump]
    return reached


def _next_results(key: Int64s, time: Int64s, within: int) -> Int64s:
    """Return, for each row, the position of the first row with the same key that is at least `within` later.

    Without a later row, the position is the number of rows.
    """
    count = len(key)
    keys, times, is_row = np.tile(key, 2), np.append(time + within, time), np.repeat([False, True], count)
    order = np.lexsort((is_row, times, keys))
    earlier = np.cumsum(is_row[order])[np.argsort(order)[:count]]  # rows before this key and time
    candidates = np.minimum(earlier, count - 1)
    return np.where((earlier < count) & (key[candidates] == key), earlier, count)
