"""A compiled stream-stream join: two sides bound to their columns, and the time bounds between partners.

    left    ──●─────────────────────────▶ event time      lower <= right.ts - left.ts <= upper
    right      ├──────────────┤  its partners             the left row waits until watermark > ts + upper
             lower          upper

A row expires once the watermark is above its event time plus the `keep_us` of its side.

Rows of both sides go through one shuffle in one frame. Columns of the same type share a shuffled column:

left   user STRING, amount BIGINT, note STRING        c0 STRING   c1 BIGINT   c2 STRING
right  id STRING, paid BIGINT                         id          paid        NULL
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from slackwater.core.column_names import EVENT_TIME
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s

LEFT, RIGHT = 0, 1
HIDDEN = {"__kh": pl.Int64(), "__ts": pl.Int64(), "__id": pl.Int64(), "__matched": pl.Boolean()}
MATCH, UNMATCHED = "match", "unmatched"


@dataclass(frozen=True)
class JoinSide:
    """One side of a join, bound to its columns."""

    which: int  # LEFT or RIGHT
    source: str
    keys: tuple[Field, ...]
    fields: tuple[Field, ...]  # all columns, including `keys`
    output: tuple[tuple[str, Field], ...]  # the name and the column of each output column
    low_us: int  # the partners of a row have event times from ts + low_us
    high_us: int  # … to ts + high_us
    keep_us: int  # a row may find partners until the watermark is above ts + keep_us
    outer: bool  # whether rows without a partner are emitted

    @property
    def name(self) -> str:
        return ("left", "right")[self.which]

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """Return the columns of a buffered row with their types. Only outer sides use `__matched`."""
        return {**HIDDEN, **{f.name: f.polars for f in self.fields}}

    def add_missing_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add a NULL column for each column that was added to the config after `rows` was stored."""
        new = [f for f in self.fields if f.name not in rows.columns and f not in self.keys]
        return rows.with_columns(pl.lit(None, f.polars).alias(f.name) for f in new) if new else rows

    def due(self, ts: Int64s) -> Int64s:
        """Return the watermarks at which rows with these event times expire."""
        return ts + (self.keep_us + 1)


@dataclass(frozen=True)
class CompiledJoin:
    """A join with both sides bound to their columns. Its methods are pure functions."""

    pipeline: str
    left: JoinSide
    right: JoinSide
    allowed_us: int  # the allowed lateness
    event_time: str  # the event time of a pair: that of the "left" or "right" row, or of the "later" one
    max_rows_per_key: int | None
    drop_oldest: bool  # whether the oldest rows are evicted at `max_rows_per_key`; otherwise, the epoch fails

    @property
    def sides(self) -> tuple[JoinSide, JoinSide]:
        return (self.left, self.right)

    @property
    def lag_us(self) -> int:
        """Return the maximum time (µs) by which an output row can be behind the watermark."""
        waits = (max(s.high_us, 0) for s in self.sides if s.outer or self.event_time == s.name)
        return self.allowed_us + max(waits, default=0)

    @cached_property
    def output(self) -> list[Field]:
        columns = [Field(name, f.type) for side in self.sides for name, f in side.output]
        return [*columns, Field(EVENT_TIME, "timestamp")]

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort output rows by event time, keys, left columns and right columns. NULL comes first, NaN last."""
        if frame.height < 2:
            return frame
        keys = [name for side in self.sides for name, f in side.output if f in side.keys]
        plain = [f.name for f in self.output if f.is_scalar]
        by = list(dict.fromkeys([EVENT_TIME, *keys, *plain]))
        return frame.sort(by, nulls_last=False, maintain_order=True)

    def join_rows(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Combine the n-th rows of both frames into the n-th output row, with `__reason`."""
        later = {
            "left": left["__ts"],
            "right": right["__ts"],
            "later": pl.select(pl.max_horizontal(left["__ts"], right["__ts"])).to_series(),
        }[self.event_time]
        columns = [
            frame[f.name].alias(name)
            for side, frame in ((self.left, left), (self.right, right))
            for name, f in side.output
        ]
        return pl.DataFrame([*columns, _utc(later), pl.Series("__reason", [MATCH]).new_from_index(0, left.height)])

    def unmatched_rows(self, which: int, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert unmatched rows of one side to output rows with `__reason`. The columns of the other side are NULL."""
        columns: list[pl.Series] = []
        for side in self.sides:
            for name, field in side.output:
                if side.which == which:
                    columns.append(rows[field.name].alias(name))
                else:
                    columns.append(pl.Series(name, [None], dtype=field.polars).new_from_index(0, rows.height))
        why = pl.Series("__reason", [UNMATCHED]).new_from_index(0, rows.height)
        return pl.DataFrame([*columns, _utc(rows["__ts"]), why])


def _utc(us: pl.Series) -> pl.Series:
    return us.cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME)


def build_join_side(
    which: int,
    source: str,
    keys: Sequence[Field],
    fields: Sequence[Field],
    output: Sequence[tuple[str, Field]],
    lower_us: int,
    upper_us: int,
    allowed_us: int,
    outer: bool,
) -> JoinSide:
    """Build one side of a join whose rows match if `lower_us <= right.ts - left.ts <= upper_us`.

    Args:
        which: LEFT or RIGHT.
        source: The name of the source or stage that the side reads.
        keys: The key columns.
        fields: The other columns to buffer. They may include key columns.
        output: For each output column of this side, the name and the buffered column.
        lower_us: The lower bound.
        upper_us: The upper bound.
        allowed_us: The allowed lateness.
        outer: Whether rows without a partner are emitted.
    """
    low, high = (lower_us, upper_us) if which == LEFT else (-upper_us, -lower_us)
    columns = list(dict.fromkeys([*keys, *fields]))
    keep = max(high, 0) + allowed_us
    return JoinSide(which, source, tuple(keys), tuple(columns), tuple(output), low, high, keep, outer)


@dataclass(frozen=True)
class ShuffleColumns:
    """The shuffled columns of a join. `by_side`: for each side, its columns and the names of their shuffled columns."""

    columns: tuple[Field, ...]
    by_side: tuple[tuple[tuple[str, Field], ...], ...]

    @classmethod
    def from_logic(cls, logic: CompiledJoin) -> ShuffleColumns:
        """Assign each column of both sides to a shuffled column of the same type."""
        columns: list[Field] = []
        by_side = []
        for side in logic.sides:
            free = list(columns)
            side_columns = []
            for field in side.fields:
                slot = next((s for s in free if s.type == field.type), None)
                if slot is None:
                    slot = Field(f"c{len(columns)}", field.type)
                    columns.append(slot)
                else:
                    free.remove(slot)
                side_columns.append((slot.name, field))
            by_side.append(tuple(side_columns))
        return cls(tuple(columns), tuple(by_side))

    def select_side(self, rows: pl.DataFrame, which: int, more: Sequence[str]) -> pl.DataFrame:
        """Select the rows of one side from shuffled rows, with the original column names and the columns in `more`."""
        side_rows = rows.filter(rows["__side"] == which)
        original = (side_rows[slot].cast(f.polars).alias(f.name) for slot, f in self.by_side[which])
        return pl.DataFrame([*(side_rows[c] for c in more), *original])
