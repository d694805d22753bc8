"""Merge staged rows into the state table, in the transaction of the caller.

Only the newest version of each unit (all rows with the same hash) is written:

    state     unit 7   v 1                          v 3
    staged    token a  unit 7  v 2          ──▶     (empty)
              token b  unit 7  v 3
    record    [state] [a] [b]                       [state]

A commit with many staged rows records only their tokens, and leaves the state table unchanged. Readers combine the table
with the staged rows. A unit that changes in several epochs between two merges is thus written to the table only once.
`background_merge.py` merges many rows while epochs continue. A commit merges few rows itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import psycopg

from slackwater.errors import EpochError, StateError, Topic
from slackwater.state.commit import Commit, SegmentMetadata
from slackwater.state.postgres import client, pipeline_lock
from slackwater.state.postgres.pipeline_tables import MARK, PipelineTables
from slackwater.state.postgres.staged_rows import delete_local_copies
from slackwater.state.postgres.table_integrity import check_tables
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import EMITTED, FLOOR, TOMBSTONE, WHOLE, KeyedStateLayout

log = logging.getLogger("slackwater")

FEW_ROWS = 10_000  # up to this number, staged rows are merged in every commit
MOST_ROWS = 4_000_000  # above this number, staged rows are merged in the background
MOST_TOKENS = 16  # from this number of tokens per shard on, too, because a read searches all of them
OVERDUE = 2  # from this many times these limits on, a commit waits for the merge
_SORTING = "64MB"  # `work_mem` for a merge of many rows
_IS_NEWEST = client.quote_name(f"slackwater{MARK}newest")

Segments = Sequence[Sequence[SegmentMetadata]]


def list_staged_segments(segments: Segments) -> list[SegmentMetadata]:
    """Return the segments of a stage that have rows in the staged table. `segments`: per shard."""
    return [m for metas in segments for m in metas if m.file]


def are_few(segments: Segments) -> bool:
    """Return whether a commit itself merges the staged rows of a stage, because they are few. `segments`: per shard."""
    return sum(m.rows for m in list_staged_segments(segments)) <= FEW_ROWS


def is_merge_due(segments: Segments, times: int = 1) -> bool:
    """Return whether the staged rows of a stage have reached a limit. `segments`: per shard. `times`: factor of the limits."""
    rows = sum(m.rows for m in list_staged_segments(segments))
    most = max((sum(1 for m in metas if m.file) for metas in segments), default=0)
    return not are_few(segments) and (rows > times * MOST_ROWS or most >= times * MOST_TOKENS)


def must_merge(segments: Segments) -> bool:
    """Return whether the next commit cannot happen before the staged rows of a stage are merged. `segments`: per shard."""
    return is_merge_due(segments, OVERDUE)


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
    names = [client.quote_name(c) for c in client.columns_of(db, staged) if c in state_columns]
    # all versions of a unit belong to one shard, in which tokens are ordered from old to new
    versions = [(m.file, version) for of_shard in segments for version, m in enumerate(of_shard) if m.file]
    tokens, places = [token for token, _ in versions], [place for _, place in versions]
    units = f"SELECT unit FROM {staged} WHERE token = ANY(%s)"
    if sum(m.rows for m in metas) > FEW_ROWS:
        db.execute(f"SET LOCAL work_mem = '{_SORTING}'")
        changed = f"unit IN ({units})"
    else:  # with an array, Postgres uses the index of the state table, whatever its statistics say
        changed = f"unit = ANY(ARRAY({units}))"
    removed = db.execute(f"DELETE FROM {state} WHERE {changed}", (tokens,)).rowcount
    added = db.execute(
        f"INSERT INTO {state} ({', '.join(names)}) SELECT {', '.join(names)} FROM (SELECT {', '.join(f't.{n}' for n in names)},"
        f" p.place = max(p.place) OVER (PARTITION BY t.unit) AS {_IS_NEWEST} FROM {staged} t"
        " JOIN unnest(%s::text[], %s::int[]) AS p (token, place) ON p.token = t.token) versions"
        f" WHERE {_IS_NEWEST} AND kind <> {TOMBSTONE}",
        (tokens, places),
    ).rowcount
    return added - removed


def delete_expired_rows(db: psycopg.Connection[Any], state: str, logic: KeyedStateLayout, watermark: int) -> int:
    """Delete the units in which all rows have expired from a state table, and return the number of deleted rows.

    Args:
        db: A connection with an open transaction.
        state: The quoted SQL name of the state table.
        logic: The layout of the rows.
        watermark: The watermark of the stage.
    """
    if watermark <= NO_WATERMARK:
        return 0
    rule = logic.expiry_bounds(watermark)

    def expired(row: str) -> str:
        return (
            f"({row}.kind IN ({WHOLE}, {EMITTED}) AND {row}.closes_at <= {client.time_literal(rule.whole_upto)}"
            f" OR {row}.kind = {FLOOR} AND {row}.closes_at <= {client.time_literal(rule.floor_upto)})"
        )

    latest = client.time_literal(max(rule))
    return db.execute(
        f"DELETE FROM {state} s WHERE s.closes_at <= {latest} AND {expired('s')} AND NOT EXISTS"
        f" (SELECT 1 FROM {state} o WHERE o.unit = s.unit AND NOT {expired('o')})"
    ).rowcount


def table_size(db: psycopg.Connection[Any], table: str) -> int:
    """Return the size of a table (quoted SQL name) in bytes, including indexes."""
    row = db.execute("SELECT pg_total_relation_size(%s)", (table,)).fetchone()
    return int(row[0]) if row else 0


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
        pipeline_lock.lock_merges(db, tables)
        merged = build_merged_commit(_merge_stages(db, tables, commit))
        row = db.execute(
            f"UPDATE {tables.pipelines} SET record = record || jsonb_build_object('stages', %s::jsonb -> 'stages'),"
            " commit_id = gen_random_uuid() WHERE pipeline_name = %s AND epoch = %s",
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
    db: psycopg.Connection[Any],
    tables: PipelineTables,
    before: frozenset[str],
    commit: Commit,
    stored: Commit,
    vacuums: bool,
) -> frozenset[str]:
    """Delete local copies of the rows that a commit has merged, and vacuum staged tables that are now empty.

    Args:
        db: A connection in autocommit mode.
        tables: The tables of the pipeline.
        before: The tokens that the previous commit references.
        commit: The commit before the merge.
        stored: The commit as stored, after the merge.
        vacuums: Whether to vacuum. A background merge vacuums its tables itself.

    Returns:
        The tokens that the stored commit references.
    """
    waits = list_staged_tokens(stored)
    delete_local_copies((before | list_staged_tokens(commit)) - waits)
    for number, stage in enumerate(stored.stages) if vacuums and before - waits else ():
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
