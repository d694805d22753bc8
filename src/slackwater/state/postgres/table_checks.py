"""Check at each start that the state tables have the rows and columns that the latest commit recorded.

The checks cost one count and one catalog query per stage. `slackwater state verify` checks the values in every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import StateError, Topic
from slackwater.state.commit import Commit, TableRecord
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.table_names import TableNames

# columns that cannot be NULL in any state; columns of users never have these names
REQUIRED = {
    "unit", "key_hash", "kind", "window_start", "last_event", "closes_at", "reaches_to_us", "side", "event_time", "row_id"
}  # fmt: skip


def check_tables(db: psycopg.Connection[Any], tables: TableNames, commit: Commit, location: str) -> None:
    """Raise StateError for a table that lacks rows or columns, or has rows that no commit wrote.

    `prepare` reports missing tables. States of earlier versions, which did not record their tables, are not checked.
    """
    current = table_ownership.current_names(db, tables, len(commit.stages))
    for number, stage in enumerate(commit.stages):
        table = current.for_stage(number).state
        if stage.table is None or db.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
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
