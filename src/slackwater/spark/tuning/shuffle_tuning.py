"""Choose how rows travel to the shards: pre-aggregated or not, in Arrow batches limited by bytes or by row count.

No choice changes a result. Pre-aggregation and the limit of batches depend on the previous epoch.

Pre-aggregation is faster if tumbling or hopping windows have many rows per pane and key. Otherwise, one shuffle is enough:

    pre-aggregated  rows ─▶ partial aggregates ─▶ shuffle ─▶ aggregates ─▶ shuffle ─▶ panes ─▶ shard
    by shard        rows ─▶ shuffle ─▶ rows ─▶ shard: panes

Epochs with few rows need no shuffle, because one task reads the rows and then processes one shard after another.

Batches are limited only by row count if the previous epoch's batches were far below the byte limit:

    by bytes        row ─▶ measure the batch ─▶ add the row   costs 0.5 µs of CPU time per row, as much as the transfer
    by rows         row ─▶ add, up to 100,000 rows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.connectors.source import MAX_ONE_TASK_ROWS, Batch
from slackwater.operators.base import Operator
from slackwater.operators.reports import IngestReport
from slackwater.spark import operator_input
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MANY_ROWS_PER_PANE = 32  # the measured number from which pre-aggregation is faster
SKEW = 1.5  # maximum shard size, relative to the average, without pre-aggregation; an estimate


@dataclass
class PreaggregationPolicy:
    """Policy that decides for each epoch of one engine whether rows are pre-aggregated.

    The rows of the first epoch are pre-aggregated, because their keys are unknown and pre-aggregation handles hot keys.
    """

    _after_shuffle: bool = False
    _converted: tuple[Operator, Operator] | None = field(
        default=None, repr=False
    )  # the operator, and its variant without pre-aggregation

    def operator_for_epoch(self, operator: Operator, one_task: bool = False) -> Operator:
        """Return the variant of `operator` to use for this epoch: with or without pre-aggregation.

        `one_task`: whether one task processes all rows, so that pre-aggregation would only add shuffles.
        """
        if not self._after_shuffle and not one_task:
            return operator
        if self._converted is None or self._converted[0] is not operator:
            self._converted = operator, operator_input.disable_preaggregation(operator)
        return self._converted[1]

    def observe(self, reports: Sequence[IngestReport]) -> None:
        """Decide for the next epoch. `reports`: the reports of all shards about the current epoch."""
        if not is_enabled("preaggregation"):
            return
        rows, panes = [r.rows for r in reports], sum(r.panes for r in reports)
        if panes:
            self._after_shuffle = sum(rows) < MANY_ROWS_PER_PANE * panes and max(rows) * len(rows) < SKEW * sum(rows)


# -- epochs with few rows ------------------------------------------------------------------------------------------------


@dataclass
class OneTaskPolicy:
    """Policy that decides for each epoch of one engine whether one task reads the rows and processes all shards.

    It assumes that the SQL returns as many rows per source row as in the previous epoch.
    """

    _rows_per_source_row: float | None = None  # None before the first epoch with rows

    @property
    def knows_result_size(self) -> bool:
        """Return whether an epoch has shown how many rows the SQL returns per source row."""
        return self._rows_per_source_row is not None

    def applies(self, batch: Batch, max_rows: int = MAX_ONE_TASK_ROWS) -> bool:
        """Return whether an epoch has so few rows (at most `max_rows`) that one task is enough.

        The number of rows must be known before they are read, as it is for records in Kafka and for results of other stages.
        """
        source_rows = count_source_rows(batch)
        few = source_rows is not None and source_rows * max(1.0, self._rows_per_source_row or 0.0) <= max_rows
        return few and is_enabled("one_task")

    def observe(self, batch: Batch, reports: Sequence[IngestReport]) -> None:
        """Count the rows of an epoch. `reports`: the reports of all shards."""
        if source_rows := count_source_rows(batch):
            self._rows_per_source_row = sum(r.rows for r in reports) / source_rows


def count_source_rows(batch: Batch) -> int | None:
    """Return the number of rows in a batch, or None if it is not known yet."""
    counts = dict(batch.stage_rows) | {name: sum(rows.values()) for name, rows in batch.partitions.items()}
    return sum(counts[name] for name in batch.payload) if batch.payload.keys() <= counts.keys() else None


# -- Arrow batches -------------------------------------------------------------------------------------------------------


MOST_ROWS = 100_000  # per batch
MANY_ROWS = 20_000  # estimated rows per epoch from which the savings exceed the cost of three more calls to Spark
_MOST_BYTES = 1 << 26  # expected maximum per batch; equal to Spark's default limit
_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_WITHOUT = str(2**31 - 1)  # with this limit, Spark does not count bytes


@dataclass
class ArrowBatchSizer:
    """Policy that chooses the batch limit for each epoch of one engine.

    It assumes that rows are as wide as in the previous epoch. If a batch becomes too large for Arrow or for memory, the
    epoch fails, and the next attempt limits the bytes.
    """

    _are_narrow: bool = False

    @contextmanager
    def limit_batches(self, rows: DataFrame) -> Iterator[None]:
        """Set the chosen batch limit in the Spark session of `rows` within this context."""
        if not self._are_narrow:
            yield
            return
        self._are_narrow = False
        conf = rows.sparkSession.conf
        before = str(conf.get(_KEY))
        conf.set(_KEY, _WITHOUT)
        try:
            yield
        finally:
            conf.set(_KEY, before)

    def observe(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Choose the limit for the next job. `sizes`: the rows and bytes of each partition of the last job."""
        if not is_enabled("arrow_batch_size"):
            return
        widest = max((size / rows for rows, size in sizes if rows), default=0)
        self._are_narrow = sum(rows for rows, _ in sizes) >= MANY_ROWS and widest * MOST_ROWS <= _MOST_BYTES
