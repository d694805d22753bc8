"""A slow aggregation for tests of long epochs: each row takes the number of milliseconds in the row."""

from __future__ import annotations

import time
from typing import Any

import polars as pl

import slackwater as sw


def _sleep_for_values(values: pl.Series) -> pl.Series:
    time.sleep(int(values.fill_null(0).sum()) / 1000)
    return values


class SlowSumAggregator(sw.Aggregator):
    """A sum of milliseconds that sleeps for the same time when rows are read."""

    inputs = {"wait": "bigint"}  # noqa: RUF012 — as users write it
    accumulators = {"waited": "bigint"}  # noqa: RUF012
    output = "bigint"

    def lift(self, wait: Any) -> Any:
        return {"waited": wait.map_batches(_sleep_for_values, return_dtype=pl.Int64).fill_null(0)}

    def merge(self, waited: Any) -> Any:
        return {"waited": waited.sum()}

    def finish(self, waited: Any) -> Any:
        return waited
