"""The Postgres store: state as tables that anyone can SELECT from, one commit per epoch as one transaction.

    slackwater_pipelines          one row per pipeline: epoch, watermark, the whole record as JSON
    slackwater_offsets            one row per (pipeline, source, partition): where reading goes on, its watermark
    slackwater_outputs, …_lists   staged output and long offsets, until published or superseded
    slackwater_state_<pipeline>   one row per (group key, open window); columns typed as in the input
    slackwater_staged_<pipeline>  what workers COPY during an epoch; unlogged, empty between epochs

Workers COPY into the staged table on connections of their own; the driver's transaction checks the expected epoch, moves
the staged rows over, forgets what is over, and, where the target is in the same database, writes the output as well.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import psycopg
import pyarrow as pa
from psycopg import errors

from slackwater.errors import EpochError, FencedError, LockHeldError, StartError, StateError
from slackwater.state import sql
from slackwater.state.postgres_peek import latest, lock_holder, lock_key, peek
from slackwater.state.postgres_shard import PostgresShard, collapsed
from slackwater.state.postgres_tables import Tables
from slackwater.state.protocol import FORMAT, Manifest, OutputMeta, Publish, SegmentMeta, Snapshot
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.family import family
from slackwater.windows.logic import DEAD, FLOOR, SETTLED, Logic

log = logging.getLogger("slackwater")
T = TypeVar("T")

PATIENCE_S = 30.0  # how long a lost connection is looked for again
LOCK_S = 3.0  # how long the server may take to notice that a killed runner is gone


def _told(method: Callable[..., T]) -> Callable[..., T]:
    """What the database says, in one line."""

    @wraps(method)
    def told(self: PostgresStore, *given: Any) -> T:
        try:
            return method(self, *given)
        except psycopg.Error as error:
            raise EpochError(f"state store {self._place}: {sql.reason(error)}; start again once it is there") from None

    return told


class PostgresStore:
    """A `StateStore` in one schema of a database. Nothing is created before `open`.

    `path`: where Spark's checkpoints go; without it a temporary directory, which does for all sources that can seek.
    """

    def __init__(self, url: str, schema: str, pipeline: str, path: str | Path | None = None) -> None:
        self._url, self._schema, self._pipeline = str(url), schema, pipeline
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)
        self.checkpoint = Path(path or self._temporary.name).resolve() / pipeline / "checkpoint"  # type: ignore[union-attr]
        self.tables = Tables(schema, pipeline)
        self._connection: psycopg.Connection[Any] | None = None
        self._logic: Logic | None = None
        self._epoch = -1
        self._published = -1

    @property
    def _db(self) -> psycopg.Connection[Any]:
        assert self._connection is not None, "open() first"
        return self._connection

    # -- start and end -------------------------------------------------------------------------------------------

    def open(self) -> Manifest | None:
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        try:
            self._connect()
            self._bootstrap()
            return self._latest()
        except psycopg.Error as error:
            self.close()
            raise StateError(f"state store {self._place}: {sql.reason(error)}") from None
        except StartError:
            self.close()
            raise

    def peek(self) -> AbstractContextManager[Snapshot | None]:
        return peek(self._url, self.tables, self._place)

    def runner(self) -> str | None:
        try:
            with closing(sql.connect(self._url, "state store")) as db:
                return lock_holder(db, self.tables)
        except psycopg.Error as error:
            raise StateError(f"state store {self._place}: {sql.reason(error)}") from None

    @property
    def _place(self) -> str:
        return f'in schema "{self._schema}" of {sql.address(self._url)}'

    def _connect(self) -> None:
        """Connect and take the pipeline's lock, which is gone with this connection."""
        self._disconnect()
        self._connection = sql.connect(self._url, "state store")
        end = time.monotonic() + LOCK_S
        while True:
            row = self._db.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(self.tables),)).fetchone()
            if row is not None and row[0]:
                return
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        who = lock_holder(self._db, self.tables) or "another process"
        self._disconnect()
        raise LockHeldError(
            f"pipeline is already running: {who} holds its lock {self._place}; stop it first, one runner per pipeline"
        )

    def _bootstrap(self) -> None:
        db, t = self._db, self.tables
        if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone() is None:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.quote(self._schema)}")
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(7305804402566226542)")  # IF NOT EXISTS is not safe beside itself
            for statement in t.shared():
                db.execute(statement)

    def _latest(self) -> Manifest | None:
        found = latest(self._db, self.tables, self._place)
        manifest, self._published = found or (None, -1)
        self._epoch = manifest.epoch if manifest else -1
        return manifest

    def prepare(self, logic: Logic) -> None:
        self._logic, t = logic, self.tables
        sql.check_names(list(t.columns(logic).values()), f"pipeline {self._pipeline}: state store")
        if self._epoch >= 0:
            self._must_exist(t.state)
        else:
            self._db.execute(f"DROP VIEW IF EXISTS {t.windows}")
            self._db.execute(f"DROP TABLE IF EXISTS {t.state}, {t.staged}")
            self._db.execute(t.create_state(logic))
            self._db.execute(f"CREATE INDEX ON {t.state} (closes_at)")
        self._db.execute(f"DROP TABLE IF EXISTS {t.staged}")
        self._db.execute(t.create_staged(logic))
        self._db.execute(
            f"DELETE FROM {t.outputs} WHERE pipeline_name = %s AND epoch > %s", (self._pipeline, self._epoch)
        )
        self._db.execute(f"DROP VIEW IF EXISTS {t.windows}")
        self._db.execute(t.create_view(logic))

    def _must_exist(self, table: str) -> None:
        row = self._db.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        if row is None or row[0] is None:
            raise StateError(
                f'table {table} is missing {self._place}, and pipeline "{self._pipeline}" has state in epoch {self._epoch}; '
                "restore it from a backup, or delete the pipeline's row from slackwater_pipelines to start over"
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._disconnect()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- an epoch ------------------------------------------------------------------------------------------------

    def shard(self, shard: int, shards: int, epoch: int, metas: tuple[SegmentMeta, ...]) -> PostgresShard:
        return PostgresShard(self._url, self.tables, shard, shards, epoch, metas)

    @_told
    def output(self, meta: OutputMeta) -> pl.DataFrame:
        row = self._db.execute(f"SELECT data FROM {self.tables.outputs} WHERE token = %s", (meta.file,)).fetchone()
        if row is None:
            raise StateError(
                f"staged output {meta.file} is missing in {self.tables.outputs} {self._place}; restore it from a backup"
            )
        frame = pl.from_arrow(pa.ipc.open_file(pa.py_buffer(row[0])).read_all())
        assert isinstance(frame, pl.DataFrame)
        return frame

    @_told
    def stage_list(self, epoch: int, lines: Sequence[str]) -> str:
        token = uuid.uuid4().hex
        self._db.execute(
            f"INSERT INTO {self.tables.lists} VALUES (%s, %s, %s, %s)", (token, self._pipeline, epoch, "\n".join(lines))
        )
        return token

    @_told
    def read_list(self, name: str) -> list[str]:
        row = self._db.execute(f"SELECT lines FROM {self.tables.lists} WHERE token = %s", (name,)).fetchone()
        if row is None:
            raise StateError(f"list {name} is missing in {self.tables.lists} {self._place}; restore it from a backup")
        return str(row[0]).splitlines()

    def joins(self, target: object) -> bool:
        url = getattr(target, "url", None)
        return isinstance(url, str) and sql.role_and_place(url) == sql.role_and_place(self._url)

    def commit(self, manifest: Manifest, publish: Publish | None = None) -> Manifest:
        if manifest.epoch != self._epoch + 1:
            raise FencedError(
                f"epoch {manifest.epoch} does not follow epoch {self._epoch}, the latest this runner knows; nothing was committed"
            )
        commit_id = uuid.uuid4()
        try:
            done = self._transact(manifest, publish, commit_id)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not self._db.closed and not isinstance(error, errors.AdminShutdown):
                raise EpochError(f"epoch {manifest.epoch} was not committed: {sql.reason(error)}") from None
            done = self._look(manifest, publish, commit_id, error)
        except psycopg.Error as error:
            raise EpochError(f"epoch {manifest.epoch} was not committed: {sql.reason(error)}") from None
        self._epoch = manifest.epoch
        if publish is not None and not manifest.letters:
            self._published = manifest.epoch
        return done

    def _look(
        self, manifest: Manifest, publish: Publish | None, commit_id: uuid.UUID, error: psycopg.Error
    ) -> Manifest:
        """The connection broke during a commit: find out whether it took place, and repeat it if it surely did not."""
        log.warning(
            "%s: connection lost while epoch %d was committed: %s", self._pipeline, manifest.epoch, sql.reason(error)
        )
        self._reconnect(manifest.epoch)
        row = self._db.execute(
            f"SELECT epoch, commit_id, record FROM {self.tables.pipelines} WHERE pipeline_name = %s", (self._pipeline,)
        ).fetchone()
        if row is not None and row[1] == commit_id:
            log.warning("%s: epoch %d had been committed", self._pipeline, manifest.epoch)
            return Manifest.model_validate(row[2])
        found = -1 if row is None else row[0]
        if found != manifest.epoch - 1:
            raise FencedError(
                f"epoch {found} was committed {self._place} by another runner while this one was cut off; this one stops"
            )
        log.warning("%s: epoch %d had not been committed and is committed now", self._pipeline, manifest.epoch)
        try:
            return self._transact(manifest, publish, commit_id)
        except psycopg.Error as again:
            raise EpochError(
                f"epoch {manifest.epoch}: the connection to Postgres was lost twice ({sql.reason(again)}); "
                "the next start finds out whether it was committed"
            ) from None

    def _reconnect(self, epoch: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._connect()
                return
            except LockHeldError:
                # the server may not have noticed yet that our old connection is gone
                if time.monotonic() > end:
                    raise FencedError(
                        f"another runner took the lock {self._place} while this one was cut off; this one stops"
                    ) from None
            except Exception as error:
                if time.monotonic() > end:
                    raise EpochError(
                        f"whether epoch {epoch} was committed is unknown: {error}; the next start finds out"
                    ) from None
            time.sleep(0.2)

    def _transact(self, manifest: Manifest, publish: Publish | None, commit_id: uuid.UUID) -> Manifest:
        db, t = self._db, self.tables
        assert self._logic is not None
        with db.transaction():
            self._fence(manifest)
            self._move(manifest)
            self._forget(manifest.watermark_us)
            if publish is not None:
                publish(db)
            done = manifest.model_copy(update={"segments": self._collapsed(manifest)})
            published = publish is not None and not manifest.letters
            if published:
                db.execute(f"DELETE FROM {t.outputs} WHERE pipeline_name = %s", (self._pipeline,))
            db.execute(
                f"UPDATE {t.pipelines} SET record = %s, watermark = %s, open_windows = %s, commit_id = %s, updated_at = now(),"
                " published_epoch = greatest(published_epoch, %s) WHERE pipeline_name = %s",
                (
                    done.model_dump_json(),
                    sql.time(done.watermark_us),
                    sum(done.windows),
                    commit_id,
                    done.epoch if published else -1,
                    self._pipeline,
                ),
            )
            self._write_offsets(done)
            db.execute(f"TRUNCATE {t.staged}")
        return done

    def _fence(self, manifest: Manifest) -> None:
        """Take the epoch: nobody else can, and only if the one before is the latest."""
        t = self.tables
        if manifest.epoch == 0:
            done = self._db.execute(
                f"INSERT INTO {t.pipelines} (pipeline_name, state_version, epoch, open_windows, commit_id, record)"
                " VALUES (%s, %s, 0, 0, gen_random_uuid(), '{}') ON CONFLICT DO NOTHING",
                (self._pipeline, FORMAT),
            )
        else:
            done = self._db.execute(
                f"UPDATE {t.pipelines} SET epoch = %s WHERE pipeline_name = %s AND epoch = %s",
                (manifest.epoch, self._pipeline, manifest.epoch - 1),
            )
        if done.rowcount != 1:
            raise FencedError(
                f"epoch {manifest.epoch} was already committed by another runner {self._place}; this one stops"
            )

    def _move(self, manifest: Manifest) -> None:
        """The staged units become the state: per step of the epoch, in order, all shards at once."""
        t, logic = self.tables, self._logic
        assert logic is not None
        staged = [[m for m in metas if m.file] for metas in manifest.segments]
        columns = [*t.columns(logic).values(), "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in map(sql.quote, columns) if c not in ('"unit"', '"ordinal"'))
        for step in range(max(map(len, staged), default=0)):
            metas = [m[step] for m in staged if len(m) > step]
            tokens = [m.file for m in metas]
            count = self._db.execute(f"SELECT count(*) FROM {t.staged} WHERE token = ANY(%s)", (tokens,)).fetchone()
            if count is None or count[0] != sum(m.rows for m in metas):
                raise EpochError(
                    f"epoch {manifest.epoch} was not committed: the rows staged for it in {t.staged} are gone (Postgres was "
                    "restarted after a crash); start again, the epoch is repeated"
                )
            self._db.execute(
                f"DELETE FROM {t.state} s USING {t.staged} t WHERE t.token = ANY(%s) AND t.kind = {DEAD}"
                " AND s.unit = t.unit AND s.ordinal = t.ordinal",
                (tokens,),
            )
            self._db.execute(
                f"INSERT INTO {t.state} ({sql.quoted(columns)}, epoch) SELECT {sql.quoted(columns)}, {manifest.epoch}"
                f" FROM {t.staged} WHERE token = ANY(%s) AND kind <> {DEAD}"
                f" ON CONFLICT (unit, ordinal) DO UPDATE SET {values}, epoch = excluded.epoch, updated_at = now()",
                (tokens,),
            )

    def _forget(self, watermark: int) -> None:
        """Delete the units all of whose rows are over."""
        if watermark <= NO_WATERMARK:
            return
        assert self._logic is not None
        rule = family(self._logic).forgotten(self._logic, watermark)

        def over(row: str) -> str:
            return (
                f"({row}.kind = {SETTLED} AND {row}.closes_at <= {sql.time_literal(rule.settled_upto)}"
                f" OR {row}.kind = {FLOOR} AND {row}.closes_at <= {sql.time_literal(rule.floor_upto)})"
            )

        latest = sql.time_literal(max(rule))
        self._db.execute(
            f"DELETE FROM {self.tables.state} s WHERE s.closes_at <= {latest} AND {over('s')} AND NOT EXISTS"
            f" (SELECT 1 FROM {self.tables.state} o WHERE o.unit = s.unit AND NOT {over('o')})"
        )

    def _collapsed(self, manifest: Manifest) -> tuple[tuple[SegmentMeta, ...], ...]:
        row = self._db.execute("SELECT pg_total_relation_size(%s)", (self.tables.state,)).fetchone()
        size = int(row[0]) if row else 0
        return tuple(collapsed(metas, size // manifest.shards) for metas in manifest.segments)

    def _write_offsets(self, manifest: Manifest) -> None:
        t = self.tables
        rows = []
        for name, source in manifest.sources.items():
            for partition, offset in offsets_of(source.offsets).items():
                clock = source.partitions.get(partition, source)
                newest = sql.time(clock.max_event_us)
                rows.append((self._pipeline, name, partition, offset, newest, clock.idle, FORMAT, manifest.epoch))
        with self._db.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {t.offsets} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now()) ON CONFLICT (pipeline_name, source,"
                ' partition) DO UPDATE SET "offset" = excluded."offset", newest_event = excluded.newest_event, idle = excluded.idle,'
                " epoch = excluded.epoch, updated_at = now()",
                rows,
            )
            cursor.execute(
                f"DELETE FROM {t.offsets} WHERE pipeline_name = %s AND epoch < %s", (self._pipeline, manifest.epoch)
            )

    # -- after the commit ----------------------------------------------------------------------------------------

    def published(self) -> int:
        return self._published

    def note_published(self, epoch: int) -> None:
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
            # the target ignores an epoch it has: noting it later does no harm
            log.warning(
                "%s: epoch %d is published and could not be noted: %s", self._pipeline, epoch, sql.reason(error)
            )
        self._published = epoch

    @_told
    def collect_garbage(self) -> None:
        row = self._db.execute(
            f"SELECT record FROM {self.tables.pipelines} WHERE pipeline_name = %s", (self._pipeline,)
        ).fetchone()
        if row is None:
            return
        used = [n for s in Manifest.model_validate(row[0]).sources.values() for n in _lists(s.offsets)]
        self._db.execute(
            f"DELETE FROM {self.tables.lists} WHERE pipeline_name = %s AND epoch <= %s AND token <> ALL(%s)",
            (self._pipeline, self._epoch, used),
        )


def _lists(offsets: Any) -> list[str]:
    found = offsets.get("segments") if isinstance(offsets, dict) else None
    return found if isinstance(found, list) else []


def offsets_of(offsets: Any) -> dict[str, str]:
    """A source's offsets as rows: per partition of a Kafka topic, or one for a list of files."""
    if not isinstance(offsets, dict):
        return {"": json.dumps(offsets)}
    if _lists(offsets):
        return {"files": str(offsets.get("count", 0))}
    return {f"{topic}-{n}": str(offset) for topic, parts in offsets.items() for n, offset in parts.items()}
