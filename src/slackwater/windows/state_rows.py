"""What is kept of windows, and of whatever else is found by unit: rows of a state, and when they want a visit or are over.

A state row is one interval with its accumulators:

| column     | meaning                                                                                     |
|------------|---------------------------------------------------------------------------------------------|
| `__h`      | int64, where the row is found: the key's hash, for panes mixed with the pane's start         |
| `__kh`     | int64, the key's hash                                                                        |
| `__kind`   | what the row is (below)                                                                      |
| `__start`  | µs UTC, start of the pane, or first event of the session                                     |
| `__last`   | µs UTC, last event of the session (panes: the start again)                                   |
| `__due`    | µs UTC, the watermark at which the row wants a visit: it closes, or is out of its last window|
| `__end`    | µs UTC, how far the session's rows reach (only where each row brings its own gap)           |
| `__rev`    | how often it was emitted: the largest revision of what was merged (only if windows are revised)|
| `__out`    | sessions: the starts under which the target holds what was merged (only if windows are revised)|
| keys, accumulators | typed as in the input                                                                |

All rows with one `__h` are a *unit*: it is read and replaced as a whole, and the newest version wins. A row whose time
is over needs no delete: whether it is open, closed, retained or gone follows from the watermark alone.

          close              close + allowed lateness (reopen)
    open    │     retained     │    gone
    ────────┴──────────────────┴───────────▶ watermark
            emitted            rows of it are late for good
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
from slackwater.windows.results import ExpiryBounds, SegmentStats

Int64s = NDArray[np.int64]

WHOLE = CLEAN = 0  # a whole session; a pane whose emission follows from the watermark
FRAGMENT = DIRTY = 1  # a part of a run that may be cut; a pane that was changed and waits to be emitted
FLOOR = 2  # how far the sessions of a key that left the state reached
TOMBSTONE = 3  # a unit that goes
EMITTED, EMITTED_FRAGMENT = 4, 5  # a WHOLE session, a FRAGMENT that the target holds as it stands
ROW = 9  # not in the state: a row of this epoch
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

FAR = 1 << 62  # a time after every other
NEVER = -FAR  # a time before every other

Span = tuple[int, int]  # after < time <= upto, in µs


class DueQuery(NamedTuple):
    """Which state rows want a visit in an epoch; in µs. A store finds them by `__kind`, `__due` and `__start`."""

    moves: tuple[Span, ...]  # of the watermark: a set of rows with no emission in one of them need not be opened
    whole: tuple[Span, ...]  # WHOLE (of panes: CLEAN) rows with __due in one of these
    emitted: tuple[Span, ...]  # EMITTED rows likewise
    pending_upto: int  # FRAGMENT (DIRTY) and EMITTED_FRAGMENT rows with __due <= pending_upto
    start_before: int  # of all these, those with __start < start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        result = ((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)) & (due <= self.pending_upto)
        for row_kind, spans in ((WHOLE, self.whole), (EMITTED, self.emitted)):
            for after, upto in spans:
                result |= (kind == row_kind) & (due > after) & (due <= upto)
        result &= start < self.start_before
        return result

    def touches(self, first_due: int, last_due: int) -> bool:
        """Whether rows with these `SegmentStats` may want a visit."""
        return any(first_due <= upto and last_due > after for after, upto in self.moves)


class KeyedState(ABC):
    """What stores ask of whatever keeps units, a window or not: its rows, and when these want a visit or are over.

    No room beside `windows` needs an answer of its own to what it asks of a state's rows, where an operator is one of these.
    """

    pipeline: str
    keys: tuple[Field, ...]

    @cached_property
    def key_names(self) -> list[str]:
        return [k.name for k in self.keys]

    @property
    @abstractmethod
    def accumulators(self) -> Mapping[str, pl.DataType]:
        """The columns of a state row behind the hidden ones and the keys."""

    @property
    @abstractmethod
    def state_schema(self) -> dict[str, pl.DataType]:
        """All columns of a state row, HIDDEN first."""

    @property
    def revises(self) -> bool:
        """Whether what came out may come out again: then rows have the columns REVISED."""
        return False

    @abstractmethod
    def stats(self, state: pl.DataFrame) -> SegmentStats:
        """Of a set of state rows that is not empty."""

    @abstractmethod
    def due_between(self, since: int, watermark: int, early: bool = False) -> DueQuery:
        """The rows whose unit wants a visit when the watermark goes from `since` to `watermark`.

        `early`: all that were changed and not emitted, too.
        """

    @abstractmethod
    def forgotten(self, watermark: int) -> ExpiryBounds:
        """Which state rows no longer matter."""

    @abstractmethod
    def forget(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """State rows without those that no longer matter."""

    def empty_state(self) -> pl.DataFrame:
        return empty_frame(self.state_schema)

    def add_revision_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        return with_revision_columns(rows, self.state_schema)


_EMPTY: dict[tuple[tuple[str, pl.DataType], ...], pl.DataFrame] = {}


def empty_frame(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """No rows with these columns; frames are never changed in place, so one serves all."""
    columns = tuple(schema.items())
    if columns not in _EMPTY:
        _EMPTY[columns] = pl.DataFrame(schema=schema)
    return _EMPTY[columns]


def with_revision_columns(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Rows with the columns of revisions, where the schema has any: nothing of them was emitted yet."""
    if "__rev" not in schema or "__rev" in rows.columns:
        return rows
    return rows.with_columns(pl.lit(0, pl.Int64).alias("__rev"), pl.lit([], pl.List(pl.Int64)).alias("__out"))
