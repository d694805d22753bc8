"""One shard of the Postgres store: its reader, which selects rows by hash or due time, and its writer, which uses COPY.

state table ──────────┐  the rows of a unit (all rows with the same hash), unless a newer version is staged
staged table, tokens ─┴▶ rows that the operator reads
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from slackwater.errors import EpochError
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Changes
from slackwater.state.commit import OutputMetadata, SegmentMetadata
from slackwater.state.files.segments import sort_by_unit
from slackwater.state.postgres import client, join_buffers
from slackwater.state.postgres.join_buffers import JoinTable, PostgresJoinBuffers, array_literal, shard_number
from slackwater.state.postgres.pipeline_tables import TIMES, PipelineTables
from slackwater.state.postgres.staged_rows import StagedRows, store_local_copy
from slackwater.state.postgres.table_integrity import check_rows, report_read_errors
from slackwater.state.protocol import OUTLINE
from slackwater.storage.arrow_files import encode_frame, file_checksum
from slackwater.windows.state_layout import (
    EMITTED,
    EMITTED_FRAGMENT,
    FRAGMENT,
    HIDDEN,
    TOMBSTONE,
    WHOLE,
    DueRowFilter,
    Int64s,
    KeyedStateLayout,
)

_ORDINAL = "__ordinal"  # hidden column: the position of a row in its unit
_TOKEN = "__token"  # hidden column: the token of a staged row


@dataclass(frozen=True)
class PostgresShard:
    """A `ShardState` in Postgres.

    Args:
        url: The URL of the database.
        tables: The tables of the stage.
        shard: The number of the shard.
        shards: The number of shards of the state.
        epoch: The epoch for which rows are staged.
        metas: An entry for the rows in the state table, and one for each staged token.
        snapshot: An exported snapshot of the database to read from; None to read the current data.
        trusts_copies: Whether to read staged rows from local copies if possible.
    """

    url: str
    tables: PipelineTables
    shard: int
    shards: int
    epoch: int
    metas: tuple[SegmentMetadata, ...]
    snapshot: str | None = None
    trusts_copies: bool = True

    def with_segments(self, metas: tuple[SegmentMetadata, ...]) -> PostgresShard:
        return replace(self, metas=metas)

    def reader(self, logic: KeyedStateLayout) -> PostgresReader:
        return PostgresReader(self, logic)

    def stage(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame, watermark: int
    ) -> tuple[SegmentMetadata, ...]:
        if rows.is_empty():
            return self.metas
        token = secrets.token_hex(8)
        versions = pl.concat(
            [_number_rows(rows.filter(pl.col("__kind") != TOMBSTONE)), _removed_positions(rows, before)]
        )
        names = self.tables.columns(logic)
        # rename last, because a key may have the name of another column of the table
        frame = (
            versions.with_columns(pl.col(c).cast(pl.Datetime("us")).dt.replace_time_zone("UTC") for c in TIMES)
            .rename({**names, _ORDINAL: "ordinal"})
            .with_columns(pl.lit(token).alias("token"), pl.lit(self.epoch, pl.Int64).alias("epoch"))
        )
        try:
            with client.arrow_cursor(self.url) as cursor:
                client.append_frame(cursor, self.tables.schema, self.tables.name_of("staged"), frame)
        except ConnectionError as error:
            raise EpochError(
                f"the changes to the state could not be written: {error}; start again once the database is available"
            ) from None
        stats, content = logic.stats(rows), encode_frame(rows)
        owner = (self.url, self.tables.state, self.shard)
        store_local_copy(token, content, owner, {m.file for m in self.metas})
        figures = stats._asdict() | {"checksum": file_checksum(content)}
        return (
            *self.metas,
            SegmentMetadata(file=token, rows=frame.height, bytes=int(frame.estimated_size()), **figures),
        )

    def replace_rows(
        self, logic: KeyedStateLayout, rows: pl.DataFrame, before: pl.DataFrame | None = None
    ) -> tuple[SegmentMetadata, ...]:
        """Stage the rows that a migration has changed, and return the segments of the shard.

        After a reshard, nothing is staged, because the table does not store to which shard a row belongs.
        """
        if before is not None:
            removed = before.unique("__h", keep="first").join(rows.select("__h"), on="__h", how="anti")
            tombstones = removed.with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))
            return self.with_segments(()).stage(
                logic, pl.concat([rows, tombstones]).sort("__h", maintain_order=True), before, 0
            )
        if rows.is_empty():
            return ()
        stats = logic.stats(rows)
        return (SegmentMetadata(file="", rows=rows.height, bytes=int(rows.estimated_size()), **stats._asdict()),)

    def buffers(self, logic: CompiledJoin) -> PostgresJoinBuffers:
        return PostgresJoinBuffers(
            self.url, JoinTable(self.tables, logic), self.shard, self.shards, self.metas, self.snapshot
        )

    def write_changes(self, logic: CompiledJoin, changes: Changes, watermark: int) -> tuple[SegmentMetadata, ...]:
        return join_buffers.stage_changes(self.url, JoinTable(self.tables, logic), self.metas, changes)

    def replace_buffers(self, logic: CompiledJoin, changes: Changes) -> tuple[SegmentMetadata, ...]:
        return join_buffers.replace_buffer_rows(JoinTable(self.tables, logic), changes)

    def write_output(self, frame: pl.DataFrame) -> OutputMetadata:
        token = uuid.uuid4().hex
        row = pl.DataFrame(
            {
                "token": [token],
                "pipeline_name": [self.tables.pipeline],
                "epoch": [self.epoch],
                "data": [encode_frame(frame).to_pybytes()],
            }
        )
        try:
            with client.arrow_cursor(self.url) as cursor:
                client.append_frame(cursor, self.tables.schema, "slackwater_outputs", row)
        except ConnectionError as error:
            raise EpochError(
                f"the output could not be written to the state store: {error}; start again once the database is "
                "available"
            ) from None
        return OutputMetadata(file=token, rows=frame.height)


def _number_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Add a column with the position of each row in its unit, from 0. `rows`: sorted by `__h`.

    The primary key of the table consists of the unit and this position.
    """
    unit = rows["__h"].to_numpy()
    position = np.arange(len(unit))
    first = np.flatnonzero(np.diff(unit, prepend=unit[:1] - 1))
    return rows.with_columns(
        pl.Series(_ORDINAL, position - np.repeat(first, np.diff(first, append=len(unit))), dtype=pl.Int32)
    )


