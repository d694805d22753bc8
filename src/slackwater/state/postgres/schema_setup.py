"""Set up the tables of a pipeline when it starts: create and migrate them, and bring names and columns up to date.

The columns of a state table depend on the kind of stage: it holds rows of windows or keys, or buffered rows of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch, singledispatchmethod
from typing import Any

import psycopg

from slackwater.errors import StateError, Topic, raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state import migrations
from slackwater.state.commit import FORMAT
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.commit_log import read_latest_commit
from slackwater.state.postgres.join_buffers import JoinTable
from slackwater.state.postgres.pipeline_tables import PipelineTables, add_columns
from slackwater.state.protocol import NoState, StateLayout
from slackwater.windows.state_layout import KeyedStateLayout


def create_shared_tables(db: psycopg.Connection[Any], t: PipelineTables) -> None:
    """Create the schema if necessary, and the tables that all pipelines in it share. `t`: names of the tables."""
    if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (t.schema,)).fetchone() is None:
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {client.quote_name(t.schema)}")
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(7305804402566226542)")  # concurrent CREATE … IF NOT EXISTS can fail
        for statement in t.shared():
            db.execute(statement)


def migrate_tables(db: psycopg.Connection[Any], tables: PipelineTables, location: str) -> None:
    """Migrate the tables and the stored commit of a pipeline from an older format, in one transaction.

    `location`: the location of the store, for messages. Raises StateError if the commit cannot be migrated.
    """
    latest = read_latest_commit(db, tables, location)
    assert latest is not None
    commit, _, version = latest
    with db.transaction():
        current = table_ownership.current_names(db, tables, len(commit.stages))
        for statement in migrations.migration_statements(
            version, [current.for_stage(n) for n in range(len(commit.stages))]
        ):
            db.execute(statement)
        for table, columns, values in (
            (tables.pipelines, "state_version = %s, record = %s", [FORMAT, commit.model_dump_json()]),
            (tables.offsets, "state_version = %s", [FORMAT]),
        ):
            db.execute(f"UPDATE {table} SET {columns} WHERE pipeline_name = %s", [*values, tables.pipeline])


@singledispatch
def column_types(logic: StateLayout, tables: PipelineTables) -> dict[str, str]:
    """Map the columns of a state table to their types, except the columns that all state tables have."""
    raise_unregistered(logic, "slackwater.state.postgres.schema_setup.column_types")


@column_types.register
def _(logic: KeyedStateLayout, tables: PipelineTables) -> dict[str, str]:
    return tables.types(logic)


@column_types.register
def _(logic: CompiledJoin, tables: PipelineTables) -> dict[str, str]:
    return JoinTable(tables, logic).types()


@column_types.register
def _(logic: NoState, tables: PipelineTables) -> dict[str, str]:
    return {}


@singledispatch
def check_columns(logic: StateLayout, tables: PipelineTables, where: str) -> None:
    """Raise StartError for a column whose name or values Postgres cannot store unchanged.

    Args:
        logic: The logic of the stage.
        tables: The tables of the stage.
        where: The prefix of the message.
    """
    raise_unregistered(logic, "slackwater.state.postgres.schema_setup.check_columns")


@check_columns.register
def _(logic: KeyedStateLayout, tables: PipelineTables, where: str) -> None:
    client.check_names(list(tables.columns(logic).values()), where)


@check_columns.register
def _(logic: CompiledJoin, tables: PipelineTables, where: str) -> None:
    JoinTable(tables, logic).check(where)


@check_columns.register
def _(logic: NoState, tables: PipelineTables, where: str) -> None:
    """Do nothing, because a stage without state has no columns."""


@dataclass(frozen=True)
class SchemaSetup:
    """The setup of the tables of one stage.

    Args:
        db: A connection that holds the lock of the pipeline.
        tables: The tables of the stage.
        location: The location of the store, for messages.
        epoch: The epoch of the latest commit, or -1 for a new state.
        begins: Whether the stage is new in an existing state.
    """

    db: psycopg.Connection[Any]
    tables: PipelineTables
    location: str
    epoch: int
    begins: bool = False

    @property
    def continues(self) -> bool:
        """Return whether the state table must already exist, because neither the state nor the stage is new."""
        return self.epoch >= 0 and not self.begins

    def run(self, logic: StateLayout) -> list[str]:
        """Set up the tables, and return the SQL statements with which the next commit must alter them.

        Raises StartError, StateError or a psycopg error.
        """
        check_columns(logic, self.tables, f"pipeline {self.tables.pipeline}: state store")
        if self.continues:
            self._rename()
        return self._run(logic)

    @singledispatchmethod
    def _run(self, logic: StateLayout) -> list[str]:
        raise_unregistered(logic, "slackwater.state.postgres.schema_setup.SchemaSetup")

    @_run.register
    def _(self, logic: KeyedStateLayout) -> list[str]:
        t, altering = self.tables, list[str]()
        if self.continues:
            self._must_exist()
            if t.complete_state(logic):
                self.db.execute(t.complete_state(logic))
            altering = t.alter_state(logic, client.columns_of(self.db, t.state))
            table_ownership.find_owned_table(self.db, t, "windows")
        else:
            self._begin([t.create_state(logic), t.create_index()])
        with self.db.transaction():
            if not altering:  # otherwise, the commit that alters the table creates the view again
                table_ownership.drop_owned_tables(self.db, t, "windows")
            self._empty_staged(logic)
            if not altering:
                self.db.execute(t.create_view(logic))
                table_ownership.record_table_owner(self.db, t, "windows")
        self._forget_outputs()
        return altering

    @_run.register
    def _(self, logic: CompiledJoin) -> list[str]:
        table = JoinTable(self.tables, logic)
        if self.continues:
            self._must_exist()
            self._add_columns(table)
        else:
            self._begin(table.create())
        self._make_staged([table.create_staged()])
        return []

    @_run.register
    def _(self, logic: NoState) -> list[str]:
        if self.continues:
            self._must_exist()
        else:
            self._begin([self.tables.create_empty()])
        self._make_staged([f"CREATE UNLOGGED TABLE {self.tables.staged} (token text NOT NULL)"])
        return []

    def _add_columns(self, table: JoinTable) -> None:
        """Add new columns to the table of a join before the next commit, because workers already read them.

        An empty column of another type is replaced. It is left over from a run that committed nothing.
        """
        existing_types, types = client.types_of(self.db, table.state), table.types()
        for column in (c for c, t in types.items() if existing_types.get(c, t) != t and not t.endswith("NOT NULL")):
            name = client.quote_name(column)
            if self.db.execute(f"SELECT EXISTS (SELECT FROM {table.state} WHERE {name} IS NOT NULL)").fetchone() == (
                False,
            ):
                self.db.execute(f"ALTER TABLE {table.state} DROP COLUMN {name}")
                del existing_types[column]
        if statement := add_columns(table.state, types, existing_types):
            self.db.execute(statement)

    def _rename(self) -> None:
        """Give the tables their current names and comments. Raises StateError if a name already belongs to another owner."""
        with self.db.transaction():
            table_ownership.rename_tables(self.db, self._existing_names(), self.tables)

    def _begin(self, statements: Sequence[str]) -> None:
        """Create the state table with these SQL statements, after dropping leftovers of a failed start."""
        with self.db.transaction():
            current = self._existing_names()
            if current.stage in current.former:  # left by a state whose record was deleted
                table_ownership.drop_owned_tables(self.db, current)
            table_ownership.drop_owned_tables(self.db, self.tables)
            for statement in statements:
                self.db.execute(statement)
            table_ownership.record_table_owner(self.db, self.tables, "state")

    def _existing_names(self) -> PipelineTables:
        """Return the current names of the tables, which an earlier version may have chosen."""
        return table_ownership.current_names(self.db, self.tables, self.tables.stage + 1)

    def _empty_staged(self, logic: KeyedStateLayout) -> None:
        """Empty the table of staged rows. `open` has already merged all rows that the latest commit references.

        A usable table is not dropped, because other connections may be reading from it.
        """
        t = self.tables
        existing_columns = client.columns_of(self.db, t.staged)
        expected_columns = {"token", *t.types(logic), "ordinal", "epoch", "updated_at"}
        is_kept = "epoch" in existing_columns and (self._has_view() or expected_columns == set(existing_columns))
        if not is_kept:
            table_ownership.drop_owned_tables(self.db, t, "staged")
            self._create_staged(t.create_staged(logic))
            return
        table_ownership.find_owned_table(self.db, t, "staged")
        self.db.execute(f"DELETE FROM {t.staged}")
        if statement := add_columns(t.staged, t.types(logic), existing_columns):
            self.db.execute(statement)

    def _has_view(self) -> bool:
        return table_ownership.find_owned_table(self.db, self.tables, "windows") is not None

    def _make_staged(self, statements: Sequence[str]) -> None:
        """Recreate the table of staged rows, and delete staged output of epochs that were not committed."""
        with self.db.transaction():
            table_ownership.drop_owned_tables(self.db, self.tables, "staged")
            self._create_staged(statements)
        self._forget_outputs()

    def _create_staged(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.db.execute(statement)
        table_ownership.record_table_owner(self.db, self.tables, "staged")

    def _forget_outputs(self) -> None:
        """Delete staged output of epochs that were not committed."""
        t = self.tables
        self.db.execute(f"DELETE FROM {t.outputs} WHERE pipeline_name = %s AND epoch > %s", (t.pipeline, self.epoch))

    def _must_exist(self) -> None:
        """Raise StateError if the state table is missing."""
        if not client.table_exists(self.db, self.tables.state):
            raise StateError(
                f'table {self.tables.state} is missing {self.location}, but pipeline "{self.tables.pipeline}" has a '
                f"state (epoch {self.epoch}); restore the table from a backup, or delete the pipeline's row from "
                "slackwater_pipelines to start over",
                Topic.STATE_DAMAGED,
            )
