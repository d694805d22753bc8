"""The transaction that commits an epoch in Postgres, shown step by step.

fence ─ changed columns ─ merge of staged rows, if due ─ target, if in this database ─ record ─ offsets
                        └ deletion of expired rows
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

import psycopg
from psycopg import errors

from slackwater.core.offset_base import Offsets
from slackwater.errors import FencedError, raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state.commit import FORMAT, Commit, SegmentMetadata, StageState, TableRecord
from slackwater.state.postgres import client, join_buffers, staged_row_merge
from slackwater.state.postgres.join_buffers import JoinTable
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.schema_setup import column_types
from slackwater.state.protocol import NoState, Publish, StateLayout
from slackwater.windows.state_layout import KeyedStateLayout

# the segments of each shard of a stage, and the number of rows that its table gained
Changed = tuple[tuple[tuple[SegmentMetadata, ...], ...], int]


class TargetRefusedError(Exception):
    """Raised when a target that shares the transaction rejects the rows."""


def separate_refused_targets(publish: Publish) -> Publish:
    """Wrap `publish` so that it raises TargetRefusedError if the target rejects rows. Connection errors stay unchanged."""

    def publishing(db: psycopg.Connection[Any]) -> None:
        try:
            publish(db)
        except psycopg.Error as error:
            if db.closed or isinstance(error, errors.AdminShutdown):
                raise
            raise TargetRefusedError(client.error_reason(error)) from error

    return publishing


@dataclass(frozen=True)
class Transaction:
    """The transaction of one commit. If it fails, tables and views stay unchanged.

    Args:
        db: The connection that holds the lock.
        tables: The tables of the pipeline.
        stages: The logic of each stage. If empty, only the stored commit changes; see `state.store_access`.
        location: The location of the store, for messages.
        previous: The id of the previous commit.
        altering: SQL statements that alter the tables of the state.
        named: Tokens of the staged rows that the previous commit references.
        is_merging: Whether a background merge is running, which deletes its staged rows itself.
    """

    db: psycopg.Connection[Any]
    tables: PipelineTables
    stages: Sequence[StateLayout]
    location: str
    previous: uuid.UUID
    altering: Sequence[str] = ()
    named: frozenset[str] = frozenset()
    is_merging: bool = False

    def run(self, commit: Commit, publish: Publish | None, commit_id: uuid.UUID) -> Commit:
        """Run the transaction, and return the stored commit. Raises FencedError, EpochError or a psycopg error.

        Args:
            commit: The commit of the next epoch.
            publish: A function that writes output to targets in this database; None to publish later.
            commit_id: An id by which a later query can tell whether the transaction took effect.
        """
        db, t = self.db, self.tables
        with db.transaction():
            self._fence(commit)
            for statement in self.altering:
                db.execute(statement)
            stored = self._merge_stages(commit) if self.stages else commit
            if publish is not None:
                publish(db)
            published = publish is not None and not commit.missing(())
            if published:
                db.execute(f"DELETE FROM {t.outputs} WHERE pipeline_name = %s", (self.tables.pipeline,))
            db.execute(
                f"UPDATE {t.pipelines} SET record = %s, watermark = %s, open_windows = %s, commit_id = %s, updated_at = now(),"
                " published_epoch = greatest(published_epoch, %s) WHERE pipeline_name = %s",
                (
                    stored.model_dump_json(),
                    client.to_datetime(stored.watermark_us),
                    sum(stored.stages[0].windows),
                    commit_id,
                    stored.epoch if published else -1,
                    self.tables.pipeline,
                ),
            )
            self._write_offsets(stored)
            if staged := [
                t.for_stage(n).staged for n, logic in enumerate(self.stages) if not isinstance(logic, KeyedStateLayout)
            ]:
                db.execute(f"TRUNCATE {', '.join(staged)}")
        return stored

    def _merge_stages(self, commit: Commit) -> Commit:
        """Merge the staged rows of all stages, and return the commit with the resulting segments."""
        merged = []
        for number, (state, logic) in enumerate(zip(commit.stages, self.stages, strict=True)):
            tables = self.tables.for_stage(number)
            segments, gained = self._merge(logic, tables, state, commit.epoch)
            table = TableRecord(rows=self._count(tables, state, gained), columns=column_types(logic, tables))
            merged.append(state.model_copy(update={"segments": segments, "table": table}))
        return commit.model_copy(update={"stages": tuple(merged)})

    @singledispatchmethod
    def _merge(self, logic: StateLayout, tables: PipelineTables, state: StageState, epoch: int) -> Changed:
        """Merge staged rows into the state table of a stage, and delete expired rows.

        Return the resulting segments, and the number of rows that the table gained. Raises EpochError if staged rows
        are missing.
        """
        raise_unregistered(logic, "slackwater.state.postgres.commit_transaction.Transaction")

    @_merge.register
    def _(self, logic: KeyedStateLayout, tables: PipelineTables, state: StageState, epoch: int) -> Changed:
        staged = staged_row_merge.list_staged_segments(state.segments)
        fresh = [m for m in staged if m.file not in self.named]
        staged_row_merge.check_staged_rows(self.db, tables.staged, fresh, epoch)
        if not (
            self.altering or staged_row_merge.are_few(state.segments) or staged_row_merge.must_merge(state.segments)
        ):
            return state.segments, 0
        gained = staged_row_merge.merge_staged_rows(self.db, tables.staged, tables.state, state.segments)
        if staged:
            # including rows of failed epochs; TRUNCATE would also hide the rows from older snapshots
            others = "" if self.is_merging else f" OR epoch <= {epoch}"
            self.db.execute(f"DELETE FROM {tables.staged} WHERE token = ANY(%s){others}", ([m.file for m in staged],))
        gained -= staged_row_merge.delete_expired_rows(self.db, tables.state, logic, state.watermark_us)
        size = staged_row_merge.table_size(self.db, tables.state) // state.shards
        return tuple(staged_row_merge.list_merged_segments(metas, size) for metas in state.segments), gained

    @_merge.register
    def _(self, logic: CompiledJoin, tables: PipelineTables, state: StageState, epoch: int) -> Changed:
        table = JoinTable(tables, logic)
        gained = join_buffers.apply_staged(self.db, table, state, epoch)
        gone = join_buffers.delete_expired(self.db, table, state)
        return join_buffers.list_merged_segments(
            logic, state, gone, staged_row_merge.table_size(self.db, tables.state)
        ), gained - sum(gone.values())

    @_merge.register
    def _(self, logic: NoState, tables: PipelineTables, state: StageState, epoch: int) -> Changed:
        return state.segments, 0

    def _count(self, tables: PipelineTables, state: StageState, gained: int) -> int:
        """Return the new row count of a table that gained `gained` rows. If no count is recorded, count the rows."""
        if state.table is not None:
            return state.table.rows + gained
        row = self.db.execute(f"SELECT count(*) FROM {tables.state}").fetchone()
        return int(row[0]) if row else 0

    def _fence(self, commit: Commit) -> None:
        """Advance the stored epoch of the pipeline. Raises FencedError unless the previous commit is stored."""
        t = self.tables
        if commit.epoch == 0:
            cursor = self.db.execute(
                f"INSERT INTO {t.pipelines} (pipeline_name, state_version, epoch, open_windows, commit_id, record)"
                " VALUES (%s, %s, 0, 0, gen_random_uuid(), '{}') ON CONFLICT DO NOTHING",
                (self.tables.pipeline, FORMAT),
            )
        else:
            cursor = self.db.execute(
                f"UPDATE {t.pipelines} SET epoch = %s WHERE pipeline_name = %s AND epoch = %s AND commit_id = %s",
                (commit.epoch, self.tables.pipeline, commit.epoch - 1, self.previous),
            )
        if cursor.rowcount != 1:
            raise FencedError(
                f"epoch {commit.epoch} was already committed {self.location} by another runner, or the database was reset "
                "to an earlier state; this runner is stopping"
            )

    def _write_offsets(self, commit: Commit) -> None:
        t = self.tables
        rows, clocks = [], commit.clocks
        for name, source in commit.sources.items():
            for partition, offset in offset_rows(source.offsets).items():
                clock = clocks[name].partitions.get(partition, clocks[name])
                newest = client.to_datetime(clock.max_event_us)
                rows.append((self.tables.pipeline, name, partition, offset, newest, clock.idle, FORMAT, commit.epoch))
        with self.db.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {t.offsets} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now()) ON CONFLICT (pipeline_name, source,"
                ' partition) DO UPDATE SET "offset" = excluded."offset", newest_event = excluded.newest_event, idle = excluded.idle,'
                " epoch = excluded.epoch, updated_at = now()",
                rows,
            )
            cursor.execute(
                f"DELETE FROM {t.offsets} WHERE pipeline_name = %s AND epoch < %s",
                (self.tables.pipeline, commit.epoch),
            )


def offset_rows(offsets: Offsets | None) -> dict[str, str]:
    """Return the offsets of a source as text, by Kafka partition. Other sources have one entry with an empty name."""
    return {"": "null"} if offsets is None else offsets.positions()
