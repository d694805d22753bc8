"""What the readers of results have in common: the number of rows, and the difference of two reads of a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from slackwater.core.row_format import json_lines


@dataclass(frozen=True)
class RowCount:
    """A row count. If `at_least` is true, counting stopped at `rows`, and there are more rows."""

    rows: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"more than {self.rows:,}" if self.at_least else f"{self.rows:,}"


def subtract_rows(rows: pl.DataFrame, former: pl.DataFrame | None) -> pl.DataFrame:
    """Return `rows` without the rows of `former`. Each occurrence in `former` removes one equal row.

    A merge rewrites whole files of a table, so not every row of a new file is new.
    """
    if former is None:
        return rows
    former_counts = Counter(json_lines(former.select(c for c in rows.columns if c in former.columns)))
    keep = []
    for line in json_lines(rows):
        keep.append(former_counts[line] <= 0)
        former_counts[line] -= 1
    return rows.filter(pl.Series(keep, dtype=pl.Boolean))
