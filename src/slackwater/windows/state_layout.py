"""The schema and kinds of state rows, and the rules for when a row is due or expires.

All keyed operators use this schema. A state row of a window is one interval or pane with its accumulators:

| column             | meaning                                                                               |
|--------------------|---------------------------------------------------------------------------------------|
| `__h`              | int64, the unit of the row: the key's hash (panes: mixed with the start of the pane)  |
| `__kh`             | int64, the key's hash                                                                 |
| `__kind`           | the kind of the row, such as WHOLE or FRAGMENT                                        |
| `__start`          | µs UTC, start of the pane, or first event of the session                              |
| `__last`           | µs UTC, last event of the session (panes: the start again)                            |
| `__due`            | µs UTC, the watermark at which the row closes, or (panes) leaves its last window      |
| `__end`            | µs UTC, how far the session's rows extend (only if each row has its own gap)          |
| `__rev`            | the largest revision of the merged rows (only if windows can be revised)              |
| `__out`            | sessions: starts of the merged rows in the target (only if windows can be revised)    |
| keys, accumulators | typed as in the input                                                                 |

All rows with the same `__h` form a *unit*. A unit is read and replaced as a whole. Only the newest version of a
unit is valid. Expired rows do not have to be deleted. The watermark alone decides whether a row is open, closed, retained or
expired.

          close              close + allowed lateness (reopen)
    open    │     retained     │    gone
    ────────┴──────────────────┴───────────▶ watermark
            emitted            from now on, rows of this window are late
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.schema import Field

Int64s = NDArray[np.int64]

WHOLE = CLEAN = 0  # a whole session; a pane whose emission follows from the watermark alone
FRAGMENT = DIRTY = 1  # a part of a run that may still be cut; a changed pane that has not been emitted yet
FLOOR = 2  # the latest end of a key's expired sessions
TOMBSTONE = 3  # a deleted unit
EMITTED, EMITTED_FRAGMENT = 4, 5  # a WHOLE session or a FRAGMENT that the target contains unchanged
ROW = 9  # a new row, not from the state
OPEN = (WHOLE, FRAGMENT, EMITTED, EMITTED_FRAGMENT)

HIDDEN: dict[str, pl.DataType] = {
    "__h": pl.Int64(),
    "__kh": pl.Int64(),
    "__kind": pl.Int8(),
    "__start": pl.Int64(),
    "__last": pl.Int64(),
    "__due": pl.Int64(),
}


REVISED: dict[str, pl.DataType] = {"__rev": pl.Int64(), "__out": pl.List(pl.Int64())}

FAR = 1 << 62  # later than every time
NEVER = -FAR  # earlier than every time

Span = tuple[int, int]  # after < time <= upto, in µs


class SegmentStats(NamedTuple):
    """Watermarks (µs) at which the rows of a segment are due, close and expire.

    They allow a store to skip segments without due rows.
    """

    first_due: int
    last_due: int
    close: int  # all windows of the segment are closed
    dead: int  # all rows of the segment have expired


class ExpiryBounds(NamedTuple):
    """Limits of `__due` (µs) up to which whole rows and floors have expired. A unit expires with its last row."""

    whole_upto: int
    floor_upto: int


class DueRowFilter(NamedTuple):
    """A filter for the state rows that are due in an epoch, by `__kind`, `__due` and `__start`. Times are in µs."""

    moves: tuple[Span, ...]  # a segment may have due rows only if its due times overlap one of these ranges
    whole: tuple[Span, ...]  # select WHOLE (panes: CLEAN) rows with __due in one of these ranges
    emitted: tuple[Span, ...]  # select EMITTED rows with __due in one of these ranges
    pending_upto: int  # select FRAGMENT (panes: DIRTY) and EMITTED_FRAGMENT rows with __due <= pending_upto
    start_before: int  # never select rows with __start >= start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the state rows that are due."""
        result = ((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)) & (due <= self.pending_upto)
        for row_kind, spans in ((WHOLE, self.whole), (EMITTED, self.emitted)):
            for after, upto in spans:
                result |= (kind == row_kind) & (due > after) & (due <= upto)
        result &= start < self.start_before
        return result

    def may_match_segment(self, first_due: int, last_due: int) -> bool:
        """Return whether a segment with these `SegmentStats` may contain due rows."""
        return any(first_due <= upto and last_due > after for after, upto in self.moves)


class KeyedStateLayout(ABC):
    """The state rows of a keyed operator, as stores see them: their columns, and when they are due or expire.

    Code that reads state rows through this class works for every keyed operator.
    """

    pipeline: str
    keys: tuple[Field, ...]

    @cached_property
    def key_names(self) -> list[str]:
        return [k.name for k in self.keys]

    @property
    @abstractmethod
    def accumulators(self) -> Mapping[str, pl.DataType]:
        """Return the state columns that follow the hidden columns and the keys."""

    @property
    @abstractmethod
    def state_schema(self) -> dict[str, pl.DataType]:
        """Return all columns of a state row with their types, starting with HIDDEN."""

    @property
    def revises(self) -> bool:
        """Return whether results may be emitted again. If so, state rows have the REVISED columns."""
        return False

    @abstractmethod
    def stats(self, state: pl.DataFrame) -> SegmentStats:
        """Compute the statistics of a non-empty frame of state rows."""

    @abstractmethod
    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        """Select the rows that are due as the watermark advances from `since` to `watermark` (µs).

        With `early`, changed rows that have not been emitted are due as well.
        """

    @abstractmethod
    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        """Return the limits of `__due` up to which state rows have expired at this watermark."""

    @abstractmethod
    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Drop the state rows that have expired at this watermark."""

    def empty_state(self) -> pl.DataFrame:
        return empty_frame(self.state_schema)

    def add_revision_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the REVISED columns to rows that have never been emitted, if the state schema contains them."""
        return with_revision_columns(rows, self.state_schema)


_EMPTY: dict[tuple[tuple[str, pl.DataType], ...], pl.DataFrame] = {}


def empty_frame(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return an empty frame with these columns. All calls with the same schema return the same instance."""
    columns = tuple(schema.items())
    if columns not in _EMPTY:
        _EMPTY[columns] = pl.DataFrame(schema=schema)
    return _EMPTY[columns]


def with_revision_columns(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Add the REVISED columns to rows that have never been emitted, if the schema contains them and the rows do not."""
    if "__rev" not in schema or "__rev" in rows.columns:
        return rows
    return rows.with_columns(pl.lit(0, pl.Int64).alias("__rev"), pl.lit([], pl.List(pl.Int64)).alias("__out"))
