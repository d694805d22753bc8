"""The interfaces through which the engine writes to a target, and through which results are read back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl

from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.row_format import json_lines
from slackwater.core.schema import Field
from slackwater.state.commit import TargetMarker


@dataclass(frozen=True)
class TargetTable:
    """Description of the table that a target writes.

    Args:
        writer: The name under which a target stores the marker of the last epoch.
        fields: The columns, in order.
        identity: The columns that identify a row. A row replaces the row with an equal identity, where NULL equals
            NULL. None if rows are only added, as for dead letters.
        state: The id of the state to which the epochs belong. Markers of other states are ignored, because the
            pipeline was started over.
        new: Columns that this state has not written yet. `open` adds them if they are missing. It is an error if any
            other column is missing.
    """

    writer: str
    fields: tuple[Field, ...]
    identity: tuple[str, ...] | None
    state: str = ""
    new: tuple[str, ...] = ()

    def missing(self, existing_columns: Container[str]) -> list[Field]:
        """Return the columns in `new` that are not in `existing_columns`."""
        return [f for f in self.fields if f.name in self.new and f.name not in existing_columns]


def columns_text(fields: Iterable[Field]) -> str:
    """Format a list of columns for a message."""
    return ", ".join(f'"{f.name}" ({f.type})' for f in fields)


def compare_column_types(expected: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each difference between the columns of the pipeline's output and those of a table.

    `expected`, `actual`: the column types of the output and of the table, in Spark's spelling, by column name.
    """
    for name, kind in expected.items():
        if name not in actual:
            yield f'column "{name}" ({kind}) is missing'
        elif actual[name] != kind:
            yield f'column "{name}" is {actual[name]}, expected {kind}'
    for name in (n for n in actual if n not in expected):
        yield f'column "{name}" ({actual[name]}) is not in the output of the pipeline'


def rows_in_ranges(
    rows: pl.DataFrame, ranges: pl.DataFrame, fields: Sequence[Field], identity: Sequence[str], column: str
) -> pl.DataFrame:
    """Return the rows that match a row of `ranges`.

    Args:
        rows: The rows of a target.
        ranges: The ranges; see `ReadableTarget`.
        fields: The columns to return.
        identity: The columns that identify a row.
        column: The name of the time column.
    """
    kinds, keys = {f.name: f.polars for f in fields}, [c for c in identity if c != column]
    rows = rows.select(pl.col(n).cast(t) for n, t in kinds.items())
    joined = rows.join(ranges, on=keys, nulls_equal=True) if keys else rows.join(ranges, how="cross")
    return joined.filter(pl.col(column).dt.timestamp("us").is_between("__low", "__high")).select(list(kinds))


class TargetWriter(Protocol):
    """Writer of each epoch's committed output. Publishing the last epoch again, or an older one, must have no effect.

    `capacity` describes which values the target can store (see `core.schema.ValueLimits`). Rows with other values
    become bad rows before the commit.
    """

    guarantee: str  # "exactly once" or "at least once"
    upserts: bool  # whether a row replaces the row with an equal identity, and superseded rows are deleted
    description: str  # for messages, as in "delivery to {description}"; never contains a secret

    def open(self) -> None:
        """Connect, create a missing table, add new columns, and check the others. Raises StartError on failure."""
        ...

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        """Write `rows`, delete the superseded rows, and write the marker of the epoch, in one atomic step.

        Args:
            epoch: The epoch.
            rows: The rows, with the columns of the table, in order.
            superseded: The identities of superseded rows, and for sessions also `session_id`. The frame may be empty.
                No row in `rows` has one of these identities. Only a target that upserts receives the frame.
            commit: The id of the epoch's commit, which is part of the marker.

        Raises:
            PublishError: The target did not accept the epoch, which stays pending.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class PreviousOutputReader(Protocol):
    """Target that can describe the output that another state has written to it."""

    def describe_previous_output(self) -> str | None:
        """Describe another state's output, as in `12 files of another state of "orders" in "out", up to epoch 11`.

        Return None if the target has no output of another state.
        """
        ...


class TargetWithMarker(Protocol):
    """Target that stores a marker with its rows. The marker can be read before the target is opened."""

    description: str

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        """Return the last marker of this writer with any state.

        Return None if the target has no marker of this writer, or no longer has the rows that belong to it.

        Args:
            state: The id of the state that reads the marker.
            expected: The markers of this state that the target may have.
            fence: Whether to abort unfinished writes of an earlier process of this writer. Only the holder of the
                state's lock may do this.

        Raises:
            StartError: The target cannot be read.
        """
        ...

    def writers(self) -> list[str]:
        """Return the names of all writers that have a marker, including writers of other pipelines.

        Raises StartError if the target cannot be read.
        """
        ...


@runtime_checkable
class ReadableTarget(Protocol):
    """Target whose rows can be read, so that windows that are no longer in the state can be corrected."""

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return the rows that match a row of `ranges`, with equal keys and `column` between `__low` and `__high`.

        Args:
            ranges: The keys, which are the columns of the identity except `column`, and the inclusive limits in
                microseconds UTC. Ranges with the same key do not overlap. NULL equals NULL.
            column: The name of the time column.

        Returns:
            All columns of the table, in order.

        Raises:
            StartError: The target cannot be read.
        """
        ...


# -- reading results back ------------------------------------------------------------------------------------------------


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

    def read_dead_letters(self, pipeline: str, letter_filter: DeadLetterFilter) -> Iterator[pl.DataFrame]:
        """Yield the dead letters of a pipeline, one frame at a time. A reader may ignore the filter."""
        rows = self.read()
        if rows is not None:
            yield rows

    def close(self) -> None:
        """Release the connections."""
        return


def empty_to_none(rows: pl.DataFrame) -> pl.DataFrame | None:
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
