"""Rows of both sides in one frame, so that they need one shuffle: columns of the same type share a shuffled column.

left   user STRING, amount BIGINT, note STRING        c0 STRING   c1 BIGINT   c2 STRING
right  id STRING, paid BIGINT                         id          paid        NULL
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from slackwater.core.schema import Field
from slackwater.joins.compiled_join import CompiledJoin


@dataclass(frozen=True)
class ShuffleColumns:
    """The shuffled columns of a join, and the assignment of each side's columns to them."""

    columns: tuple[Field, ...]
    by_side: tuple[tuple[tuple[str, Field], ...], ...]

    @classmethod
    def from_logic(cls, logic: CompiledJoin) -> ShuffleColumns:
        """Assign a shuffled column to each column of both sides."""
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
        """Return the rows of one side (by `__side`) with its own column names, plus the columns in `more`."""
        side_rows = rows.filter(rows["__side"] == which)
        return pl.DataFrame(
            [
                *(side_rows[c] for c in more),
                *(side_rows[slot].cast(f.polars).alias(f.name) for slot, f in self.by_side[which]),
            ]
        )
