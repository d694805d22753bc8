"""Check that no other program has changed the state tables.

At startup, Slackwater compares the number of rows and the columns of each table with the latest commit. Each read
checks its rows for NULL, times out of range and unknown values of `kind`, on which a library such as Polars would
otherwise fail later. `slackwater state verify` checks all values in all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import EpochError, StateError, Topic
from slackwater.state.commit import Commit, TableRecord
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.windows.state_layout import CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE

# columns that are never NULL; names of other columns are always different
REQUIRED = {
    "unit", "key_hash", "kind", "window_start", "last_event", "closes_at", "reaches_to_us", "side", "event_time", "row_id"
}  # fmt: skip
_KINDS = {CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE}
_FAR = 2**62  # limit of times in a commit, in µs
_REMEDIES = "from a backup, check what is intact with `slackwater state verify`, or start over with: slackwater run FILE --rebuild"
_WAYS = f"the table was changed outside Slackwater; restore the database {_REMEDIES}"


def check_tables(db: psycopg.Connection[Any], tables: PipelineTables, commit: Commit, location: str) -> None:
    """Raise StateError if the rows or columns of a table differ from what the commit recorded.

    Missing tables are skipped, because `prepare` reports them. Stages of earlier versions have no record to compare.

    Args:
        db: A connection to the database.
        tables: The tables of the pipeline.
        commit: The latest commit.
        location: The location of the store, for the message.
    """
    current = table_ownership.current_names(db, tables, len(commit.stages))
    for number, stage in enumerate(commit.stages):
        table = current.for_stage(number).state
        if stage.table is None or not client.table_exists(db, table):
            continue
        if differences := list(table_differences(db, table, stage.table)):
            raise StateError(
                f'stage "{stage.name}": table {table} {location} was changed outside Slackwater since epoch '
                f"{commit.epoch}: {'; '.join(differences)}; nothing was committed; restore the database {_REMEDIES}",
                Topic.STATE_TABLE_CHANGED,
            )


def table_differences(db: psycopg.Connection[Any], table: str, record: TableRecord) -> Iterator[str]:
    """Yield a phrase for each difference between a table (quoted SQL name) and its record in the commit."""
    types = client.types_of(db, table)
    for name, type_ in record.columns.items():
        expected = type_.removesuffix(" NOT NULL")
        if types.get(name) != expected:
            yield mismatch(f'column "{name}" {types.get(name, "missing")}', expected)
    yield from row_difference(db, table, record)


def row_difference(db: psycopg.Connection[Any], table: str, record: TableRecord) -> Iterator[str]:
    """Yield a phrase if the number of rows is wrong, and one for each required column that contains NULL.

    Args:
        db: A connection to the database.
        table: The quoted SQL name of the table.
        record: The record of the table in the commit.
    """
    existing_columns = client.columns_of(db, table)
    required = [c for c in record.columns if c in REQUIRED and c in existing_columns]
    counts = "".join(f", count({client.quote_name(c)})" for c in required)
    row = db.execute(f"SELECT count(*){counts} FROM {table}").fetchone()
    if row is None:
        return
    if row[0] != record.rows:
        yield mismatch(plural(row[0], "row"), f"{record.rows:,}")
    for column, count in zip(required, row[1:], strict=True):
        if count != row[0]:
            yield mismatch(f'NULL in column "{column}" of {plural(row[0] - count, "row")}', "a value")


@contextmanager
def report_read_errors(table: str) -> Iterator[None]:
    """Convert the errors of a block that fetches rows from a table (quoted SQL name).

    Raises EpochError if the connection fails, and StateError for unexpected values.
    """
    try:
        yield
    except ConnectionError as error:
        raise EpochError(f"state could not be read: {error}") from None
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(
            f"state could not be read: table {table} has values that are invalid in a state ({reason}); {_WAYS}",
            Topic.STATE_TABLE_CHANGED,
        ) from None


def check_rows(frame: pl.DataFrame, table: str, names: Mapping[str, str]) -> None:
    """Raise StateError if fetched rows contain NULL in a required column, a time out of range, or an unknown `__kind`.

    Args:
        frame: The rows.
        table: The quoted SQL name of their table.
        names: The required columns of the frame, with their names in the table.
    """
    for column, name in names.items():
        if column in frame.columns and (count := frame[column].null_count()):
            raise StateError(
                "state could not be read: "
                + mismatch(f'NULL in column "{name}" of {plural(count, "row")} of table {table}', f"a value; {_WAYS}"),
                Topic.STATE_TABLE_CHANGED,
            )
    for column in ("__start", "__last", "__due", "__end", "__ts"):
        if column in frame.columns and frame.schema[column] == pl.Int64():
            limits: tuple[Any, Any] = frame[column].min(), frame[column].max()  # both are None without a value
            if limits[0] is not None and (limits[0] <= -_FAR or limits[1] >= _FAR):
                beyond = frame.filter((pl.col(column) <= -_FAR) | (pl.col(column) >= _FAR))
                raise StateError(
                    f'state could not be read: found a time out of range in column "{names.get(column, column)}" of '
                    f"{plural(beyond.height, 'row')} of table {table}, expected a time within 2^62 microseconds of "
                    f"1970; {_WAYS}",
                    Topic.STATE_TABLE_CHANGED,
                )
    if "__kind" in frame.columns and set(frame["__kind"].unique()) - {*_KINDS, None}:
        unknown = frame.filter(~pl.col("__kind").is_in(list(_KINDS)))
        raise StateError(
            f"state could not be read: found {plural(unknown.height, 'row')} of an unknown kind in table {table}, "
            f"expected one of the kinds {', '.join(map(str, sorted(_KINDS)))}; {_WAYS}",
            Topic.STATE_TABLE_CHANGED,
        )
