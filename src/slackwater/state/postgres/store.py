"""The Postgres store: state as tables that anyone can SELECT from, with one transaction per epoch.

    slackwater_pipelines          one row per pipeline: epoch, watermark, and the record of the latest commit as JSON
    slackwater_offsets            one row per (pipeline, source, partition): offset and newest event time
    slackwater_outputs, …_lists   staged output and long offset lists, until they are no longer needed
    slackwater_runs               one row per run of a pipeline: start, end and outcome
    slackwater_state_<pipeline>   one row per (group key, open window), with typed columns; later stages: …#2
    slackwater_staged_<pipeline>  rows that workers COPY during an epoch; unlogged for joins

Workers COPY rows into the staged table on their own connections. The transaction of the commit checks that the epoch is
the next one. It moves staged rows of joins to the state table. Staged rows of windows take effect once the commit
references them, and are merged into the state table every few epochs. If a target is in the same database, the
transaction also writes the output.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import psycopg
from psycopg import errors

from slackwater.core.schema import YEARS, ValueLimits
from slackwater.errors import EpochError, FencedError, StartError, StateError, Topic
from slackwater.state.commit import FORMAT, Commit, OutputMetadata, SegmentMetadata
from slackwater.state.postgres import client, commit_log, pipeline_lock, schema_setup, staged_row_merge, table_ownership
from slackwater.state.postgres.background_merge import BackgroundMerges
from slackwater.state.postgres.commit_transaction import TargetRefusedError, Transaction, separate_refused_targets
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.shard import PostgresShard
from slackwater.state.protocol import ASIDE, Publish, Snapshot, StateLayout, StoredRecord
from slackwater.state.run_history import Run

log = logging.getLogger("slackwater")

T = TypeVar("T")


def _report_epoch_errors(method: Callable[..., T]) -> Callable[..., T]:
    """Wrap a method of the store so that it raises EpochError instead of database errors."""

    @wraps(method)
    def reporting(self: PostgresStore, *arguments: Any) -> T:
        try:
            return method(self, *arguments)
        except psycopg.Error as error:
            raise EpochError(
                f"state store {self.location}: {client.error_reason(error)}; start again once the database is available"
            ) from None

    return reporting


class PostgresStore:
    """A `StateStore` in one schema of a database. Nothing is created before `open`.

    Args:
        url: The URL of the database.
        schema: The name of the schema.
        pipeline: The name of the pipeline.
        path: The directory for Spark's checkpoints; None for a temporary one, which suffices for sources that can seek.
    """

    def __init__(self, url: str, schema: str, pipeline: str, path: str | Path | None = None) -> None:
        self._url, self._schema, self._pipeline, self._path = str(url), schema, pipeline, path
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.tables = PipelineTables(schema, pipeline)
        self._connection: psycopg.Connection[Any] | None = None
        self._stages: dict[int, StateLayout] = {}
        self._altering: dict[int, list[str]] = {}  # by stage: statements with which the next commit alters its table
        self._epoch = self._published = -1
        self._reached: frozenset[str] = frozenset()
        self._version = FORMAT  # format of the stored commit
        self._named: frozenset[str] = frozenset()  # tokens of the staged rows that the latest commit references
        self._merges = BackgroundMerges(self._url, self.tables)

    @property
    def checkpoint(self) -> Path:
        if self._path is None and self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)
        path = self._path or (self._temporary.name if self._temporary else "")
        return Path(path).resolve() / self._pipeline / "checkpoint"

    @property
    def _db(self) -> psycopg.Connection[Any]:
        assert self._connection is not None, "open() first"
        return self._connection

    # -- start and end -------------------------------------------------------------------------------------------

    def open(self) -> Commit | None:
        return self._begin(self._open_latest)

    def _begin(self, start: Callable[[], T]) -> T:
        """Take the lock, create the shared tables, and return the result of `start`. On an error, close the store."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self._merges.stop()
        try:
            with client.report_errors(self.location):
                self._disconnect()  # closing a connection releases its lock
                self._connection = pipeline_lock.connect_with_lock(self._url, self.tables, self.location)
                schema_setup.create_shared_tables(self._db, self.tables)
                # a runner that was killed or disconnected may still have a merge on the server
                pipeline_lock.wait_for_merges(self._db, self.tables, self.location)
                return start()
        except (StartError, StateError):
            self.close()
            raise

    def _open_latest(self) -> Commit | None:
        latest = commit_log.read_latest_commit(self._db, self.tables, self.location)
        commit, self._published, self._version = latest or (None, -1, FORMAT)
        self._epoch = commit.epoch if commit else -1
        self._reached = frozenset(commit.reached if commit else ())
        commit = commit and staged_row_merge.merge_staged_rows_at_start(self._db, self.tables, commit, self.location)
        self._merges.continue_from(commit_log.read_commit_id(self._db, self.tables) or uuid.UUID(int=0))
        return commit

    def start_over(self) -> str | None:
        """Take the lock, and put an existing state aside in one transaction; see `StateStore.start_over`."""
        return self._begin(lambda: self.put_aside() if table_ownership.has_commit(self._db, self.tables) else None)

    def put_aside(self) -> str:
        aside = f"{self._pipeline}{ASIDE}{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%fZ}"
        with self._db.transaction():
            table_ownership.put_aside(self._db, self.tables, aside)
        return f'"{aside}" {self.location}'

    def pipelines(self) -> list[str]:
        return [name for name in commit_log.pipeline_names(self._url, self._schema) if ASIDE not in name]

    def peek(self, epoch: int | None = None) -> AbstractContextManager[Snapshot | None]:
        return commit_log.open_snapshot(self._url, self.tables, self.location, epoch)

    def epochs(self) -> list[int]:
        with self.peek() as snapshot:
            return [] if snapshot is None else [snapshot.commit.epoch]

    def read_commit_record(self) -> StoredRecord | None:
        with client.report_errors(self.location), closing(client.open_connection(self._url, "state store")) as db:
            if not client.table_exists(db, self.tables.pipelines):
                return None
            stored = commit_log.read_commit_record(db, self.tables, self.location)
            return stored[0] if stored else None

    def fork(self, name: str, epoch: int | None = None, renames: bool = False) -> Commit | None:
        from slackwater.state.postgres.fork import fork_tables

        return fork_tables(self._url, self.tables, name, epoch, self.location, renames)

    def runner(self) -> str | None:
        with client.report_errors(self.location), closing(client.open_connection(self._url, "state store")) as db:
            return pipeline_lock.find_lock_holder(db, self.tables)

    def runs(self) -> tuple[Run, ...]:
        return pipeline_lock.read_runs(self._url, self.tables, self.location)

    @_report_epoch_errors
    def save_run(self, run: Run) -> None:
        pipeline_lock.write_run(self._db, self.tables, run)

    @property
    def capacity(self) -> ValueLimits:
        """Return the limits of Postgres: no U+0000 in text, and only times that its clients can read."""
        return ValueLimits(False, YEARS, covers_state=True)

    @property
    def url(self) -> str:
        return self._url

    @property
    def location(self) -> str:
        """Return the location of the tables for messages, such as `in schema "public" of 127.0.0.1:5432/shop`."""
        return f'in schema "{self._schema}" of {client.server_address(self._url)}'

    def _migrate(self) -> None:
        """Migrate the tables if the stored commit has an older format. Only writers call this, not readers."""
        if self._version != FORMAT:
            schema_setup.migrate_tables(self._db, self.tables, self.location)
            self._version = FORMAT

    def prepare(self, logic: StateLayout, stage: int = 0, begins: bool = False) -> None:
        self._migrate()
        preparation = schema_setup.SchemaSetup(
            self._db, self.tables.for_stage(stage), self.location, self._epoch, begins
        )
        self._altering[stage] = preparation.run(logic)
        self._stages[stage] = logic

    def drop_stages(self, stages: range) -> None:
        for stage in stages:
            with self._db.transaction():
                table_ownership.drop_owned_tables(self._db, self.tables.for_stage(stage))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @_report_epoch_errors
    def remove(self) -> None:
        """Delete the state, and release the lock. Call `prepare` for each stage first."""
        self._merges.stop()
        with self._db.transaction():
            for stage in self._stages:
                table_ownership.drop_owned_tables(self._db, self.tables.for_stage(stage))
            table_ownership.delete_pipeline_rows(self._db, self.tables)
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        self.close()

    def close(self) -> None:
        self._merges.stop()
        self._disconnect()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # -- an epoch ------------------------------------------------------------------------------------------------

    def shard(
        self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMetadata, ...], stage: int = 0
    ) -> PostgresShard:
        return PostgresShard(self._url, replace(self.tables, stage=stage), shard, shards, epoch, metas)

    @_report_epoch_errors
    def outputs(self, metas: Sequence[OutputMetadata]) -> list[pl.DataFrame]:
        reads_only = self._connection is None  # no lock is held
        with client.borrow_connection(self._url, "state store") if reads_only else nullcontext(self._db) as db:
            return [commit_log.read_staged_output(db, self.tables, self.location, meta) for meta in metas]

    @_report_epoch_errors
    def write_list(self, epoch: int, lines: Sequence[str]) -> str:
        return commit_log.write_list(self._db, self.tables, epoch, lines)

    @_report_epoch_errors
    def read_list(self, name: str) -> list[str]:
        return commit_log.read_list(self._db, self.tables, self.location, name)

    def shares_transaction(self, target: object) -> bool:
        url = getattr(target, "url", None)
        return isinstance(url, str) and client.role_and_database(url) == client.role_and_database(self._url)

    @_report_epoch_errors
    def commit(self, commit: Commit, publish: Publish | None = None) -> Commit:
        if commit.epoch != self._epoch + 1:
            raise FencedError(
                f"epoch {commit.epoch} does not follow epoch {self._epoch}, the latest epoch that this runner knows; "
                "nothing was committed, and this runner is stopping"
            )
        waits = any(self._altering.values())
        with self._merges.apply_before_commit(commit, waits, partial(self._read_commit_id, commit.epoch)) as commit:
            stored = self._commit_or_resolve(commit, publish, commit_id := uuid.uuid4())
            self._merges.record_commit(stored, commit_id)
        self._epoch = commit.epoch
        self._named = staged_row_merge.clear_merged_rows(
            self._db, self.tables, self._named, commit, stored, vacuums=not self._merges.is_running
        )
        self._reached = frozenset(stored.reached)
        if publish is not None and not stored.missing(()):
            self._published = commit.epoch
        self._merges.start_if_due(self._stages)
        return stored

    def _commit_or_resolve(self, commit: Commit, publish: Publish | None, commit_id: uuid.UUID) -> Commit:
        """Run the transaction of a commit, and return the stored commit. If the connection is lost, reconnect once."""
        try:
            self._migrate()
            try:
                return self._transact(commit, publish, commit_id)
            except TargetRefusedError as refused:
                # commit without the target, and publish later, as for targets in other databases
                log.warning("%s: the target refused epoch %d: %s", self._pipeline, commit.epoch, refused)
                publish, commit = None, commit.model_copy(update={"reached": ()})
                return self._transact(commit, publish, commit_id)
        except psycopg.Error as error:
            is_lost = self._db.closed and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            if not is_lost and not isinstance(error, errors.AdminShutdown):
                raise EpochError(f"epoch {commit.epoch} was not committed: {client.error_reason(error)}") from None
            return self._resolve_lost_commit(commit, publish, commit_id, error)

    def _resolve_lost_commit(
        self, commit: Commit, publish: Publish | None, commit_id: uuid.UUID, error: psycopg.Error
    ) -> Commit:
        """Reconnect after the connection was lost during a commit, and repeat the commit if it did not take effect.

        Return the stored commit. Raises FencedError if another runner has committed, and EpochError if this fails.
        """
        epoch, reason = commit.epoch, client.error_reason(error)
        log.warning("%s: the connection was lost during the commit of epoch %d: %s", self._pipeline, epoch, reason)
        self._reconnect(epoch)
        query = f"SELECT epoch, commit_id, record FROM {self.tables.pipelines} WHERE pipeline_name = %s"
        row = self._db.execute(query, (self._pipeline,)).fetchone()
        if row is not None and row[1] == commit_id:
            self._altering.clear()
            log.warning("%s: epoch %d was committed before the connection was lost", self._pipeline, commit.epoch)
            return Commit.model_validate(row[2])
        stored_epoch = -1 if row is None else row[0]
        if stored_epoch != commit.epoch - 1 or (row is not None and row[1] != self._merges.commit_id):
            raise FencedError(
                f"epoch {stored_epoch} was committed {self.location} by another runner while this runner was "
                "disconnected, or the database was reset to an earlier state; this runner is stopping"
            )
        log.warning("%s: epoch %d was not committed; retrying the commit", self._pipeline, commit.epoch)
        try:
            return self._transact(commit, publish, commit_id)
        except psycopg.Error as again:
            raise EpochError(
                f"epoch {commit.epoch}: the connection to Postgres was lost twice ({client.error_reason(again)}); the "
                "next start will check whether the epoch was committed",
                Topic.COMMIT_UNKNOWN,
            ) from None

    def _transact(self, commit: Commit, publish: Publish | None, commit_id: uuid.UUID) -> Commit:
        stages = [self._stages[n] for n in sorted(self._stages)]
        altering = [statement for n in sorted(self._altering) for statement in self._altering[n]]
        merges = self._merges
        transaction = Transaction(
            self._db, self.tables, stages, self.location, merges.commit_id, altering, self._named, merges.is_running
        )
        stored = transaction.run(commit, None if publish is None else separate_refused_targets(publish), commit_id)
        self._altering.clear()
        return stored

    def _reconnect(self, epoch: int) -> None:
        self._disconnect()
        self._connection = pipeline_lock.reconnect_with_lock(self._url, self.tables, self.location, epoch)

    def _read_commit_id(self, epoch: int) -> uuid.UUID | None:
        """Return the id of the stored commit, after the end of a concurrent transaction. If necessary, reconnect."""
        try:
            return commit_log.read_commit_id(self._db, self.tables, waits=True)
        except psycopg.Error:
            if not self._db.closed:
                raise
            self._reconnect(epoch)
            return commit_log.read_commit_id(self._db, self.tables, waits=True)

    # -- after the commit ----------------------------------------------------------------------------------------

    def published_epoch(self) -> int:
        return self._published

    def mark_published(self, epoch: int) -> None:
        if epoch <= self._published:
            return
        try:
            with self._db.transaction():
                self._db.execute(
                    f"UPDATE {self.tables.pipelines} SET published_epoch = greatest(published_epoch, %s) WHERE pipeline_name = %s",
                    (epoch, self._pipeline),
                )
                self._db.execute(
                    f"DELETE FROM {self.tables.outputs} WHERE pipeline_name = %s AND epoch <= %s",
                    (self._pipeline, epoch),
                )
        except psycopg.Error as error:
            # harmless, because targets ignore an epoch that they already hold
            log.warning(
                f"{self._pipeline}: epoch {epoch} is published, but could not be marked as published: "
                f"{client.error_reason(error)}"
            )
        self._published = epoch

    def delivered_targets(self) -> frozenset[str]:
        return self._reached

    def mark_delivered(self, epoch: int, target: str) -> None:
        self._reached |= {target}
        try:
            self._db.execute(
                f"UPDATE {self.tables.pipelines} SET record = jsonb_set(record, '{{reached}}', %s::jsonb)"
                " WHERE pipeline_name = %s AND epoch = %s",
                (json.dumps(sorted(self._reached)), self._pipeline, epoch),
            )
        except psycopg.Error as error:
            # mostly harmless, because most targets ignore an epoch that they already hold
            log.warning(
                f'{self._pipeline}: epoch {epoch} is in target "{target}", but could not be marked as delivered: '
                f"{client.error_reason(error)}"
            )

    def discard_attempt(self, epoch: int) -> None:
        """Do nothing: staged rows have no effect unless a commit references them."""

    @_report_epoch_errors
    def collect_garbage(self) -> None:
        commit_log.delete_unused_lists(self._db, self.tables, self._epoch)
