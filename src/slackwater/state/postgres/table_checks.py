"""Checks of state tables, because another program may have changed them.

Each start checks that the tables have the rows and columns that the latest commit recorded. This costs one count and one
catalog query per stage. Each read checks its rows, so that a clear error is raised before a library fails on them:

    table ─▶ check of column types ─▶ check for NULL and for unknown values of `kind` ─▶ rows for the operator

`slackwater state verify` checks the values in every row.
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
from slackwater.state.postgres.table_names import TableNames
from slackwater.windows.state_rows import CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE

# columns that cannot be NULL in any state; columns of users never have these names
REQUIRED = {
    "unit", "key_hash", "kind", "window_start", "last_event", "closes_at", "reaches_to_us", "side", "event_time", "row_id"
}  # fmt: skip
_KINDS = {CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE}
_FAR = 2**62  # µs: limit of times in a commit
_WAYS = (
    "the table was changed outside Slackwater. Restore the database from a backup, check what is intact with "
    "`slackwater state verify`, or start over with: slackwater run FILE --rebuild"
)


def check_tables(db: psycopg.Connection[Any], tables: TableNames, commit: Commit, location: str) -> None:
    """Raise StateError for a table that lacks rows or columns, or has rows that no commit wrote.

    `prepare` reports missing tables. States of earlier versions, which did not record their tables, are not checked.
    """
    current = table_ownership.current_names(db, tables, len(commit.stages))
    for number, stage in enumerate(commit.stages):
        table = current.for_stage(number).state
        if stage.table is None or not client.table_exists(db, table):
            continue
        if differences := list(table_differences(db, table, stage.table)):
            raise StateError(
                f'stage "{stage.name}": table {table} {location} was changed outside Slackwater since epoch '
                f"{commit.epoch}: {'; '.join(differences)}; nothing was committed: restore the database from a "
                "backup, check what is intact with `slackwater state verify`, or start over with: slackwater run "
                "FILE --rebuild",
                Topic.STATE_TABLE_CHANGED,
            )


def table_differences(db: psycopg.Connection[Any], table: str, record: TableRecord) -> Iterator[str]:
    """Describe each difference between a table and its record, with the actual and the expected value."""
    types = client.types_of(db, table)
    for name, type_ in record.columns.items():
        expected = type_.removesuffix(" NOT NULL")
        if types.get(name) != expected:
            yield mismatch(f'column "{name}" {types.get(name, "missing")}', expected)
    yield from row_difference(db, table, record)


def row_difference(db: psycopg.Connection[Any], table: str, record: TableRecord) -> Iterator[str]:
    """Describe a wrong number of rows, and each required column that contains NULL."""
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
    """Convert the errors of a block that fetches rows of a table.

    A connection error becomes an EpochError, and unexpected values become a StateError.
    """
    try:
        yield
    except ConnectionError as error:
        raise EpochError(f"state could not be read: {error}") from None
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(
            f"state could not be read: table {table} has values that are invalid in a state ({reason}): {_WAYS}",
            Topic.STATE_TABLE_CHANGED,
        ) from None


def check_rows(frame: pl.DataFrame, table: str, names: Mapping[str, str]) -> None:
    """Raise StateError for NULL in one of the columns `names`, a time out of range, or an unknown `__kind`.

    `names` maps columns of the frame to columns of the table.
    """
    for column, name in names.items():
        if column in frame.columns and (count := frame[column].null_count()):
            raise StateError(
                "state could not be read: "
                + mismatch(f'NULL in column "{name}" of {plural(count, "row")} of table {table}', f"a value: {_WAYS}"),
                Topic.STATE_TABLE_CHANGED,
            )
    for column in ("__start", "__last", "__due", "__end", "__ts"):
        if column in frame.columns and frame.schema[column] == pl.Int64():
            beyond = frame.filter(pl.col(column).abs() >= _FAR)
            if beyond.height:
                raise StateError(
                    f'state could not be read: found a time out of range in column "{names.get(column, column)}" of '
                    f"{plural(beyond.height, 'row')} of table {table}, expected less than 2^62 microseconds from 1970: {_WAYS}",
                    Topic.STATE_TABLE_CHANGED,
                )
    if "__kind" in frame.columns:
        unknown = frame.filter(~pl.col("__kind").is_in(list(_KINDS)))
        if unknown.height:
            raise StateError(
                f"state could not be read: found {plural(unknown.height, 'row')} of an unknown kind in table {table}, expected "
                f"one of {', '.join(map(str, sorted(_KINDS)))}: {_WAYS}",
                Topic.STATE_TABLE_CHANGED,
            )
