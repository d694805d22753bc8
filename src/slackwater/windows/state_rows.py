"""The schema and kinds of state rows, for windows and all other keyed operators, and when a row is due or expires.

A state row is one interval with its accumulators:

| column             | meaning                                                                               |
|--------------------|---------------------------------------------------------------------------------------|
| `__h`              | int64, the unit of the row: the key's hash, for panes mixed with the pane's start     |
| `__kh`             | int64, the key's hash                                                                 |
| `__kind`           | the kind of the row, such as WHOLE or FRAGMENT                                        |
| `__start`          | µs UTC, start of the pane, or first event of the session                              |
| `__last`           | µs UTC, last event of the session (panes: the start again)                            |
| `__due`            | µs UTC, the watermark at which the row closes, or (panes) leaves its last window      |
| `__end`            | µs UTC, how far the session's rows extend (only if each row has its own gap)          |
| `__rev`            | the largest revision of the merged rows (only if windows can be revised)              |
| `__out`            | sessions: the starts of the merged rows in the target (only if revisable)             |
| keys, accumulators | typed as in the input                                                                 |

All rows with the same `__h` form a *unit*. A unit is read and replaced as a whole; the newest version wins. Expired
rows do not have to be deleted. The watermark alone decides whether a row is open, closed, retained or expired.

          close              close + allowed lateness (reopen)
    open    │     retained     │    gone
    ────────┴──────────────────┴───────────▶ watermark
            emitted            its rows are late from here on
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
EMITTED, EMITTED_FRAGMENT = 4, 5  # a WHOLE session or a FRAGMENT that the target holds unchanged
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

    With them, a store can skip segments that have no due rows, without reading them.
    """

    first_due: int
    last_due: int
    close: int
    dead: int


class ExpiryBounds(NamedTuple):
    """The `__due` (µs) up to which whole rows and floors are no longer needed. A unit expires when all its rows do."""

    whole_upto: int
    floor_upto: int


class DueRowFilter(NamedTuple):
    """Selects the state rows that are due in an epoch; times in µs.

    A store evaluates it on `__kind`, `__due` and `__start`.
    """

    moves: tuple[Span, ...]  # watermark ranges; rows without an emission in any of them need not be opened
    whole: tuple[Span, ...]  # select WHOLE (panes: CLEAN) rows with __due in one of these ranges
    emitted: tuple[Span, ...]  # the same for EMITTED rows
    pending_upto: int  # select FRAGMENT (DIRTY) and EMITTED_FRAGMENT rows with __due <= pending_upto
    start_before: int  # applies to all of them: __start < start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the state rows that are due."""
        result = ((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)) & (due <= self.pending_upto)
        for row_kind, spans in ((WHOLE, self.whole), (EMITTED, self.emitted)):
            for after, upto in spans:
                result |= (kind == row_kind) & (due > after) & (due <= upto)
        result &= start < self.start_before
        return result

    def may_select(self, first_due: int, last_due: int) -> bool:
        """Return whether rows with these `SegmentStats` may be due."""
        return any(first_due <= upto and last_due > after for after, upto in self.moves)


class KeyedStateLayout(ABC):
    """What stores need to know about a keyed operator: its state rows, and when they are due or expire.

    Packages that read state rows need no special code for operators that derive from this class.
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
        """Return all columns of a state row, starting with HIDDEN."""

    @property
    def revises(self) -> bool:
        """Return whether results may be emitted again; if so, state rows have the REVISED columns."""
        return False

    @abstractmethod
    def stats(self, state: pl.DataFrame) -> SegmentStats:
        """Compute statistics of a non-empty set of state rows."""

    @abstractmethod
    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        """Select the rows whose units are due as the watermark advances from `since` to `watermark`.

        With `early`, changed rows that have not been emitted are due as well.
        """

    @abstractmethod
    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        """Return the values of `__due` up to which state rows are no longer needed."""

    @abstractmethod
    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Drop the state rows that are no longer needed."""

    def empty_state(self) -> pl.DataFrame:
        return empty_frame(self.state_schema)

    def add_revision_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the revision columns, with the values of rows that were never emitted, if this state has such columns."""
        return with_revision_columns(rows, self.state_schema)


_EMPTY: dict[tuple[tuple[str, pl.DataType], ...], pl.DataFrame] = {}


def empty_frame(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return an empty frame with these columns.

    Frames are immutable, so one instance per schema is shared.
    """
    columns = tuple(schema.items())
    if columns not in _EMPTY:
        _EMPTY[columns] = pl.DataFrame(schema=schema)
    return _EMPTY[columns]


def with_revision_columns(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Add the schema's revision columns to rows that lack them, with the values of rows that were never emitted."""
    if "__rev" not in schema or "__rev" in rows.columns:
        return rows
    return rows.with_columns(pl.lit(0, pl.Int64).alias("__rev"), pl.lit([], pl.List(pl.Int64)).alias("__out"))
