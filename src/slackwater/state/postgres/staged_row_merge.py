"""Merge staged rows into the state table, in the transaction of the caller.

Only the newest version of each unit (all rows with the same hash) is written:

    state     unit 7   v 1                          v 3
    staged    token a  unit 7  v 2          ──▶     (empty)
              token b  unit 7  v 3
    record    [state] [a] [b]                       [state]

A commit with many staged rows records only their tokens, and leaves the state table unchanged. Readers combine the table
with the staged rows. A unit that changes in several epochs between two merges is thus written to the table only once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import psycopg

from slackwater.errors import EpochError, StateError, Topic
from slackwater.state.commit import Commit, SegmentMetadata
from slackwater.state.postgres import client
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.staged_rows import delete_local_copies
from slackwater.state.postgres.table_integrity import check_tables
from slackwater.windows.state_layout import TOMBSTONE

log = logging.getLogger("slackwater")

FEW_ROWS = 10_000  # up to this number, staged rows are merged in every commit
MOST_ROWS = 4_000_000  # above this number, staged rows are merged
MOST_TOKENS = 16  # from this number of tokens per shard on, staged rows are merged, because a read searches all of them
_SORTING = "64MB"  # `work_mem` for a merge of many rows

Segments = Sequence[Sequence[SegmentMetadata]]


def list_staged_segments(segments: Segments) -> list[SegmentMetadata]:
    """Return the segments of a stage that have rows in the staged table. `segments`: per shard."""
    return [m for metas in segments for m in metas if m.file]


def should_merge(segments: Segments) -> bool:
    """Return whether to merge staged rows now, because they are few or have reached a limit. `segments`: per shard."""
    rows = sum(m.rows for m in list_staged_segments(segments))
    most = max((sum(1 for m in metas if m.file) for metas in segments), default=0)
    return rows <= FEW_ROWS or rows > MOST_ROWS or most >= MOST_TOKENS


def check_staged_rows(db: psycopg.Connection[Any], staged: str, metas: Sequence[SegmentMetadata], epoch: int) -> None:
    """Raise EpochError if staged rows that the next commit references are missing.

    Args:
        db: A connection to the database.
        staged: The quoted SQL name of the staged table.
        metas: The segments whose rows must exist.
        epoch: The epoch of the commit, for the message.
    """
    count = _count(db, staged, metas)
    if count != (expected := sum(m.rows for m in metas)):
        raise EpochError(
            f"epoch {epoch} was not committed: found {count:,} of its rows in {staged}, expected {expected:,} "
            "(Postgres was restarted after a crash, or the rows were deleted); start again to repeat "
            "the epoch"
        )


def _count(db: psycopg.Connection[Any], staged: str, metas: Sequence[SegmentMetadata]) -> int:
    if not metas:
        return 0
    row = db.execute(f"SELECT count(*) FROM {staged} WHERE token = ANY(%s)", ([m.file for m in metas],)).fetchone()
    return row[0] if row else 0


def merge_staged_rows(db: psycopg.Connection[Any], staged: str, state: str, segments: Segments) -> int:
    """Write the newest staged version of each unit to the state table, and return how many rows the table gained.

    The staged rows are not deleted. Raises StateError if some of them are missing.

    Args:
        db: A connection with an open transaction.
        staged: The quoted SQL name of the staged table.
        state: The quoted SQL name of the state table.
        segments: The segments of each shard, oldest first.
    """
    metas = list_staged_segments(segments)
    if not metas:
        return 0
    missing = [t for t in (staged, state) if not client.table_exists(db, t)]
    if missing or _count(db, staged, metas) != sum(m.rows for m in metas):
        raise StateError(
            f"table {missing[0] if missing else staged} lacks rows that the latest commit refers to; "
            "restore it from a backup of the database",
            Topic.STATE_DAMAGED,
        )
    state_columns = set(client.columns_of(db, state))
    columns = [c for c in client.columns_of(db, staged) if c in state_columns]
    values = ", ".join(
        f"{c} = excluded.{c}" for c in map(client.quote_name, columns) if c not in ('"unit"', '"ordinal"')
    )
    # all versions of a unit belong to one shard, in which tokens are ordered from old to new
    tokens = [(m.file, version) for of_shard in segments for version, m in enumerate(of_shard) if m.file]
    names, versions = [token for token, _ in tokens], [version for _, version in tokens]
    several = any(sum(1 for m in of_shard if m.file) > 1 for of_shard in segments)
    if sum(m.rows for m in metas) > FEW_ROWS:
        db.execute(f"SET LOCAL work_mem = '{_SORTING}'")
    # delete each row that any version removed; if the newest version has the row again, it is written below
    removed = db.execute(
        f"DELETE FROM {state} s USING (SELECT DISTINCT unit, ordinal FROM {staged} WHERE token = ANY(%s) AND kind = {TOMBSTONE}) t"
        " WHERE s.unit = t.unit AND s.ordinal = t.ordinal",
        (names,),
    ).rowcount
    column_list = client.quote_names(columns)
    if several:
        source = (
            f"(WITH picked AS MATERIALIZED (SELECT t.*, p.place FROM {staged} t JOIN unnest(%s::text[], %s::int[]) AS p (token, place)"
            " USING (token)), newest AS (SELECT unit, max(place) AS place FROM picked GROUP BY unit)"
            " SELECT picked.* FROM picked JOIN newest USING (unit, place)) t"
        )
        arguments: tuple[Any, ...] = (names, versions)
    else:
        source, arguments = f"(SELECT * FROM {staged} WHERE token = ANY(%s)) t", (names,)
    # xmax is 0 in inserted rows, but not in replaced rows
    added = db.execute(
        f"WITH written AS (INSERT INTO {state} ({column_list}) SELECT {column_list} FROM {source} WHERE kind <> {TOMBSTONE}"
        f" ON CONFLICT (unit, ordinal) DO UPDATE SET {values} RETURNING xmax = 0 AS is_new)"
        " SELECT count(*) FILTER (WHERE is_new) FROM written",
        arguments,
    ).fetchone()
    return (added[0] if added else 0) - removed


def build_merged_commit(commit: Commit) -> Commit:
    """Return the commit as it will be once all its staged rows are merged."""
    stages = tuple(
        s.model_copy(update={"segments": tuple(list_merged_segments(metas) for metas in s.segments)})
        if list_staged_segments(s.segments)
        else s
        for s in commit.stages
    )
    return commit.model_copy(update={"stages": stages})


def list_merged_segments(metas: Sequence[SegmentMetadata], size: int | None = None) -> tuple[SegmentMetadata, ...]:
    """Return the segments of a shard as they will be once its staged rows are merged.

    `size`: the size of the shard in the table in bytes; None if unknown.
    """
    if not metas:
        return ()
    return (
        SegmentMetadata(
            file="",
            rows=sum(m.rows for m in metas),
            bytes=sum(m.bytes for m in metas) if size is None else size,
            first_due=min(m.first_due for m in metas),
            last_due=max(m.last_due for m in metas),
            close=max(m.close for m in metas),
            dead=max(m.dead for m in metas),
        ),
    )


def merge_staged_rows_at_start(
    db: psycopg.Connection[Any], tables: PipelineTables, commit: Commit, location: str
) -> Commit:
    """Check the tables, merge the staged rows that the latest commit references, and return the resulting commit.

    Raises StateError if tables or staged rows differ from what the commit recorded.

    Args:
        db: A connection that holds the lock.
        tables: The tables of the pipeline.
        commit: The latest commit.
        location: The location of the store, for messages.
    """
    check_tables(db, tables, commit, location)
    if not any(list_staged_segments(s.segments) for s in commit.stages):
        return commit
    with db.transaction():
        merged = build_merged_commit(_merge_stages(db, tables, commit))
        row = db.execute(
            f"UPDATE {tables.pipelines} SET record = record || jsonb_build_object('stages', %s::jsonb -> 'stages')"
            " WHERE pipeline_name = %s AND epoch = %s",
            (merged.model_dump_json(), tables.pipeline, commit.epoch),
        )
        if row.rowcount != 1:
            raise StateError(
                f'the state of pipeline "{tables.pipeline}" {location} was changed by another runner; start again'
            )
    delete_local_copies(list_staged_tokens(commit))
    return merged


def _merge_stages(db: psycopg.Connection[Any], tables: PipelineTables, commit: Commit) -> Commit:
    """Merge the staged rows of all stages, and return the commit with the new row counts."""
    for number, stage in enumerate(commit.stages):
        t = tables.for_stage(number)
        commit = add_merged_row_count(commit, number, merge_staged_rows(db, t.staged, t.state, stage.segments))
        if list_staged_segments(stage.segments):
            db.execute(f"DELETE FROM {t.staged}")
    return commit


def add_merged_row_count(commit: Commit, number: int, gained: int) -> Commit:
    """Return the commit with the new row count of a state table.

    Args:
        commit: The commit before the merge.
        number: The number of the stage.
        gained: The number of rows that the table gained.
    """
    stages = list(commit.stages)
    if (table := stages[number].table) is not None:
        update = {"table": table.model_copy(update={"rows": table.rows + gained})}
        stages[number] = stages[number].model_copy(update=update)
    return commit.model_copy(update={"stages": tuple(stages)})


def list_staged_tokens(commit: Commit) -> frozenset[str]:
    """Return the tokens of the staged rows that this commit references."""
    return frozenset(m.file for m in commit.metas if m.file)


def clear_merged_rows(
    db: psycopg.Connection[Any], tables: PipelineTables, before: frozenset[str], commit: Commit, stored: Commit
) -> frozenset[str]:
    """Delete local copies of the rows that a commit has merged, and vacuum staged tables that are now empty.

    Args:
        db: A connection in autocommit mode.
        tables: The tables of the pipeline.
        before: The tokens that the previous commit references.
        commit: The commit before the merge.
        stored: The commit as stored, after the merge.

    Returns:
        The tokens that the stored commit references.
    """
    waits = list_staged_tokens(stored)
    delete_local_copies((before | list_staged_tokens(commit)) - waits)
    for number, stage in enumerate(stored.stages) if before - waits else ():
        if not list_staged_segments(stage.segments):
            staged = tables.for_stage(number).staged
            try:
                db.execute(f"VACUUM {staged}")
            except psycopg.Error as error:  # harmless
                log.warning(
                    "%s: table %s could not be vacuumed (%s); autovacuum or a later commit cleans it up",
                    tables.pipeline,
                    staged,
                    client.error_reason(error),
                )
    return waits
