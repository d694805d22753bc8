"""Read the Postgres store without a lock: the latest record, and the rows as of that record.

One transaction (REPEATABLE READ, READ ONLY) reads the record and exports its snapshot. Each reader of rows imports the
snapshot on a connection of its own, so that it sees the same data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import psycopg

from slackwater.core.humanize import mismatch
from slackwater.errors import StateError, Topic
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state import migrations
from slackwater.state.commit import Commit, parse_commit
from slackwater.state.commit_record_fields import RecordError
from slackwater.state.postgres import client, offset_lists, table_ownership
from slackwater.state.postgres.join_buffers import PostgresBuffers
from slackwater.state.postgres.shard_rows import PostgresReader, PostgresShard
from slackwater.state.postgres.table_checks import check_tables
from slackwater.state.postgres.table_names import TableNames
from slackwater.state.protocol import Snapshot, StoredRecord, missing_epoch_error
from slackwater.windows.state_rows import KeyedStateLayout


def stored_record(db: psycopg.Connection[Any], tables: TableNames, location: str) -> tuple[StoredRecord, int] | None:
    """Return the stored record of a pipeline and its last published epoch; None if the pipeline has no row.

    Raises StateError if a value is missing or the format cannot be migrated.
    """
    row = db.execute(
        f"SELECT published_epoch, state_version, record FROM {tables.pipelines} WHERE pipeline_name = %s",
        (tables.pipeline,),
    ).fetchone()
    if row is None:
        return None
    names = ("published_epoch", "state_version", "record")
    if missing := [f'"{name}"' for name, value in zip(names, row, strict=True) if value is None]:
        raise StateError(
            f'the record of pipeline "{tables.pipeline}" in {tables.pipelines} {location} is damaged: '
            + mismatch(f"NULL in column {', '.join(missing)}", "a value; restore it from a backup of the database"),
            Topic.STATE_DAMAGED,
        )
    migrations.migration_route(row[1], _state_label(tables, location))
    return StoredRecord(row[1], row[2]), row[0]


def latest_commit(db: psycopg.Connection[Any], tables: TableNames, location: str) -> tuple[Commit, int, int] | None:
    """Return the latest commit, the last published epoch, and the format of the stored record.

    Return None if the pipeline has no row. Raises StateError if the record is damaged or cannot be migrated.
    """
    stored = stored_record(db, tables, location)
    if stored is None:
        return None
    (version, record), published = stored
    try:
        return parse_commit(record, version, _state_label(tables, location)), published, version
    except RecordError as error:
        raise StateError(
            f'the record of pipeline "{tables.pipeline}" in {tables.pipelines} {location} is damaged: '
            f"{error}; restore it from a backup of the database",
            Topic.STATE_DAMAGED,
        ) from None


def _state_label(tables: TableNames, location: str) -> str:
    return f'state of pipeline "{tables.pipeline}" {location}'


def table_exists(db: psycopg.Connection[Any], table: str) -> bool:
    row = db.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return bool(row and row[0])


@contextmanager
def open_snapshot(url: str, tables: TableNames, location: str, epoch: int | None = None) -> Iterator[Snapshot | None]:
    """Open a commit for reading; see `StateStore.peek`.

    Within the block, an open transaction protects the rows of the commit from VACUUM.
    """
    try:
        with client.borrow_connection(url, "state store") as db, db.transaction():
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            db.execute("SET LOCAL lock_timeout = '5s'")  # do not wait long for a session that alters a table
            latest = latest_commit(db, tables, location) if table_exists(db, tables.pipelines) else None
            if epoch is not None and (latest is None or latest[0].epoch != epoch):
                raise missing_epoch_error(
                    epoch, [latest[0].epoch] if latest else [], f"the tables {location}, which hold the latest"
                )
            if latest is None:
                yield None
                return
            commit, published, _ = latest
            exported = db.execute("SELECT pg_export_snapshot()").fetchone()
            assert exported is not None
            stages = commit.stages
            current = table_ownership.current_names(db, tables, len(stages))

            def shard_state(shard: int, stage: int) -> PostgresShard:
                table, metas = current.for_stage(stage), stages[stage].segments[shard]
                return PostgresShard(url, table, shard, commit.shards, commit.epoch, metas, exported[0])

            def reader(shard: int, logic: KeyedStateLayout, stage: int) -> PostgresReader:
                return shard_state(shard, stage).reader(logic)

            def buffers(shard: int, logic: CompiledJoin, stage: int) -> PostgresBuffers:
                return shard_state(shard, stage).buffers(logic)

            reached = frozenset(commit.reached)
            check = partial(check_tables, db, tables, commit, location)
            yield Snapshot(
                commit,
                published,
                reader,
                partial(offset_lists.read_list, db, tables, location),
                buffers,
                reached,
                check,
            )
    except psycopg.Error as error:
        raise StateError(f"state store {location}: {client.error_reason(error)}") from None


def pipeline_names(url: str, schema: str) -> list[str]:
    """Return the pipelines with a state in a schema. Raises StartError or StateError."""
    try:
        with closing(client.open_connection(url, "state store")) as db:
            table = TableNames(schema, "").pipelines
            if not table_exists(db, table):
                return []
            return [row[0] for row in db.execute(f"SELECT pipeline_name FROM {table} ORDER BY 1").fetchall()]
    except psycopg.Error as error:
        raise StateError(
            f'state store in schema "{schema}" of {client.server_address(url)}: {client.error_reason(error)}'
        ) from None
