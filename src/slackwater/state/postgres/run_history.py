"""The history of runs in Postgres: one row per run, in a table that anyone can SELECT from."""

from __future__ import annotations

from typing import Any

import psycopg

from slackwater.errors import StateError
from slackwater.state.postgres import client
from slackwater.state.postgres.snapshot import table_exists
from slackwater.state.postgres.table_names import TableNames
from slackwater.state.run_history import MOST_RUNS, Run, parse_runs


def write_run(db: psycopg.Connection[Any], tables: TableNames, run: Run) -> None:
    """Insert a run or replace its entry, and delete the oldest entries. Raises psycopg's errors."""
    # Postgres cannot store U+0000 in text
    error = None if run.error is None else run.error.replace("\0", "�")
    values = (tables.pipeline, run.started_us, run.runner, run.epoch, run.ended_us, run.outcome, run.last_epoch, error)
    moment = "'epoch'::timestamptz + %s * interval '1 microsecond'"
    with db.transaction():
        db.execute(
            f"INSERT INTO {tables.runs} (pipeline_name, started_at, runner, epoch, ended_at, outcome, last_epoch, error)"
            f" VALUES (%s, {moment}, %s, %s, {moment}, %s, %s, %s) ON CONFLICT (pipeline_name, started_at, runner) DO UPDATE SET"
            " ended_at = excluded.ended_at, outcome = excluded.outcome, last_epoch = excluded.last_epoch, error = excluded.error",
            values,
        )
        db.execute(
            f"DELETE FROM {tables.runs} WHERE pipeline_name = %s AND started_at < (SELECT min(started_at) FROM (SELECT started_at"
            f" FROM {tables.runs} WHERE pipeline_name = %s ORDER BY started_at DESC LIMIT {MOST_RUNS}) latest)",
            (tables.pipeline, tables.pipeline),
        )


def read_runs(url: str, tables: TableNames, location: str) -> tuple[Run, ...]:
    """Return the runs of a pipeline, oldest first; empty if the table does not exist yet.

    Raises StateError if Postgres cannot be read.
    """
    try:
        with client.borrow_connection(url, "state store") as db:
            return _read(db, tables) if table_exists(db, tables.runs) else ()
    except psycopg.Error as error:
        raise StateError(f"state store {location}: {client.error_reason(error)}") from None


def _read(db: psycopg.Connection[Any], tables: TableNames) -> tuple[Run, ...]:
    rows = db.execute(
        "SELECT round(extract(epoch FROM started_at) * 1000000)::bigint, runner, epoch,"
        f" round(extract(epoch FROM ended_at) * 1000000)::bigint, outcome, last_epoch, error FROM {tables.runs}"
        f" WHERE pipeline_name = %s ORDER BY started_at DESC LIMIT {MOST_RUNS}",
        (tables.pipeline,),
    ).fetchall()
    names = ("started_us", "runner", "epoch", "ended_us", "outcome", "last_epoch", "error")
    return parse_runs([dict(zip(names, row, strict=True)) for row in rows])
