"""Rows of state that keyed operators store: any number per key, each with a timer in event time.

A row of state is due when the watermark reaches its timer. Because the watermark alone decides this, nothing is written
when a row of state expires:

     stored          due: passed to `expire`, exactly once
    ────────────────┬──────────────────────────────────▶ watermark
                  timer
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import polars as pl

from slackwater.config.keyed_step import KEY, TIMER, KeyedResult
from slackwater.core.schema import YEARS, Field
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import (
    FAR,
    HIDDEN,
    NEVER,
    TOMBSTONE,
    WHOLE,
    DueRowFilter,
    ExpiryBounds,
    KeyedStateLayout,
    SegmentStats,
)

NO_TIMER = YEARS[1]  # `__due` of a row of state without a timer; a time that Postgres can store


class StateChange(NamedTuple):
    """The new rows of changed units, and the changes in the size of the state."""

    rows: pl.DataFrame
    groups: int  # change in the number of keys
    windows: int  # change in the number of rows of state


class TimerStateLayout(KeyedStateLayout):
    """The layout of a keyed operator's rows of state."""

    @property
    @abstractmethod
    def state_fields(self) -> Sequence[Field]:
        """Return the columns of a row of state, except the keys and the timer."""

    @cached_property
    def accumulators(self) -> Mapping[str, pl.DataType]:
        return {f.name: f.polars for f in self.state_fields}

    @cached_property
    def state_schema(self) -> dict[str, pl.DataType]:
        return {**HIDDEN, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        due = state["__due"].to_numpy()[state["__kind"].to_numpy() != TOMBSTONE]
        timed = due[due < NO_TIMER]
        last = int(timed.max(initial=NO_WATERMARK))
        return SegmentStats(int(timed.min(initial=FAR)), last, last, last if len(timed) == len(due) else FAR)

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        span = (limit_timer(since), limit_timer(watermark))
        return DueRowFilter((span,), (span,), (), NEVER, FAR)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        return ExpiryBounds(whole_upto=limit_timer(watermark), floor_upto=NEVER)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Drop the rows of state that are due at this watermark."""
        return state.filter(pl.col("__due") > limit_timer(watermark))

    def count_state(self, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
        """Count the keys and rows of state that have not expired at this watermark."""
        return self.count_rows(self.drop_expired(state, watermark))

    def count_rows(self, rows: pl.DataFrame) -> tuple[int, int]:
        """Count the distinct keys and the rows in a frame of state rows."""
        return rows.select("__kh", *self.key_names).n_unique() if rows.height else 0, rows.height

    def state_frame(self, state: pl.DataFrame) -> pl.DataFrame:
        """Convert rows of state to the frame that `advance` and `expire` expect."""
        timer = pl.when(pl.col("__due") < NO_TIMER).then("__due").alias(TIMER)
        return state.sort(KEY, maintain_order=True).select(KEY, timer, *self.key_names, *self.accumulators)

    def replace_state(self, keys: pl.DataFrame, live: pl.DataFrame, result: KeyedResult, watermark: int) -> StateChange:
        """Return the new rows of the units that contain a changed key.

        Args:
            keys: The keys of the epoch's rows, as in `state_rows`.
            live: The unexpired state rows of all touched units. `KEY` is NULL for keys that are not in `keys`.
            result: The result of `advance`.
            watermark: The watermark (µs) of the previous epoch.
        """
        changed = keys if result.changed is None else keys.filter(pl.col(KEY).is_in(result.changed.unique().implode()))
        new = self.state_rows(changed, result.state, watermark)
        units = live.join(changed.select("__kh").unique(), on="__kh", how="semi", maintain_order="left")
        replaced = units.join(changed.select(KEY), on=KEY, how="semi")
        unchanged = units.join(changed.select(KEY), on=KEY, how="anti", maintain_order="left")
        columns = list(self.state_schema)
        rows = pl.concat([unchanged.select(columns), new])
        rows = pl.concat([rows, _tombstones(units.select(columns), rows)])
        (keys_after, rows_after), (keys_before, rows_before) = self.count_rows(new), self.count_rows(replaced)
        rows = rows.sort("__h", *self.key_names, maintain_order=True)
        return StateChange(rows, keys_after - keys_before, rows_after - rows_before)

    def state_rows(self, keys: pl.DataFrame, state: pl.DataFrame | None, watermark: int) -> pl.DataFrame:
        """Convert rows of state, as `advance` and `expire` return them, to stored state rows.

        A timer at or before the watermark is due as soon as the watermark advances. `keys`: for each key, `KEY`,
        `__kh`, the key columns, and the first and last event time (`__from`, `__upto`).
        """
        if state is None or state.is_empty():
            return self.empty_state()
        timer = pl.col(TIMER).cast(pl.Int64).clip(max(watermark + 1, YEARS[0]), NO_TIMER - 1).fill_null(NO_TIMER)
        columns = [pl.col(KEY).cast(keys.schema[KEY]), timer.alias("__due"), *self.accumulators]
        rows = keys.join(state.select(columns), on=KEY, maintain_order="right")
        return rows.select(
            pl.col("__kh").alias("__h"),
            "__kh",
            pl.lit(WHOLE).alias("__kind"),
            pl.col("__from").alias("__start"),
            pl.col("__upto").alias("__last"),
            "__due",
            *self.key_names,
            *self.accumulators,
        ).cast(self.state_schema)  # type: ignore[arg-type]


def limit_timer(watermark: int) -> int:
    """Return the largest timer that is due at a watermark. A row without a timer is never due."""
    return min(watermark, NO_TIMER - 1)


def _tombstones(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Return a TOMBSTONE row for each unit that has rows in `before`, but not in `after`."""
    emptied = before.join(after, on="__h", how="anti").unique("__h", keep="first")
    return emptied.with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))


__all__ = ["NO_TIMER", "StateChange", "TimerStateLayout", "limit_timer"]
