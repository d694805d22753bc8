"""Postgres table target, which deletes superseded rows and upserts new rows, both through temporary tables.

    superseded ─COPY─▶ temporary table ─DELETE … USING, by identity─▶               public.sessions
    rows       ─COPY─▶ temporary table ─INSERT … ON CONFLICT (identity) DO UPDATE─▶ public.sessions
                                                  slackwater_targets: (writer, table, last epoch)

The changes and the marker of an epoch are written in one transaction. If the state store is in the same database, the
store's commit is part of this transaction (`publish_within`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
import psycopg

from slackwater.connectors.target import TargetTable, columns_text
from slackwater.core.schema import YEARS, ValueLimits
from slackwater.errors import PublishError, StartError, Topic
from slackwater.state.commit import TargetMarker
from slackwater.state.postgres import client

# for each expected type: the types of an existing column that can also store all its values
_WIDER = {
    "text": ("character varying",),
    "real": ("double precision",),
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "jsonb": ("json",),
}


class PostgresTarget:
    """Target that writes each epoch exactly once to a table, `name` or `schema.name`.

    If the table does not exist, it is created from the output columns, with the identity as a unique key.
    """

    guarantee = "exactly once"

    def __init__(self, url: str, table: str, columns: TargetTable) -> None:
        self.url, self._columns = str(url), columns
        self._schema, _, self._name = table.rpartition(".")
        self._schema = self._schema or "public"
        self._table = f"{client.quote_name(self._schema)}.{client.quote_name(self._name)}"
        self._marker = f"{client.quote_name(self._schema)}.slackwater_targets"
        self.description = f"table {table} in Postgres at {client.server_address(self.url)}"
        self.upserts = columns.identity is not None
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def capacity(self) -> ValueLimits:
        """The value limits: no U+0000 in text, times that Postgres clients can read, and a maximum identity size."""
        return ValueLimits(False, YEARS, client.INDEX_BYTES if self._columns.identity else None)

    def open(self) -> None:
        client.check_names([f.name for f in self._columns.fields], f"target {self._schema}.{self._name}")
        self._connection = db = client.open_connection(self.url, f"target {self._schema}.{self._name}")
        try:
            with db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(7305804402566226543)")
                if db.execute("SELECT to_regnamespace(%s)", (client.quote_name(self._schema),)).fetchone() == (None,):
                    db.execute(f"CREATE SCHEMA {client.quote_name(self._schema)}")
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._marker} (writer text, table_name text, state text, epoch bigint NOT NULL,"
                    " commit_id text, table_oid oid, marker_oid oid, updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (writer, table_name))"
                )
                types = {"commit_id": "text", "table_oid": "oid", "marker_oid": "oid"}
                marker_columns = client.columns_of(db, self._marker)
                for column in types.keys() - set(marker_columns):  # a table of an earlier version
                    db.execute(f"ALTER TABLE {self._marker} ADD COLUMN {column} {types[column]}")
                if db.execute("SELECT to_regclass(%s)", (self._table,)).fetchone() == (None,):
                    self._create(db)
                else:
                    self._add_columns(db)
                    self._compare(db)
        except StartError:
            self.close()
            raise
        except psycopg.Error as error:
            self.close()
            raise self._permission_error(error) from None

    def _create(self, db: psycopg.Connection[Any]) -> None:
        columns = ", ".join(f"{client.quote_name(f.name)} {client.sql_type(f)}" for f in self._columns.fields)
        identity = self._columns.identity
        unique = "" if identity is None else f", UNIQUE NULLS NOT DISTINCT ({client.quote_names(identity)})"
        db.execute(f"CREATE TABLE {self._table} ({columns}{unique})")

    def _add_columns(self, db: psycopg.Connection[Any]) -> None:
        """Add the new columns that the table lacks, in one statement. Raises StartError on failure."""
        missing = self._columns.missing(client.columns_of(db, self._table))
        if not missing:
            return
        try:
            added = (f"ADD COLUMN IF NOT EXISTS {client.quote_name(f.name)} {client.sql_type(f)}" for f in missing)
            db.execute(f"ALTER TABLE {self._table} {', '.join(added)}")
        except psycopg.Error as error:
            raise StartError(
                f"{self.description} lacks new columns ({columns_text(missing)}), which could not be added "
                f"({client.error_reason(error)}); add them as the owner of the table, then start again",
                Topic.TARGET_UNSUITABLE,
            ) from None

    def describe_previous_output(self) -> str | None:
        """Describe the rows that this writer wrote to the table with another state.

        Return None if there are no such rows. Raises StartError if the database cannot be read.
        """
        with self._open_markers() as db:
            row = db.execute(
                f"SELECT m.epoch FROM {self._marker} m WHERE m.writer = %s AND m.table_name = %s AND m.state <> %s"
                f" AND EXISTS (SELECT FROM {self._table})",
                (self._columns.writer, f"{self._schema}.{self._name}", self._columns.state),
            ).fetchone()
            if row is not None:
                return f'rows of another state of "{self._columns.writer}" in {self.description}, up to epoch {row[0]}'
        return None

    def read_marker(
        self, state: str, expected: Sequence[TargetMarker] = (), fence: bool = False
    ) -> TargetMarker | None:
        with self._open_markers() as db:
            marker_columns = client.columns_of(db, self._marker)
            commit = "commit_id" if "commit_id" in marker_columns else "NULL"
            oids = "m.marker_oid, m.table_oid" if "table_oid" in marker_columns else "NULL, NULL"
            row = db.execute(
                f"SELECT m.state, m.epoch, {commit}, {oids}, to_regclass(%s)::oid, to_regclass(%s)::oid FROM {self._marker} m"
                f" WHERE m.writer = %s AND m.table_name = %s AND EXISTS (SELECT FROM {self._table})",
                (self._marker, self._table, self._columns.writer, f"{self._schema}.{self._name}"),
            ).fetchone()
            if row is not None and _is_same_table(row[3:5], row[5:7]):
                return TargetMarker(state=row[0] or "", epoch=row[1], commit=row[2] or "")
        return None

    def writers(self) -> list[str]:
        with self._open_markers() as db:
            query = f"SELECT writer FROM {self._marker} WHERE table_name = %s ORDER BY writer"
            return [row[0] for row in db.execute(query, (f"{self._schema}.{self._name}",)).fetchall()]
        return []

    @contextmanager
    def _open_markers(self) -> Iterator[psycopg.Connection[Any]]:
        """Connect to read markers. If a queried table does not exist, the context exits without an error."""
        with client.open_connection(self.url, f"target {self._schema}.{self._name}") as db:
            try:
                yield db
            except psycopg.errors.UndefinedTable:
                return
            except psycopg.Error as error:
                raise self._permission_error(error) from None

    def _permission_error(self, error: psycopg.Error) -> StartError:
        return StartError(
            f"{self.description}: {client.error_reason(error)}; check the permissions of the database role",
            Topic.PERMISSION,
        )

    def problems(self) -> list[str]:
        """Return a message for each problem that would make `open` fail, without changing anything."""
        try:
            with client.open_connection(self.url, f"target {self._schema}.{self._name}") as db:
                if db.execute("SELECT to_regclass(%s)", (self._table,)).fetchone() == (None,):
                    return []
                return [f"{self.description}: {line}" for line in self._differences(db)]
        except StartError as error:
            return [str(error)]

    def _differences(self, db: psycopg.Connection[Any]) -> list[str]:
        """Return a message for each difference between the table and the output that prevents writing."""
        actual = {
            name: (kind, required)
            for name, kind, required in db.execute(
                "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' FROM"
                " pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (self._table,),
            )
        }
        problems = []
        for field in self._columns.fields:
            expected = client.sql_type(field)
            if field.name not in actual and field.name in self._columns.new:
                continue  # `open` adds it
            if field.name not in actual:
                problems.append(f'column "{field.name}" ({expected}) is missing')
            elif not _is_wide_enough(actual[field.name][0], expected):
                problems.append(f'column "{field.name}" is {actual[field.name][0]}, expected {expected}')
        names = {f.name for f in self._columns.fields}
        problems += [
            f'column "{n}" must not be NULL and is not written' for n, (_, r) in actual.items() if r and n not in names
        ]
        if not problems and self._columns.identity is not None and not self._is_unique(db, self._columns.identity):
            problems.append(
                "there is no unique key for the upsert: CREATE UNIQUE INDEX ON "
                f"{self._table} ({client.quote_names(self._columns.identity)}) NULLS NOT DISTINCT"
            )
        return problems

    def _compare(self, db: psycopg.Connection[Any]) -> None:
        problems = self._differences(db)
        if problems:
            raise StartError(
                f"{self.description} does not fit the output: {'; '.join(problems)}; alter the table, or name "
                "one that does not exist yet",
                Topic.TARGET_UNSUITABLE,
            )

    def _is_unique(self, db: psycopg.Connection[Any], identity: Sequence[str]) -> bool:
        rows = db.execute(
            "SELECT array_agg(a.attname::text ORDER BY a.attname), i.indnullsnotdistinct OR bool_and(a.attnotnull)"
            " FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
            " WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL"
            " AND i.indexprs IS NULL GROUP BY i.indexrelid, i.indnullsnotdistinct",
            (self._table,),
        ).fetchall()
        return any(sorted(columns) == sorted(identity) and strict for columns, strict in rows)

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = client.open_connection(self.url, self.description)
            with self._connection.transaction():
                self.publish_within(self._connection, epoch, rows, superseded, commit)
        except (psycopg.Error, StartError) as error:
            raise PublishError(
                f"{self.description} did not accept epoch {epoch} ({client.error_reason(error)}); the epoch is "
                "committed and will be published at the next start"
            ) from None

    def publish_within(
        self,
        connection: psycopg.Connection[Any],
        epoch: int,
        rows: pl.DataFrame,
        superseded: pl.DataFrame | None = None,
        commit: str = "",
    ) -> None:
        """Publish an epoch within the caller's transaction. Do nothing if the epoch was already published.

        Args:
            connection: The connection with the open transaction.
            epoch: The epoch.
            rows: The rows.
            superseded: The identities of superseded rows.
            commit: The id of the epoch's commit.
        """
        marked = connection.execute(
            f"INSERT INTO {self._marker} AS m (writer, table_name, state, epoch, commit_id, table_oid, marker_oid)"
            " VALUES (%s, %s, %s, %s, %s, to_regclass(%s)::oid, to_regclass(%s)::oid)"
            " ON CONFLICT (writer, table_name) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,"
            " commit_id = excluded.commit_id, table_oid = excluded.table_oid, marker_oid = excluded.marker_oid, updated_at = now()"
            " WHERE m.epoch < excluded.epoch OR m.state <> excluded.state",
            (
                self._columns.writer,
                f"{self._schema}.{self._name}",
                self._columns.state,
                epoch,
                commit,
                self._table,
                self._marker,
            ),
        )
        if marked.rowcount != 1:
            return
        identity = self._columns.identity
        if identity is not None and superseded is not None and not superseded.is_empty():
            self._delete(connection, identity, superseded)
        if rows.is_empty():
            return
        columns = [f.name for f in self._columns.fields]
        if identity is None:
            client.copy_frame(connection, self._table, rows.select(columns))
            return
        self._stage(connection, "slackwater_rows", rows.select(columns))
        values = ", ".join(
            f"{c} = excluded.{c}" for c in map(client.quote_name, columns) if c not in map(client.quote_name, identity)
        )
        connection.execute(
            f"INSERT INTO {self._table} ({client.quote_names(columns)}) SELECT {client.quote_names(columns)} FROM slackwater_rows"
            f" ON CONFLICT ({client.quote_names(identity)}) DO {f'UPDATE SET {values}' if values else 'NOTHING'}"
        )

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return the rows that match a row of `ranges`; see `connectors.target.ReadableTarget`."""
        fields = {f.name: f.polars for f in self._columns.fields}
        keys = [c for c in self._columns.identity or () if c != column]
        bounds = ranges.with_columns(
            pl.col("__low", "__high").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
        ).select(*keys, "__low", "__high")
        between = f"t.{client.quote_name(column)} BETWEEN g.__low AND g.__high"
        columns = ", ".join(f"t.{c}" for c in map(client.quote_name, fields))
        records: list[tuple[Any, ...]] = []
        try:
            if self._connection is None or self._connection.closed:
                self._connection = client.open_connection(self.url, self.description)
            with self._connection.transaction():
                typed = [
                    f"{client.quote_name(f.name)} {client.sql_type(f)}" for f in self._columns.fields if f.name in keys
                ]
                typed += ["__low timestamptz", "__high timestamptz"]
                self._connection.execute(
                    f"CREATE TEMPORARY TABLE slackwater_ranges ({', '.join(typed)}) ON COMMIT DROP"
                )
                client.copy_frame(self._connection, "slackwater_ranges", bounds)
                self._connection.execute("ANALYZE slackwater_ranges")
                for same in _match_conditions(bounds.select(keys)):
                    records += self._connection.execute(
                        f"SELECT {columns} FROM {self._table} t JOIN slackwater_ranges g ON {' AND '.join([*same, between])}"
                    ).fetchall()
        except (psycopg.Error, StartError) as error:
            raise StartError(
                f"{self.description} cannot be read ({client.error_reason(error)}); nothing was replayed; fix the "
                "cause, and repeat the command",
                Topic.DEAD_LETTERS,
            ) from None
        return pl.DataFrame(records, schema=fields, orient="row")

    def _stage(self, connection: psycopg.Connection[Any], table: str, frame: pl.DataFrame) -> None:
        """Copy `frame` to a temporary table, which exists until the end of the transaction."""
        typed = ", ".join(
            f"{client.quote_name(f.name)} {client.sql_type(f)}" for f in self._columns.fields if f.name in frame.columns
        )
        connection.execute(f"CREATE TEMPORARY TABLE {table} ({typed}) ON COMMIT DROP")
        client.copy_frame(connection, table, frame)

    def _delete(self, connection: psycopg.Connection[Any], identity: Sequence[str], superseded: pl.DataFrame) -> None:
        """Delete superseded rows, with one DELETE for each combination of columns that are NULL."""
        self._stage(connection, "slackwater_gone", superseded.select(identity))
        connection.execute("ANALYZE slackwater_gone")  # tells the query planner the number of rows
        for same in _match_conditions(superseded.select(identity)):
            connection.execute(f"DELETE FROM {self._table} t USING slackwater_gone g WHERE {' AND '.join(same)}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _match_conditions(rows: pl.DataFrame) -> Iterator[list[str]]:
    """Yield lists of SQL conditions that match rows of table `t` with equal rows of table `g`. NULL equals NULL.

    `rows`: the rows of `g`. There is one list for each combination of columns that are NULL. A single list for all rows
    would need IS NOT DISTINCT FROM, which cannot use an index.
    """
    if not rows.width:
        yield []
        return
    for nulls in rows.select(pl.all().is_null()).unique().iter_rows():
        columns = zip(map(client.quote_name, rows.columns), nulls, strict=True)
        yield [f"t.{c} IS NULL AND g.{c} IS NULL" if null else f"t.{c} = g.{c}" for c, null in columns]


def _is_wide_enough(actual: str, expected: str) -> bool:
    """Return whether a column of type `actual` can store every value of type `expected`."""
    if actual == expected or (actual == "numeric" and expected.startswith("numeric")):
        return True
    return actual in _WIDER.get(expected, ())


def _is_same_table(stored: tuple[int | None, int | None], now: tuple[int | None, int | None]) -> bool:
    """Return whether a marker belongs to the current results table.

    A table that was dropped and recreated has a different oid. After a dump and restore, all tables have new oids,
    including the marker table. Markers of early Slackwater versions have no oids.

    Args:
        stored: The oids of the marker table and the results table in the marker.
        now: The current oids of these tables.
    """
    return None in stored or stored[0] != now[0] or stored[1] == now[1]
