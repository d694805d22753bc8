"""The number of rows in a target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowCount:
    """A row count. If `at_least` is true, counting stopped at `rows`, and there are more rows."""

    rows: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"more than {self.rows:,}" if self.at_least else f"{self.rows:,}"
