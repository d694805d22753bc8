"""Long lists that a commit references by name: one table row each."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import psycopg

from slackwater.errors import StateError, Topic
from slackwater.state.commit import Commit
from slackwater.state.postgres.table_names import TableNames


def write_list(db: psycopg.Connection[Any], tables: TableNames, epoch: int, lines: Sequence[str]) -> str:
    """Store a list and return its name."""
    token = uuid.uuid4().hex
    db.execute(f"INSERT INTO {tables.lists} VALUES (%s, %s, %s, %s)", (token, tables.pipeline, epoch, "\n".join(lines)))
    return token


def read_list(db: psycopg.Connection[Any], tables: TableNames, location: str, name: str) -> list[str]:
    """Return the lines of a list. Raises StateError if it is missing."""
    row = db.execute(f"SELECT lines FROM {tables.lists} WHERE token = %s", (name,)).fetchone()
    if row is None:
        raise StateError(
            f"list {name} is missing from {tables.lists} {location}; restore it from a backup", Topic.STATE_DAMAGED
        )
    return str(row[0]).splitlines()


def collect_garbage(db: psycopg.Connection[Any], tables: TableNames, epoch: int) -> None:
    """Delete the lists of `epoch` and earlier epochs, except those that the latest commit references."""
    row = db.execute(f"SELECT record FROM {tables.pipelines} WHERE pipeline_name = %s", (tables.pipeline,)).fetchone()
    if row is None:
        return
    latest = Commit.model_validate(row[0])
    db.execute(
        f"DELETE FROM {tables.lists} WHERE pipeline_name = %s AND epoch <= %s AND token <> ALL(%s)",
        (tables.pipeline, epoch, latest.lists),
    )
