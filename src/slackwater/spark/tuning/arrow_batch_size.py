"""Choose how to limit the Arrow batches in which Spark sends rows to Python: by bytes, or only by row count.

by bytes  row ─▶ measure the batch ─▶ add the row   costs 0.5 µs of CPU time per row, as much as the transfer
by rows   row ─▶ add, up to 100,000 rows            if the previous epoch's batches were far below the byte limit
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.tunings import is_enabled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
