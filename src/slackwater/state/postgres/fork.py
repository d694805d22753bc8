"""Fork a state in Postgres: copy the tables and rows of a pipeline.

One transaction makes the copy. It sees exactly one commit, and does not block a runner.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg

from slackwater.errors import LockHeldError, StateError, Topic
from slackwater.state import migrations
from slackwater.state.commit import FORMAT, Commit
from slackwater.state.fork import forked_commit, name_taken_error
from slackwater.state.postgres import client, pipeline_lock, staged_row_merge, table_ownership
from slackwater.state.postgres.commit_log import read_latest_commit
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.protocol import missing_epoch_error


def fork_tables(
    url: str, tables: PipelineTables, name: str, epoch: int | None, location: str, renames: bool = False
) -> Commit | None:
    """Copy a commit to another pipeline; see `StateStore.fork`.

    Args:
        url: The URL of the database.
        tables: The tables of the original.
        name: The name of the other pipeline.
        epoch: The epoch of the commit, which must be the latest; None for the latest.
        location: The location of the store, for messages.
        renames: Whether the copy replaces the original under a new name.
    """
    new = replace(tables, pipeline=name)
    with client.report_errors(location), closing(client.open_connection(url, "state store")) as db:
        _check_free(db, new, location)
        _lock(db, new, location)
        with db.transaction():
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            db.execute("SET LOCAL lock_timeout = '5s'")  # limits the wait for another session that alters a table
            return _fork(db, tables, new, epoch, location, renames)


def _check_free(db: psycopg.Connection[Any], new: PipelineTables, location: str) -> None:
    """Raise StateError if the new pipeline already has a state."""
    if not client.table_exists(db, new.pipelines):
        return
    if row := db.execute(f"SELECT epoch FROM {new.pipelines} WHERE pipeline_name = %s", (new.pipeline,)).fetchone():
        raise name_taken_error(new.pipeline, row[0], location)


def _lock(db: psycopg.Connection[Any], new: PipelineTables, location: str) -> None:
    """Take the lock of the new pipeline, so that it cannot be started. Raises LockHeldError if it is running."""
    if not pipeline_lock.acquire_lock(db, new):
        holder = pipeline_lock.find_lock_holder(db, new) or "another process"
        raise LockHeldError(
            f'"{new.pipeline}" is already running: {holder} holds its lock {location}; choose another name'
        )


def _fork(
    db: psycopg.Connection[Any],
    old: PipelineTables,
    new: PipelineTables,
    epoch: int | None,
    location: str,
    renames: bool,
) -> Commit | None:
    latest = read_latest_commit(db, old, location) if client.table_exists(db, old.pipelines) else None
    if latest is None or epoch not in (None, latest[0].epoch):
        raise missing_epoch_error(
            epoch or 0, [latest[0].epoch] if latest else [], f"the tables {location}, which hold the latest"
        )
    commit, published, version = latest
    _check_free(db, new, location)  # again, because another process may have created the state
    if commit.staged and published < commit.epoch:
        return None
    stages = range(len(commit.stages))
    current = table_ownership.current_names(db, old, len(stages))
    for stage in stages:
        _copy_table(db, current.for_stage(stage), new.for_stage(stage))
        gained = staged_row_merge.merge_staged_rows(
            db, current.for_stage(stage).staged, new.for_stage(stage).state, commit.stages[stage].segments
        )
        commit = staged_row_merge.add_merged_row_count(commit, stage, gained)
    for statement in migrations.migration_statements(version, [new.for_stage(stage) for stage in stages]):
        db.execute(statement)
    new_tokens = {token: uuid.uuid4().hex for token in commit.lists}
    _copy_lists(db, new, new_tokens)
    copied = forked_commit(staged_row_merge.build_merged_commit(commit), new.pipeline, new_tokens.__getitem__, renames)
    db.execute(
        f"INSERT INTO {new.pipelines} (pipeline_name, state_version, epoch, published_epoch, watermark, open_windows,"
        " commit_id, record) VALUES (%s, %s, %s, %s, %s, %s, gen_random_uuid(), %s)",
        (
            new.pipeline,
            FORMAT,
            copied.epoch,
            copied.epoch,
            client.to_datetime(copied.watermark_us),
            sum(copied.stages[0].windows),
            copied.model_dump_json(),
        ),
    )
    db.execute(
        f'INSERT INTO {new.offsets} SELECT %s, source, partition, "offset", newest_event, idle, %s, epoch FROM {old.offsets}'
        " WHERE pipeline_name = %s",
        (new.pipeline, FORMAT, old.pipeline),
    )
    return copied


def _copy_table(db: psycopg.Connection[Any], old: PipelineTables, new: PipelineTables) -> None:
    """Copy the table of a stage with its indexes and rows.

    The new pipeline has no state, so tables that already exist for it are left over from a failed start, and are replaced.
    """
    if not client.table_exists(db, old.state):
        raise StateError(f"table {old.state} is missing; restore it from a backup", Topic.STATE_DAMAGED)
    table_ownership.drop_owned_tables(db, new)
    settings = db.execute(
        "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass(%s)", (old.state,)
    ).fetchone()
    storage_settings = f" WITH ({settings[0]})" if settings and settings[0] else ""
    db.execute(f"CREATE TABLE {new.state} (LIKE {old.state} INCLUDING ALL){storage_settings}")
    db.execute(f"ALTER TABLE {new.state} ALTER COLUMN pipeline_name SET DEFAULT {new.literal}")
    names = client.quote_names([c for c in client.columns_of(db, old.state) if c != "pipeline_name"])
    db.execute(f"INSERT INTO {new.state} ({names}) SELECT {names} FROM {old.state}")
    table_ownership.rename_indexes(db, new)
    table_ownership.record_table_owner(db, new, "state")


def _copy_lists(db: psycopg.Connection[Any], new: PipelineTables, new_tokens: Mapping[str, str]) -> None:
    """Copy lists under new tokens. `new_tokens`: new tokens by old token. Raises StateError if a list is missing."""
    cursor = db.execute(
        f"INSERT INTO {new.lists} SELECT n.fresh, %s, l.epoch, l.lines FROM {new.lists} l"
        " JOIN unnest(%s::text[], %s::text[]) AS n (token, fresh) USING (token)",
        (new.pipeline, list(new_tokens), list(new_tokens.values())),
    )
    if cursor.rowcount != len(new_tokens):
        raise StateError(
            f"a list to which the state refers is missing from table {new.lists}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
