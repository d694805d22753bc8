"""How an epoch learns of its sources' rows: what is known of them before is enough, or they are asked by a job beside the epoch's, or observed.

known      rows ─▶ SQL ─▶ …                              as fast as they go; their files' footers were read before
beside     rows ─▶ SQL ─▶ …                              as fast as they go
           their time alone, read once more ─▶ folded    0.1 µs of a processor a row, and a job more
observed   rows ─▶ [each is looked at] ─▶ SQL ─▶ …       cuts the code in two that Spark generates for them: 0.5 µs a row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slackwater.errors import EpochError
from slackwater.sources import spark_connect
from slackwater.sources.base import CORRUPT, spark_error_reason
from slackwater.spark.source_statistics import MARK, Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY_ROWS = 250_000  # of a source in an epoch, chosen: where a row's part is well above what a job costs


@dataclass
class StatisticsCollector:
    """Of one engine. An epoch has as many rows as the one before it, for all that is known when it begins."""

    _rows: dict[str, int] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(thread_name_prefix="slackwater-told"))

    def attach(
        self, name: str, timed: DataFrame, aggregates: Sequence[Any], facts: Facts | None = None
    ) -> tuple[DataFrame, PendingStatistics]:
        """A source's rows as they go on, and what will be known of them once they went. `facts`: what is before."""
        if facts is not None:
            return timed, PendingStatistics(name, facts)
        if self._rows.get(name, 0) >= MANY_ROWS and is_read_by_columns(timed):
            return timed, PendingStatistics(name, self._pool.submit(_collect, timed, aggregates))
        observed = spark_connect.new_observation(timed)
        return timed.observe(observed, *aggregates), PendingStatistics(name, observed)

    def record_rows(self, name: str, rows: int) -> None:
        self._rows[name] = rows


@dataclass(frozen=True)
class PendingStatistics:
    """What is told of one source's rows: an observation, a job that was begun, or all of it already."""

    source: str
    _answer: Any

    def get(self) -> Facts:
        """By the names that were asked for; waits for it. Raises EpochError."""
        if not isinstance(self._answer, Future):
            facts: Facts = self._answer if isinstance(self._answer, Mapping) else self._answer.get
            return facts
        try:
            return self._answer.result()
        except Exception as error:
            raise EpochError(
                f'the epoch failed and was not committed: the rows of source "{self.source}" cannot be counted: {spark_error_reason(error)}'
            ) from error


def is_read_by_columns(timed: DataFrame) -> bool:
    """Whether reading the time of each row once more is cheap: rows of files, of which nothing has to be decoded."""
    return MARK in timed.columns and CORRUPT not in timed.columns


def _collect(timed: DataFrame, aggregates: Sequence[Any]) -> Facts:
    facts: Facts = timed.agg(*aggregates).collect()[0].asDict()
    return facts
