"""What a start makes ready in tables: those that all pipelines share, and those of each stage, in today's format and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

import psycopg

from slackwater.core.dispatch import unregistered
from slackwater.errors import StateError
from slackwater.joins.logic import JoinLogic
from slackwater.state import migrations
from slackwater.state.commit import FORMAT
from slackwater.state.postgres import client, columns, table_ownership
from slackwater.state.postgres.buffers import JoinTable
from slackwater.state.postgres.snapshot import latest_commit
from slackwater.state.postgres.tables import TableNames
from slackwater.state.protocol import NoState, StageLogic
from slackwater.windows.state_rows import KeyedState


def create_shared_tables(db: psycopg.Connection[Any], t: TableNames) -> None:
    """The schema, and the tables that all pipelines in it share."""
    if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (t.schema,)).fetchone() is None:
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {client.quote_name(t.schema)}")
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(7305804402566226542)")  # IF NOT EXISTS is not safe beside itself
        for statement in t.shared():
            db.execute(statement)


def migrate_tables(db: psycopg.Connection[Any], tables: TableNames, place: str) -> None:
    """Tables of an older format become today's, and the record with them: in one transaction, before the first epoch."""
    latest = latest_commit(db, tables, place)
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


@dataclass(frozen=True)
class SchemaSetup:
    """Makes the tables of one stage: of a state that begins, or that goes on after `epoch` (-1: it begins)."""

    db: psycopg.Connection[Any]
    tables: TableNames
    place: str
    epoch: int
    begins: bool = False  # though the state goes on

    @property
    def continues(self) -> bool:
        """Whether the table has to be there already."""
        return self.epoch >= 0 and not self.begins

    def run(self, logic: StageLogic) -> list[str]:
        """What the next commit changes about the table, as SQL. Raises StartError, StateError and psycopg's errors."""
        columns.check_columns(logic, self.tables, f"pipeline {self.tables.pipeline}: state store")
        if self.continues:
            self._rename()
        return self._run(logic)

    @singledispatchmethod
    def _run(self, logic: StageLogic) -> list[str]:
        unregistered(logic, "slackwater.state.postgres.schema_setup.SchemaSetup")

    @_run.register
    def _(self, logic: KeyedState) -> list[str]:
        t, altering = self.tables, list[str]()
        if self.continues:
            self._must_exist()
            if t.complete_state(logic):
                self.db.execute(t.complete_state(logic))
            altering = t.alter_state(logic, client.columns_of(self.db, t.state))
            table_ownership.own_table(self.db, t, "windows")
        else:
            self._begin([t.create_state(logic), t.create_index()])
        with self.db.transaction():
            if not altering:  # else the commit that changes the table makes it anew
                table_ownership.drop_tables(self.db, t, "windows")
            self._empty_staged(logic)
            if not altering:
                self.db.execute(t.create_view(logic))
                table_ownership.sign_table(self.db, t, "windows")
        self._forget_outputs()
        return altering

    @_run.register
    def _(self, logic: JoinLogic) -> list[str]:
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
        """Those that came since; workers read them before the next commit, and who does not know them is not disturbed.

        One that bears the name and is of another type was added by a start that committed nothing: it is empty, and goes.
        """
        existing_types, types = client.types_of(self.db, table.state), table.types()
        for column in (c for c, t in types.items() if existing_types.get(c, t) != t and not t.endswith("NOT NULL")):
            name = client.quote_name(column)
            if self.db.execute(f"SELECT EXISTS (SELECT FROM {table.state} WHERE {name} IS NOT NULL)").fetchone() == (
                False,
            ):
                self.db.execute(f"ALTER TABLE {table.state} DROP COLUMN {name}")
                del existing_types[column]
        if statement := table.alter(list(existing_types)):
            self.db.execute(statement)

    def _rename(self) -> None:
        """The state under its name of today, with its comment. Raises StateError if it is somebody else's."""
        with self.db.transaction():
            table_ownership.rename_tables(self.db, self._located(), self.tables)

    def _begin(self, statements: Sequence[str]) -> None:
        """The table of a state that begins, in the place of what a start that failed left."""
        with self.db.transaction():
            current = self._located()
            if current.stage in current.former:  # of a state whose record was deleted
                table_ownership.drop_tables(self.db, current, "windows", "staged", "state")
            table_ownership.drop_tables(self.db, self.tables, "windows", "staged", "state")
            for statement in statements:
                self.db.execute(statement)
            table_ownership.sign_table(self.db, self.tables, "state")

    def _located(self) -> TableNames:
        """The tables under the names that they bear."""
        return table_ownership.current_names(self.db, self.tables, self.tables.stage + 1)

    def _empty_staged(self, logic: KeyedState) -> None:
        """The table of staged rows without any: what the latest commit named was folded when the store was opened.

        A table that is as it should be stays, as others may be reading it.
        """
        t = self.tables
        existing_columns = client.columns_of(self.db, t.staged)
        expected_columns = {"token", *t.types(logic), "ordinal", "epoch", "updated_at"}
        is_kept = "epoch" in existing_columns and (self._has_view() or expected_columns == set(existing_columns))
        if not is_kept:
            table_ownership.drop_tables(self.db, t, "staged")
            self._create_staged(t.create_staged(logic))
            return
        table_ownership.own_table(self.db, t, "staged")
        self.db.execute(f"DELETE FROM {t.staged}")
        if statement := t.complete_staged(logic, existing_columns):
            self.db.execute(statement)

    def _has_view(self) -> bool:
        return table_ownership.own_table(self.db, self.tables, "windows") is not None

    def _make_staged(self, statements: Sequence[str]) -> None:
        """An empty table for what workers stage; output of epochs that were not committed goes."""
        with self.db.transaction():
            table_ownership.drop_tables(self.db, self.tables, "staged")
            self._create_staged(statements)
        self._forget_outputs()

    def _create_staged(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.db.execute(statement)
        table_ownership.sign_table(self.db, self.tables, "staged")

    def _forget_outputs(self) -> None:
        t = self.tables
        self.db.execute(f"DELETE FROM {t.outputs} WHERE pipeline_name = %s AND epoch > %s", (t.pipeline, self.epoch))

    def _must_exist(self) -> None:
        table = self.tables.state
        row = self.db.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        if row is None or row[0] is None:
            raise StateError(
                f'table {table} is missing {self.place}, and pipeline "{self.tables.pipeline}" has state in epoch {self.epoch}; '
                "restore it from a backup, or delete the pipeline's row from slackwater_pipelines to start over"
            )
