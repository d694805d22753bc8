"""The interface of result readers, row counts, and the difference between two reads of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from slackwater.core.dead_letter_schema import LetterFilter
from slackwater.core.row_format import json_lines


@dataclass(frozen=True)
class RowCount:
    """A number of rows. If `at_least` is true, counting stopped at `rows`, and there are more rows."""

    rows: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"more than {self.rows:,}" if self.at_least else f"{self.rows:,}"


@dataclass(frozen=True)
class LabeledRows:
    """Rows with the name of their origin.

    Args:
        label: The name of the origin, for messages.
        rows: The rows.
        identity: The columns that identify a row. None if they are unknown.
    """

    label: str
    rows: pl.DataFrame
    identity: tuple[str, ...] | None = None


class ResultReader(ABC):
    """Reader of the results or the dead letters in a target. It needs neither Spark nor a lock.

    For results, call `read` first, and then `poll` as often as needed.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the results, for messages."""

    @abstractmethod
    def read(self, where: Mapping[str, str | None] | None = None, limit: int | None = None) -> pl.DataFrame | None:
        """Return the newest rows in any order. None if nothing has been published.

        A reader may ignore both arguments, so the caller must filter and limit the rows itself.

        Args:
            where: The values that columns must have, as text, by column. None means NULL.
            limit: The number of rows that the caller needs. If there are more, the result has more than `limit` rows.
        """

    @abstractmethod
    def poll(self) -> pl.DataFrame | None:
        """Return the rows that were published since the last call of `read` or `poll`. None if there are none."""

    def read_all(self) -> LabeledRows | None:
        """Return all rows of the target, including rows of other writers. None if it cannot be read completely."""
        rows = self.read()
        return LabeledRows(self.location, pl.DataFrame() if rows is None else rows)

    def count(self, rows_read: int) -> RowCount | None:
        """Return the number of published rows. None if counting would require reading all rows.

        `rows_read`: the number of rows that `read` returned.
        """
        return RowCount(rows_read)

    def read_letters(self, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        """Yield the dead letters of a pipeline, one frame at a time. A reader may ignore the filter."""
        rows = self.read()
        if rows is not None:
            yield rows

    def close(self) -> None:
        """Release the connections."""
        return


def none_if_empty(rows: pl.DataFrame) -> pl.DataFrame | None:
    return rows if rows.height else None


def subtract_rows(rows: pl.DataFrame, former: pl.DataFrame | None) -> pl.DataFrame:
    """Return the rows that are not in `former`. Each row of `former` removes at most one equal row.

    Use this to find the new rows in a table's new files, to which a merge also copies existing rows.
    """
    if former is None:
        return rows
    former_counts = Counter(json_lines(former.select(c for c in rows.columns if c in former.columns)))
    keep = []
    for line in json_lines(rows):
        keep.append(former_counts[line] <= 0)
        former_counts[line] -= 1
    return rows.filter(pl.Series(keep, dtype=pl.Boolean))
