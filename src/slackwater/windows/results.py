"""What is told of state rows and of an epoch's work on them: values between windows, operators and stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl


class SegmentStats(NamedTuple):
    """What a set of state rows says about itself, so that it need not be opened; watermarks in µs (see `SegmentMeta`)."""

    first_due: int
    last_due: int
    close: int
    dead: int


class ExpiryBounds(NamedTuple):
    """Which state rows no longer matter: a unit goes once this holds for all its rows; `__due` in µs."""

    whole_upto: int
    floor_upto: int


@dataclass(frozen=True)
class ResultCounts:
    """What became of the rows of one epoch in one shard, and how its open groups changed."""

    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    refused: int = 0
    groups: int = 0  # change in the number of groups: keys with open sessions, or (key, pane)
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class IngestResult:
    """Outcome of folding rows into the touched units: the units' new rows, the counts, the rows late for good."""

    state: pl.DataFrame
    counts: ResultCounts
    late: pl.DataFrame  # keys, `__start` and what else the rows came with (`__n`, `__idle`, `__row`)
    new_groups: dict[int, int]  # panes: start -> number of keys first seen in it


@dataclass(frozen=True)
class EmitResult:
    """What an epoch emits, and the units to replace.

    rows: keys, `__start`, `__end`, `__final`, `__rev`, `__reason`, accumulators. superseded: keys, `__start` and `__rev` of
    what the target holds and is no more.
    """

    rows: pl.DataFrame
    state: pl.DataFrame
    superseded: pl.DataFrame
    groups: int = 0
    windows: int = 0
