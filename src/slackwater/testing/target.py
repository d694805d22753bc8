"""A target in memory: what was published, what it replaces, and the last epoch: the other side of a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from slackwater.core.capacity import ANYTHING, ValueLimits
from slackwater.core.schema import Field
from slackwater.errors import PublishError

_TIMES = (pl.Datetime("us"), pl.Datetime("us", "UTC"))


class MemoryTarget:
    """Keeps what was published. `upserts`: whether it replaces the rows of a window; `capacity`: what it can hold.

    While it is `down` it takes nothing. `repeated`: how often it was given an epoch that it had.
    """

    guarantee = "exactly once"
    description = "memory"

    def __init__(
        self, columns: Sequence[Field], identity: Sequence[str], upserts: bool = True, capacity: ValueLimits = ANYTHING
    ) -> None:
        self.upserts, self.capacity, self._identity = upserts, capacity, list(identity)
        self.down, self.repeated = False, 0
        self.last, self.rows, self.gone = -1, list[dict[str, Any]](), list[dict[str, Any]]()
        self._schema = {f.name: f.polars for f in columns}
        self.told: Callable[[pl.DataFrame], None] = lambda rows: None
        self._changes: list[tuple[pl.DataFrame, pl.DataFrame | None]] = []

    def becomes(self, columns: Sequence[Field], identity: Sequence[str]) -> None:
        """Other columns from now on; rows that are there have NULL in new ones."""
        schema = {f.name: f.polars for f in columns}

        def fitting(rows: pl.DataFrame) -> pl.DataFrame:
            return rows.with_columns(pl.lit(None, t).alias(c) for c, t in schema.items() if c not in rows.columns)

        self._changes = [(fitting(r), None if g is None else fitting(g)) for r, g in self._changes]
        self._schema, self._identity = schema, list(identity)

    def hold(self, rows: pl.DataFrame) -> None:
        """Rows that are there before the run."""
        self._changes.append((rows, None))

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        if self.down:
            raise PublishError(f"{self.description} is down: it did not take epoch {epoch}")
        if epoch <= self.last:
            self.repeated += 1
            return
        self.told(rows)
        self.rows += _plain(rows, epoch)
        self.gone += [] if superseded is None else _plain(superseded, epoch)
        self.last = epoch
        self._changes.append((rows, superseded))

    @property
    def table(self) -> pl.DataFrame:
        """What it holds: worked out when it is asked for."""
        table = pl.DataFrame(schema=self._schema)
        for rows, gone in self._changes:
            for changed in () if not self._identity else (rows, gone):
                if changed is not None:
                    table = table.join(changed, on=self._identity, how="anti", nulls_equal=True)
            table = pl.concat([table, rows.select(table.columns)])
        return table

    @property
    def held(self) -> pl.DataFrame:
        """What a reader of it finds: the table where it replaces rows, else all that was ever added."""
        if self.upserts or not self._changes:
            return self.table
        columns = list(self._schema)
        return pl.concat([rows.select(columns) for rows, _ in self._changes])

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        keys = [c for c in self._identity if c != column]
        in_range = pl.col(column).dt.timestamp("us").is_between("__low", "__high")
        near = self.table.join(ranges, on=keys, nulls_equal=True) if keys else self.table.join(ranges, how="cross")
        return near.filter(in_range).select(list(self._schema))


def _plain(rows: pl.DataFrame, epoch: int) -> list[dict[str, Any]]:
    if rows.is_empty():
        return []
    columns = [c.cast(pl.Int64) if c.dtype in _TIMES else c for c in rows.get_columns()]  # in µs
    name = "__epoch" if "_epoch" in rows.columns else "_epoch"  # as of the views of a state
    return [{**r, name: epoch} for r in pl.DataFrame(columns).iter_rows(named=True)]


__all__ = ["MemoryTarget"]
