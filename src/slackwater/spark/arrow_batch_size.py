"""How large the batches are in which Spark hands an epoch's rows to Python: weighed before each row, or only counted.

weighed   row ─▶ how many bytes is the batch? ─▶ added     half a microsecond of a processor a row, as much as all else on its way to Python
counted   row ─▶ added, up to 100,000                      where so many of the rows of the epoch before were far less than Spark's bound
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_ROWS = 100_000  # of a batch
MANY_ROWS = 20_000  # of an epoch, chosen: from here on what is saved is more than what three more calls to Spark cost
_MOST_BYTES = 1 << 26  # of a batch of rows like those of the epoch before: what Spark itself keeps to, where it weighs
_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_WITHOUT = str(2**31 - 1)  # at this bound Spark does not weigh


@dataclass
class ArrowBatchSizer:
    """Of one engine. An epoch's rows are as wide as those of the one before it, for all that is known when it begins; where they were
    not, and a batch was too large for Arrow or for memory, the epoch has failed, and the next try weighs."""

    _are_narrow: bool = False

    @contextmanager
    def sized(self, rows: DataFrame) -> Iterator[None]:
        """Meanwhile a job over these rows hands them over in batches of the right size."""
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

    def observe(self, handed: Sequence[tuple[int, int]]) -> None:
        """How many rows each partition of the job had, and how many bytes they were."""
        widest = max((size / rows for rows, size in handed if rows), default=0)
        self._are_narrow = sum(rows for rows, _ in handed) >= MANY_ROWS and widest * MOST_ROWS <= _MOST_BYTES
