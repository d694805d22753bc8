"""The lock of a pipeline: a Postgres advisory lock. The `application_name` of its connection identifies the runner."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import xxhash

from slackwater.errors import LockHeldError
from slackwater.state.postgres import client
from slackwater.state.postgres.table_names import TableNames

LOCK_S = 3.0  # how long a start waits for the server to notice that a killed runner is gone


def connect_locked(url: str, tables: TableNames, location: str) -> psycopg.Connection[Any]:
    """Open a connection that holds the lock of a pipeline. Raises LockHeldError, StartError or psycopg's errors."""
    db = client.open_connection(url, "state store")
    try:
        end = time.monotonic() + LOCK_S
        while not take_lock(db, tables):
            if time.monotonic() > end:
                holder = lock_holder(db, tables) or "another process"
                raise LockHeldError(
                    f"pipeline is already running: {holder} holds its lock {location}; stop that process first, "
                    "because a pipeline can have only one runner at a time"
                )
            time.sleep(0.1)
    except BaseException:
        db.close()
        raise
    return db


def take_lock(db: psycopg.Connection[Any], tables: TableNames) -> bool:
    """Take the lock of a pipeline until the connection is closed. Return False if another connection holds it."""
    row = db.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(tables),)).fetchone()
    return bool(row and row[0])


def lock_key(tables: TableNames) -> int:
    """Return the number of a pipeline's advisory lock."""
    return xxhash.xxh64_intdigest(f"slackwater\0{tables.schema}\0{tables.pipeline}".encode()) - (1 << 63)


def lock_holder(db: psycopg.Connection[Any], tables: TableNames) -> str | None:
    """Return the process that holds a pipeline's lock; None if no process does."""
    row = db.execute(
        "SELECT application_name FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
        " AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint) = %s AND pg_locks.database = (SELECT oid FROM pg_database WHERE"
        " datname = current_database())",
        (lock_key(tables),),
    ).fetchone()
    if row is None:
        return None
    return row[0].removeprefix("slackwater ") if row[0] else "another process"
