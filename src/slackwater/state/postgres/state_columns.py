"""The columns of a stage's table, for each kind of state: rows of windows and keys, or buffered rows of a join."""

from __future__ import annotations

from functools import singledispatch

from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.state.postgres import client
from slackwater.state.postgres.join_buffers import JoinTable
from slackwater.state.postgres.table_names import TableNames
from slackwater.state.protocol import NoState, StateLayout
from slackwater.windows.state_rows import KeyedStateLayout


@singledispatch
def column_types(logic: StateLayout, tables: TableNames) -> dict[str, str]:
    """Map the columns of a stage's table to their types, except the columns that all state tables share."""
    raise_unregistered(logic, "slackwater.state.postgres.state_columns.column_types")


@column_types.register
def _(logic: KeyedStateLayout, tables: TableNames) -> dict[str, str]:
    return tables.types(logic)


@column_types.register
def _(logic: CompiledJoin, tables: TableNames) -> dict[str, str]:
    return JoinTable(tables, logic).types()


@column_types.register
def _(logic: NoState, tables: TableNames) -> dict[str, str]:
    return {}


@singledispatch
def check_columns(logic: StateLayout, tables: TableNames, where: str) -> None:
    """Raise StartError for a column whose name or values Postgres cannot store unchanged."""
    raise_unregistered(logic, "slackwater.state.postgres.state_columns.check_columns")


@check_columns.register
def _(logic: KeyedStateLayout, tables: TableNames, where: str) -> None:
    client.check_names(list(tables.columns(logic).values()), where)


@check_columns.register
def _(logic: CompiledJoin, tables: TableNames, where: str) -> None:
    JoinTable(tables, logic).check(where)


@check_columns.register
def _(logic: NoState, tables: TableNames, where: str) -> None:
    """Do nothing: a stage without state has no columns."""
