"""What windows, operators and stores exchange: statistics of state rows, and results of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl


class SegmentStats(NamedTuple):
    """Statistics of a segment's state rows. They show whether any row is due, without reading the rows.

    Each value is a watermark in µs.
    """

    first_due: int
    last_due: int
    close: int
    dead: int


class ExpiryBounds(NamedTuple):
    """The `__due` (µs) up to which whole rows and floors are no longer needed. A unit expires when all its rows do."""

    whole_upto: int
    floor_upto: int


@dataclass(frozen=True)
class ResultCounts:
    """Counts for one shard and epoch: what happened to its rows, and how its open groups changed."""

    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    refused: int = 0
    groups: int = 0  # change in the number of groups: keys with open sessions, or (key, pane)
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class IngestResult:
    """The outcome of merging rows into the units (state rows with equal `__h`) that they touch."""

    state: pl.DataFrame
    counts: ResultCounts
    late: pl.DataFrame  # keys, `__start`, and `__n`, `__idle` and `__row` if the rows had them
    new_groups: dict[int, int]  # panes: start -> number of keys first seen in it


@dataclass(frozen=True)
class EmitResult:
    """The results that an epoch emits on one shard, and the state rows that it changes.

    `rows` has keys, `__start`, `__end`, `__final`, `__rev`, `__reason` and accumulators. `superseded` has keys,
    `__start` and `__rev` of results that no longer exist but are still in the target.
    """

    rows: pl.DataFrame
    state: pl.DataFrame
    superseded: pl.DataFrame
    groups: int = 0
    windows: int = 0
