"""The lock of a pipeline in Postgres, and the history of its runs.

The lock is an advisory lock. The `application_name` of the connection that holds it is the name of the runner. The
history is a table with one row per run.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
import xxhash

from slackwater.errors import EpochError, FencedError, LockHeldError, Topic
from slackwater.state.postgres import client
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.run_history import MOST_RUNS, Run, parse_runs

LOCK_S = 3.0  # seconds that startup waits for the lock, which the server may hold for a while after a runner was killed
MERGE_S = 60.0  # seconds that startup waits for the end of a merge of a runner that was disconnected
PATIENCE_S = 30.0  # seconds during which a runner tries to reconnect


def connect_with_lock(url: str, tables: PipelineTables, location: str) -> psycopg.Connection[Any]:
    """Open a connection, and take the lock of a pipeline on it.

    Raises LockHeldError if another process holds the lock, StartError if connecting fails, or a psycopg error.
    """
    db = client.open_connection(url, "state store")
    try:
        end = time.monotonic() + LOCK_S
        while not acquire_lock(db, tables):
            if time.monotonic() > end:
                holder = find_lock_holder(db, tables) or "another process"
                raise LockHeldError(
                    f"pipeline is already running: {holder} holds its lock {location}; stop that process first, "
                    "because a pipeline can have only one runner at a time"
                )
            time.sleep(0.1)
    except BaseException:
        db.close()
        raise
    return db


def reconnect_with_lock(url: str, tables: PipelineTables, location: str, epoch: int) -> psycopg.Connection[Any]:
    """Open a connection and take the lock again after the connection was lost during the commit of `epoch`.

    Raises FencedError if another runner holds the lock, and EpochError if the database cannot be reached.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect_with_lock(url, tables, location)
        except LockHeldError:
            # the server may not have closed the old connection yet
            if time.monotonic() > end:
                raise FencedError(
                    f"another runner took the lock {location} while this runner was disconnected; this runner is stopping"
                ) from None
        except Exception as error:
            if time.monotonic() > end:
                raise EpochError(
                    f"it is unknown whether epoch {epoch} was committed: {error}; the next start checks this",
                    Topic.COMMIT_UNKNOWN,
                ) from None
        time.sleep(0.2)


def acquire_lock(db: psycopg.Connection[Any], tables: PipelineTables) -> bool:
    """Take the lock of a pipeline for the lifetime of the connection. Return False if another connection holds it."""
    row = db.execute("SELECT pg_try_advisory_lock(%s)", (compute_lock_key(tables),)).fetchone()
    return bool(row and row[0])


def compute_lock_key(tables: PipelineTables) -> int:
    """Return the number that identifies the advisory lock of a pipeline, a signed 64-bit integer."""
    return _compute_lock_number(tables)


def _compute_lock_number(tables: PipelineTables, *purpose: str) -> int:
    return xxhash.xxh64_intdigest("\0".join(("slackwater", tables.schema, tables.pipeline, *purpose)).encode()) - (
        1 << 63
    )


def lock_merges(db: psycopg.Connection[Any], tables: PipelineTables) -> None:
    """Wait until no other transaction merges staged rows of the pipeline, and prevent others until this transaction ends."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_compute_lock_number(tables, "merge"),))


def wait_for_merges(db: psycopg.Connection[Any], tables: PipelineTables, location: str) -> None:
    """Wait until no other transaction merges staged rows of the pipeline. Raises LockHeldError after MERGE_S seconds."""
    end = time.monotonic() + MERGE_S
    while True:
        row = db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_compute_lock_number(tables, "merge"),)).fetchone()
        if row and row[0]:
            return
        if time.monotonic() > end:
            raise LockHeldError(
                f"the previous runner is disconnected, but Postgres still merges its rows {location}; start again when the "
                "merge has ended, or end its connection with pg_terminate_backend"
            )
        time.sleep(0.1)


def find_lock_holder(db: psycopg.Connection[Any], tables: PipelineTables) -> str | None:
    """Return the name of the process that holds the lock of a pipeline, or None if the lock is free."""
    row = db.execute(
        "SELECT application_name FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
        " AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint) = %s AND pg_locks.database = (SELECT oid FROM pg_database WHERE"
        " datname = current_database())",
        (compute_lock_key(tables),),
    ).fetchone()
    if row is None:
        return None
    return row[0].removeprefix("slackwater ") if row[0] else "another process"


def write_run(db: psycopg.Connection[Any], tables: PipelineTables, run: Run) -> None:
    """Insert a run or replace its entry, and delete the oldest entries beyond MOST_RUNS. Raises a psycopg error."""
    error = None if run.error is None else run.error.replace("\0", "�")  # Postgres cannot store U+0000 in text
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


def read_runs(url: str, tables: PipelineTables, location: str) -> tuple[Run, ...]:
    """Return the recorded runs of a pipeline, oldest first. Raises StartError or StateError if they cannot be read.

    Args:
        url: The URL of the database.
        tables: The tables of the pipeline.
        location: The location of the store, for messages.
    """
    with client.report_errors(location), client.borrow_connection(url, "state store") as db:
        if not client.table_exists(db, tables.runs):
            return ()
        rows = db.execute(
            "SELECT round(extract(epoch FROM started_at) * 1000000)::bigint, runner, epoch,"
            f" round(extract(epoch FROM ended_at) * 1000000)::bigint, outcome, last_epoch, error FROM {tables.runs}"
            f" WHERE pipeline_name = %s ORDER BY started_at DESC LIMIT {MOST_RUNS}",
            (tables.pipeline,),
        ).fetchall()
    names = ("started_us", "runner", "epoch", "ended_us", "outcome", "last_epoch", "error")
    return parse_runs([dict(zip(names, row, strict=True)) for row in rows])
