"""Multiset difference of two reads of a table. A merge rewrites whole files, so not every row of a new file is new."""

from __future__ import annotations

from collections import Counter

import polars as pl

from slackwater.query.output_format import json_lines


def subtract_rows(rows: pl.DataFrame, former: pl.DataFrame | None) -> pl.DataFrame:
    """Return `rows` without the rows of `former`. Each occurrence in `former` removes one equal row."""
    if former is None:
        return rows
    former_counts = Counter(json_lines(former.select(c for c in rows.columns if c in former.columns)))
    keep = []
    for line in json_lines(rows):
        keep.append(former_counts[line] <= 0)
        former_counts[line] -= 1
    return rows.filter(pl.Series(keep, dtype=pl.Boolean))