def _removed_positions(rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return a TOMBSTONE row for each position that the previous version of a unit has, but the new version lacks.

    `rows`: the new versions of units, sorted by `__h`. `before`: the previous rows of these units.
    """
    if before.is_empty():
        return _number_rows(rows.clear())
    old = _number_rows(before.filter(pl.col("__h").is_in(rows["__h"].unique().implode())))
    new = _number_rows(rows.filter(pl.col("__kind") != TOMBSTONE)).select("__h", _ORDINAL)
    return old.join(new, on=["__h", _ORDINAL], how="anti").with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))


@dataclass(frozen=True)
class PostgresReader:
    """A `StateReader` over the state table and the staged rows of one shard."""

    state: PostgresShard
    logic: KeyedStateLayout

    @cached_property
    def _staged_versions(self) -> StagedRows:
        return StagedRows(self.state.metas, self.logic.state_schema, self._staged, self.state.trusts_copies)

    def units(self, hashes: Int64s) -> pl.DataFrame:
        if not len(hashes) or not self._has_rows():
            return self.logic.empty_state()
        newest, rest = self._staged_versions.units(hashes)
        below = self._fetch([f"unit = ANY({array_literal(rest)})"], shard_only=False) if len(rest) else None
        return _concat_sorted(newest, below)

    def due(self, when: DueRowFilter) -> pl.DataFrame:
        if not any(when.may_match_segment(m.first_due, m.last_due) for m in self.state.metas):
            return self.logic.empty_state()
        conditions = [
            f"kind IN ({FRAGMENT}, {EMITTED_FRAGMENT}) AND closes_at <= {client.time_literal(when.pending_upto)}"
        ]
        for kind, moves in ((WHOLE, when.whole), (EMITTED, when.emitted)):
            for after, upto in moves:
                within = f"closes_at > {client.time_literal(after)} AND closes_at <= {client.time_literal(upto)}"
                conditions.append(f"kind = {kind} AND {within}")
        before = client.time_literal(when.start_before)
        below = self._fetch([f"(({') OR ('.join(conditions)})) AND window_start < {before}"], shard_only=True)
        return self._overlay(self._staged_versions.all().due(when) if self._staged_versions else None, below)

    def nearest(self, after: int, count: int) -> Int64s | None:
        return None  # not needed, because an index finds the rows of any time range

    def scan(self) -> pl.DataFrame:
        below = self._fetch([], shard_only=True)
        return self._overlay(self._staged_versions.all().scan() if self._staged_versions else None, below)

    def outline(self) -> pl.DataFrame:
        below = self._fetch([], shard_only=True, only=OUTLINE)
        return self._overlay(self._staged_versions.all().outline() if self._staged_versions else None, below)

    def _overlay(self, newest: pl.DataFrame | None, below: pl.DataFrame) -> pl.DataFrame:
        """Combine the newest staged rows with those rows of the state table that they do not replace.

        `newest`: staged rows; None if nothing is staged. `below`: rows of the state table.
        """
        return below if newest is None else _concat_sorted(newest, self._staged_versions.select_unstaged(below))

    def _has_rows(self) -> bool:
        return any(m.rows for m in self.state.metas)

    def _fetch(self, conditions: Sequence[str], shard_only: bool, only: Sequence[str] | None = None) -> pl.DataFrame:
        """Fetch rows from the state table, sorted by hash.

        Args:
            conditions: SQL conditions on rows.
            shard_only: Whether to read only this shard, and every unit with a matching row in full.
            only: The columns to fetch; None for all.
        """
        t, shards = self.state.tables, self.state.shards
        in_shard = [f"{shard_number('key_hash', shards)} = {self.state.shard}"] if shard_only and shards > 1 else []
        condition = " AND ".join([*conditions, *in_shard]) or "true"
        if conditions and shard_only:
            # read the whole unit, even if only one of its rows is due
            condition = f"unit IN (SELECT unit FROM {t.state} WHERE {condition})"
        columns, schema = self._columns(only)
        frame = self._query(f"SELECT {columns} FROM {t.state} r WHERE {condition}", schema)
        return frame.sort("__h", _ORDINAL).drop(_ORDINAL)

    def _staged(self, metas: Sequence[SegmentMetadata], hashes: Int64s | None) -> Mapping[str, pl.DataFrame]:
        """Fetch the staged rows of these segments, and return them by token. Tokens without rows are omitted.

        `hashes`: the hashes of the rows to fetch; None for all rows.
        """
        columns, schema = self._columns()
        tokens = ", ".join(f"'{m.file}'" for m in metas)
        condition = "" if hashes is None else f" AND unit = ANY({array_literal(hashes)})"
        query = f"SELECT {columns}, token FROM {self.state.tables.staged} r WHERE token IN ({tokens}){condition}"
        frame = self._query(query, {**schema, _TOKEN: pl.String()}).sort(_TOKEN, "__h", _ORDINAL).drop(_ORDINAL)
        parts = frame.partition_by(_TOKEN, as_dict=True, include_key=False)
        return {str(token): part for (token,), part in parts.items()}

    def _columns(self, only: Sequence[str] | None = None) -> tuple[str, dict[str, pl.DataType]]:
        """Return the columns of a query as SQL, and the schema of its result. `only`: the columns; None for all."""
        table_columns = self.state.tables.columns(self.logic)
        schema = {c: kind for c, kind in self.logic.state_schema.items() if only is None or c in only}
        selected = ", ".join(f"r.{client.quote_name(c)}" for c in (*(table_columns[c] for c in schema), "ordinal"))
        return selected, {**schema, _ORDINAL: pl.Int32()}

    @cached_property
    def _required(self) -> dict[str, str]:
        """Map the columns that are never NULL to their names in the table."""
        table_columns = self.state.tables.columns(self.logic)
        return {_ORDINAL: "ordinal", **{c: n for c, n in table_columns.items() if c in (*HIDDEN, "__end")}}

    def _query(self, query: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
        with (
            report_read_errors(self.state.tables.state),
            client.arrow_cursor(self.state.url, self.state.snapshot) as cursor,
        ):
            frame = client.fetch_frame(cursor, query, schema)
        if self.state.trusts_copies:  # otherwise, `slackwater state verify` checks all rows itself
            check_rows(frame, self.state.tables.state, self._required)
        if "__rev" in schema:  # NULL in rows that were stored before windows had revisions
            frame = frame.with_columns(pl.col("__rev").fill_null(0), pl.col("__out").fill_null([]))
        return frame


def _concat_sorted(newest: pl.DataFrame, below: pl.DataFrame | None) -> pl.DataFrame:
    """Concatenate two frames that have no `__h` in common, and sort the rows by `__h`. The sort is stable."""
    return sort_by_unit(newest if below is None else below if newest.is_empty() else pl.concat([newest, below]))
