"""State rows and new rows of the touched keys as arrays, and what sessions ask of them: runs, floors, parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.watermark import NO_WATERMARK
from slackwater.windows.logic import FAR, FLOOR, LOOSE_TOLD, ROW, SETTLED, TOLD, Int64s, Logic, sorted_by_key

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Unit:
    """State rows and new rows of the touched keys, sorted by (key, start), as arrays."""

    frame: pl.DataFrame
    key: Int64s  # 0, 1, … per distinct key
    kind: NDArray[np.int8]
    start: Int64s
    last: Int64s
    due: Int64s
    end: Int64s  # how far its rows reach: last + gap, or what they brought

    @classmethod
    def of(cls, logic: Logic, frame: pl.DataFrame) -> Unit:
        frame, key = sorted_by_key(frame, logic.key_names, "__start", "__last")
        kind, start, last, due = (frame[c].to_numpy() for c in ("__kind", "__start", "__last", "__due"))
        end = frame["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
        return cls(frame, key, kind, start, last, due, end)

    @property
    def keys(self) -> int:
        return int(self.key[-1]) + 1 if len(self.key) else 0

    @property
    def told(self) -> Bools:
        """Whether the target holds an interval as it stands."""
        return (self.kind == TOLD) | (self.kind == LOOSE_TOLD)

    def is_gone(self, horizon: int) -> Bools:
        """Floors, and whole sessions whose close is at or before the horizon (see `Logic.horizon`)."""
        whole = (self.kind == SETTLED) | (self.kind == TOLD)
        return (self.kind == FLOOR) | (whole & (self.due <= horizon))

    def floors(self, reach: int, horizon: int) -> Int64s:
        """Per key the floor that still counts at the horizon, else NO_WATERMARK; `reach`: see `Logic.reach_us`."""
        gone = self.is_gone(horizon)
        is_open = ~gone & (self.kind != ROW)
        floor = per_key(np.maximum, np.where(gone, self.end, NO_WATERMARK), self.key)
        first = per_key(np.minimum, np.where(is_open, self.start, FAR), self.key)
        return np.where((horizon <= floor + reach) | (first <= floor + reach), floor, NO_WATERMARK)


def acknowledged(logic: Logic, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """State rows, those that closed without being written again marked as what they are: emitted as they stand."""
    if not logic.revises:
        return state
    emitted = (pl.col("__kind") == SETTLED) & (pl.col("__due") <= watermark)
    return state.with_columns(
        pl.when(emitted).then(pl.col("__rev") + 1).otherwise(pl.col("__rev")).alias("__rev"),
        pl.when(emitted).then(pl.concat_list("__start")).otherwise(pl.col("__out")).alias("__out"),
        pl.when(emitted).then(pl.lit(TOLD, pl.Int8)).otherwise(pl.col("__kind")).alias("__kind"),
    )


def first_of_each(key: Int64s) -> Int64s:
    return np.flatnonzero(np.diff(key, prepend=-1))


def per_key(fold: np.ufunc, values: Int64s | Bools, key: Int64s) -> Int64s:
    """Fold `values` per key; `key` is sorted and dense."""
    result: Int64s = fold.reduceat(values, first_of_each(key)) if len(key) else values  # type: ignore[assignment]
    return result


def reaches(key: Int64s, start: Int64s, last: Int64s) -> Int64s:
    """For each interval, how far the intervals before it (of its key) reach; NO_WATERMARK for a key's first.

    Intervals that are longer than a point come from the state and do not overlap, so the latest one before reaches furthest.
    """
    reach = np.full(len(key), NO_WATERMARK)
    if len(key) < 2:
        return reach
    wide = np.where(last > start, np.arange(len(key)), -1)
    latest = np.maximum.accumulate(wide)[:-1]
    before = np.where((latest >= 0) & (key[latest] == key[1:]), last[latest], NO_WATERMARK)
    reach[1:] = np.where(key[1:] == key[:-1], np.maximum(start[:-1], before), NO_WATERMARK)
    return reach


def renumber(values: Int64s) -> Int64s:
    return np.cumsum(np.diff(values, prepend=values[0] - 1 if len(values) else 0) != 0) - 1


def chosen(unit: Unit, mask: Bools) -> Unit:
    """The chosen rows; keys keep their numbers."""
    if mask.all():
        return unit
    index = np.flatnonzero(mask)
    return Unit(
        unit.frame[index],
        unit.key[index],
        unit.kind[index],
        unit.start[index],
        unit.last[index],
        unit.due[index],
        unit.end[index],
    )


def runs_of(logic: Logic, unit: Unit) -> tuple[Int64s, Int64s]:
    """Number the runs of intervals that touch (inclusive), and give how far each one's predecessors' events reach."""
    reach = reaches(unit.key, unit.start, unit.last)
    if not logic.dynamic:
        return np.cumsum(unit.start > reach + logic.gap_us) - 1, reach
    held = furthest(unit.key, unit.end)
    joined = np.append(False, (unit.key[1:] == unit.key[:-1]) & (unit.start[1:] <= held[:-1]))[: len(held)]
    return np.cumsum(~joined) - 1, reach


def furthest(key: Int64s, end: Int64s) -> Int64s:
    """For each interval, how far it and those before it (of its key) reach."""
    order = np.argsort(end, kind="stable")
    rank = np.empty(len(end), dtype=np.int64)
    rank[order] = np.arange(len(end))
    best = np.maximum.accumulate(key * len(end) + rank) - key * len(end)
    return end[order][best]
