"""An aggregation that takes its time, for epochs that have to be long: as many milliseconds as a row says."""

from __future__ import annotations

import time
from typing import Any

import polars as pl

import slackwater as sw


def _wait(values: pl.Series) -> pl.Series:
    time.sleep(int(values.fill_null(0).sum()) / 1000)
    return values


class SlowSum(sw.Aggregator):
    """The sum of the milliseconds. Reading rows takes that long."""

    inputs = {"wait": "bigint"}  # noqa: RUF012 — as users write it
    accumulators = {"waited": "bigint"}  # noqa: RUF012
    output = "bigint"

    def lift(self, wait: Any) -> Any:
        return {"waited": wait.map_batches(_wait, return_dtype=pl.Int64).fill_null(0)}

    def merge(self, waited: Any) -> Any:
        return {"waited": waited.sum()}

    def finish(self, waited: Any) -> Any:
        return waited
