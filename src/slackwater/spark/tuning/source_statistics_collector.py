"""Choose how an epoch obtains the statistics of a source: from file footers, from a separate job, or by observation.

footers    rows ─▶ SQL ─▶ …                                full speed; the footers were read before
separate   rows ─▶ SQL ─▶ …                                full speed
           their time only, read again ─▶ aggregated       0.1 µs of CPU time per row, and one more job
observed   rows ─▶ [observation] ─▶ SQL ─▶ …               splits the code that Spark generates: 0.5 µs per row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect
from slackwater.connectors.source import spark_error_reason
from slackwater.core.column_names import CORRUPT
from slackwater.errors import EpochError
from slackwater.spark.source_statistics import FINGERPRINT, Facts
from slackwater.tunings import is_enabled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY_ROWS = 250_000  # estimated rows of a source per epoch from which a separate job is clearly cheaper


@dataclass
class SourceStatisticsCollector:
    """Collector that chooses for each epoch of one engine how to obtain source statistics.

    It assumes that an epoch has about as many rows as the previous one, because the row count is unknown at its start.
    """

    _rows: dict[str, int] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(thread_name_prefix="slackwater-stats"))

    def attach(
        self, name: str, timed: DataFrame, aggregates: Sequence[Any], facts: Facts | None = None
    ) -> tuple[DataFrame, PendingStatistics]:
        """Return the rows to process, possibly with an observation attached, and a handle to their statistics.

        Args:
            name: The name of the source.
            timed: The rows of the source.
            aggregates: The aggregates to compute over the rows.
            facts: The statistics, if they are already available, in which case nothing is computed.
        """
        if facts is not None:
            return timed, PendingStatistics(name, facts)
        is_separate = self._rows.get(name, 0) >= MANY_ROWS and is_read_by_columns(timed)
        if is_separate and is_enabled("statistics"):
            return timed, PendingStatistics(name, self._pool.submit(_collect, timed, aggregates))
        observed = spark_connect.new_observation(timed)
        return timed.observe(observed, *aggregates), PendingStatistics(name, observed)

    def record_rows(self, name: str, rows: int) -> None:
        self._rows[name] = rows


@dataclass(frozen=True)
class PendingStatistics:
    """Handle to the statistics of one source: an observation, a running job, or the statistics themselves."""

    source: str
    _answer: Any

    def get(self) -> Facts:
        """Wait for the statistics and return them by name. Raises EpochError if they cannot be computed."""
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
    """Return whether the event times can be read again cheaply: the rows are in files other than JSON and CSV."""
    return FINGERPRINT in timed.columns and CORRUPT not in timed.columns


def _collect(timed: DataFrame, aggregates: Sequence[Any]) -> Facts:
    facts: Facts = timed.agg(*aggregates).collect()[0].asDict()
    return facts
