"""Forks in Postgres: copies of a pipeline's tables and rows, in one transaction that sees one commit and waits for no runner."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg

from slackwater.errors import LockHeldError, StateError
from slackwater.state import migrations
from slackwater.state.commit import FORMAT, Commit
from slackwater.state.fork import forked, taken
from slackwater.state.postgres import client, folding, lock, owned
from slackwater.state.postgres.snapshot import exists, latest
from slackwater.state.postgres.tables import Tables
from slackwater.state.protocol import not_kept


def fork(url: str, tables: Tables, name: str, epoch: int | None, place: str, renames: bool = False) -> Commit | None:
    """See `StateStore.fork`."""
    new = replace(tables, pipeline=name)
    try:
        with closing(client.connect(url, "state store")) as db:
            _check_free(db, new, place)
            _lock(db, new, place)
            with db.transaction():
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                db.execute("SET LOCAL lock_timeout = '5s'")  # not to queue up behind whoever alters a table
                return _fork(db, tables, new, epoch, place, renames)
    except psycopg.Error as error:
        raise StateError(f"state store {place}: {client.reason(error)}") from None


def _check_free(db: psycopg.Connection[Any], new: Tables, place: str) -> None:
    if not exists(db, new.pipelines):
        return
    if there := db.execute(f"SELECT epoch FROM {new.pipelines} WHERE pipeline_name = %s", (new.pipeline,)).fetchone():
        raise taken(new.pipeline, there[0], place)


def _lock(db: psycopg.Connection[Any], new: Tables, place: str) -> None:
    """Nobody starts the new pipeline meanwhile; the lock goes with the connection."""
    if not lock.take(db, new):
        who = lock.holder(db, new) or "another process"
        raise LockHeldError(f'"{new.pipeline}" is already running: {who} holds its lock {place}; choose another name')


def _fork(
    db: psycopg.Connection[Any], old: Tables, new: Tables, epoch: int | None, place: str, renames: bool
) -> Commit | None:
    found = latest(db, old, place) if exists(db, old.pipelines) else None
    if found is None or epoch not in (None, found[0].epoch):
        raise not_kept(epoch or 0, [found[0].epoch] if found else [], f"the tables {place}, which hold the latest")
    commit, published, version = found
    _check_free(db, new, place)  # since we looked
    if commit.staged and published < commit.epoch:
        return None
    stages = range(len(commit.stages))
    there = owned.located(db, old, len(stages))
    for stage in stages:
        _copy_table(db, there.of(stage), new.of(stage))
        gained = folding.fold(db, there.of(stage).staged, new.of(stage).state, commit.stages[stage].segments)
        commit = folding.with_gained_rows(commit, stage, gained)
    for statement in migrations.statements(version, [new.of(stage) for stage in stages]):
        db.execute(statement)
    named = {token: uuid.uuid4().hex for token in commit.lists}
    _copy_lists(db, new, named)
    made = forked(folding.folded(commit), new.pipeline, named.__getitem__, renames)
    db.execute(
        f"INSERT INTO {new.pipelines} (pipeline_name, state_version, epoch, published_epoch, watermark, open_windows,"
        " commit_id, record) VALUES (%s, %s, %s, %s, %s, %s, gen_random_uuid(), %s)",
        (
            new.pipeline,
            FORMAT,
            made.epoch,
            made.epoch,
            client.time(made.watermark_us),
            sum(made.stages[0].windows),
            made.model_dump_json(),
        ),
    )
    db.execute(
        f'INSERT INTO {new.offsets} SELECT %s, source, partition, "offset", newest_event, idle, %s, epoch FROM {old.offsets}'
        " WHERE pipeline_name = %s",
        (new.pipeline, FORMAT, old.pipeline),
    )
    return made


def _copy_table(db: psycopg.Connection[Any], old: Tables, new: Tables) -> None:
    """The table of a stage with its indexes and rows. What lies under the new name without a state is of a start that failed."""
    if not exists(db, old.state):
        raise StateError(f"table {old.state} is missing; restore it from a backup")
    owned.drop(db, new, "windows", "staged", "state")
    settings = db.execute(
        "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass(%s)", (old.state,)
    ).fetchone()
    kept = f" WITH ({settings[0]})" if settings and settings[0] else ""
    db.execute(f"CREATE TABLE {new.state} (LIKE {old.state} INCLUDING ALL){kept}")
    name = new.pipeline.replace("'", "''")
    db.execute(f"ALTER TABLE {new.state} ALTER COLUMN pipeline_name SET DEFAULT '{name}'")
    columns = db.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        " AND attname <> 'pipeline_name' ORDER BY attnum",
        (old.state,),
    ).fetchall()
    names = client.quoted([row[0] for row in columns])
    db.execute(f"INSERT INTO {new.state} ({names}) SELECT {names} FROM {old.state}")
    owned.name_indexes(db, new)
    owned.sign(db, new, "state")


def _copy_lists(db: psycopg.Connection[Any], new: Tables, named: Mapping[str, str]) -> None:
    done = db.execute(
        f"INSERT INTO {new.lists} SELECT n.fresh, %s, l.epoch, l.lines FROM {new.lists} l"
        " JOIN unnest(%s::text[], %s::text[]) AS n (token, fresh) USING (token)",
        (new.pipeline, list(named), list(named.values())),
    )
    if done.rowcount != len(named):
        raise StateError(f"a list that the state refers to is missing in {new.lists}; restore it from a backup")
