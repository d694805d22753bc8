"""The buffers of a join in Postgres: one table row per buffered row, indexed by (side, key hash, event time).

    side   key_hash  event_time  row_id  matched  left_order_id  left_amount  right_order_id  …
    left         -7  09:00:01         4  true     o1                   12.50  NULL            …

`matched` is NULL for sides that are not outer. Workers COPY the rows of an epoch into an unlogged table, with one token
for each side and kind of change. The commit moves these rows to the state table, and deletes expired rows. Whether a
row has expired depends only on its event time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import psycopg
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import Int64s
from slackwater.errors import EpochError, StartError, Topic
from slackwater.joins.compiled_join import CompiledJoin, JoinSide
from slackwater.joins.join_buffers import OUTLINE, Changes, SortedRows
from slackwater.state.commit import FORMAT, SegmentMetadata, StageState
from slackwater.state.files.join_buffers import describe_segment
from slackwater.state.postgres import client
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.table_integrity import check_rows, report_read_errors

ROW_KEY = ("side", "key_hash", "event_time", "row_id")  # primary key of the table
_FAR = 2**62  # stands for an unknown number of rows


@dataclass(frozen=True)
class JoinTable:
    """The table of the buffered rows of a join, with columns for both sides."""

    tables: PipelineTables
    logic: CompiledJoin

    @property
    def state(self) -> str:
        return self.tables.state

    @property
    def staged(self) -> str:
        return self.tables.staged

    def names(self, side: JoinSide) -> dict[str, str]:
        """Map the columns of buffered rows of one side to column names in the table."""
        columns = {f.name: f"{side.name}_{f.name}" for f in side.fields}
        return {"__kh": "key_hash", "__ts": "event_time", "__id": "row_id", "__matched": "matched", **columns}

    def types(self) -> dict[str, str]:
        """Map the columns of the table to their types, except the columns that all state tables have."""
        types = {
            "side": "text NOT NULL",
            "key_hash": "bigint NOT NULL",
            "event_time": "timestamp with time zone NOT NULL",
            "row_id": "bigint NOT NULL",
            "matched": "boolean",
        }
        for side in self.logic.sides:
            types |= {f"{side.name}_{f.name}": client.sql_type(f) for f in side.fields}
        return types

    def check(self, where: str) -> None:
        """Raise StartError for a column whose name or values Postgres cannot store unchanged. `where`: prefix of the message."""
        client.check_names(list(self.types()), where)
        for side in self.logic.sides:
            for f in side.fields:
                if client.sql_type(f) == "jsonb":
                    raise StartError(
                        f'{where}: column "{f.name}" of the {side.name} side has type {f.type}, which Postgres cannot '
                        f"store exactly; convert it to text in {side.name}_sql (to_json), or store the state in files",
                        Topic.SQL,
                    )

    def create(self) -> list[str]:
        """Return the SQL statements that create the state table and its index."""
        columns = ", ".join(f"{client.quote_name(c)} {t}" for c, t in self.types().items())
        return [
            f"CREATE TABLE {self.state} (pipeline_name text NOT NULL DEFAULT {self.tables.literal}, {columns},"
            f" state_version integer NOT NULL DEFAULT {FORMAT}, epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(),"
            f" CONSTRAINT {client.quote_name(self.tables.name_of('state', 'pkey'))} PRIMARY KEY ({', '.join(ROW_KEY)}))",
            f"CREATE INDEX {client.quote_name(self.tables.name_of('state', 'due'))} ON {self.state} (side, event_time)",
        ]

    def create_staged(self) -> str:
        """Return the SQL statement that creates the table of staged rows."""
        columns = ", ".join(f"{client.quote_name(c)} {t}" for c, t in self.types().items())
        return f"CREATE UNLOGGED TABLE {self.staged} (token text NOT NULL, {columns})"

    def frame(self, side: JoinSide, rows: pl.DataFrame, token: str) -> pl.DataFrame:
        """Convert buffered rows, or references to them, to rows of the staged table.

        Args:
            side: The side of the join. If it is not outer, `matched` becomes NULL.
            rows: The rows.
            token: The token for all of these rows.
        """
        rows = rows.with_columns(rows["__ts"].cast(pl.Datetime("us", "UTC")))
        if "__matched" in rows.columns and not side.outer:
            rows = rows.with_columns(pl.lit(None, pl.Boolean).alias("__matched"))
        names = {c: n for c, n in self.names(side).items() if c in rows.columns}
        return rows.rename(names).select(pl.lit(token).alias("token"), pl.lit(side.name).alias("side"), pl.all())


def shard_number(column: str, shards: int) -> str:
    """Return an SQL expression for the number of the shard that owns a hash. `column`: the SQL column with the hash."""
    return f"mod(mod({column}, {shards}) + {shards}, {shards})"


@dataclass(frozen=True)
class PostgresJoinBuffers:
    """The `Buffers` of one shard in Postgres: the committed rows, and the rows staged in this epoch.

    Args:
        url: The URL of the database.
        table: The table of the join.
        shard: The number of the shard.
        shards: The number of shards of the state.
        metas: The segments of the shard.
        snapshot: An exported snapshot of the database to read from; None to read the current data.
    """

    url: str
    table: JoinTable
    shard: int
    shards: int
    metas: tuple[SegmentMetadata, ...]
    snapshot: str | None = None

    def _side(self, which: int) -> JoinSide:
        return self.table.logic.sides[which]

    def _tokens(self, side: JoinSide, suffix: str) -> str:
        tokens = ", ".join(f"'{m.file}'" for m in self.metas if m.file and m.kind == side.name + suffix)
        return f"({tokens})" if tokens else ""

    def _fetch(self, side: JoinSide, condition: str) -> pl.DataFrame:
        names = self.table.names(side)
        columns = ", ".join(f"r.{client.quote_name(n)}" for n in names.values())
        parts = [f"SELECT {columns} FROM {self.table.state} r WHERE side = '{side.name}' AND {condition}"]
        if tokens := self._tokens(side, ""):
            parts.append(f"SELECT {columns} FROM {self.table.staged} r WHERE token IN {tokens} AND {condition}")
        frame = self._query(" UNION ALL ".join(parts), side.schema)
        required = [c for c in names if c in ("__kh", "__ts", "__id", *(k.name for k in side.keys))]
        check_rows(frame, self.table.state, {c: names[c] for c in required})
        return frame

    def _query(self, query: str, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
        times = {c: pl.Datetime("us", "UTC") if c == "__ts" else t for c, t in schema.items()}
        with (
            report_read_errors(self.table.state),
            client.arrow_cursor(self.url, self.snapshot) as cursor,
        ):
            frame = client.fetch_frame(cursor, query, times)
        return frame.with_columns(frame["__ts"].dt.timestamp("us")) if "__ts" in schema else frame

    def _has(self, side: JoinSide) -> bool:
        return any(m.rows and m.kind == side.name for m in self.metas)

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        side = self._side(which)
        if not self._has(side) or not len(hashes):
            return []
        within = f"event_time BETWEEN {client.time_literal(low)} AND {client.time_literal(high)}"
        frame = self._fetch(side, f"key_hash = ANY({array_literal(hashes)}) AND {within}")
        return [SortedRows.from_frame(frame.sort("__kh", "__ts", "__id"))]

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        matched: NDArray[np.bool_] = rows["__matched"].fill_null(False).to_numpy()
        return matched

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        return np.zeros(len(kh), dtype=bool)

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        side = self._side(which)
        if not self._has(side):
            return pl.DataFrame(schema=side.schema)
        keep_us = side.keep_us + 1
        after, upto = client.time_literal(since - keep_us), client.time_literal(watermark - keep_us)
        condition = f"NOT matched AND event_time > {after} AND event_time <= {upto}"
        if self.shards > 1:
            condition += f" AND {shard_number('key_hash', self.shards)} = {self.shard}"
        for suffix in "+-":
            if tokens := self._tokens(side, suffix):
                same = " AND ".join(f"x.{c} = r.{c}" for c in ROW_KEY)
                condition += (
                    f" AND NOT EXISTS (SELECT 1 FROM {self.table.staged} x WHERE x.token IN {tokens} AND {same})"
                )
        return self._fetch(side, condition).sort("__kh", "__ts", "__id")

    def bound(self, which: int) -> int:
        return _FAR if self._has(self._side(which)) else 0

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        side = self._side(which)
        query = (
            f"SELECT key_hash, count(*) FROM {self.table.state} WHERE side = '{side.name}' AND key_hash = ANY({array_literal(hashes)})"
            f" AND event_time > {client.time_literal(watermark - side.keep_us - 1)} GROUP BY 1"
        )
        frame = self._query(query, {"__kh": pl.Int64(), "__n": pl.Int64()})
        counts = np.zeros(len(hashes), dtype=np.int64)
        counts[np.searchsorted(hashes, frame["__kh"].to_numpy())] = frame["__n"].to_numpy()
        return counts

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        side = self._side(which)
        condition = f"event_time > {client.time_literal(watermark - side.keep_us - 1)}"
        if self.shards > 1:
            condition += f" AND {shard_number('key_hash', self.shards)} = {self.shard}"
        return self._fetch(side, condition).sort("__kh", "__ts", "__id")

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        side = self._side(which)
        query = (
            f"SELECT key_hash, event_time, matched FROM {self.table.state} WHERE side = '{side.name}'"
            f" AND event_time > {client.time_literal(watermark - side.keep_us - 1)} AND {shard_number('key_hash', self.shards)} = {self.shard}"
        )
        return self._query(query, OUTLINE).with_columns(pl.col("__matched").fill_null(False))


def stage_changes(
    url: str, table: JoinTable, metas: Sequence[SegmentMetadata], changes: Changes
) -> tuple[SegmentMetadata, ...]:
    """Stage changes to the buffers of a shard with COPY, and return the segments of the shard.

    Raises EpochError if this fails.

    Args:
        url: The URL of the database.
        table: The table of the join.
        metas: The current segments of the shard.
        changes: The changes by side.
    """
    staged = list(metas)
    try:
        with client.arrow_cursor(url) as cursor:
            for side in table.logic.sides:
                change = changes.get(side.which)
                if change is None:
                    continue
                for suffix, rows in (("", change.rows), ("+", change.matched), ("-", change.evicted)):
                    if rows.height:
                        token = uuid.uuid4().hex
                        frame = table.frame(side, rows, token)
                        client.append_frame(cursor, table.tables.schema, table.tables.name_of("staged"), frame)
                        staged.append(describe_segment(side, suffix, rows, token, int(frame.estimated_size())))
    except ConnectionError as error:
        raise EpochError(
            f"the changes to the state could not be written: {error}; start again once the database is available"
        ) from None
    return tuple(staged)


def replace_buffer_rows(table: JoinTable, changes: Changes) -> tuple[SegmentMetadata, ...]:
    """Return the segments of a shard after a reshard. `changes`: its rows by side.

    The table stays unchanged, because it does not store to which shard a row belongs.
    """
    return tuple(
        describe_segment(side, "", change.rows, "", int(change.rows.estimated_size()))
        for side in table.logic.sides
        if (change := changes.get(side.which)) is not None and change.rows.height
    )


def apply_staged(db: psycopg.Connection[Any], table: JoinTable, state: StageState, epoch: int) -> int:
    """Apply the staged changes to the state table, and return how many rows the table gained.

    Raises EpochError if staged rows are missing.

    Args:
        db: A connection with an open transaction.
        table: The table of the join.
        state: The state of the stage in the next commit.
        epoch: The epoch of the next commit.
    """
    staged = [m for m in state.metas if m.file]
    tokens = [m.file for m in staged]
    count = db.execute(f"SELECT count(*) FROM {table.staged} WHERE token = ANY(%s)", (tokens,)).fetchone()
    if count is None or count[0] != sum(m.rows for m in staged):
        raise EpochError(
            f"epoch {epoch} was not committed: some of its rows are missing from {table.staged} (Postgres was "
            "restarted after a crash); start again to repeat the epoch"
        )
    same, gained = " AND ".join(f"s.{c} = t.{c}" for c in ROW_KEY), 0
    for side in table.logic.sides:
        rows, matched, evicted = ([m.file for m in staged if m.kind == side.name + suffix] for suffix in ("", "+", "-"))
        columns = client.quote_names(["side", *table.names(side).values()])
        if rows:
            gained += db.execute(
                f"INSERT INTO {table.state} ({columns}, epoch) SELECT {columns}, {epoch} FROM {table.staged}"
                " WHERE token = ANY(%s)",
                (rows,),
            ).rowcount
        if matched:
            db.execute(
                f"UPDATE {table.state} s SET matched = true, epoch = {epoch}, updated_at = now()"
                f" FROM {table.staged} t WHERE t.token = ANY(%s) AND {same}",
                (matched,),
            )
        if evicted:
            gained -= db.execute(
                f"DELETE FROM {table.state} s USING {table.staged} t WHERE t.token = ANY(%s) AND {same}", (evicted,)
            ).rowcount
    return gained


def delete_expired(db: psycopg.Connection[Any], table: JoinTable, state: StageState) -> dict[tuple[str, int], int]:
    """Delete the expired rows of a join, and return how many were deleted, by side name and shard number."""
    expired: dict[tuple[str, int], int] = {}
    shard = f"{shard_number('key_hash', state.shards)}::integer"
    for side in table.logic.sides:
        upto = client.time_literal(state.watermark_us - side.keep_us - 1)
        counts = db.execute(
            f"WITH gone AS (DELETE FROM {table.state} WHERE side = %s AND event_time <= {upto} RETURNING key_hash)"
            f" SELECT {shard}, count(*) FROM gone GROUP BY 1",
            (side.name,),
        )
        expired |= {(side.name, number): count for number, count in counts}
    return expired


def list_merged_segments(
    logic: CompiledJoin, state: StageState, expired: Mapping[tuple[str, int], int], size: int
) -> tuple[tuple[SegmentMetadata, ...], ...]:
    """Return the segments of each shard after staged changes are applied and expired rows are deleted.

    Args:
        logic: The join.
        state: The state of the stage in the next commit.
        expired: The result of `delete_expired`.
        size: The size of the table in bytes.
    """
    shards = []
    for shard, metas in enumerate(state.segments):
        segments = []
        for side in logic.sides:
            buffered = [m for m in metas if m.kind == side.name]
            evicted = sum(m.rows for m in metas if m.kind == f"{side.name}-")
            rows = sum(m.rows for m in buffered) - evicted - expired.get((side.name, shard), 0)
            if rows > 0:
                segments.append(
                    SegmentMetadata(
                        file="",
                        kind=side.name,
                        rows=rows,
                        bytes=size // (2 * state.shards),
                        first_due=max(min(m.first_due for m in buffered), state.watermark_us + 1),
                        last_due=max(m.last_due for m in buffered),
                        close=max(m.close for m in buffered),
                        dead=max(m.dead for m in buffered),
                    )
                )
        shards.append(tuple(segments))
    return tuple(shards)


def array_literal(hashes: Int64s) -> str:
    """Return an array of integers as an SQL literal."""
    return "'{" + ",".join(np.char.mod("%d", hashes)) + "}'::bigint[]"
