"""One epoch's commit in Postgres, as one transaction.

fence ─ columns, if they changed ─ staged rows become the state, if it is time ─ target (if it is here) ─ record, offsets
                                   └ forget what is over
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

import psycopg
from psycopg import errors

from slackwater.core.dispatch import unregistered
from slackwater.core.offsets import Offsets
from slackwater.errors import FencedError
from slackwater.joins.logic import JoinLogic
from slackwater.state.commit import FORMAT, Commit, SegmentMeta, StageState, TableRecord
from slackwater.state.postgres import buffers, client, columns, version_merge
from slackwater.state.postgres.buffers import JoinTable
from slackwater.state.postgres.tables import TableNames
from slackwater.state.protocol import NoState, Publish, StageLogic
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_rows import EMITTED, FLOOR, WHOLE, KeyedState

# the figures of a stage's shards, and how many rows its table gained
Changed = tuple[tuple[tuple[SegmentMeta, ...], ...], int]


class RefusedError(Exception):
    """The target, which is in the same transaction, did not take the rows."""


def separate_refusals(publish: Publish) -> Publish:
    """Tells apart what the target refuses from what fails in the state, and from a connection that is lost."""

    def publishing(db: psycopg.Connection[Any]) -> None:
        try:
            publish(db)
        except psycopg.Error as error:
            if db.closed or isinstance(error, errors.AdminShutdown):
                raise
            raise RefusedError(client.error_reason(error)) from error

    return publishing


@dataclass(frozen=True)
class Transaction:
    """`run` raises FencedError, EpochError and psycopg's errors. `place` is the store's, for messages.

    Without `stages` the record changes alone, see `state.edit`. Tables change within the transaction: a commit that fails
    leaves them, and the view over them, as they were.
    """

    db: psycopg.Connection[Any]
    tables: TableNames
    stages: Sequence[StageLogic]
    place: str
    altering: Sequence[str] = ()  # statements that change the tables of the state
    named: frozenset[str] = frozenset()  # what of the staged rows the commit before names

    def run(self, commit: Commit, publish: Publish | None, commit_id: uuid.UUID) -> Commit:
        db, t = self.db, self.tables
        with db.transaction():
            self._fence(commit)
            for statement in self.altering:
                db.execute(statement)
            done = self._merge_stages(commit) if self.stages else commit
            if publish is not None:
                publish(db)
            published = publish is not None and not commit.missing(())
            if published:
                db.execute(f"DELETE FROM {t.outputs} WHERE pipeline_name = %s", (self.tables.pipeline,))
            db.execute(
                f"UPDATE {t.pipelines} SET record = %s, watermark = %s, open_windows = %s, commit_id = %s, updated_at = now(),"
                " published_epoch = greatest(published_epoch, %s) WHERE pipeline_name = %s",
                (
                    done.model_dump_json(),
                    client.to_datetime(done.watermark_us),
                    sum(done.stages[0].windows),
                    commit_id,
                    done.epoch if published else -1,
                    self.tables.pipeline,
                ),
            )
            self._write_offsets(done)
            if staged := [
                t.for_stage(n).staged for n, logic in enumerate(self.stages) if not isinstance(logic, KeyedState)
            ]:
                db.execute(f"TRUNCATE {', '.join(staged)}")
        return done

    def _merge_stages(self, commit: Commit) -> Commit:
        """The commit with the figures that remain, after the staged rows of all stages became their state."""
        moved = []
        for number, (state, logic) in enumerate(zip(commit.stages, self.stages, strict=True)):
            whole = (self.named, bool(self.altering))
            change = RowChange(self.db, replace(self.tables, stage=number), logic, commit.epoch, *whole)
            segments, gained = change.run(state)
            table = TableRecord(rows=change.rows(state, gained), columns=columns.column_types(logic, change.tables))
            moved.append(state.model_copy(update={"segments": segments, "table": table}))
        return commit.model_copy(update={"stages": tuple(moved)})

    def _fence(self, commit: Commit) -> None:
        """Take the epoch: nobody else can, and only if the one before is the latest."""
        t = self.tables
        if commit.epoch == 0:
            done = self.db.execute(
                f"INSERT INTO {t.pipelines} (pipeline_name, state_version, epoch, open_windows, commit_id, record)"
                " VALUES (%s, %s, 0, 0, gen_random_uuid(), '{}') ON CONFLICT DO NOTHING",
                (self.tables.pipeline, FORMAT),
            )
        else:
            done = self.db.execute(
                f"UPDATE {t.pipelines} SET epoch = %s WHERE pipeline_name = %s AND epoch = %s",
                (commit.epoch, self.tables.pipeline, commit.epoch - 1),
            )
        if done.rowcount != 1:
            raise FencedError(
                f"epoch {commit.epoch} was already committed by another runner {self.place}; this one stops"
            )

    def _write_offsets(self, commit: Commit) -> None:
        t = self.tables
        rows, clocks = [], commit.clocks
        for name, source in commit.sources.items():
            for partition, offset in rows_of(source.offsets).items():
                heard = clocks[name].partitions.get(partition, clocks[name])
                newest = client.to_datetime(heard.max_event_us)
                rows.append((self.tables.pipeline, name, partition, offset, newest, heard.idle, FORMAT, commit.epoch))
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


@dataclass(frozen=True)
class RowChange:
    """What a commit does to the state of one stage."""

    db: psycopg.Connection[Any]
    tables: TableNames
    logic: StageLogic
    epoch: int
    named: frozenset[str] = frozenset()
    alters: bool = False

    def run(self, state: StageState) -> Changed:
        """Make staged rows the state, and remove what is over; return the figures that remain, and how many rows the table gained.

        Raises EpochError.
        """
        return self._run(self.logic, state)

    @singledispatchmethod
    def _run(self, logic: StageLogic, state: StageState) -> Changed:
        unregistered(logic, "slackwater.state.postgres.commit.RowChange")

    @_run.register
    def _(self, logic: KeyedState, state: StageState) -> Changed:
        t, fresh = self.tables, [m for m in version_merge.staged_segments(state.segments) if m.file not in self.named]
        version_merge.check_staged_rows(self.db, t.staged, fresh, self.epoch)
        if not self.alters and not version_merge.should_merge(state.segments):
            return state.segments, 0
        gained = version_merge.merge_versions(self.db, t.staged, t.state, state.segments)
        if version_merge.staged_segments(state.segments):
            # what is left of epochs that were not committed, too; not TRUNCATE, which others would see at once
            self.db.execute(f"DELETE FROM {t.staged} WHERE epoch <= {self.epoch}")
        gained -= self._forget(logic, state.watermark_us)
        size = self._size()
        return tuple(version_merge.collapsed_segments(metas, size // state.shards) for metas in state.segments), gained

    @_run.register
    def _(self, logic: JoinLogic, state: StageState) -> Changed:
        table = JoinTable(self.tables, logic)
        gained = buffers.apply_staged(self.db, table, state, self.epoch)
        gone = buffers.delete_expired(self.db, table, state)
        return buffers.collapsed_segments(logic, state, gone, self._size()), gained - sum(gone.values())

    @_run.register
    def _(self, logic: NoState, state: StageState) -> Changed:
        return state.segments, 0

    def rows(self, state: StageState, gained: int) -> int:
        """Return how many rows the table has now. They are counted once, where no commit has recorded them."""
        if state.table is not None:
            return state.table.rows + gained
        row = self.db.execute(f"SELECT count(*) FROM {self.tables.state}").fetchone()
        return int(row[0]) if row else 0

    def _size(self) -> int:
        row = self.db.execute("SELECT pg_total_relation_size(%s)", (self.tables.state,)).fetchone()
        return int(row[0]) if row else 0

    def _forget(self, logic: KeyedState, watermark: int) -> int:
        """Delete the units all of whose rows are over; return how many rows these are."""
        if watermark <= NO_WATERMARK:
            return 0
        rule = logic.forgotten(watermark)

        def over(row: str) -> str:
            return (
                f"({row}.kind IN ({WHOLE}, {EMITTED}) AND {row}.closes_at <= {client.time_literal(rule.whole_upto)}"
                f" OR {row}.kind = {FLOOR} AND {row}.closes_at <= {client.time_literal(rule.floor_upto)})"
            )

        latest = client.time_literal(max(rule))
        return self.db.execute(
            f"DELETE FROM {self.tables.state} s WHERE s.closes_at <= {latest} AND {over('s')} AND NOT EXISTS"
            f" (SELECT 1 FROM {self.tables.state} o WHERE o.unit = s.unit AND NOT {over('o')})"
        ).rowcount


def rows_of(offsets: Offsets | None) -> dict[str, str]:
    """A source's offsets as rows: per partition of a Kafka topic, or one for files."""
    return {"": "null"} if offsets is None else offsets.positions()
