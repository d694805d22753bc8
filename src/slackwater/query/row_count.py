"""How many rows a target holds, for people who are shown some of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowCount:
    """So many rows; `at_least`: so many were counted, and there are more."""

    rows: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"more than {self.rows:,}" if self.at_least else f"{self.rows:,}"
