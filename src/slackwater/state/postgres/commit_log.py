"""Read the latest commit from Postgres, with its rows, its lists and its staged output.

Readers need no lock. A transaction (REPEATABLE READ, READ ONLY) reads the record and exports its snapshot. Each reader of
rows imports this snapshot on another connection, so that all of them see the same data.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import StateError, Topic
from slackwater.state import migrations
from slackwater.state.commit import Commit, OutputMetadata, parse_commit
from slackwater.state.commit_record_fields import RecordError
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.shard import PostgresShard
from slackwater.state.postgres.table_integrity import check_tables
from slackwater.state.protocol import Snapshot, StoredRecord, missing_epoch_error
from slackwater.storage.arrow_files import frame_of


def read_commit_record(
    db: psycopg.Connection[Any], tables: PipelineTables, location: str
) -> tuple[StoredRecord, int] | None:
    """Return the stored record of a pipeline and its last published epoch, or None if the pipeline has no state.

    Args:
        db: A connection to the database.
        tables: The tables of the pipeline.
        location: The location of the store, for messages.

    Raises:
        StateError: A value is missing, or the format cannot be migrated.
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


def read_commit_id(db: psycopg.Connection[Any], tables: PipelineTables, waits: bool = False) -> uuid.UUID | None:
    """Return the id of the stored commit, or None if there is none. `waits`: whether to wait for a transaction that changes it."""
    row = db.execute(
        f"SELECT commit_id FROM {tables.pipelines} WHERE pipeline_name = %s{' FOR UPDATE' if waits else ''}",
        (tables.pipeline,),
    ).fetchone()
    return row[0] if row else None


def read_latest_commit(
    db: psycopg.Connection[Any], tables: PipelineTables, location: str
) -> tuple[Commit, int, int] | None:
    """Return the latest commit, the last published epoch, and the format of the stored record.

    Return None if the pipeline has no state. Raises StateError if the record is damaged or cannot be migrated.
    `location`: the location of the store, for messages.
    """
    stored = read_commit_record(db, tables, location)
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


def _state_label(tables: PipelineTables, location: str) -> str:
    return f'state of pipeline "{tables.pipeline}" {location}'


@contextmanager
def open_snapshot(
    url: str, tables: PipelineTables, location: str, epoch: int | None = None
) -> Iterator[Snapshot | None]:
    """Open a commit for reading; see `StateStore.peek`.

    Within the block, an open transaction protects the rows of the commit from VACUUM.

    Args:
        url: The URL of the database.
        tables: The tables of the pipeline.
        location: The location of the store, for messages.
        epoch: The epoch of the commit; None for the latest. Postgres keeps only the latest commit.
    """
    with client.report_errors(location), client.borrow_connection(url, "state store") as db, db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        db.execute("SET LOCAL lock_timeout = '5s'")  # limits the wait for another session that alters a table
        latest = read_latest_commit(db, tables, location) if client.table_exists(db, tables.pipelines) else None
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

        yield Snapshot(
            commit,
            published,
            lambda shard, logic, stage: shard_state(shard, stage).reader(logic),
            partial(read_list, db, tables, location),
            lambda shard, logic, stage: shard_state(shard, stage).buffers(logic),
            frozenset(commit.reached),
            partial(check_tables, db, tables, commit, location),
        )


def pipeline_names(url: str, schema: str) -> list[str]:
    """Return the names of the pipelines with a state in a schema. Raises StartError or StateError."""
    location = f'in schema "{schema}" of {client.server_address(url)}'
    with client.report_errors(location), closing(client.open_connection(url, "state store")) as db:
        table = PipelineTables(schema, "").pipelines
        if not client.table_exists(db, table):
            return []
        return [row[0] for row in db.execute(f"SELECT pipeline_name FROM {table} ORDER BY 1").fetchall()]


# -- lists and staged output -------------------------------------------------------------------------------------------


def write_list(db: psycopg.Connection[Any], tables: PipelineTables, epoch: int, lines: Sequence[str]) -> str:
    """Store a list of text lines for an epoch, and return its name."""
    token = uuid.uuid4().hex
    db.execute(f"INSERT INTO {tables.lists} VALUES (%s, %s, %s, %s)", (token, tables.pipeline, epoch, "\n".join(lines)))
    return token


def read_list(db: psycopg.Connection[Any], tables: PipelineTables, location: str, name: str) -> list[str]:
    """Return the lines of a list. Raises StateError if the list is missing."""
    row = db.execute(f"SELECT lines FROM {tables.lists} WHERE token = %s", (name,)).fetchone()
    if row is None:
        raise StateError(
            f"list {name} is missing from table {tables.lists} {location}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
    return str(row[0]).splitlines()


def delete_unused_lists(db: psycopg.Connection[Any], tables: PipelineTables, epoch: int) -> None:
    """Delete the lists of all epochs up to `epoch`, except lists that the latest commit references."""
    row = db.execute(f"SELECT record FROM {tables.pipelines} WHERE pipeline_name = %s", (tables.pipeline,)).fetchone()
    if row is None:
        return
    latest = Commit.model_validate(row[0])
    db.execute(
        f"DELETE FROM {tables.lists} WHERE pipeline_name = %s AND epoch <= %s AND token <> ALL(%s)",
        (tables.pipeline, epoch, latest.lists),
    )


def read_staged_output(
    db: psycopg.Connection[Any], tables: PipelineTables, location: str, meta: OutputMetadata
) -> pl.DataFrame:
    """Read one entry of staged output. Raises StateError if it is missing or damaged."""
    row = db.execute(f"SELECT data FROM {tables.outputs} WHERE token = %s", (meta.file,)).fetchone()
    if row is None:
        raise StateError(
            f"output {meta.file} is missing from table {tables.outputs} {location}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
    try:
        frame = frame_of(pa.ipc.open_file(pa.py_buffer(row[0])).read_all())
    except (pa.ArrowException, OSError, pl.exceptions.PolarsError) as error:
        raise StateError(
            f"output {meta.file} in table {tables.outputs} {location} is damaged: it cannot be read "
            f"({type(error).__name__}), but should have {plural(meta.rows, 'row')}; restore it from a backup",
            Topic.STATE_DAMAGED,
        ) from None
    if frame.height != meta.rows:
        raise StateError(
            f"output {meta.file} in table {tables.outputs} {location} is damaged: "
            + mismatch(plural(frame.height, "row"), f"{meta.rows:,}; restore it from a backup"),
            Topic.STATE_DAMAGED,
        )
    return frame
