"""What the driver asks of a target."""

from __future__ import annotations

from typing import Protocol

import polars as pl


class Target(Protocol):
    """Takes the staged output of one epoch. Publishing an epoch again, or an older one, must change nothing."""

    guarantee: str
    description: str

    def publish(self, epoch: int, rows: pl.DataFrame) -> None:
        """Write `rows` (the output columns, in order) and the epoch's marker. Raises PublishError."""
        ...
