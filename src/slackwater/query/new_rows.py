"""What is new in rows of which some were there before: a merge writes whole files of a table anew."""

from __future__ import annotations

from collections import Counter

import polars as pl

from slackwater.query.text import json_lines


def subtract_rows(rows: pl.DataFrame, former: pl.DataFrame | None) -> pl.DataFrame:
    """The rows that were not there before, equal ones as often as there are more of them now."""
    if former is None:
        return rows
    former_counts = Counter(json_lines(former.select(c for c in rows.columns if c in former.columns)))
    keep = []
    for line in json_lines(rows):
        keep.append(former_counts[line] <= 0)
        former_counts[line] -= 1
    return rows.filter(pl.Series(keep, dtype=pl.Boolean))
